"""The ready plans of one runtime, kept twice: by shape, and as one row of bytes a column (N, K) for the hot path.

A dictionary of 100,000 shapes costs 0.65 us a look-up in random order, most of it waiting for memory; the rows are 80
bytes a column, need no tuple made and hashed, and cost 0.10 us at 64 plans and 0.2 us at 100,000 (CPython 3.11).
"""

from __future__ import annotations

from kernels.buckets import MAX_M, hybrid_m_bucket, tuning_buckets

__all__ = ["ABSENT", "PLACE_OF", "PlanTable", "Rows", "Shape"]

Shape = tuple[int, int, int]  # M bucket, N, K
Rows = dict[int, dict[int, bytes]]

ABSENT = 255  # in a row: no plan, or a tactic that does not fit a byte
_BUCKETS = tuning_buckets(MAX_M)
_PLACE = {bucket: place for place, bucket in enumerate(_BUCKETS)}
_EMPTY = bytes([ABSENT]) * len(_BUCKETS)
# The place in a row for the row counts that engines run: 8,192 is the largest usual max_num_batched_tokens.
PLACE_OF = tuple(_PLACE[hybrid_m_bucket(m)] for m in range(8_193))


class PlanTable:
    """Read by any thread without a lock, written by one at a time. `rows[N][K][PLACE_OF[M]]` is a tactic or ABSENT."""

    def __init__(self) -> None:
        self.plans: dict[Shape, int] = {}
        self.rows: Rows = {}

    def add(self, shape: Shape, tactic: int) -> None:
        """Add a plan that is not there yet."""
        m_bucket, n, k = shape
        self.plans[shape] = tactic
        place = _PLACE.get(m_bucket)
        if place is not None and 0 <= tactic < ABSENT:
            column = self.rows.setdefault(n, {})
            row = column.get(k, _EMPTY)
            # A new row and not a changed one: whoever reads sees the one or the other.
            column[k] = row[:place] + bytes((tactic,)) + row[place + 1 :]
