"""What the engine asks of a device: an array namespace, producers of activations, the NVFP4 product under a tactic."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kernels.backends.tuning import Counts
from kernels.nvfp4 import Fp4Matrix
from kernels.plans.key import PlanKey
from kernels.tactics import TacticSet

__all__ = ["ActivationProducer", "Backend", "PreparedWeight"]


class PreparedWeight(Protocol):
    """A weight in whatever form the backend multiplies it: (n, k)."""

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...


class ActivationProducer(Protocol):
    """`kernels.nvfp4.Producer`, or the same on a device."""

    standalone_swizzles: int

    def quantise(self, values: Any, global_scale: float) -> Fp4Matrix: ...

    def swiglu(self, gate_up: Any, global_scale: float) -> Fp4Matrix: ...

    def layout(self, linear: Any) -> Any: ...


class Backend(Protocol):
    """One device. `xp` is NumPy's interface over the device's arrays (numpy here, CuPy on a GPU). `gemms` counts calls
    of `gemm`; `failed_candidates` says which tactics failed while tuning, and how."""

    gemms: int
    failed_candidates: list[str]
    counts: Counts  # what timing candidates took
    capturing: bool  # whether a graph is being captured, where nothing may be tuned

    @property
    def xp(self) -> Any: ...

    @property
    def tactics(self) -> TacticSet: ...

    def session(self) -> AbstractContextManager[Any]:
        """The context that every use of the device's arrays needs, once for each thread."""

    def producer(self, direct: bool) -> ActivationProducer:
        """`direct` writes swizzled scales; composed (False) swizzles them in a pass of its own."""

    def on_device(self, matrix: Fp4Matrix) -> Fp4Matrix:
        """`matrix` with its arrays on the device."""

    def host(self, array: Any) -> Any:
        """A NumPy array of the same values."""

    def prepare(self, matrix: Fp4Matrix) -> Any:
        """The `PreparedWeight` of a quantised matrix, made once at load."""

    def gemm(self, tactic: int, a: Fp4Matrix, weight: Any) -> Any:
        """bfloat16 values as float32 (a.rows, weight.n). KernelError `bad-operand` when the K of the two differ."""

    def tune(self, key: PlanKey) -> int:
        """The fastest tactic for `key`; TuningError when none is valid."""

    def plan_fields(self, key: PlanKey) -> Mapping[str, Any]:
        """What a document shall say of a plan that was tuned here; empty where there is nothing to say."""

    def forget_operands(self) -> None:
        """Give back what tuning held."""

    def memory(self) -> Mapping[str, int]:
        """Device bytes by purpose; empty where the device is the host."""
