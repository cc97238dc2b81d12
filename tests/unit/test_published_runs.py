"""The published G4 campaigns, judged by this project's rule: what was published is measured, the rest is marked so.

Published are both means and the ratio of total throughput at c2 and c16 for five campaigns, and for one campaign with
one frozen plan also which axes missed. No per-request times were published, so there is nothing to recompute from.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest

from harness.axes import Axis, axes_of
from harness.rule import AxisResult, Rule, judge

STRICT = Rule("strict-mean", 2, "mean", Fraction(1))
THROUGHPUT = "total_token_throughput"

# campaign, concurrency, candidate and baseline in tok/s, the ratio as printed
PUBLISHED = [
    ("unfrozen", 2, "150.116922", "149.801191", "1.002107665"),
    ("unfrozen", 16, "796.834440", "791.907102", "1.006222116"),
    ("frozen", 2, "150.992608120", "150.318657387", "1.004483480"),
    ("frozen", 16, "812.541436430", "808.463406765", "1.005044173"),
    ("second", 2, "152.871951898", "152.571813445", "1.0019671946"),
    ("second", 16, "817.229771058", "817.111876605", "1.0001442819"),
    ("third", 2, "154.631341055994", "151.946734064979", "1.017668079591"),
    ("third", 16, "818.565304954761", "813.240309545080", "1.006547874407"),
    ("fourth", 2, "154.499921993", "154.121284730", "1.002456749"),
    ("fourth", 16, "819.912423108", "820.100596572", "0.999770548"),
]


@pytest.mark.parametrize(("campaign", "concurrency", "candidate", "baseline", "printed"), PUBLISHED)
def test_the_rule_gives_the_published_ratio_within_the_rounding_of_the_published_means(
    campaign: str, concurrency: int, candidate: str, baseline: str, printed: str
) -> None:
    axis = Axis(THROUGHPUT, concurrency, "timing", "higher", "tok/s")
    result = judge(axis, [Fraction(candidate)], [Fraction(baseline)], STRICT)
    assert result.ratio is not None, campaign
    rounding = unit(candidate) / Fraction(candidate) + unit(baseline) / Fraction(baseline)
    assert abs(result.ratio - Fraction(printed)) <= rounding + unit(printed)
    assert result.passed == (Fraction(printed) >= 1)


def unit(printed: str) -> Fraction:
    """One unit in the last printed place."""
    return Fraction(1, 10 ** len(printed.partition(".")[2]))


@dataclass(frozen=True)
class Row:
    """One axis of the frozen campaign. `constructed`: only pass or miss was published, so the size is made up here."""

    result: AxisResult
    constructed: bool


def frozen_campaign() -> list[Row]:
    """48 axes: 20/20 + 1/4 at c2 and 19/20 + 0/4 at c16; three ratios are published, 45 are constructed."""
    ratios = {(2, THROUGHPUT): "1.004483480", (16, THROUGHPUT): "1.005044173", (16, "p99_tpot_ms"): "0.997683064"}
    rows = []
    for axis in axes_of((2, 16), gpu=True):
        key = (axis.concurrency, axis.name)
        passes = axis.kind == "timing" or key == (2, "peak_gpu_memory_mib")
        ratio = Fraction(ratios.get(key, "1.001" if passes else "0.999"))
        arms = (ratio, Fraction(1)) if axis.direction == "higher" else (Fraction(1), ratio)
        rows.append(Row(judge(axis, [arms[0]], [arms[1]], STRICT), key not in ratios))
    return rows


def test_the_frozen_campaign_has_the_published_counts_and_names_the_published_misses() -> None:
    rows = frozen_campaign()
    assert (len(rows), sum(row.constructed for row in rows)) == (48, 45)
    passed = {
        (kind, concurrency): sum(
            row.result.passed
            for row in rows
            if (row.result.axis.kind, row.result.axis.concurrency) == (kind, concurrency)
        )
        for kind in ("timing", "memory")
        for concurrency in (2, 16)
    }
    assert passed == {("timing", 2): 20, ("timing", 16): 19, ("memory", 2): 1, ("memory", 16): 0}
    missed = [row.result.axis.name for row in rows if row.result.axis.kind == "timing" and not row.result.passed]
    assert missed == ["p99_tpot_ms"]
    assert not all(row.result.passed for row in rows)
