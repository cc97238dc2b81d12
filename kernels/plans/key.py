"""The identity of a plan in memory."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PlanKey"]


class PlanKey(NamedTuple):
    """A GEMM's bucketed shape and the runtime it was tuned on; sorts as documents do.

    `m_bucket` rows, `n` columns, `k` the reduction length in FP4 values. A tuple and not a dataclass, because the hot
    path builds and hashes one for each GEMM: a quarter of a frozen dataclass's time (0.9 against 3.9 us, CPython 3.11).
    """

    m_bucket: int
    n: int
    k: int
    device_ordinal: int
    architecture: int
    output_dtype_id: int
    tactic_set_version: int
