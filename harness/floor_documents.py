"""From runs to the document of a floor. Pure; reading bundles and running campaigns are done elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from harness import floor, logratios
from harness.axes import axes_of
from harness.plan import Plan
from harness.records import Leg
from harness.statistics import rounded
from harness.weighing import Terms

__all__ = ["Campaign", "from_campaigns", "from_residuals"]


@dataclass(frozen=True)
class Campaign:
    """One campaign: its timed legs in running order, the digests of the bundles that hold them, when it began."""

    legs: Sequence[Leg]
    bundles: Sequence[str]
    started_utc: str

    def plan_maps(self) -> set[str]:
        return {leg.plans.map_sha256 for leg in self.legs if leg.plans is not None}


def from_campaigns(plan: Plan, campaigns: Sequence[Campaign], stopping: Mapping[str, Any]) -> dict[str, Any]:
    """The sealed floor of A/A campaigns. ValueError where their FP4 plan maps differ."""
    logs = [logratios.campaign_logs(plan, campaign.legs) for campaign in campaigns]
    axes = [
        {
            "concurrency": axis.concurrency or None,
            "name": axis.name,
            "log_ratios": [found[axis.concurrency, axis.name].log_ratio for found in logs],
            "pairs": [list(found[axis.concurrency, axis.name].pairs) for found in logs],
        }
        for axis in axes_of(plan.concurrencies, plan.gpu, plan.memory, plan.ladder)
    ]
    return _sealed(plan, campaigns, floor.CAMPAIGNS, {"axes": axes, "stopping": dict(stopping)})


def from_residuals(plan: Plan, runs: Sequence[Campaign]) -> dict[str, Any]:
    """The sealed floor pooled from how the legs of each arm differ within each run: logs less their mean."""
    values = [logratios.arm_values(run.legs) for run in runs]
    axes = [
        {
            "concurrency": axis.concurrency or None,
            "name": axis.name,
            "residuals": [
                _residuals(found.get((arm, axis.concurrency, axis.name), [])) for found in values for arm in "AB"
            ],
        }
        for axis in axes_of(plan.concurrencies, plan.gpu, plan.memory, plan.ladder)
    ]
    return _sealed(plan, runs, floor.ARCHIVED, {"axes": axes, "stopping": None})


def _residuals(values: Sequence[Any]) -> list[float | None]:
    """Logs less their mean; a value of 0 has no log, so the leg's arm then has none."""
    if any(not value for value in values):
        return []
    logs = [math.log(value.numerator) - math.log(value.denominator) for value in values]
    mean = math.fsum(logs) / len(logs) if logs else 0.0
    return [rounded(value - mean) for value in logs]


def _sealed(plan: Plan, campaigns: Sequence[Campaign], source: str, rest: Mapping[str, Any]) -> dict[str, Any]:
    maps = set().union(*(campaign.plan_maps() for campaign in campaigns))
    if len(maps) > 1:
        raise ValueError(f"its runs had {len(maps)} FP4 plan maps")
    made = max((campaign.started_utc for campaign in campaigns), key=floor.moment)
    days = Terms.from_json(plan.rule["interpretation"]).floor_days
    legs = [leg for campaign in campaigns for leg in campaign.legs]
    document = {
        "format": floor.FORMAT,
        "source": source,
        "binds": floor.binding(plan),
        "plan_map_sha256": next(iter(maps), None),
        "repetitions": plan.repetitions,
        "made_utc": floor.moment(made).isoformat(),
        "expires_utc": (floor.moment(made) + timedelta(days=days)).isoformat(),
        "one_token": {str(c): logratios.one_token_chunks(legs, c) for c in plan.concurrencies},
        "campaigns": [_campaign(plan, campaign) for campaign in campaigns],
    }
    return floor.sealed({**document, **rest})


def _campaign(plan: Plan, campaign: Campaign) -> dict[str, Any]:
    first = logratios.first_legs(plan, campaign.legs)
    return {
        "bundles": list(campaign.bundles),
        "started_utc": campaign.started_utc,
        "first_leg": {str(concurrency): value for concurrency, value in first.items()},
    }
