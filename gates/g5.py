"""G5, the grid: what must hold of the whole ladder before a ratio of medians may be looked at.

Every leg is held to G4's predicates; added here is what only the grid can show. As in G4 nothing looks at a timing or a
memory figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gates import g4
from harness.plan import Plan
from harness.records import Check, Leg

__all__ = ["NEEDED", "checks", "leg_checks", "needed"]

NEEDED = ("g1", "g2", "g3", "g4")  # the gates whose sealed PASS bundles a grid stands on

leg_checks = g4.leg_checks


def needed(second_model: str | None) -> tuple[str, ...]:
    """The gates to be passed first; a second model is timed only after the first one's whole grid."""
    return (*NEEDED, "g5") if second_model else NEEDED


def checks(plan: Plan, legs: Sequence[Leg]) -> list[Check]:
    """Every validity check of the grid: G4's on each leg and on the arms, then the grid's own."""
    found = g4.checks(plan, legs)
    if plan.aa is None:
        found += [_prerequisites(plan), *_grid(plan, legs)]
    if "fp4_plans" in plan.capabilities:
        found.append(_plans_everywhere(plan, legs))
    return found


def _prerequisites(plan: Plan) -> Check:
    """A run that was started without them says so in its plan; it is then valid and does not bind."""
    said = plan.prerequisites or {"gates": {}, "overridden": None}
    wanted = needed(said.get("second_model"))
    found = [gate for gate in wanted if gate in said["gates"]]
    seen = ", ".join(f"{gate} {said['gates'][gate]['digest'][:12]}" for gate in found) or "none"
    overridden = bool(said["overridden"])
    return Check(
        "prerequisites",
        "plan",
        seen + (", overridden" if overridden else ""),
        "a sealed PASS bundle of each of " + ", ".join(wanted) + ", or a named override",
        found == list(wanted) or overridden,
    )


def _grid(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """As many raw files and requests as the plan counts, both arms of every pair next to each other."""
    timed = [leg for leg in legs if leg.kind == "timed"]
    points = [(c, r) for r in range(1, plan.repetitions + 1) for c in plan.concurrencies]
    wanted = 2 * sum(plan.requests(c) for c, _ in points)
    completed = sum(record.error is None for leg in timed for record in leg.requests)
    yield _equal("grid-files", len(timed), 2 * len(points))
    yield _equal("grid-requests", completed, wanted)
    pairs = [timed[start : start + 2] for start in range(0, len(timed), 2)]
    paired = [
        (pair[0].concurrency, pair[0].repetition)
        for pair in pairs
        if {leg.arm for leg in pair} == {"A", "B"} and len({(leg.concurrency, leg.repetition) for leg in pair}) == 1
    ]
    seen = f"{len(paired)} of {len(points)} pairs"
    yield Check("grid-pairs", "run", seen, "both arms of each point in turn", paired == points)


def _equal(code: str, seen: int, wanted: int) -> Check:
    return Check(code, "run", str(seen), str(wanted), seen == wanted)


def _plans_everywhere(plan: Plan, legs: Sequence[Leg]) -> Check:
    """Each engine's proof, leg by leg: a grid whose oracle arm never told its map is no same-plan comparison."""
    wanted = {leg.name: leg.arm for leg in plan.legs if leg.kind == "timed"}
    told = {leg.name for leg in legs if leg.kind == "timed" and leg.plans is not None and leg.plans.selected}
    counts = {arm: sum(a == arm and name in told for name, a in wanted.items()) for arm in "AB"}
    maps = {leg.plans.map_sha256 for leg in legs if leg.name in told and leg.plans is not None}
    seen = ", ".join(f"{count} legs of {arm}" for arm, count in counts.items()) + f", {len(maps)} maps"
    good = told == wanted.keys() and len(maps) == 1
    return Check(g4.PLAN_CONTROL + "grid", "run", seen, f"{len(wanted)} timed legs, 1 map", good)
