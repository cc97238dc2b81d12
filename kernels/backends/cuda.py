"""The CUDA backend: NVFP4 GEMMs of the built library on CuPy arrays, timed, tuned and captured on one stream.

CuPy is the one array library here: it has NumPy's interface, so the model's code is the CPU's, and its streams and
graphs need nothing beside it. PyTorch would be ten times the download, and cuda-core has no arrays.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernels.backends.cpu import random_operand
from kernels.backends.runners import CudaWeight, ExpandedMatrix, expands, runners, tactic_set
from kernels.backends.tuning import REPEATS, WARMUPS, Choice, Counts, choose, measure
from kernels.build_id import build_id
from kernels.cuda.library import Library, load
from kernels.errors import DeviceError, KernelError, TuningError
from kernels.nvfp4 import BLOCK, Fp4Matrix, swizzled_bytes
from kernels.plans.key import PlanKey
from kernels.plans.metadata import Metadata
from kernels.plans.settings import DEFAULT_DELAY_US, Settings
from kernels.tactics import TacticSet

__all__ = ["CudaBackend", "CudaProducer", "Graph", "metadata"]

_BACKEND = tuple(f"backends/{name}.py" for name in ("cublas", "cuda", "runners", "tuning"))
_ABI_SOURCES = (*_BACKEND, "buckets.py", "nvfp4.py", "tactics.py")
_POISON = 0x7FC0  # a bfloat16 NaN: an output word that nobody wrote is not finite


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        mend = "pip install 'nvfp4-gates[cuda]'"
        raise DeviceError(
            "no-cupy", f"the CUDA backend needs CuPy, which cannot be imported ({error}); {mend}"
        ) from None


@dataclass(frozen=True)
class Graph:
    """A captured piece of work. `launch` enqueues it; `result` are the arrays it writes, the same ones every time."""

    backend: CudaBackend
    graph: Any
    result: Any
    gemms: int
    swizzles: int

    def launch(self) -> Any:
        self.graph.launch(stream=self.backend.stream)
        self.backend.gemms += self.gemms
        self.backend.graph_launches += 1
        return self.result


class CudaBackend:
    """One GPU. `gemms` counts GEMMs, those in replayed graphs too and those of tuning apart; `cancelled` is asked
    before each profile. DeviceError as `kernels.cuda.library.load` says, or `no-cupy`."""

    def __init__(
        self,
        *,
        ordinal: int = 0,
        env: Mapping[str, str] = os.environ,
        cancelled: Callable[[], bool] = bool,
        delay_us: int = DEFAULT_DELAY_US,
        library: Library | None = None,
    ) -> None:
        self.library = library or load(ordinal, env)
        self.xp = _cupy()
        self.stream = self.xp.cuda.Stream(non_blocking=True)
        self.expanded = self.library.device.capability[0] == 9 and expands(env)  # whether a runner reads bfloat16
        self._runners = runners(self.library, self._scratch, self.stream.ptr, env)
        self.tactics: TacticSet = tactic_set(self._runners)
        by_name = {runner.tactics.runner: runner for runner in self._runners}
        named = ((tactic.id, self.tactics.named(tactic.id)) for tactic in self.tactics)
        self._members = {tactic: (by_name[name], own) for tactic, (name, own) in named}
        self._launches = {tactic: (runner.launch, own) for tactic, (runner, own) in self._members.items()}
        self._cancelled = cancelled
        self._delay_us = delay_us
        self._buffers: dict[str, list[Any]] = {}
        self._graph_pool = self.xp.cuda.MemoryPool()
        self._operands: dict[tuple[int, int], CudaWeight] = {}
        self.capturing = False
        self.gemms = 0
        self.graph_launches = 0
        self.weight_bytes = 0
        self.counts = Counts()
        self.choices: dict[PlanKey, Choice] = {}
        self.failed_candidates: list[str] = []

    def session(self) -> Any:
        """A context in which array operations run on the backend's stream."""
        return self.stream

    def _scratch(self, name: str, size: int) -> int:
        """Buffers only grow, and replaced ones are kept: a captured graph may still write to them."""
        held = self._buffers.setdefault(name, [])
        if not held or held[-1].nbytes < size:
            if self.capturing:
                text = f"{name} of {size} bytes was not reserved before the capture; run the work once before it"
                raise KernelError("capture-allocates", text)
            with self.stream:
                held.append(self.xp.zeros(max(size, 1 << 16), dtype=np.uint8))
        address: int = held[-1].data.ptr
        return address

    def on_device(self, matrix: Fp4Matrix) -> Fp4Matrix:
        """A copy of `matrix` whose arrays lie on the device."""
        with self.stream:
            packed, scales = self.xp.asarray(matrix.packed), self.xp.asarray(matrix.scales)
        return Fp4Matrix(packed, scales, matrix.rows, matrix.k, matrix.global_scale)

    def activation(self, matrix: Fp4Matrix) -> Fp4Matrix:
        """`matrix` on the device in the forms that a producer would have given it."""
        placed: Any = self.on_device(matrix)
        if not self.expanded:
            return placed  # type: ignore[no-any-return]
        with self.stream:
            wide = self.xp.empty((matrix.rows, matrix.k), dtype=np.uint16)
        arrays = (placed.packed.data.ptr, placed.scales.data.ptr, wide.data.ptr)
        self.library.check(self.library.expand(*arrays, matrix.rows, matrix.k, self.stream.ptr), "expanding")
        return ExpandedMatrix(placed.packed, placed.scales, matrix.rows, matrix.k, matrix.global_scale, wide)

    def host(self, array: Any) -> Any:
        return array.get() if isinstance(array, self.xp.ndarray) else array

    def prepare(self, matrix: Fp4Matrix) -> CudaWeight:
        """The weight on the device, in every form that a runner reads."""
        with self.stream:
            weight = CudaWeight(self.on_device(matrix))
            for runner in self._runners:
                runner.prepare(weight, self.xp)
            self.stream.synchronize()
        self.weight_bytes += weight.nbytes
        return weight

    def producer(self, direct: bool) -> CudaProducer:
        return CudaProducer(self, direct)

    def gemm(self, tactic: int, a: Fp4Matrix, weight: CudaWeight) -> Any:
        """bfloat16 values as float32 (a.rows, weight.n). KernelError `bad-operand` when the K of the two differ,
        `kernel-failed` when the tactic cannot run them."""
        if a.k != weight.k:
            raise KernelError(
                "bad-operand", f"K of the activation is {a.k}, of the weight {weight.k}: they must be equal"
            )
        out = self.xp.empty((a.rows, weight.n), dtype=np.uint16)
        self.launch(tactic, a, weight, out.data.ptr, self.alpha(a, weight))
        self.gemms += 1
        return self.widen(out)

    def widen(self, values: Any) -> Any:
        """bfloat16 bits (uint16) as float32 of the same shape."""
        wide = self.xp.empty(values.shape, dtype=np.float32)
        status = self.library.widen(values.data.ptr, wide.data.ptr, values.size, self.stream.ptr)
        self.library.check(status, "widening")
        return wide

    def alpha(self, a: Fp4Matrix, weight: CudaWeight) -> int:
        """The address of 1 / (both global scales), float32, on the device."""
        scalar = weight.alphas.get(a.global_scale)
        if scalar is None:
            value = np.float32(1.0 / (a.global_scale * weight.global_scale))
            with self.stream:
                scalar = weight.alphas[a.global_scale] = self.xp.full(1, value, dtype=np.float32)
        address: int = scalar.data.ptr
        return address

    def launch(self, tactic: int, a: Fp4Matrix, weight: CudaWeight, out: int, alpha: int) -> None:
        """Enqueue one GEMM into `out`, a device address of (a.rows, weight.n) bfloat16."""
        launch, own = self._launches[tactic]
        status = launch(own, a, weight, out, alpha)
        if status:
            self.library.check(status, f"tactic {tactic} M={a.rows} N={weight.n} K={weight.k}")

    def offered(self, m: int, n: int, k: int) -> list[int]:
        """The tactics that their runners have for this shape."""
        return [tactic for tactic, (runner, own) in self._members.items() if runner.offers(own, m, n, k)]

    @contextmanager
    def _captured(self) -> Iterator[list[Any]]:
        """The work of the body as a graph, in the list's only place afterwards. Its arrays come from a pool of their
        own, so that no later work is handed memory that a replay writes."""
        box: list[Any] = []
        with self.stream, self.xp.cuda.using_allocator(self._graph_pool.malloc):
            self.stream.synchronize()
            self.stream.begin_capture()
            self.capturing = True
            try:
                yield box
            except BaseException:
                # the capture may be broken as well: what broke it is the error to hear of
                with suppress(Exception):
                    self.stream.end_capture()
                raise
            finally:
                self.capturing = False
            box.append(self.stream.end_capture())

    def capture(self, work: Callable[[], Any], swizzles: Callable[[], int] = int) -> Graph:
        """Capture `work`, which must have run once before. A plan that is missing is refused by the plan runtime, which
        asks `capturing`, before anything is enqueued."""
        gemms, swizzled = self.gemms, swizzles()
        with self._captured() as box:
            result = work()
        taken, swizzled = self.gemms - gemms, swizzles() - swizzled
        self.gemms = gemms  # nothing ran yet
        return Graph(self, box[0], result, taken, swizzled)

    def tune(self, key: PlanKey) -> int:
        """The fastest tactic for `key`, as `kernels.backends.tuning` times it, on wide-range random operands.

        TuningError `no-valid-tactic` when all failed, `cancelled` on a stop; DeviceError `not-resident` unless NVML
        lists this process on the GPU.
        """
        if self._cancelled():
            raise TuningError("cancelled", f"tuning of {key} was stopped; start again to tune it")
        self.prove_residency()
        with self.stream:
            weight = self._operands.get((key.n, key.k))
            if weight is None:
                held = self.weight_bytes
                weight = self._operands[key.n, key.k] = self.prepare(random_operand(key.n, key.n, key.k))
                self.weight_bytes = held
            a = self.activation(random_operand(key.m_bucket, key.m_bucket, key.k))
            choice = choose(self.offered(key.m_bucket, key.n, key.k), lambda tactic: self._timed(tactic, a, weight))
        shape = f"M={key.m_bucket} N={key.n} K={key.k}"
        if choice is None:
            raise TuningError("no-valid-tactic", f"no tactic ran {shape}: {'; '.join(self.failed_candidates[-6:])}")
        self.failed_candidates += [f"tactic {tactic} {shape}: {why}" for tactic, why in choice.failed.items()]
        self.choices[key] = choice
        return choice.tactic

    def _timed(self, tactic: int, a: Fp4Matrix, weight: CudaWeight) -> float:
        candidate = _Candidate(self, tactic, a, weight)
        try:
            seconds = measure(candidate, self._delay_us, self.counts)
        except KernelError as error:
            raise ArithmeticError(error.message) from error
        if not candidate.finite():
            raise ArithmeticError("its result is not finite")
        return seconds

    def plan_fields(self, key: PlanKey) -> Mapping[str, Any]:
        choice = self.choices.get(key)
        return {} if choice is None else choice.fields(self.tactics)

    def forget_operands(self) -> None:
        """Give back what tuning held."""
        self._operands.clear()
        self.xp.get_default_memory_pool().free_all_blocks()

    def prove_residency(self) -> None:
        """DeviceError `not-resident` unless NVML lists this process among the GPU's compute processes."""
        import pynvml

        pynvml.nvmlInit()
        try:
            bus = self.xp.cuda.runtime.deviceGetPCIBusId(self.library.device.ordinal)
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode() if isinstance(bus, str) else bus)
            listed = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        finally:
            pynvml.nvmlShutdown()
        if os.getpid() not in listed:
            text = f"NVML lists {sorted(listed)} on {self.library.device.name}, not this process {os.getpid()}"
            raise DeviceError("not-resident", f"{text}: what it would time may not run there")

    def memory(self) -> Mapping[str, int]:
        """Device bytes: weights in all forms, what CuPy's pools hold, and the scratch of runners."""
        pools = self.xp.get_default_memory_pool().total_bytes() + self._graph_pool.total_bytes()
        scratch = sum(int(array.nbytes) for held in self._buffers.values() for array in held)
        return {"weights": self.weight_bytes, "pools": int(pools), "scratch": scratch}


class _Candidate:
    """One tactic on the backend's stream; see `tuning.Candidate`."""

    def __init__(self, backend: CudaBackend, tactic: int, a: Fp4Matrix, weight: CudaWeight) -> None:
        self._backend = backend
        self._out = backend.xp.full((a.rows, weight.n), _POISON, dtype=np.uint16)
        self._arguments = (tactic, a, weight, self._out.data.ptr, backend.alpha(a, weight))

    def launch(self) -> None:
        self._backend.launch(*self._arguments)

    def synchronise(self) -> None:
        self._backend.stream.synchronize()

    def delay(self, microseconds: int) -> None:
        library = self._backend.library
        library.check(library.delay(microseconds, self._backend.stream.ptr), "the delay")

    def record(self) -> Any:
        event = self._backend.xp.cuda.Event()
        event.record(self._backend.stream)
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        end.synchronize()
        milliseconds: float = self._backend.xp.cuda.get_elapsed_time(start, end)
        return milliseconds / 1e3

    def finite(self) -> bool:
        return not bool(((self._out & 0x7F80) == 0x7F80).any())


class CudaProducer:
    """`kernels.nvfp4.Producer` on the device, one kernel a call: `direct` writes swizzled scale bytes, composed ones
    are written linearly and swizzled by a second kernel, which `standalone_swizzles` counts. Bytes equal the CPU's.
    Where a runner reads bfloat16, the same kernel writes the expanded activation too."""

    def __init__(self, backend: CudaBackend, direct: bool) -> None:
        self._backend = backend
        self.direct = direct
        self.standalone_swizzles = 0

    def quantise(self, values: Any, global_scale: float) -> Fp4Matrix:
        """`values` (rows, k), float32 or bfloat16 bits (uint16), contiguous and finite, k a multiple of 16."""
        return self._produce(values, values.shape[1], global_scale, silu=False)

    def swiglu(self, gate_up: Any, global_scale: float) -> Fp4Matrix:
        """silu(gate) * up of `gate_up` (rows, 2 k), quantised in the same kernel."""
        return self._produce(gate_up, gate_up.shape[1] // 2, global_scale, silu=True)

    def _produce(self, values: Any, k: int, global_scale: float, *, silu: bool) -> Fp4Matrix:
        xp, library, stream = self._backend.xp, self._backend.library, self._backend.stream.ptr
        rows = len(values)
        packed = xp.empty((rows, k // 2), dtype=np.uint8)
        scales = xp.empty(swizzled_bytes(rows, k) if self.direct else (rows, k // BLOCK), dtype=np.uint8)
        wide = xp.empty((rows, k), dtype=np.uint16) if self._backend.expanded else None
        bf16 = values.dtype == np.uint16
        arrays = (values.data.ptr, packed.data.ptr, scales.data.ptr, wide.data.ptr if wide is not None else None)
        status = library.quantise(*arrays, rows, k, global_scale, bf16, silu, self.direct, stream)
        library.check(status, f"quantising {rows}x{k}")
        placed = (packed, scales if self.direct else self.layout(scales), rows, k, global_scale)
        return Fp4Matrix(*placed) if wide is None else ExpandedMatrix(*placed, wide)

    def layout(self, linear: Any) -> Any:
        """One standalone swizzle of linear scale bytes (rows, K/16), counted."""
        xp, library = self._backend.xp, self._backend.library
        linear = xp.ascontiguousarray(xp.asarray(linear))
        rows, k = linear.shape[0], linear.shape[1] * BLOCK
        scales = xp.empty(swizzled_bytes(rows, k), dtype=np.uint8)
        status = library.swizzle(linear.data.ptr, scales.data.ptr, rows, k, self._backend.stream.ptr)
        library.check(status, f"laying out scales of {rows}x{k}")
        self.standalone_swizzles += 1
        return scales


def metadata(settings: Settings, backend: CudaBackend) -> Metadata:
    """What this process's plans are bound to."""
    library = backend.library
    driver, runtime = library.versions()
    major, minor = library.device.capability
    library_build = library.facts["build_id"]
    return Metadata(
        architecture=10 * major + minor,
        build_id=build_id(_ABI_SOURCES, package=Path(__file__).parents[1], library=library_build),
        cuda_driver=driver,
        cuda_runtime=runtime,
        cutlass_version=library.facts["cutlass_version"],
        delay_microseconds=settings.delay_us,
        device_ordinal=library.device.ordinal,
        gpu=library.device.name,
        tactic_descriptor_digest=backend.tactics.digest,
        tactic_set_version=backend.tactics.version,
        repeats=REPEATS,
        warmups=WARMUPS,
        extra={"runners": ",".join(backend.tactics.runners)},
    )
