"""Tactics and producers once on edge shapes, without a reference: what compute-sanitizer runs.

`compute-sanitizer --tool memcheck python -m benchmarks.gpu_edges [--some | TACTIC…]`. `--some`: every third tactic of
each runner whose kernels are this library's; nothing: all.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.gpu_correct import EDGES
from kernels.backends.cpu import random_operand
from kernels.backends.cuda import CudaBackend
from kernels.tactics import TacticSet


def some(tactics: TacticSet) -> list[int]:
    """A sample over tiles, schedules and sides."""
    named = ((tactic.id, *tactics.named(tactic.id)) for tactic in tactics)
    return [number for number, runner, own in named if own % 3 == 0 and runner != "hopper_cublas_bf16"]


def main(argv: list[str]) -> int:
    backend = CudaBackend()
    if argv == ["--some"]:
        chosen = some(backend.tactics)
    else:
        chosen = [int(text) for text in argv] or [tactic.id for tactic in backend.tactics]
    with backend.session():
        for m, n, k in EDGES:
            values = backend.xp.asarray(np.random.default_rng(m).standard_normal((m, 2 * k)).astype(np.float32))
            for direct in (True, False):
                producer = backend.producer(direct)
                producer.quantise(values, 168.0)
                producer.swiglu(values, 168.0)
            weight = backend.prepare(random_operand(n, n, k))
            for a in (backend.on_device(random_operand(m, m, k)), backend.activation(random_operand(m, m, k))):
                for tactic in set(chosen) & set(backend.offered(m, n, k)):
                    backend.gemm(tactic, a, weight)
        backend.stream.synchronize()
    print(f"{len(chosen)} tactics on {len(EDGES)} shapes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
