"""Is each miss, and each pass, distinguishable from what two identical arms do on this host? Standard library only.

Nothing here can change PASS or FAIL. The estimator is the log of the acceptance ratio itself; its variance comes from
an A/A floor that the plan names by digest before the first leg, never from the run that is judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from harness import floor as floors_module
from harness import logratios, mixtures, omnibus
from harness.axes import Axis, axes_of
from harness.floor import Floor, Spread
from harness.logratios import AxisKey, AxisLogs
from harness.plan import Plan
from harness.records import Leg
from harness.rule import Rule, judge
from harness.statistics import holm, rounded
from harness.weighing import LABELS, Family, Terms, Weighed, label, weigh

__all__ = ["FORMAT", "Comparison", "compared", "counts", "interpret", "rows", "usable_floors"]

FORMAT = "nvfp4-gates-interpretation-v1"


@dataclass(frozen=True)
class Comparison:
    """What is interpreted: log ratios of one run and of earlier campaigns of the same comparison, and the floors.

    `twins` says for each axis which one it repeats, or None. `pairs` is the number of pairs a campaign.
    """

    axes: Sequence[Axis]
    campaigns: Sequence[Mapping[AxisKey, AxisLogs]]
    twins: Mapping[AxisKey, str | None]
    floors: Sequence[Floor]
    terms: Terms
    pairs: int

    @cached_property
    def own(self) -> list[AxisKey]:
        """The distinct axes: each is one hypothesis."""
        return [key for key, twin in self.twins.items() if twin is None]

    def estimate(self, key: AxisKey) -> float | None:
        """Mean of the campaigns' log ratios; None where one has none."""
        values = [found for campaign in self.campaigns if (found := campaign[key].log_ratio) is not None]
        return math.fsum(values) / len(values) if len(values) == len(self.campaigns) else None

    @cached_property
    def spreads(self) -> dict[AxisKey, Spread]:
        """What identical arms do, where every floor knows it."""
        kinds = {(axis.concurrency, axis.name): (axis.concurrency, axis.kind) for axis in self.axes}
        groups: dict[tuple[int, str], dict[AxisKey, Spread]] = {}
        for key in self.own:
            spreads = [spread for item in self.floors if (spread := item.spread(key)) is not None]
            if spreads and len(spreads) == len(self.floors):
                groups.setdefault(kinds[key], {})[key] = floors_module.joined(spreads)
        return {key: spread for group in groups.values() for key, spread in floors_module.settled(group).items()}

    def family(self, name: str) -> Family:
        return Family(name, self.pairs, len(self.campaigns), len(self.own))


def interpret(
    plan: Plan, legs: Sequence[Leg], documents: Sequence[Any] = (), started_utc: str | None = None
) -> dict[str, Any] | None:
    """The key `interpretation` of a verdict; None where the plan's rule has no terms for it.

    `documents` are the floors in the bundle, `started_utc` is when the run began.
    """
    if not plan.rule.get("interpretation"):
        return None
    terms = Terms.from_json(plan.rule["interpretation"])
    floors, head = usable_floors(plan, legs, documents, started_utc, terms)
    comparison = compared(plan, [legs], floors, terms)
    found = rows(comparison)
    return {
        "format": FORMAT,
        "floor": head,
        "alpha": terms.alpha,
        "margins": dict(terms.margins),
        "campaigns": len(comparison.campaigns),
        "tests": len(comparison.own),
        "axes": found,
        "counts": counts(found),
        "omnibus": _omnibus(comparison),
        "order_bias": {"axes": _biased(comparison), "first_leg": _first_legs(plan, legs, floors)},
        "variants": _variants(plan, legs, comparison.axes),
        "ttft_modes": [mixtures.ttft_modes(legs, concurrency) for concurrency in plan.measured],
        "stall_share": [mixtures.stall_share(legs, concurrency) for concurrency in plan.measured],
    }


def compared(plan: Plan, campaigns: Sequence[Sequence[Leg]], floors: Sequence[Floor], terms: Terms) -> Comparison:
    """Campaigns of one plan, each given by its legs, against `floors`."""
    every = [leg for legs in campaigns for leg in legs]
    return Comparison(
        axes=axes_of(plan.measured, plan.gpu, plan.memory, plan.ladder),
        campaigns=[logratios.campaign_logs(plan, legs) for legs in campaigns],
        twins=_twins(plan, every, floors),
        floors=floors,
        terms=terms,
        pairs=plan.repetitions,
    )


def counts(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many distinct axes have each label."""
    return {name: sum(row["label"] == name and row["same_as"] is None for row in found) for name in LABELS}


def usable_floors(
    plan: Plan, legs: Sequence[Leg], documents: Sequence[Any], started: str | None, terms: Terms
) -> tuple[list[Floor], dict[str, Any]]:
    """The floors that may be used, and a verdict's `interpretation.floor`: used, or why not and what cannot be told."""
    named = list(plan.floor["digests"]) if plan.floor else []
    found = [floors_module.loads(document, f"floor {number}") for number, document in enumerate(documents, 1)]
    status, reason = ("used", None) if named else ("none", "the plan names no floor")
    if named and [item.digest for item in found] != named:
        status, reason = "foreign", "the bundle's floor is not the one that the plan names"
    for item in found if status == "used" else ():
        if status == "used":
            status, reason = _status(item, plan, legs, started, terms)
    usable = found if status == "used" else []
    head = {"status": status, "reason": reason, "digests": named, **_described(found if named else [])}
    return usable, {**head, "cannot_tell": _cannot_tell(usable)}


def _described(found: Sequence[Floor]) -> dict[str, Any]:
    return {
        "digest": found[0].digest if found else None,
        "source": "+".join(sorted({item.source for item in found})) or None,
        "campaigns": min((len(item.campaigns) for item in found), default=0),
        "made": min((item.made_utc for item in found), default=None),
        "expires": min((item.expires_utc for item in found), default=None),
    }


def _status(item: Floor, plan: Plan, legs: Sequence[Leg], started: str | None, terms: Terms) -> tuple[str, str | None]:
    if (reason := floors_module.mismatch(item, plan)) is not None:
        return "foreign", f"the floor is for another subject: {reason}"
    maps = {leg.plans.map_sha256 for leg in legs if leg.plans is not None and leg.kind != "seed"}
    if item.plan_map_sha256 is not None and maps != {item.plan_map_sha256}:
        return "foreign", "the floor was made with another FP4 plan map; give both the same engine.plan"
    if len(item.campaigns) < terms.min_campaigns:
        return "none", f"the floor holds {len(item.campaigns)} campaigns, the rule wants {terms.min_campaigns}"
    if started is None or floors_module.moment(started) > floors_module.moment(item.expires_utc):
        return "stale", f"the floor expired at {item.expires_utc}; the run began at {started or 'an unknown time'}"
    return "used", None


def _cannot_tell(floors: Sequence[Floor]) -> str | None:
    if not floors:
        return "whether any miss or pass differs from what two identical arms do on this host"
    if any(item.source == floors_module.ARCHIVED for item in floors):
        return "what differs between campaigns, bias of the order, and how many axes identical arms miss"
    return None


def _twins(plan: Plan, legs: Sequence[Leg], floors: Sequence[Floor]) -> dict[AxisKey, str | None]:
    """The floor was there first: where it saw mean ITL and mean TPOT apart, they stay two numbers."""
    twins: dict[AxisKey, str | None] = {}
    for axis in axes_of(plan.measured, plan.gpu, plan.memory, plan.ladder):
        single = logratios.one_token_chunks(legs, axis.concurrency)
        single = single and all(item.one_token.get(axis.concurrency, False) for item in floors)
        twins[axis.concurrency, axis.name] = logratios.same_as(axis.name, single)
    return twins


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row an axis, in the plan's order; a twin has the figures of the axis that it repeats."""
    estimates = {key: comparison.estimate(key) for key in comparison.own}
    weighed = {
        key: weigh(estimates[key], comparison.spreads.get(key), comparison.terms, comparison.family(key[1]))
        for key in comparison.own
    }
    p_values = {key: item.p for key, item in weighed.items() if item.p is not None}
    adjusted = dict(zip(p_values, holm(list(p_values.values()), len(comparison.own)), strict=True))
    found = []
    for axis in comparison.axes:
        twin = comparison.twins[axis.concurrency, axis.name]
        key = (axis.concurrency, twin or axis.name)
        place = {"concurrency": axis.concurrency or None, "name": axis.name, "kind": axis.kind, "same_as": twin}
        pairs = {"pairs": list(comparison.campaigns[0][key].pairs)}
        found.append({**place, **pairs, **_row(comparison, key, estimates[key], weighed[key], adjusted.get(key))})
    return found


def _row(
    comparison: Comparison, key: AxisKey, estimate: float | None, weighed: Weighed, holm_p: float | None
) -> dict[str, Any]:
    terms, family, spread = comparison.terms, comparison.family(key[1]), comparison.spreads.get(key)
    called = label(estimate, weighed, 1.0 if holm_p is None else holm_p, terms, family)
    within, between = (None, None) if spread is None else spread.deviations()
    needed = weighed.campaigns_needed
    return {
        "log_ratio": rounded(estimate),
        "se": rounded(weighed.se),
        "df": rounded(weighed.df),
        "interval": None if weighed.interval is None else [rounded(bound) for bound in weighed.interval],
        "p": rounded(weighed.p),
        "holm_p": rounded(holm_p),
        "tost_p": rounded(weighed.tost_p),
        "smallest_detectable": rounded(weighed.smallest),
        "campaigns_needed": needed,
        "pairs_needed": None if needed is None else needed * family.pairs,
        "label": called if comparison.floors else "NO-FLOOR",
        "direction": None if estimate is None else "better" if estimate > 0 else "worse" if estimate < 0 else "equal",
        "margin": rounded(terms.margin(family.name)),
        "floor_mean": None if spread is None or not spread.between else rounded(spread.mean),
        "sd_within": rounded(within),
        "sd_between": rounded(between),
        "reason": weighed.reason if comparison.floors else None,
    }


def _omnibus(comparison: Comparison) -> dict[str, Any]:
    """Misses of this run alone, over distinct axes; identical arms' as one floor of campaigns shows them."""
    logs, null = comparison.campaigns[0], {}
    own: dict[int, list[AxisKey]] = {}
    for key in comparison.own:
        own.setdefault(key[0], []).append(key)
    misses = {c: sum(_missed(logs[key].log_ratio) for key in keys) for c, keys in own.items()}
    for c, keys in own.items() if len(comparison.floors) == 1 else ():
        whole = all(key in comparison.spreads for key in keys)
        null[c] = omnibus.counts(comparison.floors[0].vectors(keys)) if whole else []
    return omnibus.omnibus(misses, {c: len(keys) for c, keys in own.items()}, null)


def _missed(log_ratio: float | None) -> bool:
    return log_ratio is None or log_ratio < 0


def _biased(comparison: Comparison) -> list[dict[str, Any]] | None:
    """Axes on which identical arms differ in the mean, since the order favours one; None without a floor."""
    found = comparison.spreads
    adjusted = floors_module.bias_p_values(list(found.values()), len(comparison.own))
    biased = [
        {"concurrency": key[0] or None, "name": key[1], "floor_mean": rounded(spread.mean), "holm_p": rounded(p)}
        for (key, spread), p in zip(found.items(), adjusted, strict=True)
        if p < comparison.terms.alpha
    ]
    return biased if comparison.floors else None


def _first_legs(plan: Plan, legs: Sequence[Leg], floors: Sequence[Floor]) -> list[dict[str, Any]]:
    """How the first leg at each concurrency differs from those after it, here and in the floors' campaigns."""
    first = logratios.first_legs(plan, legs)
    return [
        {"concurrency": c, "log_ratio": first[c], "floor_mean": rounded(_mean_first_leg(floors, c))}
        for c in plan.measured
    ]


def _mean_first_leg(floors: Sequence[Floor], concurrency: int) -> float | None:
    values = [item.get("first_leg", {}).get(str(concurrency)) for found in floors for item in found.campaigns]
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _variants(plan: Plan, legs: Sequence[Leg], axes: Sequence[Axis]) -> dict[str, Any]:
    """The two other rules in use for such gates, for information: every pair, and the ratio of medians."""
    values, rule = logratios.arm_values(legs), Rule.from_json(plan.rule)
    median = Rule("median", 1, "median", rule.threshold)
    every, middle = [], []
    for axis in axes:
        arms: list[list[Fraction | None]] = [values.get((arm, axis.concurrency, axis.name), []) for arm in "AB"]
        pairs = [judge(axis, [one], [two], rule).passed for one, two in zip(*arms, strict=False)]
        every.append(bool(pairs) and all(pairs))
        middle.append(judge(axis, arms[0], arms[1], median).passed)
    return {
        "every_pair": {"pass": sum(every), "of": len(every), "binding": False},
        "median": {"pass": sum(middle), "of": len(middle), "binding": False},
    }
