"""Is what the GPU computes right? Producers byte for byte, every tactic against float64 and captured, on fresh inputs.

The float64 reference is computed twice: on the GPU from the expanded operands, and on the CPU from the packed bytes for
some columns; the two must agree before any tactic is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.backends.cpu import random_operand
from kernels.backends.cuda import CudaBackend
from kernels.backends.runners import ExpandedMatrix
from kernels.errors import KernelError
from kernels.nvfp4 import Fp4Matrix, Producer, reference_gemm, swizzle, unswizzle

__all__ = ["EDGES", "SHAPES", "Report", "check_all"]

SHAPES = ((14336, 5120), (34816, 5120), (5120, 6144), (5120, 17408))  # (N, K)
EDGES = ((1, 128, 256), (7, 256, 512), (127, 384, 1024), (129, 640, 256))  # (M, N, K)
_ROWS = (1, 127)
_COLUMNS = 24  # checked on the CPU too
_TOLERANCE = 2e-3  # bfloat16 rounding of the output alone is 1.65e-3
_POISON = 0x7FC0
_REPLAYS = 100


@dataclass
class Report:
    """Facts checked, and the sentence of each that failed."""

    checked: int = 0
    failed: list[str] = field(default_factory=list)
    worst_error: float = 0.0

    def check(self, fact: bool, what: str) -> None:
        self.checked += 1
        if not fact:
            self.failed.append(what)


def check_all(backend: CudaBackend, seed: int, shapes: Sequence[tuple[int, int]] = SHAPES) -> Report:
    """Every check on inputs drawn from `seed`."""
    report = Report()
    random = np.random.default_rng(seed)
    with backend.session():
        for _, k in shapes:
            for rows in _ROWS:
                _check_producers(backend, report, random, rows, k)
        for m, n, k in (*EDGES, *((rows, n, k) for n, k in shapes for rows in (1, 16, 127))):
            _check_tactics(backend, report, random, (m, n, k))
    return report


def _equal(device: Any, host: Any) -> bool:
    return bool(np.array_equal(device.get().reshape(-1), np.asarray(host).reshape(-1)))


def _check_producers(backend: CudaBackend, report: Report, random: np.random.Generator, rows: int, k: int) -> None:
    values = (random.standard_normal((rows, k)) * np.exp2(random.integers(-6, 6, (rows, 1)))).astype(np.float32)
    where = f"producers of {rows}x{k}"
    direct, composed = (backend.producer(way).quantise(backend.xp.asarray(values), 168.0) for way in (True, False))
    cpu = Producer().quantise(values, 168.0)
    report.check(_equal(direct.packed, cpu.packed), f"{where}: direct codes differ from the CPU's")
    report.check(_equal(direct.scales, cpu.scales), f"{where}: direct scale bytes differ from the CPU's")
    _check_arms(report, direct, composed, where)
    for made in (direct, composed):
        _check_expanded(backend, report, made, where)
    gate_up = random.standard_normal((rows, 2 * k)).astype(np.float32)
    fused, apart = (backend.producer(way).swiglu(backend.xp.asarray(gate_up), 168.0) for way in (True, False))
    _check_arms(report, fused, apart, f"{where} behind SiLU")
    _check_expanded(backend, report, fused, f"{where} behind SiLU")
    gate, up = gate_up[:, :k].astype(np.float64), gate_up[:, k:].astype(np.float64)
    exact = Producer().quantise((gate / (1 + np.exp(-gate)) * up).astype(np.float32), 168.0)
    other = float(np.mean(fused.packed.get() != exact.packed))
    report.check(other < 1e-3, f"{where} behind SiLU: {other:.1e} of the bytes differ from float64's")


def _check_arms(report: Report, direct: Fp4Matrix, composed: Fp4Matrix, where: str) -> None:
    report.check(_equal(direct.packed, composed.packed.get()), f"{where}: codes of the arms differ")  # type: ignore[attr-defined]
    report.check(_equal(direct.scales, composed.scales.get()), f"{where}: scale bytes of the arms differ")  # type: ignore[attr-defined]
    again = swizzle(unswizzle(direct.scales.get(), direct.rows, direct.k))  # type: ignore[attr-defined]
    report.check(_equal(direct.scales, again), f"{where}: padded slots are not zero")


def _check_expanded(backend: CudaBackend, report: Report, made: Any, where: str) -> None:
    """A producer's expanded activation is what its codes and scales expand to."""
    if isinstance(made, ExpandedMatrix):
        report.check(_equal(made.expanded, _expanded(backend, made).get()), f"{where}: expanded values differ")


def _operands(random: np.random.Generator, m: int, n: int, k: int) -> Iterator[tuple[str, Fp4Matrix, Fp4Matrix]]:
    """Gaussian values, whose sums float32 holds exactly, and scales over 14 binary orders, where the order shows."""
    gaussian = Producer()
    a, b = (random.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    yield "gaussian", gaussian.quantise(a, 168.0), gaussian.quantise(b, 168.0)
    yield "wide", *(random_operand(int(random.integers(2**31)), rows, k) for rows in (m, n))


def _expanded(backend: CudaBackend, matrix: Any) -> Any:
    """Code x scale (rows, k) as bfloat16 bits."""
    out = backend.xp.empty((matrix.rows, matrix.k), dtype=np.uint16)
    arguments = (matrix.packed.data.ptr, matrix.scales.data.ptr, out.data.ptr, matrix.rows, matrix.k)
    backend.library.check(backend.library.expand(*arguments, backend.stream.ptr), "expanding")
    return out


def _reference(backend: CudaBackend, a: Fp4Matrix, weight: Any) -> Any:
    """Float64 (m, n) on the GPU."""

    def values(matrix: Any) -> Any:
        return backend.widen(_expanded(backend, matrix)).astype(np.float64)

    return values(a) @ values(weight.matrix).T / (a.global_scale * weight.global_scale)


def _check_tactics(
    backend: CudaBackend, report: Report, random: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    for kind, a_host, b_host in _operands(random, m, n, k):
        # without and with the expanded form, so that runners expand activations themselves too
        place = backend.on_device if kind == "gaussian" else backend.activation
        a, weight = place(a_host), backend.prepare(b_host)
        expected = _reference(backend, a, weight)
        some = np.sort(random.choice(n, min(n, _COLUMNS), replace=False))
        linear = unswizzle(b_host.scales, n, k)[some]
        part = Fp4Matrix(b_host.packed[some], swizzle(np.ascontiguousarray(linear)), len(some), k, b_host.global_scale)
        twice = reference_gemm(a_host, part)
        distance = np.abs(expected.get()[:, some] - twice).max() / np.abs(twice).max()
        report.check(distance < 1e-12, f"{m}x{n}x{k} {kind}: the two float64 references differ by {distance:.1e}")
        norm = float(backend.xp.linalg.norm(expected))
        for tactic in backend.offered(m, n, k):
            where = f"tactic {tactic} {m}x{n}x{k} {kind}"
            _check_tactic(backend, report, (tactic, a, weight), (expected, norm), where)


def _check_tactic(
    backend: CudaBackend,
    report: Report,
    work: tuple[int, Fp4Matrix, Any],
    reference: tuple[Any, float],
    where: str,
) -> None:
    xp = backend.xp
    expected, norm = reference
    out = xp.full(expected.shape, _POISON, dtype=np.uint16)
    arguments = (*work, out.data.ptr, backend.alpha(*work[1:]))
    try:
        backend.launch(*arguments)
        error = float(xp.linalg.norm(backend.widen(out).astype(np.float64) - expected)) / norm
        report.check(error < _TOLERANCE, f"{where}: relative error {error:.2e}")  # NaN fails too
        report.worst_error = max(report.worst_error, error)
        first = out.copy()
        graph = backend.capture(lambda: backend.launch(*arguments))
        differ = xp.zeros(out.shape, dtype=bool)
        for _ in range(_REPLAYS):
            out.fill(_POISON)
            graph.launch()
            differ |= out != first
        report.check(not bool(differ.any()), f"{where}: one of {_REPLAYS} replays gave other bytes")
    except KernelError as error:
        report.check(False, f"{where}: {error.message}")
