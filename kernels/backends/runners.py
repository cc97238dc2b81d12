"""The ways a GPU multiplies: each runner has its own tactic set, its own form of the weight, and one call a GEMM."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.cuda.library import GEMM, Library
from kernels.cuda.units import SOURCES
from kernels.errors import DeviceError
from kernels.nvfp4 import Fp4Matrix
from kernels.tactics import CUTLASS_TACTICS, HOPPER_EXPANDED, TacticFamily, TacticSet

__all__ = ["EXPAND", "CudaWeight", "Runner", "expands", "runners", "tactic_set"]

EXPAND = "NVFP4_GATES_EXPAND"
FUSED_TACTICS = SOURCES / "hopper_fused" / "tactics.json"


class CudaWeight:
    """A quantised weight on the device; `forms` holds what a runner made of it at load, by runner name."""

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
        self._bytes: dict[tuple[int, int, int, int], int] = {}

    def _call(self, tactic: int, out: int, operands: tuple[int, ...], alpha: int, shape: tuple[int, int, int]) -> int:
        key = (tactic, *shape)
        size = self._bytes.get(key)
        if size is None:
            size = self._bytes[key] = self._workspace[tactic](*shape, self._sms)
        workspace = self._scratch("workspace", size) if size else None
        return self._run[tactic](out, *operands, alpha, *shape, workspace, size, self._sms, self._stream)


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


class HopperExpanded(_Cutlass):
    """Hopper: bfloat16 operands. The weight is expanded once and stays: 2 bytes a value beside the packed 9/16, which
    is 4.6 times the memory. The activation is expanded on every call."""

    def __init__(self, library: Library, scratch: Scratch, stream: int) -> None:
        super().__init__(library, HOPPER_EXPANDED, scratch, stream)

    def prepare(self, weight: CudaWeight, xp: Any) -> None:
        matrix: Any = weight.matrix
        expanded = xp.empty((weight.n, weight.k), dtype=xp.uint16)
        status = self._library.expand(
            matrix.packed.data.ptr, matrix.scales.data.ptr, expanded.data.ptr, weight.n, weight.k, self._stream
        )
        self._library.check(status, f"expanding a weight N={weight.n} K={weight.k}")
        weight.forms[self.tactics.runner] = expanded

    def launch(self, tactic: int, a: Fp4Matrix, weight: CudaWeight, out: int, alpha: int) -> int:
        packed: Any = a.packed
        scales: Any = a.scales
        expanded = self._scratch("activation", 2 * a.rows * a.k)
        status = self._library.expand(packed.data.ptr, scales.data.ptr, expanded, a.rows, a.k, self._stream)
        if status:
            return status
        operands = (expanded, weight.forms[self.tactics.runner].data.ptr, 0, 0)
        return self._call(tactic, out, operands, alpha, (a.rows, weight.n, weight.k))


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
        self._bytes: dict[tuple[int, int, int, int], int] = {}

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

    def launch(self, tactic: int, a: Fp4Matrix, weight: CudaWeight, out: int, alpha: int) -> int:
        shape = (a.rows, weight.n, weight.k)
        key = (tactic, *shape)
        size = self._bytes.get(key)
        if size is None:
            size = self._bytes[key] = self._workspace(tactic, *shape, self._sms)
        form = weight.forms.get(self.tactics.runner)
        if size < 0 or form is None:
            return 1000
        # The kernel leaves its counters zero, but where they lie depends on tactic and shape: a buffer for each.
        workspace = self._scratch(f"fused {key}", size) if size else None
        packed: Any = a.packed
        scales: Any = a.scales
        operands = (packed.data.ptr, form.data.ptr, scales.data.ptr, 0)
        return self._run(tactic, out, *operands, alpha, *shape, workspace, size, self._sms, self._stream)


@dataclass(frozen=True)
class _Described:
    """A tactic as the file beside its source describes it."""

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
    found: list[Runner] = [HopperExpanded(library, scratch, stream)] if expands(env) else []
    if FUSED_TACTICS.is_file():
        found.append(HopperFused(library, scratch, stream))
    if not found:
        text = f"{EXPAND}=0 leaves no kernel for {library.device.name}: expanded weights are what its tactics read"
        raise DeviceError("no-runner", f"{text}; unset it")
    return tuple(found)


def tactic_set(members: tuple[Runner, ...]) -> TacticSet:
    """One runner's own set, or the family of several."""
    sets = tuple(member.tactics for member in members)
    return sets[0] if len(sets) == 1 else TacticFamily.of("hopper_w4a4", 1, *sets)
