"""What one mean hides: the modes of TTFT, and stalls apart from steady gaps. Standard library only; nothing decides.

At low concurrency a request that arrives while another prefills waits for it, so TTFT has two modes and their share is
an arrival lottery. Prefills of others stall a stream, so gaps between chunks have a tail that is no decode speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from harness.client.metrics import STALL_NS, percentile
from harness.records import Leg
from harness.statistics import rounded

__all__ = ["split", "stall_share", "ttft_modes"]

TWO_MODES = Fraction(4, 5)  # variance between the halves over all variance; a uniform spread has 3/4, a normal one 0.64
MS = 1_000_000


def ttft_modes(legs: Sequence[Leg], concurrency: int) -> dict[str, Any]:
    """TTFT at one concurrency as a mixture: where the modes part, and each arm's share and mean (ms) of each mode.

    The split is common to both arms and all repetitions, so that shares can be compared. `modes` is 1 where halves of
    the values explain less than 4/5 of their variance; shares are then those of everything.
    """
    values = {arm: _ttfts(legs, concurrency, arm) for arm in "AB"}
    border, explained = split([*values["A"], *values["B"]])
    two = explained is not None and explained >= TWO_MODES
    return {
        "concurrency": concurrency,
        "modes": 2 if two else 1,
        "explained": rounded(None if explained is None else float(explained)),
        "split_ms": rounded(float(border) / MS) if two and border is not None else None,
        "arms": {arm: _shares(found, border if two else None) for arm, found in values.items()},
    }


def _ttfts(legs: Sequence[Leg], concurrency: int, arm: str) -> list[int]:
    return [record.chunk_ns[0] for record in _records(legs, concurrency, arm)]


def _records(legs: Sequence[Leg], concurrency: int, arm: str) -> list[Any]:
    timed = [leg for leg in legs if leg.kind == "timed" and leg.concurrency == concurrency and leg.arm == arm]
    return [record for leg in timed for record in leg.requests if record.error is None and record.chunk_ns]


def _shares(values: Sequence[int], border: Fraction | None) -> dict[str, Any]:
    groups = (
        [list(values)]
        if border is None
        else [
            [value for value in values if value <= border],
            [value for value in values if value > border],
        ]
    )
    modes = [
        {
            "requests": len(group),
            "share": rounded(len(group) / len(values)) if values else None,
            "mean_ms": rounded(float(Fraction(sum(group), len(group))) / MS) if group else None,
        }
        for group in groups
    ]
    return {"requests": len(values), "modes": modes}


def split(values: Sequence[int]) -> tuple[Fraction | None, Fraction | None]:
    """Where two halves of the values explain most of the variance (midway between neighbours), and how much of it.

    (None, None) when there are fewer than two values or they are all the same. Exact.
    """
    ordered = sorted(values)
    count, total = len(ordered), sum(ordered)
    squares = count * sum(value * value for value in ordered) - total * total  # count squared times the variance
    if count < 2 or squares == 0:
        return None, None
    best, where, left = Fraction(0), 0, 0
    for index in range(1, count):
        left += ordered[index - 1]
        if ordered[index] == ordered[index - 1]:
            continue
        between = Fraction((left * count - index * total) ** 2, index * (count - index))
        if between > best:
            best, where = between, index
    return Fraction(ordered[where - 1] + ordered[where], 2), best / squares


def stall_share(legs: Sequence[Leg], concurrency: int) -> dict[str, Any]:
    """Gaps of 400 ms and more, as a share of all gaps, apart from the steady ones; by arm. Gaps in ms."""
    arms = {}
    for arm in "AB":
        gaps = [
            after - before
            for record in _records(legs, concurrency, arm)
            for before, after in zip(record.chunk_ns, record.chunk_ns[1:], strict=False)
        ]
        steady = [gap for gap in gaps if gap < STALL_NS]
        middle = percentile(steady, 50)
        arms[arm] = {
            "gaps": len(gaps),
            "stalls": len(gaps) - len(steady),
            "share": rounded((len(gaps) - len(steady)) / len(gaps)) if gaps else None,
            "steady_mean_ms": rounded(math.fsum(steady) / len(steady) / MS) if steady else None,
            "steady_median_ms": None if middle is None else rounded(float(middle) / MS),
        }
    return {"concurrency": concurrency, "threshold_ms": STALL_NS // MS, "arms": arms}
