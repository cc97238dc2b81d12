"""The selected map: which tactic runs for which shape, in the one text form that is hashed and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

__all__ = ["SelectedPlan", "map_sha256", "selected", "selected_lines"]

_Shape = TypeVar("_Shape", bound=tuple[int, ...])


class SelectedPlan(NamedTuple):
    """One line of the map; sorts by (M, N, K)."""

    m_bucket: int
    n: int
    k: int
    tactic_id: int


def selected(plans: Mapping[_Shape, int]) -> tuple[SelectedPlan, ...]:
    """The map of `plans` (keys starting with M bucket, N, K: PlanKey or a plain triple), sorted."""
    return tuple(sorted(SelectedPlan(key[0], key[1], key[2], tactic) for key, tactic in plans.items()))


def selected_lines(plans: Iterable[tuple[int, int, int, int]]) -> str:
    """`[VT_FP4_CACHE] selected M=… N=… K=… tactic=…` lines in (M, N, K) order, each with its LF."""
    return "".join(f"[VT_FP4_CACHE] selected M={m} N={n} K={k} tactic={tactic}\n" for m, n, k, tactic in sorted(plans))


def map_sha256(plans: Iterable[tuple[int, int, int, int]]) -> str:
    """SHA-256 of the lines: equal exactly when two processes selected the same tactics for the same shapes."""
    return hashlib.sha256(selected_lines(plans).encode()).hexdigest()
