"""The NVFP4 runtime: tactics, persistent plans, CPU backend and the reference engine. Knows nothing of the harness."""
