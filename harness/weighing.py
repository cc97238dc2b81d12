"""One axis against its floor: interval, p, equivalence, smallest detectable effect, label. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.floor import Spread
from harness.statistics import t_quantile, t_two_sided, tost

__all__ = ["LABELS", "Family", "Terms", "Weighed", "label", "weigh"]

LABELS = ("REAL", "REAL-SMALL", "NOISE", "UNRESOLVED", "NO-FLOOR")
MOST_CAMPAIGNS = 1000


@dataclass(frozen=True)
class Terms:
    """What the rule says of the interpretation: levels, margins (as fractions), and what a floor must be.

    An effect smaller than `one_campaign_from` is called REAL only after two campaigns.
    """

    alpha: float
    tost_alpha: float
    power: float
    one_campaign_from: float
    margins: Mapping[str, float]
    min_campaigns: int
    floor_days: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Terms:
        return cls(
            **{name: float(data[name]) for name in ("alpha", "tost_alpha", "power", "one_campaign_from")},
            margins={name: float(value) for name, value in data["margins"].items()},
            min_campaigns=int(data["min_campaigns"]),
            floor_days=int(data["floor_days"]),
        )

    def margin(self, name: str) -> float:
        """The margin of an axis as a log ratio: by its own name, else by its statistic (mean, median, p90, p99)."""
        head = name.split("_", 1)[0]
        kind = name if name in self.margins else head if head in self.margins else "throughput"
        return math.log1p(self.margins[kind])


@dataclass(frozen=True)
class Weighed:
    """One axis against its floor. All None without a usable spread, for which `reason` says why."""

    se: float | None = None
    df: float | None = None
    p: float | None = None
    tost_p: float | None = None
    interval: tuple[float, float] | None = None
    smallest: float | None = None
    campaigns_needed: int | None = None
    between: bool = True
    reason: str | None = None


@dataclass(frozen=True)
class Family:
    """Where an axis stands: its name, pairs a campaign, campaigns of the run, hypotheses of the run for Holm."""

    name: str
    pairs: int
    campaigns: int
    tests: int


def weigh(estimate: float | None, spread: Spread | None, terms: Terms, family: Family) -> Weighed:
    """One axis: its log ratio, the mean over the run's campaigns, against what identical arms do."""
    if estimate is None:
        return Weighed(reason="the axis has no ratio")
    if spread is None:
        return Weighed(reason="the floor lacks this axis, or a value of it")
    variance, df = spread.variance(family.pairs, family.campaigns)
    if variance <= 0:
        return _without_variance(estimate)
    se, margin = math.sqrt(variance), terms.margin(family.name)
    half = t_quantile(terms.alpha / 2, df) * se
    return Weighed(
        between=spread.between,
        se=se,
        df=df,
        p=t_two_sided(estimate / se, df),
        tost_p=tost(estimate, se, df, margin),
        interval=(estimate - half, estimate + half),
        smallest=_steps(terms, df, family.tests) * se,
        campaigns_needed=_campaigns_needed(spread, terms, family),
    )


def _without_variance(estimate: float) -> Weighed:
    """Identical arms never differed: no difference is then nothing, and the size of any other cannot be judged."""
    if estimate == 0:
        return Weighed(se=0.0, p=1.0, tost_p=0.0, interval=(0.0, 0.0))
    return Weighed(se=0.0, p=1.0, tost_p=1.0, reason="the floor shows no variation on this axis, so it gives no scale")


def _steps(terms: Terms, df: float, tests: int) -> float:
    """Standard errors between 0 and an effect that Holm's first step finds with the rule's power."""
    return t_quantile(terms.alpha / (2 * tests), df) + t_quantile(1 - terms.power, df)


def _campaigns_needed(spread: Spread, terms: Terms, family: Family) -> int | None:
    """Campaigns until an effect as large as the margin is found; None where the order's bias never lets it."""
    one, df = spread.variance(family.pairs, 1)
    margin = terms.margin(family.name)
    allowed = (margin / _steps(terms, df, family.tests)) ** 2
    bias = min(spread.bias, one)
    if allowed <= bias:
        return None
    needed = max(1, math.ceil((one - bias) / (allowed - bias)))
    least = 2 if margin < math.log1p(terms.one_campaign_from) else 1
    return max(needed, least) if needed <= MOST_CAMPAIGNS else None


def label(estimate: float | None, weighed: Weighed, holm_p: float, terms: Terms, family: Family) -> str:
    """REAL, REAL-SMALL, NOISE or UNRESOLVED.

    A small effect is REAL only after two campaigns, and never by a floor that does not know what differs between them.
    """
    if estimate is None or weighed.tost_p is None:
        return "UNRESOLVED"
    if holm_p < terms.alpha:
        if abs(estimate) <= terms.margin(family.name):
            return "REAL-SMALL"
        small = abs(estimate) < math.log1p(terms.one_campaign_from)
        return "UNRESOLVED" if small and (family.campaigns < 2 or not weighed.between) else "REAL"
    return "NOISE" if weighed.tost_p < terms.tost_alpha else "UNRESOLVED"
