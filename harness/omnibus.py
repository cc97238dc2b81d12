"""How often identical arms miss at least as many axes as a run did. Standard library only.

Whole A/A vectors are mirrored about the A/A mean, so that the correlation of the axes is kept; concurrencies are apart,
since each has legs of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.statistics import rounded

__all__ = ["counts", "omnibus"]


def omnibus(misses: Mapping[int, int], axes: Mapping[int, int], null: Mapping[int, Sequence[int]]) -> dict[str, Any]:
    """`misses` and number of `axes` by concurrency; `null` has the equally likely counts of identical arms."""
    if not null or any(not values for values in null.values()):
        whole = None
    else:
        combined: Counter[int] = Counter({0: 1})
        for values in null.values():
            combined = _sum(combined, Counter(values))
        whole = _at_least(combined, sum(misses.values()))
    return {
        "misses": sum(misses.values()),
        "of": sum(axes.values()),
        "p": rounded(whole),
        "per_concurrency": [
            {
                "concurrency": concurrency or None,
                "misses": misses[concurrency],
                "of": axes[concurrency],
                "p": rounded(_at_least(Counter(null[concurrency]), misses[concurrency]))
                if null.get(concurrency)
                else None,
            }
            for concurrency in sorted(misses)
        ],
    }


def _sum(one: Counter[int], two: Counter[int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for first, weight in one.items():
        for second, other in two.items():
            found[first + second] += weight * other
    return found


def _at_least(distribution: Counter[int], count: int) -> float:
    total = sum(distribution.values())
    return sum(weight for value, weight in distribution.items() if value >= count) / total


def counts(vectors: Sequence[Sequence[float]]) -> list[int]:
    """Misses (entries below 0) of each campaign's vector and of its mirror image about the mean of all campaigns.

    Both are stretched by sqrt((K + 1) / (K - 1)), since a new campaign lies farther from the mean of K than the K
    themselves do.
    """
    number = len(vectors)
    if number < 2:
        return []
    means = [math.fsum(column) / number for column in zip(*vectors, strict=True)]
    stretch = math.sqrt((number + 1) / (number - 1))
    found = []
    for sign in (1, -1):
        for vector in vectors:
            moved = (m + sign * stretch * (v - m) for v, m in zip(vector, means, strict=True))
            found.append(sum(value < 0 for value in moved))
    return found
