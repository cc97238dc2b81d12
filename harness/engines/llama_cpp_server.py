"""Run llama.cpp's own HTTP server on one model, in the foreground, until SIGTERM or SIGINT.

A program for the engine's own environment: standard library and xllamacpp, nothing of this project. Whatever makes one
request depend on an earlier one is off: prompt reuse, the 8 GiB store of idle slots' prompts, context checkpoints.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import xllamacpp


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="llama.cpp's HTTP server with a fixed set-up.")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--slots", type=int, required=True, help="requests decoded together")
    parser.add_argument("--slot-context", type=int, required=True, help="tokens of one slot's key-value cache")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="tokens handed to the engine at once")
    parser.add_argument("--ubatch", type=int, required=True, help="tokens computed at once")
    return parser.parse_args()


def parameters(options: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.slot_context * options.slots  # the engine divides it by the number of slots
    params.n_batch = options.batch
    params.n_ubatch = options.ubatch
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.n_gpu_layers = 0
    params.n_threads_http = options.slots + 64  # an open stream holds one; clients' streams outnumber the slots
    params.cont_batching = True
    params.warmup = True
    params.fit_params = False  # would shrink the context to what it believes is free memory
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.n_ctx_checkpoints = 0
    params.sse_ping_interval = -1  # no comment lines into a stream that waits for its slot
    return params


def say(sentence: str) -> None:
    """One write, with a line's end before it too: llama.cpp logs from a thread of its own and may be inside a line."""
    os.write(sys.stdout.fileno(), f"\n{sentence}\n".encode())


def main() -> None:
    options = parse()
    # Blocked before the engine starts its threads, so that they inherit the mask and sigwait below is the only taker.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    started = time.monotonic()
    try:
        server = xllamacpp.Server(parameters(options))
    except RuntimeError as error:
        say(f"cannot serve {options.model} on port {options.port}: {error} (llama.cpp's own lines say why)")
        raise SystemExit(1)
    say(f"ready on {server.listening_address} after {time.monotonic() - started:.3f} s")
    say(f"stopping on {signal.Signals(signal.sigwait(signals)).name}")
    os._exit(0)  # streams still open would hold the server's orderly end for as long as they run


if __name__ == "__main__":
    main()
