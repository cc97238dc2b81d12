"""Records in, verdict out: a pure function that the run and `verify` share. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gates import g1, g2, g3, g4, g5, servers
from harness import axes as axes_module
from harness.interpretation import interpret
from harness.logratios import arm_values
from harness.plan import Plan
from harness.records import Check, Leg
from harness.rule import AxisResult, Rule, decimal_text, judge

__all__ = ["FORMAT", "compute", "leg_checks"]

FORMAT = "nvfp4-gates-verdict-v1"
GATES: Mapping[str, Callable[[Plan, Sequence[Leg]], list[Check]]] = {
    "g1": g1.checks,
    "g2": g2.checks,
    "g3": g3.checks,
    "g4": g4.checks,
    "g5": g5.checks,
}
LEG_GATES: Mapping[str, Callable[[Plan, Leg], list[Check]]] = {"g4": g4.leg_checks, "g5": g5.leg_checks}
# Gates of checks: what else fails is a FAIL.
VOIDING: Mapping[str, frozenset[str]] = {"g1": g1.VOIDING, "g2": g2.VOIDING, "g3": g3.VOIDING}
SERVERLESS = ("g1",)  # gates that start no server, so that none can load a plan


def compute(
    plan: Plan,
    legs: Sequence[Leg],
    run_checks: Sequence[Check],
    floors: Sequence[Any] = (),
    started_utc: str | None = None,
) -> dict[str, Any]:
    """The content of `verdict.json`. `run_checks` are those of the run itself (lease, boot id, end of the journal).

    `floors` are the documents of `floor.json`, `started_utc` is the stamp of the journal's first event; both serve the
    interpretation alone, which is null for plans from before it and for a measurement that is void.
    An invalid measurement is VOID and carries no axis: no number of it may be quoted.
    """
    checks = [*run_checks, *GATES[plan.gate](plan, legs)]
    if plan.gate in VOIDING:
        return _by_checks(plan, checks, len(run_checks))
    rule = Rule.from_json(plan.rule)
    results = _axis_results(plan, legs, rule) if all(check.ok for check in checks) else []
    checks += [_null_check(result) for result in results if result.candidate is None or result.baseline is None]
    void = [check.code for check in checks if not check.ok]
    results = [] if void else results
    outcome = "VOID" if void else "PASS" if all(result.passed for result in results) else "FAIL"
    unbinding = plan.unbinding()
    interpretation = None if void else interpret(plan, legs, floors, started_utc)
    found = {
        "format": FORMAT,
        "outcome": outcome,
        "binding": not unbinding and not void,
        "not_binding_because": unbinding,
        "void": sorted(set(void)),
        "checks": [asdict(check) for check in checks],
        "rule": dict(plan.rule),
        "axes": [_axis_row(result) for result in results],
        "counts": _counts(results),
        "plan_control": _plan_control(plan, checks),
        "component": outcome,
        "not_applicable": [asdict(item) for item in plan.not_applicable],
        "totals": _totals(legs),
        "diagnostics": _diagnostics(plan, legs),
    } | _engine(plan, legs)
    return {**found, "interpretation": interpretation} if "interpretation" in plan.rule else found


def _by_checks(plan: Plan, checks: Sequence[Check], of_the_run: int) -> dict[str, Any]:
    """A gate without axes: a failed check is a FAIL, but for those that say that the run itself was not whole."""
    failed = [(check, number < of_the_run or check.code in VOIDING[plan.gate]) for number, check in enumerate(checks)]
    failed = [(check, voids) for check, voids in failed if not check.ok]
    void = sorted({check.code for check, voids in failed if voids})
    outcome = "VOID" if void else "FAIL" if failed else "PASS"
    unbinding = plan.unbinding()
    found = {
        "format": FORMAT,
        "outcome": outcome,
        "binding": not unbinding and not void,
        "not_binding_because": unbinding,
        "void": void,
        "failed": sorted({check.code for check, _ in failed}),
        "checks": [asdict(check) for check in checks],
        "rule": dict(plan.rule),
        "axes": [],
        "counts": _counts([]),
        "plan_control": _plan_control(plan, checks),
        "component": outcome,
        "not_applicable": [asdict(item) for item in plan.not_applicable],
        "totals": _totals([]),
        "diagnostics": {"equal_texts": []},
    }
    return {**found, "interpretation": None} if "interpretation" in plan.rule else found


def _engine(plan: Plan, legs: Sequence[Leg]) -> dict[str, Any]:
    """What the arms' servers say they are, and in what they differ; nothing for engines that say nothing."""
    if servers.SAYS not in plan.capabilities:
        return {}
    found = {arm: dict(values) for arm, values in servers.configurations(legs).items()}
    return {"engine_configuration": {"arms": found, "differences": servers.differences(legs)}}


def leg_checks(plan: Plan, leg: Leg) -> list[Check]:
    """The plan's gate on one finished leg, so that a run which is void already goes no further.

    Gates of checks go on: every failed check of theirs is told.
    """
    return LEG_GATES[plan.gate](plan, leg) if plan.gate in LEG_GATES else []


def _axis_results(plan: Plan, legs: Sequence[Leg], rule: Rule) -> list[AxisResult]:
    values = arm_values(legs)
    return [
        judge(axis, values[("A", axis.concurrency, axis.name)], values[("B", axis.concurrency, axis.name)], rule)
        for axis in axes_module.axes_of(plan.measured, plan.gpu, plan.memory, plan.ladder)
    ]


def _null_check(result: AxisResult) -> Check:
    """A value that could not be had is not a miss: the measurement is incomplete. (A zero is a value; it misses.)"""
    where = f"{axes_module.place(result.axis.concurrency)} {result.axis.name}"
    return Check("axis-null", where, result.reason or "null", "a value in every repetition", False)


def _axis_row(result: AxisResult) -> dict[str, Any]:
    assert result.candidate is not None
    assert result.baseline is not None
    ratio = result.ratio
    return {
        **asdict(result.axis),
        "concurrency": result.axis.concurrency or None,
        "candidate": decimal_text(result.candidate),
        "baseline": decimal_text(result.baseline),
        "ratio": None if ratio is None else {"numerator": str(ratio.numerator), "denominator": str(ratio.denominator)},
        "ratio_text": None if ratio is None else decimal_text(ratio),
        "reason": result.reason,
        "pass": result.passed,
    }


def _counts(results: Sequence[AxisResult]) -> dict[str, Any]:
    return {
        kind: {
            "pass": sum(result.passed for result in results if result.axis.kind == kind),
            "of": sum(1 for result in results if result.axis.kind == kind),
        }
        for kind in ("timing", "memory")
    }


def _plan_control(plan: Plan, checks: Sequence[Check]) -> str:
    """The cache's own verdict, apart from the component's: it can pass although the component fails."""
    mine = [check for check in checks if check.code.startswith(g4.PLAN_CONTROL)]
    if "fp4_plans" not in plan.capabilities or plan.gate in SERVERLESS:
        return "not-applicable"
    return "PASS" if mine and all(check.ok for check in mine) else "FAIL"


def _totals(legs: Sequence[Leg]) -> dict[str, int]:
    timed = [leg for leg in legs if leg.kind == "timed"]
    records = [record for leg in timed for record in leg.requests if record.error is None]
    return {
        "legs": len(timed),
        "requests": len(records),
        "input_tokens": sum(record.prompt_tokens or 0 for record in records),
        "output_tokens": sum(record.output_tokens or 0 for record in records),
        "cache_drops": sum(
            drop is not None and drop.succeeded for leg in timed for drop in (leg.cache_before, leg.cache_after)
        ),
        "memory_returns": sum(leg.memory_return is not None and leg.memory_return.returned for leg in timed),
    }


def _diagnostics(plan: Plan, legs: Sequence[Leg]) -> dict[str, Any]:
    """Counts that inform and never decide: how many completions of a pair of legs have the same text."""
    pairs: dict[tuple[int, int], dict[str, tuple[str, ...]]] = {}
    for leg in legs:
        if leg.kind == "timed" and leg.concurrency is not None and leg.repetition is not None:
            pairs.setdefault((leg.concurrency, leg.repetition), {})[leg.arm] = tuple(
                item.text_sha256 for item in leg.requests
            )
    rows = []
    for (concurrency, repetition), arms in sorted(pairs.items()):
        first, second = arms.get("A", ()), arms.get("B", ())
        equal = sum(one == two for one, two in zip(first, second, strict=False))
        rows.append(
            {"concurrency": concurrency, "repetition": repetition, "equal": equal, "of": min(len(first), len(second))}
        )
    return {"equal_texts": rows}
