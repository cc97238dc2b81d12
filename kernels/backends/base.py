"""What the engine asks of a device: an array namespace and the NVFP4 product under a chosen tactic."""

from __future__ import annotations

from typing import Any, Protocol

from kernels.nvfp4 import Fp4Matrix
from kernels.plans.key import PlanKey

__all__ = ["Backend", "PreparedWeight"]


class PreparedWeight(Protocol):
    """A weight in whatever form the backend multiplies it: (n, k)."""

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...


class Backend(Protocol):
    """One device. `xp` is NumPy's interface over the device's arrays (numpy here, CuPy on a GPU)."""

    @property
    def xp(self) -> Any: ...

    def prepare(self, matrix: Fp4Matrix) -> Any:
        """The `PreparedWeight` of a quantised matrix, made once at load."""

    def gemm(self, tactic: int, a: Fp4Matrix, weight: Any) -> Any:
        """bfloat16 values as float32 (a.rows, weight.n). KernelError `bad-operand` when the K of the two differ."""

    def tune(self, key: PlanKey) -> int:
        """The fastest tactic for `key`; TuningError when none is valid."""
