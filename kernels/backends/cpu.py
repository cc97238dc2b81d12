"""The CPU backend: NVFP4 GEMM out of one-threaded sgemm, with six tactics that differ in blocking, order and time.

A GEMM takes packed codes and swizzled scales of both operands. The weight's float32 expansion is made once at load (the
activation's on every call): 8 times the packed weight's memory, and decoding it each time would cost more than the
product. Values and partial sums are float32, the result is scaled by alpha and rounded to bfloat16.
"""

from __future__ import annotations

import ctypes
import math
import platform
import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kernels.backends.tuning import Choice, Counts, choose
from kernels.build_id import build_id
from kernels.errors import KernelError, TuningError
from kernels.nvfp4 import (
    BLOCK,
    F32,
    U8,
    Fp4Matrix,
    Producer,
    bf16_round,
    decode_pairs,
    swizzle,
    ue4m3_decode,
    unswizzle,
)
from kernels.plans.key import PlanKey
from kernels.plans.metadata import Metadata
from kernels.plans.settings import Settings
from kernels.tactics import TacticSet

__all__ = ["CPU_TACTICS", "CpuBackend", "CpuTactic", "CpuWeight", "blas_threads", "metadata", "random_operand"]

_REPEATS, _WARMUPS = 10, 3
_N_BLOCK, _M_BLOCK, _SPLITS = 128, 64, 4
_ABI_SOURCES = ("backends/cpu.py", "backends/tuning.py", "buckets.py", "nvfp4.py", "tactics.py")


@dataclass(frozen=True)
class CpuWeight:
    """A weight ready to multiply: `expanded` (k, n) float32 is code x scale, without the global scale."""

    expanded: F32
    n: int
    k: int
    global_scale: float

    @classmethod
    def of(cls, matrix: Fp4Matrix) -> CpuWeight:
        expanded = np.ascontiguousarray(_expand(matrix.packed, unswizzle(matrix.scales, matrix.rows, matrix.k)).T)
        return cls(expanded, matrix.rows, matrix.k, matrix.global_scale)


@dataclass(frozen=True)
class CpuTactic:
    """One way to order the product. `run` writes the unscaled float32 product (m, n) of `a` into `out`."""

    id: int
    name: str
    run: Callable[[Fp4Matrix, F32, F32], None] = field(compare=False)

    @property
    def descriptor(self) -> str:
        return f"{self.id}:{self.name};"


def _expand(packed: U8, scales: U8) -> F32:
    """Code x scale (rows, k) float32: exact, since it needs 6 significant bits."""
    values = decode_pairs(packed)
    grouped = values.reshape(-1, BLOCK)
    grouped *= ue4m3_decode(scales).reshape(-1, 1)
    return values


def _operand(a: Fp4Matrix) -> F32:
    return _expand(a.packed, unswizzle(a.scales, a.rows, a.k))


def _whole(a: Fp4Matrix, weight: F32, out: F32) -> None:
    np.matmul(_operand(a), weight, out=out)


def _swapped(a: Fp4Matrix, weight: F32, out: F32) -> None:
    out[...] = np.matmul(weight.T, _operand(a).T).T


def _split_k(a: Fp4Matrix, weight: F32) -> list[F32]:
    """Partial products over at most four slices of K, each a multiple of 16."""
    operand = _operand(a)
    blocks = a.k // BLOCK
    edges = sorted({blocks * i // _SPLITS * BLOCK for i in range(_SPLITS + 1)})
    return [operand[:, low:high] @ weight[low:high] for low, high in pairwise(edges)]


def _split_k_ascending(a: Fp4Matrix, weight: F32, out: F32) -> None:
    first, *rest = _split_k(a, weight)
    out[...] = first
    for part in rest:
        out += part


def _split_k_pairwise(a: Fp4Matrix, weight: F32, out: F32) -> None:
    parts = _split_k(a, weight)
    while len(parts) > 1:
        parts = [
            np.add(*pair) if len(pair) == 2 else pair[0] for pair in (parts[i : i + 2] for i in range(0, len(parts), 2))
        ]
    out[...] = parts[0]


def _n_blocked(a: Fp4Matrix, weight: F32, out: F32) -> None:
    operand = _operand(a)
    for low in range(0, out.shape[1], _N_BLOCK):
        part = slice(low, low + _N_BLOCK)
        out[:, part] = operand @ weight[:, part]


def _m_blocked(a: Fp4Matrix, weight: F32, out: F32) -> None:
    scales = unswizzle(a.scales, a.rows, a.k)
    for low in range(0, a.rows, _M_BLOCK):
        part = slice(low, low + _M_BLOCK)
        np.matmul(_expand(a.packed[part], scales[part]), weight, out=out[part])


CPU_TACTICS = TacticSet(
    "CpuFp4GemmRunner",
    1,
    (
        CpuTactic(0, "whole/ordinary", _whole),
        CpuTactic(1, "whole/swap", _swapped),
        CpuTactic(2, f"split-k{_SPLITS}/ascending", _split_k_ascending),
        CpuTactic(3, f"split-k{_SPLITS}/pairwise", _split_k_pairwise),
        CpuTactic(4, f"n-blocked{_N_BLOCK}/ordinary", _n_blocked),
        CpuTactic(5, f"m-blocked{_M_BLOCK}/expand-by-tile", _m_blocked),
    ),
    default_id=0,
)


def random_operand(seed: int, rows: int, k: int) -> Fp4Matrix:
    """Uniform codes under scale bytes uniform over 1..126: 14 binary orders of magnitude, so that the order of a
    reduction shows in its bytes. Gaussian data sums exactly in float32 and would tell no two tactics apart."""
    random = np.random.default_rng(seed)
    packed = random.integers(0, 256, (rows, k // 2), dtype=np.uint8)
    scales = random.integers(1, 127, (rows, k // BLOCK), dtype=np.uint8)
    return Fp4Matrix(packed, swizzle(scales), rows, k, 1.0)


class CpuBackend:
    """Runs and times the tactics. `gemms` counts calls of `gemm`, `counts` those of timing; `clock` gives seconds,
    `cancelled` is asked before each candidate."""

    tactics: TacticSet = CPU_TACTICS
    xp: Any = np

    def __init__(self, clock: Callable[[], float] = time.perf_counter, cancelled: Callable[[], bool] = bool) -> None:
        self._clock = clock
        self._cancelled = cancelled
        self._runs: dict[int, Callable[[Fp4Matrix, F32, F32], None]] = {
            tactic.id: tactic.run for tactic in CPU_TACTICS.tactics if isinstance(tactic, CpuTactic)
        }
        self.gemms = 0
        self.capturing = False
        self.failed_candidates: list[str] = []
        self.choices: dict[PlanKey, Choice] = {}
        self.counts = Counts()

    def session(self) -> nullcontext[None]:
        return nullcontext()

    def producer(self, direct: bool) -> Producer:
        return Producer(direct=direct)

    def on_device(self, matrix: Fp4Matrix) -> Fp4Matrix:
        return matrix

    def host(self, array: Any) -> Any:
        return array

    def plan_fields(self, key: PlanKey) -> Mapping[str, Any]:
        choice = self.choices.get(key)
        return {} if choice is None else choice.fields(self.tactics)

    def forget_operands(self) -> None:
        pass

    def memory(self) -> Mapping[str, int]:
        return {}

    def prepare(self, matrix: Fp4Matrix) -> CpuWeight:
        """The weight expanded to float32 once: 4 bytes a value, for speed on a CPU that has no FP4."""
        return CpuWeight.of(matrix)

    def gemm(self, tactic: int, a: Fp4Matrix, weight: CpuWeight) -> F32:
        """bfloat16 values as float32 (a.rows, weight.n). KernelError `bad-operand` when the K of the two differ."""
        if a.k != weight.k:
            raise KernelError(
                "bad-operand", f"K of the activation is {a.k}, of the weight {weight.k}: they must be equal"
            )
        self.gemms += 1
        return self._product(tactic, a, weight)

    def _product(self, tactic: int, a: Fp4Matrix, weight: CpuWeight) -> F32:
        out = np.empty((a.rows, weight.n), dtype=np.float32)
        self._runs[tactic](a, weight.expanded, out)
        out *= 1.0 / (a.global_scale * weight.global_scale)
        return bf16_round(out)

    def tune(self, key: PlanKey) -> int:
        """The fastest tactic for `key` on wide-range operands: 3 warm-ups, then the mean of 10 timed calls.

        The lowest id wins a tie. A tactic that raises or gives a value that is not finite counts as infinitely slow
        and is named in `failed_candidates`. TuningError `no-valid-tactic` when none is left, `cancelled` on a stop.
        """
        a = random_operand(key.m_bucket, key.m_bucket, key.k)
        weight = CpuWeight.of(random_operand(key.n, key.n, key.k))

        def timed(tactic: int) -> float:
            if self._cancelled():
                raise TuningError("cancelled", f"tuning of {key} was stopped; start again to tune it")
            return self._mean_time(tactic, a, weight)

        choice = choose(self._runs, timed)
        if choice is None:
            raise TuningError("no-valid-tactic", f"no CPU tactic ran {key}: {'; '.join(self.failed_candidates[-6:])}")
        self.choices[key] = choice
        return choice.tactic

    def _mean_time(self, tactic: int, a: Fp4Matrix, weight: CpuWeight) -> float:
        shape = f"tactic {tactic} M={a.rows} N={weight.n} K={weight.k}"
        self.counts.candidates += 1
        try:
            for _ in range(_WARMUPS):
                result = self._product(tactic, a, weight)
                self.counts.warmups += 1
            start = self._clock()
            for _ in range(_REPEATS):
                result = self._product(tactic, a, weight)
            self.counts.timed += _REPEATS
            seconds = (self._clock() - start) / _REPEATS
        except Exception as error:  # whatever a candidate does, the others decide; it is named, never dropped silently
            self.failed_candidates.append(f"{shape}: {type(error).__name__}: {error}")
            return math.inf
        if not np.isfinite(result).all():
            self.failed_candidates.append(f"{shape}: its result is not finite")
            return math.inf
        return seconds


def metadata(settings: Settings) -> Metadata:
    """What this process's plans are bound to. There is no stream to delay, so the effective delay is 0, whatever
    `settings.delay_us` asks for; `timing_method` says what is done instead."""
    timing = f"perf_counter, mean of {_REPEATS} calls after {_WARMUPS} warm-ups, one BLAS thread"
    method = f"{timing}; no stream: delay {settings.delay_us} us not applied"
    return Metadata(
        architecture=0,
        build_id=build_id(_ABI_SOURCES, numpy=np.__version__),
        cuda_driver="none",
        cuda_runtime="none",
        cutlass_version="none",
        delay_microseconds=0,
        device_ordinal=0,
        gpu=_processor(),
        tactic_descriptor_digest=CPU_TACTICS.digest,
        tactic_set_version=CPU_TACTICS.version,
        repeats=_REPEATS,
        warmups=_WARMUPS,
        extra={"timing_method": method},
    )


def _processor() -> str:
    """The CPU's model name and the widest SIMD set NumPy found on it: a plan of another processor is refused."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        name = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    except OSError:
        name = None
    build: Any = np.show_config(mode="dicts")
    found = build.get("SIMD Extensions", {}).get("found") or ["baseline"]
    return f"{name.group(1).strip() if name else platform.processor() or platform.machine()} {found[-1]}"


def blas_threads() -> int | None:
    """Threads that NumPy's OpenBLAS will use; None when NumPy carries another BLAS, which cannot be asked."""
    package = Path(np.__file__).parent
    for path in (*package.with_name("numpy.libs").glob("*openblas*"), *(package / ".dylibs").glob("*openblas*")):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads", "openblas_get_num_threads"):
            if hasattr(library, name):
                return int(getattr(library, name)())
    return None
