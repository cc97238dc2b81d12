"""G1, build and schema: the engine's own tests run whole in every mode, and its sources compile without a warning.

A gate of checks: no server is started and no axis exists. How many tests there are is counted by a process that only
collects them; each run must then account for exactly as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gates import g4
from harness.plan import Plan
from harness.records import Check, Leg, SuiteReport

__all__ = ["VOIDING", "checks"]

VOIDING = frozenset({"legs-complete", "one-lever"})  # the run did not do what was planned, so nothing is known
GOOD = ("passed", "skipped")
SHOWN = 3  # names in a sentence; all of them are in leg.json
UNSAID = "no closing line in the log"


def checks(plan: Plan, legs: Sequence[Leg]) -> list[Check]:
    """Every check of the gate, passed or not."""
    found = list(g4.structure(plan, legs))
    for leg in legs:
        found.append(Check("clean-exit", leg.name, leg.exit, "exit code 0", leg.exit == "exit code 0"))
    collected = [leg for leg in legs if leg.kind == "collect"]
    suites = [leg for leg in legs if leg.kind == "suite"]
    for leg in collected:
        found.append(_collected(leg))
    exact = {_number(leg.suite, "collected") for leg in collected}
    for leg in suites:
        found += _suite(leg, exact.copy().pop() if len(exact) == 1 else None)
    if any(leg.kind == "suite" for leg in plan.legs):
        found.append(_equal(plan, suites))
    return found


def _collected(leg: Leg) -> Check:
    number = _number(leg.suite, "collected")
    good = number is not None and number > 0 and set(_counts(leg.suite)) == {"collected"}
    return Check("suite-collected", leg.name, _said(leg.suite), "at least one test collected, and nothing else", good)


def _suite(leg: Leg, exact: int | None) -> Iterator[Check]:
    """Every collected test passed or was skipped, and each skipped one is named."""
    counts = _counts(leg.suite)
    ran = sum(counts.get(word, 0) for word in GOOD)
    others = [word for word, number in counts.items() if word not in GOOD and number]
    failed = leg.suite.failed if leg.suite is not None else ()
    yield Check(
        "suite-counts",
        leg.name,
        _said(leg.suite) + (f": {_names(failed)}" if failed else ""),
        f"{'as many as were collected' if exact is None else exact} passed or skipped, none failed, no error",
        exact is not None and ran == exact and counts.get("passed", 0) > 0 and not others and not failed,
    )
    skipped = leg.suite.skipped if leg.suite is not None else ()
    yield Check(
        "suite-skipped-named",
        leg.name,
        f"{counts.get('skipped', 0)} skipped" + (f": {_names(skipped)}" if skipped else "") if counts else UNSAID,
        "every skipped test by its name",
        bool(counts) and len(skipped) == counts.get("skipped", 0),
    )


def _equal(plan: Plan, suites: Sequence[Leg]) -> Check:
    """No mode hides a test from another: the same counts, the same tests skipped."""
    planned = sum(leg.kind == "suite" for leg in plan.legs)
    said = [(dict(leg.suite.counts), sorted(leg.suite.skipped)) for leg in suites if leg.suite is not None]
    distinct = [one for number, one in enumerate(said) if one not in said[:number]]
    return Check(
        "suites-equal",
        "run",
        f"{len(said)} modes, {len(distinct)} distinct reports",
        f"{planned} modes with the same counts and the same tests skipped",
        len(said) == planned > 1 and len(distinct) == 1,
    )


def _counts(report: SuiteReport | None) -> dict[str, int]:
    return {} if report is None else dict(report.counts)


def _number(report: SuiteReport | None, word: str) -> int | None:
    return _counts(report).get(word)


def _said(report: SuiteReport | None) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(_counts(report).items())) or UNSAID


def _names(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return "; ".join(names[:SHOWN]) + (f"; and {rest} more in leg.json" if rest > 0 else "")
