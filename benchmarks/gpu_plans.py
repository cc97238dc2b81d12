"""Tune the seed's 64 profiles on this GPU, or replay a frozen document: one process, one line of JSON on stdout.

`python -m benchmarks.gpu_plans DOCUMENT [--replay]`. The GEMM of 2,048 rows that a warm-up wants is really run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_correct import SHAPES
from kernels.backends.cpu import random_operand
from kernels.backends.cuda import CudaBackend, metadata
from kernels.plans.selected import map_sha256
from kernels.plans.settings import Settings
from kernels.serve.engine import log_line
from kernels.warmup import PlanRuntime

MAX_TOKENS = 2048


def open_runtime(backend: CudaBackend, document: Path, read_only: bool) -> PlanRuntime:
    """A plan runtime over `document`, warmed up for every bucket up to 2,048 rows of the four shapes."""
    env = {"VT_FP4_AUTOTUNE_CACHE_PATH": str(document), "VT_FP4_AUTOTUNE_CACHE_READONLY": str(int(read_only))}
    settings = Settings.from_env(env)
    described = metadata(settings, backend)
    runtime = PlanRuntime(
        settings, described, backend.tactics, backend.tune, log_line, env=env, plan_fields=backend.plan_fields
    )
    n, k = SHAPES[2]
    with runtime.warmup(MAX_TOKENS, SHAPES) as scope:
        weight = backend.prepare(random_operand(0, n, k))
        with backend.session():
            backend.gemm(runtime.tactic(MAX_TOKENS, n, k), backend.on_device(random_operand(1, MAX_TOKENS, k)), weight)
        scope.complete()
    return runtime


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_plans")
    parser.add_argument("document", type=Path)
    parser.add_argument("--replay", action="store_true", help="read-only: a missing plan is an error")
    options = parser.parse_args(argv)
    begun = time.monotonic()
    backend = CudaBackend()
    stats = open_runtime(backend, options.document, options.replay).stats
    seconds = time.monotonic() - begun
    result: dict[str, Any] = {
        "counts": vars(backend.counts),
        "failed": backend.failed_candidates,
        "gpu": backend.library.device.name,
        "loaded": stats.profiles_loaded,
        "map_sha256": map_sha256(stats.selected_plans),
        "mode": stats.mode,
        "pid": os.getpid(),
        "plans": len(stats.selected_plans),
        "saved": stats.profiles_saved,
        "seconds": round(seconds, 2),
        "tuned": stats.profiles_tuned,
    }
    print(json.dumps(result, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
