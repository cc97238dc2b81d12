"""A run without its engine: the whole plan of a gate against made processes, then every real step after the last leg.

Supervisor, legs, client's files, sealing, verdict, reports and `verify` are the ones of a real run; only what
`harness.machine` does to a host is made up here. Nothing is started, nothing is measured, no lease is taken.
"""
