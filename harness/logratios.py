"""Log ratios of the arms, for one campaign: of the acceptance ratio itself, and pair by pair. Standard library only.

Above 0 the candidate is better, as a ratio above 1 is. An axis whose ratio does not exist has None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.axes import LADDER, Axis, axes_of, ladder_peaks, leg_values
from harness.client.metrics import THROUGHPUT_AXES, AxisValue
from harness.plan import Plan
from harness.records import Leg
from harness.rule import Rule, judge
from harness.statistics import rounded

__all__ = ["AxisKey", "AxisLogs", "arm_values", "campaign_logs", "first_legs", "one_token_chunks", "same_as"]

AxisKey = tuple[int, str]  # concurrency (LADDER for all of them) and name


@dataclass(frozen=True)
class AxisLogs:
    """`log_ratio` is ln of the acceptance ratio; `pairs` that of each pair of legs, in the order of repetitions."""

    log_ratio: float | None
    pairs: tuple[float | None, ...]


def arm_values(legs: Sequence[Leg]) -> dict[tuple[str, int, str], list[Fraction | None]]:
    """The values of the timed legs by (arm, concurrency, axis), in the order of repetitions.

    Under LADDER are the memory axes over all concurrencies of a repetition.
    """
    timed = [leg for leg in legs if leg.kind == "timed" and leg.concurrency is not None]
    values: dict[tuple[str, int, str], list[Fraction | None]] = {}
    ladders: dict[tuple[str, int], list[dict[str, AxisValue]]] = {}
    for leg in sorted(timed, key=lambda leg: leg.repetition or 0):
        assert leg.concurrency is not None
        found = leg_values(leg)
        ladders.setdefault((leg.arm, leg.repetition or 0), []).append(found)
        for name, item in found.items():
            values.setdefault((leg.arm, leg.concurrency, name), []).append(item.value)
    for (arm, _), ladder in ladders.items():
        for name, item in ladder_peaks(ladder).items():
            values.setdefault((arm, LADDER, name), []).append(item.value)
    return values


def campaign_logs(plan: Plan, legs: Sequence[Leg]) -> dict[AxisKey, AxisLogs]:
    """Every axis of the plan. The estimator is the rule's, so `log_ratio` is the log of what is accepted or not."""
    rule, values = Rule.from_json(plan.rule), arm_values(legs)
    return {
        (axis.concurrency, axis.name): axis_logs(axis, _of(values, "A", axis), _of(values, "B", axis), rule)
        for axis in axes_of(plan.concurrencies, plan.gpu, plan.memory, plan.ladder)
    }


def _of(values: Mapping[tuple[str, int, str], list[Fraction | None]], arm: str, axis: Axis) -> list[Fraction | None]:
    return values.get((arm, axis.concurrency, axis.name), [])


def axis_logs(
    axis: Axis, candidate: Sequence[Fraction | None], baseline: Sequence[Fraction | None], rule: Rule
) -> AxisLogs:
    """The logs of one axis from its values, one a repetition and arm."""
    pairs = [judge(axis, [one], [two], rule).ratio for one, two in zip(candidate, baseline, strict=False)]
    return AxisLogs(_log(judge(axis, candidate, baseline, rule).ratio), tuple(_log(ratio) for ratio in pairs))


def _log(ratio: Fraction | None) -> float | None:
    """ln, through `log1p` of the exact difference from 1, which keeps the digits of small effects."""
    if ratio is None or ratio <= 0:
        return None
    near = abs(ratio - 1) < Fraction(1, 2)
    return rounded(math.log1p(float(ratio - 1)) if near else math.log(ratio.numerator) - math.log(ratio.denominator))


def one_token_chunks(legs: Sequence[Leg], concurrency: int) -> bool:
    """Whether every chunk of every timed leg at `concurrency` carried one token: mean ITL is then mean TPOT."""
    records = [
        record for leg in legs if leg.kind == "timed" and leg.concurrency == concurrency for record in leg.requests
    ]
    return bool(records) and all(record.output_tokens == len(record.chunk_ns) for record in records)


def same_as(name: str, one_token: bool) -> str | None:
    """The axis whose number this one repeats: token counts are exact, so the four throughputs are one number."""
    if name in THROUGHPUT_AXES[1:]:
        return THROUGHPUT_AXES[0]
    return "mean_tpot_ms" if name == "mean_itl_ms" and one_token else None


def first_legs(plan: Plan, legs: Sequence[Leg]) -> dict[int, float | None]:
    """By concurrency, ln of the first timed leg's request throughput over the mean of the legs after it.

    Below 0 the first leg was slow: a cold start, which falls to the arm that goes first.
    """
    found: dict[int, float | None] = {}
    for concurrency in plan.concurrencies:
        timed = [leg for leg in legs if leg.kind == "timed" and leg.concurrency == concurrency]
        rates = [leg_values(leg)["request_throughput"].value for leg in timed]
        known = [rate for rate in rates if rate]
        whole = len(known) == len(rates) > 1
        found[concurrency] = _log(known[0] * (len(known) - 1) / sum(known[1:])) if whole else None
    return found
