"""An A/A floor: what identical arms do on one host, as a sealed value. Standard library only.

A floor of `aa-campaigns` has, for each axis, the log ratio of each campaign (whole and by pair) of runs whose arms
were both the baseline. One of `archived-residuals` is pooled from how the legs of one arm differ in runs that are there
already; it knows nothing of what differs between campaigns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from harness import canonical
from harness.axes import LADDER
from harness.errors import HarnessError
from harness.logratios import AxisKey
from harness.plan import Plan
from harness.statistics import holm, satterthwaite, t_two_sided

__all__ = [
    "ARCHIVED",
    "CAMPAIGNS",
    "FORMAT",
    "Floor",
    "Spread",
    "bias_p_values",
    "binding",
    "joined",
    "loads",
    "mismatch",
    "sealed",
    "settled",
    "spread_of",
]

FORMAT = "nvfp4-gates-floor-v1"
CAMPAIGNS = "aa-campaigns"
ARCHIVED = "archived-residuals"
BIAS_LEVEL = 0.05
FREE_HOST = ("name", "canary_factor", "python")  # what may differ between the floor's host facts and the run's
FREE_RULE = ("interpretation", "threshold")


@dataclass(frozen=True)
class Spread:
    """Variances of one axis' log ratio in identical arms, with their degrees of freedom.

    `campaign`: mean square of a whole campaign of `pairs` pairs, about 0, so the order's bias is in it. `within`: of
    one pair about its campaign's mean. `bias`: square of the A/A mean beyond its own error; it does not average out
    over campaigns. `mean`: the A/A mean. `between` is False where the floor cannot know what differs between
    campaigns.
    """

    campaign: float
    campaign_df: float
    within: float
    within_df: float
    bias: float
    mean: float
    mean_se: float
    pairs: int
    between: bool = True

    def variance(self, pairs: int, campaigns: int) -> tuple[float, float]:
        """Variance and degrees of freedom of the log ratio of a run of `campaigns` campaigns of `pairs` pairs each."""
        total, df = self._one(pairs)
        bias = min(self.bias, total)
        return (total - bias) / campaigns + bias, df

    def _one(self, pairs: int) -> tuple[float, float]:
        """One campaign. The variance between campaigns cannot be negative, so `within` alone bounds it from below."""
        alone = self.within / pairs
        if self.within_df > 0 and self.campaign <= self.within / self.pairs:
            return alone, self.within_df
        change = self.within * (1 / pairs - 1 / self.pairs)
        total = max(self.campaign + change, alone)
        terms = [(self.campaign, self.campaign_df)]
        return total, satterthwaite([*terms, (change, self.within_df)] if change and self.within_df > 0 else terms)

    def deviations(self) -> tuple[float | None, float | None]:
        """Standard deviations of a pair within a campaign, and between campaigns (None where unknown)."""
        apart = max(0.0, self.campaign - self.bias - self.within / self.pairs)
        return math.sqrt(self.within), math.sqrt(apart) if self.between else None


@dataclass(frozen=True)
class Floor:
    """A sealed floor as a value. `axes` is keyed by concurrency and name; `digest` is that of all the rest."""

    source: str
    binds: Mapping[str, Any]
    plan_map_sha256: str | None
    made_utc: str
    expires_utc: str
    repetitions: int
    one_token: Mapping[int, bool]
    campaigns: Sequence[Mapping[str, Any]]
    axes: Mapping[AxisKey, Mapping[str, Any]]
    digest: str

    def spread(self, key: AxisKey) -> Spread | None:
        """None where the floor lacks the axis, or a value of it."""
        row = self.axes.get(key)
        if row is None:
            return None
        if self.source == ARCHIVED:
            return _residual_spread(row["residuals"], self.repetitions)
        return spread_of(row["log_ratios"], row["pairs"])

    def vectors(self, keys: Sequence[AxisKey]) -> list[list[float]]:
        """One vector a campaign over `keys`, which must all be there; none for archived residuals."""
        if self.source == ARCHIVED:
            return []
        columns = [self.axes[key]["log_ratios"] for key in keys]
        return [[float(column[number]) for column in columns] for number in range(len(self.campaigns))]


def spread_of(log_ratios: Sequence[float | None], pairs: Sequence[Sequence[float | None]]) -> Spread | None:
    """From each campaign's log ratio, and its pairs'. None where one is missing or there are fewer than two."""
    whole = [value for value in log_ratios if value is not None]
    inner = [[value for value in row if value is not None] for row in pairs]
    count = len(whole)
    if count < 2 or count < len(log_ratios) or any(len(a) != len(b) for a, b in zip(inner, pairs, strict=True)):
        return None
    size = len(inner[0])
    mean = math.fsum(whole) / count
    about_mean = math.fsum((value - mean) ** 2 for value in whole) / (count - 1)
    centres = [math.fsum(row) / len(row) for row in inner]
    inside = math.fsum((v - centre) ** 2 for row, centre in zip(inner, centres, strict=True) for v in row)
    inside_df = sum(len(row) - 1 for row in inner)
    return Spread(
        campaign=math.fsum(value * value for value in whole) / count,
        campaign_df=count,
        within=inside / inside_df if inside_df else 0.0,
        within_df=inside_df,
        bias=max(0.0, mean * mean - about_mean / count),
        mean=mean,
        mean_se=math.sqrt(about_mean / count),
        pairs=size,
    )


def _residual_spread(residuals: Sequence[Sequence[float]], repetitions: int) -> Spread | None:
    """From the logs of one arm's legs less their mean: a log ratio of two legs has twice the variance of one."""
    df = sum(len(row) - 1 for row in residuals)
    if df < 1:
        return None
    pair = 2 * math.fsum(value * value for row in residuals for value in row) / df
    return Spread(pair / repetitions, df, pair, df, 0.0, 0.0, 0.0, repetitions, between=False)


def joined(spreads: Sequence[Spread]) -> Spread:
    """Variances averaged, as G5 needs it: one floor of each engine. Of one spread, itself."""
    if len(spreads) == 1:
        return spreads[0]
    count = len(spreads)

    def mean(name: str) -> float:
        return math.fsum(getattr(item, name) for item in spreads) / count

    return Spread(
        campaign=mean("campaign"),
        campaign_df=satterthwaite([(item.campaign, item.campaign_df) for item in spreads]),
        within=mean("within"),
        within_df=satterthwaite([(item.within, item.within_df) for item in spreads]),
        bias=mean("bias"),
        mean=mean("mean"),
        mean_se=math.sqrt(math.fsum(item.mean_se**2 for item in spreads)) / count,
        pairs=min(item.pairs for item in spreads),
        between=all(item.between for item in spreads),
    )


def bias_p_values(spreads: Sequence[Spread], tests: int) -> list[float]:
    """Whether the order favours an arm: for each axis, Holm's p that the A/A mean is 0, among `tests` hypotheses."""
    return holm([_bias_p(spread) for spread in spreads], tests)


def _bias_p(spread: Spread) -> float:
    if not spread.between or spread.mean_se == 0:
        return 1.0 if spread.mean == 0 or not spread.between else 0.0
    return t_two_sided(spread.mean / spread.mean_se, max(1.0, spread.campaign_df - 1))


def settled(group: Mapping[AxisKey, Spread]) -> dict[AxisKey, Spread]:
    """Axes of one kind and concurrency, which share their legs: a bias of the order that shows on one (5 %, Holm) is
    taken to be on all, each with the size that it has there; one that shows on none is taken to be none."""
    biased = any(p < BIAS_LEVEL for p in bias_p_values(list(group.values()), len(group)))
    return {key: spread if biased else replace(spread, bias=0.0) for key, spread in group.items()}


def binding(plan: Plan) -> dict[str, Any]:
    """What a floor and a run must share: the host with its GPUs and driver, the baseline and its build, load, rule."""
    return {
        "gate": plan.gate,
        "engine": plan.engine,
        "options": dict(plan.options),
        "baseline": {"flags": dict(plan.baseline.flags), "env": dict(plan.baseline.env)},
        "subject": dict(plan.subject),
        "host": {name: value for name, value in plan.host.items() if name not in FREE_HOST},
        "gpu": plan.gpu,
        "concurrencies": list(plan.concurrencies),
        "workload": dict(plan.workload),
        "client": dict(plan.client),
        "rule": {name: value for name, value in plan.rule.items() if name not in FREE_RULE},
    }


def mismatch(floor: Floor, plan: Plan) -> str | None:
    """The first thing in which the run is not the one that the floor was made for, as a clause; None if none."""
    return _difference(dict(floor.binds), binding(plan), "")


def _difference(one: Mapping[str, Any], two: Mapping[str, Any], prefix: str) -> str | None:
    for name in sorted(one.keys() | two.keys()):
        first, second = one.get(name), two.get(name)
        if first == second:
            continue
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            return _difference(first, second, f"{prefix}{name}.")
        return f"{prefix}{name} was {first!r} when the floor was made and is {second!r} in the plan"
    return None


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The floor's document with its own digest: the SHA-256 of its canonical bytes without `digest`."""
    body = {name: value for name, value in document.items() if name != "digest"}
    return {**body, "digest": canonical.sha256_bytes(canonical.dumps(body))}


def loads(document: Any, name: str) -> Floor:
    """A floor out of its JSON. HarnessError `bad-floor` says what is wrong with it."""
    try:
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}, not {FORMAT!r}")
        if sealed(document)["digest"] != document["digest"]:
            raise ValueError("its content is not what its digest says: it was changed after it was sealed")
        rows: dict[AxisKey, Mapping[str, Any]] = {
            (int(row["concurrency"] or LADDER), str(row["name"])): row for row in document["axes"]
        }
        for stamp in ("made_utc", "expires_utc"):
            moment(document[stamp])
        return Floor(
            source=str(document["source"]),
            binds=document["binds"],
            plan_map_sha256=document["plan_map_sha256"],
            made_utc=document["made_utc"],
            expires_utc=document["expires_utc"],
            repetitions=int(document["repetitions"]),
            one_token={int(key): bool(value) for key, value in document["one_token"].items()},
            campaigns=tuple(document["campaigns"]),
            axes=rows,
            digest=document["digest"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        lack = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise HarnessError("bad-floor", f"{name} is no floor: {lack}") from error


def moment(text: str) -> datetime:
    """An ISO 8601 stamp with its zone, as UTC. ValueError otherwise."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return found.astimezone(UTC)
