"""Times of every tactic, L2-cold: replays of a graph over rotated weight copies (180 MB and more), median of nine.

Floor = max(bytes / 4.3 TB/s, flops / 790 TFLOP/s), of packed weight, scales, bfloat16 activations and output. With
PyTorch at hand cuBLAS bf16 on resident weights is timed the same way, in the same run.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernels.backends.cpu import random_operand
from kernels.backends.cuda import CudaBackend
from kernels.errors import KernelError

__all__ = ["ROTATION", "cold_times", "cublas_times", "floor_us", "torch_replays"]

ROTATION = 180_000_000  # bytes, three times the L2
_REPLAYS = 9
_LEAST_SECONDS = 1.5e-3  # a graph is at least this long, so that its launch does not show


def floor_us(m: int, n: int, k: int) -> float:
    """Microseconds that no kernel on an H200 beats: bytes moved once, or the product at the bf16 rate."""
    moved = n * k / 2 + n * k / 16 + 2 * m * k + 2 * m * n
    return max(moved / 4.3e12, 2 * m * n * k / 790e12) * 1e6


def cold_times(backend: CudaBackend, n: int, k: int, rows: Sequence[int]) -> Iterator[tuple[int, int, float | None]]:
    """(M, tactic, microseconds) for every tactic; None for one that cannot run."""
    with backend.session():
        copies = -(-ROTATION // (n * k * 9 // 16))
        weights = [backend.prepare(random_operand(seed, n, k)) for seed in range(min(copies, 2))]
        weights += [backend.prepare(_copied(backend, weights[0].matrix)) for _ in range(copies - len(weights))]
        for m in rows:
            a = backend.activation(random_operand(m, m, k))
            out = backend.xp.empty((m, n), dtype=np.uint16)
            for tactic in backend.offered(m, n, k):
                yield m, tactic, _cold(backend, tactic, a, weights, out)
    backend.forget_operands()


def _copied(backend: CudaBackend, matrix: Any) -> Any:
    return type(matrix)(matrix.packed.copy(), matrix.scales.copy(), matrix.rows, matrix.k, matrix.global_scale)


def _cold(backend: CudaBackend, tactic: int, a: Any, weights: Sequence[Any], out: Any) -> float | None:
    calls = [(tactic, a, weight, out.data.ptr, backend.alpha(a, weight)) for weight in weights]

    def rotation() -> None:
        for call in calls:
            backend.launch(*call)

    try:
        rotation()
        backend.stream.synchronize()
        once = _seconds(backend, rotation)
        times = max(1, int(_LEAST_SECONDS / once))

        def work() -> None:
            for _ in range(times):
                rotation()

        graph = backend.capture(work)
        graph.launch()
        median = statistics.median(_seconds(backend, graph.launch) for _ in range(_REPLAYS))
    except KernelError:
        return None
    return median / (times * len(weights)) * 1e6


def _seconds(backend: CudaBackend, work: Callable[[], Any]) -> float:
    events = backend.xp.cuda.Event(), backend.xp.cuda.Event()
    events[0].record(backend.stream)
    work()
    events[1].record(backend.stream)
    events[1].synchronize()
    milliseconds: float = backend.xp.cuda.get_elapsed_time(*events)
    return milliseconds / 1e3


def cublas_times(n: int, k: int, rows: Sequence[int]) -> dict[int, float] | None:
    """Microseconds of torch.matmul by M, on rotated bfloat16 weights; None without PyTorch."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    copies = max(2, -(-ROTATION // (2 * n * k)))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
    found = {}
    for m in rows:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        launches = [partial(torch.matmul, a, weight.T, out=out) for weight in weights]
        found[m] = torch_replays(torch, launches, floor_us(m, n, k))
    del weights
    torch.cuda.empty_cache()
    return found


def torch_replays(torch: Any, launches: Sequence[Callable[[], object]], least_us: float) -> float:
    """Microseconds of one of `launches`, each on another copy of the weight: the median of nine replays of a graph that
    holds all of them, as often as it takes to run long enough. `least_us` is what one takes at least."""
    times = max(1, int(_LEAST_SECONDS / (len(launches) * least_us * 4e-6)))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for launch in launches:
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            for launch in launches:
                launch()
    graph.replay()
    seconds = []
    for _ in range(_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds) / (times * len(launches)) * 1e6
