"""Tune a plan document in this process, or replay one frozen, and say so in one line of JSON on stdout.

`python -m kernels.tune DOCUMENT [--backend cpu|cuda] [--shape N,K …] [--max-tokens M] [--replay]`. The GEMM of M rows
that a warm-up demands is really run. Exit 1 with a sentence on stderr where anything is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernels.backends import cpu, cuda
from kernels.backends.base import Backend
from kernels.backends.cpu import CpuBackend, random_operand
from kernels.backends.cuda import CudaBackend
from kernels.errors import KernelError
from kernels.plans.metadata import Metadata
from kernels.plans.selected import map_sha256
from kernels.plans.settings import Settings
from kernels.serve.engine import log_line
from kernels.warmup import PlanRuntime

__all__ = ["GATE_SHAPES", "open_backend", "open_runtime"]

Shape = tuple[int, int]  # (N, K)
GATE_SHAPES: tuple[Shape, ...] = ((5120, 6144), (5120, 17408), (14336, 5120), (34816, 5120))


def open_backend(device: str, settings: Settings) -> tuple[Backend, Metadata]:
    """The backend `cpu` or `cuda`, and what its plans are bound to."""
    if device == "cpu":
        return CpuBackend(), cpu.metadata(settings)
    backend = CudaBackend(delay_us=settings.delay_us)
    return backend, cuda.metadata(settings, backend)


def open_runtime(
    device: str, document: Path, *, read_only: bool, shapes: Sequence[Shape] = GATE_SHAPES, max_tokens: int = 2048
) -> tuple[PlanRuntime, Backend]:
    """A plan runtime over `document`, warmed up for every M bucket up to `max_tokens` of `shapes`."""
    env = {
        **{name: value for name, value in os.environ.items() if name == "VT_FP4_AUTOTUNE_DELAY_US"},
        "VT_FP4_AUTOTUNE_CACHE_PATH": str(document),
        "VT_FP4_AUTOTUNE_CACHE_READONLY": str(int(read_only)),
    }
    settings = Settings.from_env(env)
    backend, described = open_backend(device, settings)
    runtime = PlanRuntime(
        settings, described, backend.tactics, backend.tune, log_line, env=env, plan_fields=backend.plan_fields
    )
    n, k = min(shapes)
    with runtime.warmup(max_tokens, shapes) as scope, backend.session():
        weight = backend.prepare(random_operand(0, n, k))
        activation = backend.on_device(random_operand(1, max_tokens, k))
        backend.gemm(runtime.tactic(max_tokens, n, k), activation, weight)
        scope.complete()
    return runtime, backend


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    begun = time.monotonic()
    try:
        runtime, backend = open_runtime(
            options.backend,
            options.document,
            read_only=options.replay,
            shapes=options.shape or GATE_SHAPES,
            max_tokens=options.max_tokens,
        )
    except KernelError as error:
        log_line(f"kernels.tune: {error.message} [{error.code}]")
        return 1
    stats = runtime.stats
    result: dict[str, Any] = {
        "counts": vars(backend.counts),
        "device": runtime.metadata.gpu,
        "failed": backend.failed_candidates,
        "loaded": stats.profiles_loaded,
        "map_sha256": map_sha256(stats.selected_plans),
        "mode": stats.mode,
        "pid": os.getpid(),
        "plans": len(stats.selected_plans),
        "saved": stats.profiles_saved,
        "seconds": round(time.monotonic() - begun, 2),
        "tuned": stats.profiles_tuned,
    }
    print(json.dumps(result, sort_keys=True))
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune", description="Tune or replay a plan document.")
    parser.add_argument("document", type=Path)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", type=_shape, action="append", metavar="N,K", help="default: the gates' four")
    parser.add_argument("--max-tokens", type=int, default=2048, metavar="M")
    parser.add_argument("--replay", action="store_true", help="read-only: a missing plan is an error")
    return parser.parse_args(argv)


def _shape(text: str) -> Shape:
    n, k = text.split(",")
    return int(n), int(k)


if __name__ == "__main__":
    sys.exit(main())
