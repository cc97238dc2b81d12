"""The ways a GPU multiplies: each runner has its own tactic set, its own form of the weight, and one call a GEMM."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.backends.cublas import NOT_SUPPORTED, Algorithm, CublasLt
from kernels.cuda.library import GEMM, Library
from kernels.cuda.units import SOURCES
from kernels.errors import DeviceError
from kernels.nvfp4 import Fp4Matrix
from kernels.tactics import CUTLASS_TACTICS, HOPPER_EXPANDED, TacticFamily, TacticSet

__all__ = ["EXPAND", "CudaWeight", "ExpandedMatrix", "Runner", "cublas_tactics", "expands", "runners", "tactic_set"]

EXPAND = "NVFP4_GATES_EXPAND"
CUBLAS_TACTICS = 8
FUSED_TACTICS = SOURCES / "hopper_fused" / "tactics.json"


_EXPANDED = "bfloat16"  # the form of a weight that runners of bfloat16 operands share
_CANNOT_IMPLEMENT, _CANNOT_LAUNCH = 1000, 4000  # Refusal in abi.h


@dataclass(frozen=True)
class ExpandedMatrix(Fp4Matrix):
    """An activation that has been expanded already: `expanded` (rows, k), bfloat16 bits, the same values."""

    expanded: Any


class CudaWeight:
    """A quantised weight on the device; `forms` holds what runners made of it at load, by name."""

    def __init__(self, matrix: Fp4Matrix) -> None:
        self.matrix = matrix
        self.n = matrix.rows
        self.k = matrix.k
        self.global_scale = matrix.global_scale
        self.forms: dict[str, Any] = {}
        self.alphas: dict[float, Any] = {}  # by the activation's global scale

    @property
    def nbytes(self) -> int:
        """Device memory of all its forms."""
        held = (self.matrix.packed, self.matrix.scales, *self.forms.values())
        return sum(int(array.nbytes) for array in held)


class Scratch(Protocol):
    """Device memory that outlives the call, also in a captured graph."""

    def __call__(self, name: str, size: int) -> int:
        """The address of at least `size` bytes kept under `name`, zero when first handed out."""


class Runner(Protocol):
    """One family member. `launch` enqueues and answers a status; nothing is allocated by a warmed-up call."""

    tactics: TacticSet

    def prepare(self, weight: CudaWeight, xp: Any) -> None:
        """Make this runner's form of the weight, once, at load."""

    def offers(self, tactic: int, m: int, n: int, k: int) -> bool:
        """Whether there is such a tactic for this shape: what is not offered is no failed candidate."""

    def launch(self, tactic: int, a: Fp4Matrix, weight: CudaWeight, out: int, alpha: int) -> int:
        """`tactic` counts within this runner; `out` (a.rows, weight.n) bfloat16 and `alpha` are device addresses."""


class _Cutlass:
    """The library's CUTLASS entry points, and the workspace that each asks for on this device."""

    def __init__(self, library: Library, tactics: TacticSet, scratch: Scratch, stream: int) -> None:
        self.tactics = tactics
        self._library = library
        self._scratch = scratch
        self._stream = stream
        self._sms = library.device.multiprocessors
        self._run: Mapping[int, Callable[..., int]] = {tactic.id: library.gemm(tactic.id) for tactic in tactics}
        self._workspace = {tactic.id: library.workspace(tactic.id) for tactic in tactics}
        self._reserved: dict[tuple[int, int, int, int], tuple[int | None, int]] = {}

    def offers(self, tactic: int, m: int, n: int, k: int) -> bool:
        return True

    def _call(self, tactic: int, out: int, operands: tuple[int, ...], alpha: int, shape: tuple[int, int, int]) -> int:
        key = (tactic, *shape)
        reserved = self._reserved.get(key)
        if reserved is None:
            size = self._workspace[tactic](*shape, self._sms)
            reserved = self._reserved[key] = (self._scratch("workspace", size) if size else None, size)
        return self._run[tactic](out, *operands, alpha, *shape, *reserved, self._sms, self._stream)


class BlockScaled(_Cutlass):
    """SM120 and SM121: packed operands straight into the block-scaled instruction."""

    def __init__(self, library: Library, scratch: Scratch, stream: int) -> None:
        super().__init__(library, CUTLASS_TACTICS, scratch, stream)

    def prepare(self, weight: CudaWeight, xp: Any) -> None:
        pass

    def launch(self, tactic: int, a: Fp4Matrix, weight: CudaWeight, out: int, alpha: int) -> int:
        b = weight.matrix
        arrays: tuple[Any, ...] = (a.packed, b.packed, a.scales, b.scales)
        operands = tuple(array.data.ptr for array in arrays)
        return self._call(tactic, out, operands, alpha, (a.rows, weight.n, weight.k))


class _Expansion:
    """Operands as bfloat16. The weight is expanded once and stays: 2 bytes a value beside the packed 9/16, which is 4.6
    times the memory. An activation that its producer did not expand is expanded by a kernel of its own."""

    def __init__(self, library: Library, scratch: Scratch, stream: int) -> None:
        self._library = library
        self._scratch = scratch
        self._stream = stream

    def prepare(self, weight: CudaWeight, xp: Any) -> None:
        if _EXPANDED in weight.forms:
            return
        matrix: Any = weight.matrix
        expanded = weight.forms[_EXPANDED] = xp.empty((weight.n, weight.k), dtype=xp.uint16)
        status = self._library.expand(
            matrix.packed.data.ptr, matrix.scales.data.ptr, expanded.data.ptr, weight.n, weight.k, self._stream
        )
        self._library.check(status, f"expanding a weight N={weight.n} K={weight.k}")

    def activation(self, a: Any) -> tuple[int, int]:
        """A status, and the address of the expanded activation."""
        if isinstance(a, ExpandedMatrix):
            return 0, a.expanded.data.ptr
        address = self._scratch("activation", 2 * a.rows * a.k)
        packed, scales = a.packed.data.ptr, a.scales.data.ptr
        return self._library.expand(packed, scales, address, a.rows, a.k, self._stream), address


class HopperExpanded(_Cutlass):
    """Hopper: CUTLASS on expanded operands."""

    def __init__(self, library: Library, scratch: Scratch, stream: int) -> None:
        super().__init__(library, HOPPER_EXPANDED, scratch, stream)
        self._expansion = _Expansion(library, scratch, stream)

    def prepare(self, weight: CudaWeight, xp: Any) -> None:
        self._expansion.prepare(weight, xp)

    def launch(self, tactic: int, a: Fp4Matrix, weight: CudaWeight, out: int, alpha: int) -> int:
        status, expanded = self._expansion.activation(a)
        if status:
            return status
        operands = (expanded, weight.forms[_EXPANDED].data.ptr, 0, 0)
        return self._call(tactic, out, operands, alpha, (a.rows, weight.n, weight.k))


class HopperCublas:
    """Hopper: cuBLASLt on expanded operands, its first algorithms for a shape as tactics: for M from about 64, where
    the arithmetic takes the time. DeviceError `no-cublaslt` without the library."""

    def __init__(
        self, library: Library, scratch: Scratch, stream: int, make: Callable[[], CublasLt] = CublasLt
    ) -> None:
        self._expansion = _Expansion(library, scratch, stream)
        self._scratch = scratch
        self._stream = stream
        self._cublas = make()
        self.tactics = cublas_tactics(self._cublas.version)
        self._algorithms: dict[tuple[int, int, int], tuple[tuple[Algorithm, int | None], ...]] = {}

    def prepare(self, weight: CudaWeight, xp: Any) -> None:
        self._expansion.prepare(weight, xp)

    def offers(self, tactic: int, m: int, n: int, k: int) -> bool:
        return tactic < len(self._found(m, n, k))

    def launch(self, tactic: int, a: Fp4Matrix, weight: CudaWeight, out: int, alpha: int) -> int:
        """Alpha is read off the host: with a beta known to be 0, cuBLAS need not read the output."""
        found = self._found(a.rows, weight.n, weight.k)
        if tactic >= len(found):
            return _CANNOT_IMPLEMENT + NOT_SUPPORTED
        status, expanded = self._expansion.activation(a)
        if status:
            return status
        algorithm, workspace = found[tactic]
        scale = 1.0 / (a.global_scale * weight.global_scale)
        operands = (out, expanded, weight.forms[_EXPANDED].data.ptr)
        status = self._cublas.matmul(algorithm, operands, scale, workspace, self._stream)
        return _CANNOT_LAUNCH + status if status else 0

    def _found(self, m: int, n: int, k: int) -> tuple[tuple[Algorithm, int | None], ...]:
        found = self._algorithms.get((m, n, k))
        if found is None:
            ranked = self._cublas.algorithms(m, n, k, CUBLAS_TACTICS)
            most = max((one.workspace for one in ranked), default=0)
            workspace = self._scratch("workspace", most) if most else None
            found = self._algorithms[m, n, k] = tuple((one, workspace) for one in ranked)
        return found


class HopperFused:
    """Hopper: packed weights read once and decoded in registers, for small M. The weight is repacked once at load, into
    as many bytes as it had. DeviceError `no-runner` when the library has no such kernels."""

    def __init__(self, library: Library, scratch: Scratch, stream: int) -> None:
        self._library = library
        self._scratch = scratch
        self._stream = stream
        self._sms = library.device.multiprocessors
        function, pointer, integer = library.function, c_void_p, c_int
        self._packed = function("nvfp4_fused_packed_bytes", integer, integer, result=c_int64)
        self._pack = function("nvfp4_fused_pack", *(pointer,) * 3, integer, integer, pointer)
        self._workspace = function("nvfp4_fused_workspace", *(integer,) * 5, result=c_int64)
        self._run = function("nvfp4_fused_run", integer, *GEMM)
        self.tactics = fused_tactics()
        count = function("nvfp4_fused_tactics")()
        if count != len(self.tactics):
            text = f"{library.path} has {count} fused tactics, {FUSED_TACTICS.name} describes {len(self.tactics)}"
            raise DeviceError("stale-library", f"{text}; build it again")
        self._reserved: dict[tuple[int, int, int, int], tuple[int, int]] = {}

    def prepare(self, weight: CudaWeight, xp: Any) -> None:
        size = self._packed(weight.n, weight.k)
        if size < 0:
            return  # not for this shape: its tactics fail and are reported, another runner serves it
        matrix: Any = weight.matrix
        packed = xp.empty(size, dtype=xp.uint8)
        pointers = (matrix.packed.data.ptr, matrix.scales.data.ptr, packed.data.ptr)
        status = self._pack(*pointers, weight.n, weight.k, self._stream)
        self._library.check(status, f"packing a weight N={weight.n} K={weight.k}")
        weight.forms[self.tactics.runner] = packed

    def offers(self, tactic: int, m: int, n: int, k: int) -> bool:
        return self._workspace(tactic, m, n, k, self._sms) >= 0

    def launch(self, tactic: int, a: Fp4Matrix, weight: CudaWeight, out: int, alpha: int) -> int:
        form = weight.forms.get(self.tactics.runner)
        if form is None:
            return _CANNOT_IMPLEMENT
        shape = (a.rows, weight.n, weight.k)
        reserved = self._reserved.get((tactic, *shape))
        if reserved is None:
            size = self._workspace(tactic, *shape, self._sms)
            if size < 0:
                return _CANNOT_IMPLEMENT
            # The kernel finds its counters zero and leaves them so: this buffer is for these kernels alone.
            reserved = self._reserved[tactic, *shape] = (self._scratch("fused", size), size)
        packed: Any = a.packed
        scales: Any = a.scales
        operands = (packed.data.ptr, form.data.ptr, scales.data.ptr, 0)
        return self._run(tactic, out, *operands, alpha, *shape, *reserved, self._sms, self._stream)


@dataclass(frozen=True)
class _Described:
    """A tactic described by a text of its own."""

    id: int
    text: str

    @property
    def descriptor(self) -> str:
        return f"{self.id}:{self.text};"


def fused_tactics() -> TacticSet:
    """The fused kernels' tactics out of `tactics.json`, whose list is in ABI order."""
    document = json.loads(FUSED_TACTICS.read_text(encoding="utf-8"))
    texts = [json.dumps(entry, sort_keys=True, separators=(",", ":")) for entry in document["tactics"]]
    tactics = tuple(_Described(*numbered) for numbered in enumerate(texts))
    return TacticSet(document["runner"], document["version"], tactics)


def cublas_tactics(version: int) -> TacticSet:
    """cuBLASLt's ranking as a set. The release is in the descriptors: another one ranks other algorithms."""
    texts = (f"rank {rank} of cuBLASLt {version}, split K summed in float32 or none" for rank in range(CUBLAS_TACTICS))
    return TacticSet("hopper_cublas_bf16", 1, tuple(_Described(*numbered) for numbered in enumerate(texts)))


def expands(env: Mapping[str, str]) -> bool:
    """NVFP4_GATES_EXPAND: whether Hopper may keep expanded weights (default 1)."""
    value = env.get(EXPAND, "") or "1"
    if value not in ("0", "1"):
        raise DeviceError("bad-switch", f"{EXPAND}={value!r} is no switch; write 1 or 0")
    return value == "1"


def runners(library: Library, scratch: Scratch, stream: int, env: Mapping[str, str]) -> tuple[Runner, ...]:
    """The runners of this GPU on one stream, in the order of their ids. DeviceError `no-runner` when the switches leave
    none."""
    if library.device.capability[0] == 12:
        return (BlockScaled(library, scratch, stream),)
    expanded = expands(env)
    found: list[Runner] = [HopperExpanded(library, scratch, stream)] if expanded else []
    if FUSED_TACTICS.is_file():
        found.append(HopperFused(library, scratch, stream))
    if expanded:
        found.append(HopperCublas(library, scratch, stream))
    if not found:
        text = f"{EXPAND}=0 leaves no kernel for {library.device.name}: expanded weights are what its tactics read"
        raise DeviceError("no-runner", f"{text}; unset it")
    return tuple(found)


def tactic_set(members: tuple[Runner, ...]) -> TacticSet:
    """One runner's own set, or the family of several."""
    sets = tuple(member.tactics for member in members)
    return sets[0] if len(sets) == 1 else TacticFamily.of("hopper_w4a4", 2, *sets)
