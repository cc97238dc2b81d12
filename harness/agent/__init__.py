"""What a controller may ask of the GPU host, whether it is this machine or one behind SSH: eleven commands.

`python -m harness.agent COMMAND` reads a request from stdin and frames its answer; the local transport calls `answer`
in process. So both kinds of run share one path, and one layout of bundle.
"""
