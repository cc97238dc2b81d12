"""The acceptance rule: exact arithmetic on recorded numbers, no tolerance. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Any

from harness import canonical
from harness.axes import Axis
from harness.errors import HarnessError

__all__ = ["KNOWN", "AxisResult", "Rule", "altered", "combine", "content_digest", "decimal_text", "judge"]

DIGITS = 9
# What each released rule says, by the start of its digest. A released rule never changes; it gets a successor.
KNOWN = {
    ("strict-mean", 2): "c9c82d1ca6bbb1f1",
    ("strict-mean", 1): "4738c855a27e47d4",
    ("strict-median", 2): "7fe31f4f1eb5f520",
    ("strict-median", 1): "f7cfe2de46fbc343",
}


@dataclass(frozen=True)
class Rule:
    """`estimator` joins repetitions (mean or median); an axis passes when its ratio is at least `threshold`."""

    name: str
    version: int
    estimator: str
    threshold: Fraction

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rule:
        """The rule a plan names. HarnessError `unknown-rule` for an estimator this version does not know."""
        if data["estimator"] not in ("mean", "median"):
            raise HarnessError("unknown-rule", f"rule {data['name']} has the unknown estimator {data['estimator']!r}")
        return cls(data["name"], int(data["version"]), data["estimator"], Fraction(data["threshold"]))


def content_digest(rule: Mapping[str, Any]) -> str:
    """SHA-256 of all that a rule says but the order of legs, which a plan may choose."""
    return canonical.sha256_bytes(canonical.dumps({name: value for name, value in rule.items() if name != "order"}))


def altered(rule: Mapping[str, Any]) -> str | None:
    """Why a plan's rule is not the released one of its name and version; None if it is, or from before this was asked.

    An old bundle is judged by the rule in its own plan, whatever `conf/rule/` says today.
    """
    if "interpretation" not in rule:
        return None
    known = KNOWN.get((str(rule["name"]), int(rule["version"])))
    if known is None:
        return f"rule {rule['name']} version {rule['version']} is not a released one"
    same = content_digest(rule).startswith(known)
    return None if same else f"rule {rule['name']} version {rule['version']} was changed for this run"


@dataclass(frozen=True)
class AxisResult:
    """One row of the verdict. `ratio` above 1 means the candidate is better; None never passes."""

    axis: Axis
    candidate: Fraction | None
    baseline: Fraction | None
    ratio: Fraction | None
    passed: bool
    reason: str | None


def combine(values: Sequence[Fraction], estimator: str) -> Fraction:
    """Mean or median of at least one value."""
    if estimator == "mean":
        return sum(values, Fraction(0)) / len(values)
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def judge(
    axis: Axis, candidate: Sequence[Fraction | None], baseline: Sequence[Fraction | None], rule: Rule
) -> AxisResult:
    """Direction-normalised ratio of the estimates. A missing or zero estimate gives no ratio and does not pass."""
    arms = [_estimate(values, rule) for values in (candidate, baseline)]
    if arms[0] is None or arms[1] is None:
        return AxisResult(axis, arms[0], arms[1], None, False, "a repetition has no value")
    if arms[0] == 0 or arms[1] == 0:
        return AxisResult(axis, arms[0], arms[1], None, False, "an arm's estimate is zero")
    ratio = arms[0] / arms[1] if axis.direction == "higher" else arms[1] / arms[0]
    return AxisResult(axis, arms[0], arms[1], ratio, ratio >= rule.threshold, None)


def _estimate(values: Sequence[Fraction | None], rule: Rule) -> Fraction | None:
    known = [value for value in values if value is not None]
    return combine(known, rule.estimator) if known and len(known) == len(values) else None


def decimal_text(value: Fraction, digits: int = DIGITS) -> str:
    """`value` rounded half-even to `digits` significant digits, the same on every platform."""
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN)
    return f"{context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context):f}"
