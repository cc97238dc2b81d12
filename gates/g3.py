"""G3, plan parity and structure: each arm runs exactly the oracle's plans, and launches exactly the GEMMs of its model.

A gate of checks: nothing is timed and no axis exists. What is counted is counted by the engine itself, as exact
integers; what a kernel trace shows is counted beside it where one is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gates import g4, kernel_traces
from gates.kernel_traces import Family
from harness.plan import Plan
from harness.records import Check, Leg

__all__ = ["KIND", "OWN", "VOIDING", "checks"]

VOIDING = frozenset({"legs-complete", "one-lever"})  # the run did not do what was planned, so nothing is known
KIND = "structure"
OWN = "the run's own frozen document, since no oracle is known for this engine on this device"
SHOWN = 2  # keys of a difference that are named; the maps themselves are in the bundle

Rows = Sequence[tuple[int, int, int, int]]


def checks(plan: Plan, legs: Sequence[Leg]) -> list[Check]:
    """Every check of the gate, passed or not."""
    found = list(g4.structure(plan, legs))
    looked_at = [leg for leg in legs if leg.kind == KIND]
    for leg in legs:
        found += g4.leg_checks(plan, leg)
    for leg in looked_at:
        found += [_load(plan, leg), *_counted(plan, leg)]
        if "fp4_plans" in plan.capabilities:
            found += [_tuned_nothing(leg), _oracle(plan, leg)]
    if "fp4_plans" in plan.capabilities:
        found += g4.same_plans(plan, legs)
    if "gemms" in _demands(plan, "counters"):
        found.append(_gemms_equal(looked_at))
    found += _traces(plan, looked_at)
    return found


def _demands(plan: Plan, name: str) -> Any:
    return (plan.structure or {}).get(name) or {}


def _load(plan: Plan, leg: Leg) -> Check:
    """The load was what was planned: else the counters count something else."""
    wrong = [item for item in leg.requests if item.error is not None or item.output_tokens != plan.output_tokens]
    peak = leg.load.peak_in_flight if leg.load else None
    wanted = int(_demands(plan, "requests"))
    return Check(
        "structure-load",
        leg.name,
        f"{len(leg.requests)} completions, {len(wrong)} wrong, {peak} in flight",
        f"{wanted} completions with {plan.output_tokens} tokens, {leg.concurrency} in flight",
        len(leg.requests) == wanted > 0 and not wrong and peak == leg.concurrency,
    )


def _counted(plan: Plan, leg: Leg) -> Iterator[Check]:
    """What the process counted of itself, at readiness and after its load."""
    counters = _demands(plan, "counters")
    if "gemms" in counters:
        yield _gemms(plan, leg)
    if "parses" in counters:
        yield _parses(plan, leg)
    if "misses" in counters:
        seen = _said(leg, "misses")
        yield Check("plan-misses", leg.name, _shown(seen), "0 at readiness, 0 after the load", seen == (0, 0))


def _gemms(plan: Plan, leg: Leg) -> Check:
    """Whole forwards of exactly the model's GEMMs, those before readiness too."""
    per_forward = int(_demands(plan, "gemms_per_forward"))
    gemms, forwards = _said(leg, "gemms"), _said(leg, "forwards")
    seen = " / ".join(f"{g} GEMMs in {f} forwards" for g, f in zip(gemms, forwards, strict=True))
    exact = all(f and g == per_forward * f for g, f in zip(gemms, forwards, strict=True))
    worked = None not in forwards and (forwards[1] or 0) > (forwards[0] or 0)
    need = f"{per_forward} a forward ({_demands(plan, 'gemms_because')}), and forwards after readiness"
    return Check("gemms-per-forward", leg.name, seen, need, exact and worked and per_forward > 0)


def _parses(plan: Plan, leg: Leg) -> Check:
    """Plans come out of memory while serving: the document was parsed before readiness and never after."""
    seen, wanted = _said(leg, "parses"), int(_demands(plan, "documents"))
    need = f"{wanted} parsed at readiness and no more after the load"
    return Check("plan-parses", leg.name, _shown(seen), need, seen == (wanted, wanted))


def _said(leg: Leg, name: str) -> tuple[int | None, int | None]:
    found = leg.structure
    return (None, None) if found is None else (found.ready.get(name), found.end.get(name))


def _shown(pair: tuple[int | None, int | None]) -> str:
    first, last = ("not counted" if value is None else str(value) for value in pair)
    return f"{first} at readiness, {last} after the load"


def _tuned_nothing(leg: Leg) -> Check:
    """Not even a candidate was timed. An engine that does not count its candidates says how many plans it tuned."""
    report = leg.plans
    counts = {} if report is None else {"plans": report.tuned, **(report.tuning or {})}
    seen = ", ".join(f"{value} {name}" for name, value in sorted(counts.items())) or "not said"
    return Check("plan-tuned-nothing", leg.name, seen, "0 of everything", bool(counts) and not any(counts.values()))


def _oracle(plan: Plan, leg: Leg) -> Check:
    """The selected map against the oracle's, key by key."""
    source = str((plan.structure or {}).get("oracle_source", OWN))
    oracle = leg.structure.oracle if leg.structure is not None else None
    wanted = dict(_by_shape(oracle or ()))
    need = f"the {len(wanted)} plans of {source}: no key more, none less, the same tactics"
    if leg.plans is None or not wanted:
        seen = "no plan lines in the log" if leg.plans is None else "no oracle"
        return Check("plan-oracle", leg.name, seen, need, False)
    selected = dict(_by_shape(leg.plans.selected))
    seen = f"{len(selected)} selected" + _difference(selected, wanted)
    same = selected == wanted and len(leg.plans.selected) == len(selected)
    return Check("plan-oracle", leg.name, seen, need, same)


def _by_shape(rows: Rows) -> Iterator[tuple[tuple[int, int, int], int]]:
    return (((m, n, k), tactic) for m, n, k, tactic in rows)


def _difference(selected: Mapping[tuple[int, int, int], int], wanted: Mapping[tuple[int, int, int], int]) -> str:
    """`: 1 extra (M=1 N=64 K=32), 0 missing, 0 with another tactic`; nothing where there is no difference."""
    changed = [key for key in selected.keys() & wanted.keys() if selected[key] != wanted[key]]
    groups = (
        ("extra", selected.keys() - wanted.keys()),
        ("missing", wanted.keys() - selected.keys()),
        ("with another tactic", changed),
    )
    if not any(keys for _, keys in groups):
        return ""
    return ": " + ", ".join(f"{len(keys)} {what}{_named(sorted(keys))}" for what, keys in groups)


def _named(keys: Sequence[tuple[int, int, int]]) -> str:
    shown = "; ".join(f"M={m} N={n} K={k}" for m, n, k in keys[:SHOWN])
    return f" ({shown}{' …' if len(keys) > SHOWN else ''})" if keys else ""


def _gemms_equal(legs: Sequence[Leg]) -> Check:
    """The lever changes how activations are laid out, never how many GEMMs a forward has."""
    ratios: dict[str, set[Fraction | None]] = {}
    for leg in legs:
        gemms, forwards = _said(leg, "gemms")[1], _said(leg, "forwards")[1]
        ratios.setdefault(leg.arm, set()).add(None if gemms is None or not forwards else Fraction(gemms, forwards))
    seen = " / ".join(f"{arm} {', '.join(map(str, sorted(map(str, found))))}" for arm, found in sorted(ratios.items()))
    distinct = set().union(*ratios.values())
    good = len(distinct) == 1 and None not in distinct and ratios.keys() == {"A", "B"}
    return Check("gemms-equal", "A against B", seen or "none", "one number of GEMMs a forward in both arms", good)


def _traces(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """Each trace that the plan names, as it was when it was named, by every predicate on it."""
    families = [Family(str(row["name"]), str(row["pattern"]), int(row["per_forward"])) for row in _families(plan)]
    for arm, named in sorted(_demands(plan, "traces").items()):
        found = next((leg.structure for leg in legs if leg.arm == arm and leg.structure is not None), None)
        where = f"{named['file']} ({arm})"
        sha256 = "none" if found is None or found.trace_sha256 is None else found.trace_sha256
        wanted = str(named["sha256"])
        yield Check("trace-file", where, sha256[:12], wanted[:12], sha256 == wanted)
        if found is not None and found.trace is not None:
            yield from kernel_traces.checks(found.trace, families, int(named["forwards"]), where)


def _families(plan: Plan) -> Sequence[Mapping[str, Any]]:
    return list(_demands(plan, "families"))
