"""Fixed small work whose time tells a slow host: `python -m harness.telemetry.canary [--gpu]`, a process of its own.

A GB10 can fall into a state in which a matrix-vector product takes 3.3 times as long while copies, clocks and
nvidia-smi look as ever. So a copy and a product are timed before and after each leg, on the CPU always and on the GPU
where CuPy or PyTorch can be imported here. The best of many rounds counts: a neighbour's burst spoils some of them, a
slow state all.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from harness import canonical
from harness.records import Canary
from harness.telemetry import bounded

__all__ = ["main", "sing"]

TIMEOUT_S = 30.0
GPU_TIMEOUT_S = 180.0  # importing PyTorch and making a context take 10 s on a cold disk
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
CPU_COPY_BYTES = 32 << 20  # beyond the caches that one core has to itself
CPU_PIECE = 1 << 20  # 0.1 ms: a round that takes longer than a time slice has a neighbour in it on any busy machine
CPU_GEMV = 512  # 1 MiB of float32, inside them
GPU_COPY_BYTES = 256 << 20
GPU_GEMV = 8192  # 128 MiB of float16: more than the caches, as a decoder's weights
CPU_ROUNDS, GPU_ROUNDS, BLOCK = 40, 30, 50


def sing(gpu: bool) -> Canary:
    """Run the canary. What was not measured is absent with its reason; a canary that hangs is killed."""
    try:
        out = bounded.python(
            "harness.telemetry.canary",
            *(["--gpu"] if gpu else []),
            timeout_s=GPU_TIMEOUT_S if gpu else TIMEOUT_S,
            env=ONE_THREAD,
        )
    except bounded.Unanswered as error:
        names = ("cpu_copy", "cpu_gemv", "gpu_copy", "gpu_gemv")
        return Canary({}, dict.fromkeys(names, f"the canary failed: {error}"))
    return Canary.from_json(canonical.loads(out, "the canary"))


def _best(work: Callable[[], object], rounds: int) -> int:
    best = 0
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        work()
        took = time.perf_counter_ns() - begun
        best = min(best or took, took)
    return best


def _cpu() -> dict[str, int]:
    import numpy as np

    source = np.ones(CPU_COPY_BYTES // 8).reshape(-1, CPU_PIECE // 8)
    target = np.zeros_like(source)  # written once, so that no round pays for page faults
    pieces = itertools.cycle(zip(target, source, strict=True))
    matrix, vector = np.ones((CPU_GEMV, CPU_GEMV), np.float32), np.ones(CPU_GEMV, np.float32)
    result = np.empty(CPU_GEMV, np.float32)

    def products() -> None:
        for _ in range(BLOCK):
            np.dot(matrix, vector, out=result)

    return {
        "cpu_copy": _best(lambda: np.copyto(*next(pieces)), CPU_ROUNDS * len(source)),
        "cpu_gemv": _best(products, CPU_ROUNDS) // BLOCK,
    }


def _gpu() -> dict[str, int]:
    """ImportError where neither library is here; whatever the library raises where it fails."""
    if importlib.util.find_spec("cupy"):
        copy, product, wait = _cupy()
    elif importlib.util.find_spec("torch"):
        copy, product, wait = _torch()
    else:
        raise ImportError("neither CuPy nor PyTorch is installed beside the harness")

    def timed(work: Callable[[], object]) -> int:
        def block() -> None:
            for _ in range(BLOCK):
                work()
            wait()

        return _best(block, GPU_ROUNDS) // BLOCK

    return {"gpu_copy": timed(copy), "gpu_gemv": timed(product)}


def _cupy() -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    cupy = importlib.import_module("cupy")
    source = cupy.ones(GPU_COPY_BYTES // 4, cupy.float32)
    target = cupy.empty_like(source)
    matrix, vector = cupy.ones((GPU_GEMV, GPU_GEMV), cupy.float16), cupy.ones(GPU_GEMV, cupy.float16)
    return lambda: cupy.copyto(target, source), lambda: matrix @ vector, cupy.cuda.get_current_stream().synchronize


def _torch() -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    torch = importlib.import_module("torch")
    source = torch.ones(GPU_COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    matrix = torch.ones((GPU_GEMV, GPU_GEMV), dtype=torch.float16, device="cuda")
    vector = torch.ones(GPU_GEMV, dtype=torch.float16, device="cuda")
    return lambda: target.copy_(source), lambda: torch.mv(matrix, vector), torch.cuda.synchronize


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.telemetry.canary")
    parser.add_argument("--gpu", action="store_true", help="time the GPU, too")
    options = parser.parse_args(argv)
    best, absent = _cpu(), dict.fromkeys(("gpu_copy", "gpu_gemv"), "no NVML device")
    if options.gpu:
        try:
            best, absent = {**best, **_gpu()}, {}
        except Exception as error:  # a GPU library fails in ways of its own, and its absence is an answer
            absent = dict.fromkeys(absent, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    sys.stdout.write(canonical.dumps(Canary(best, absent).to_json()).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
