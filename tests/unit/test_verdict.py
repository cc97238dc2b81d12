"""The strict rule and G4's predicates on synthetic evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from harness import journal, verdict
from harness.axes import Axis, axes_of, memory_axes
from harness.plan import Plan
from harness.records import ArmProof, CacheDrop, Check, Leg, MemoryReturn, ModelGate
from harness.report.summary import miss_lines
from harness.rule import Rule, combine, decimal_text, judge
from tests.builders import good_legs, plan_report, sample, small_plan

PLAN = small_plan()
OK = [Check("run-ended", "journal", "end", "end", True)]
MEAN = Rule("strict-mean", 1, "mean", Fraction(1))
LOWER = Axis("mean_ttft_ms", 2, "timing", "lower", "ms")
HIGHER = Axis("request_throughput", 2, "timing", "higher", "req/s")


def judged(plan: Plan, legs: list[Leg]) -> dict[str, Any]:
    return verdict.compute(plan, legs, OK)


def changed(name: str, change: Callable[[Leg], Leg]) -> list[Leg]:
    """Good legs, of which the one whose name contains `name` is changed."""
    legs = good_legs(PLAN)
    hit = [leg for leg in legs if name in leg.name]
    assert hit, name
    return [change(leg) if leg is hit[0] else leg for leg in legs]


def test_identical_arms_pass_every_axis_exactly() -> None:
    result = judged(PLAN, good_legs(PLAN))
    assert result["outcome"] == "PASS"
    assert result["counts"] == {"timing": {"pass": 20, "of": 20}, "memory": {"pass": 3, "of": 3}}
    assert all(row["ratio_text"] == "1" for row in result["axes"])


def test_a_faster_candidate_passes_and_a_slower_one_misses_each_timing_axis() -> None:
    assert judged(PLAN, good_legs(PLAN, scale_a=0.9))["outcome"] == "PASS"
    slower = judged(PLAN, good_legs(PLAN, scale_a=1.1))
    assert slower["outcome"] == "FAIL"
    assert slower["counts"]["timing"]["pass"] == 0
    assert slower["counts"]["memory"]["pass"] == 3


def test_a_candidate_worse_by_one_part_in_a_million_misses() -> None:
    result = judge(LOWER, [Fraction(1_000_001)], [Fraction(1_000_000)], MEAN)
    assert result.ratio == Fraction(1_000_000, 1_000_001)
    assert not result.passed


def test_equal_estimates_pass_without_rounding() -> None:
    thirds = [Fraction(1, 3), Fraction(1, 7), Fraction(2, 9)]
    assert judge(HIGHER, thirds, list(reversed(thirds)), MEAN).passed


def test_a_missing_or_zero_estimate_gives_no_ratio() -> None:
    for values in ([None, Fraction(1)], [Fraction(0), Fraction(0)], []):
        result = judge(LOWER, values, [Fraction(1), Fraction(1)], MEAN)
        assert result.ratio is None
        assert not result.passed
        assert result.reason


def test_mean_and_median_are_what_they_say() -> None:
    values = [Fraction(1), Fraction(2), Fraction(9)]
    assert combine(values, "mean") == 4
    assert combine(values, "median") == 2
    assert combine([Fraction(1), Fraction(2)], "median") == Fraction(3, 2)


def test_decimal_text_is_rounded_to_nine_digits_and_never_exponential() -> None:
    assert decimal_text(Fraction(1, 3)) == "0.333333333"
    assert decimal_text(Fraction(626_688)) == "626688"
    assert decimal_text(Fraction(2, 3) * 10**12) == "666666667000"


def test_g4_with_a_gpu_has_forty_timing_and_eight_memory_axes_and_forty_six_without() -> None:
    kinds = [axis.kind for axis in axes_of((2, 16), gpu=True)]
    assert (kinds.count("timing"), kinds.count("memory")) == (40, 8)
    assert len(axes_of((2, 16), gpu=False)) == 46


def test_the_available_memory_drop_is_counted_from_before_the_engine_started() -> None:
    values = memory_axes([sample(0, 10, available=112_000_000), sample(1, 10, available=86_000_000)], 112_000_000)
    assert values["peak_mem_available_drop_kib"].value == 26_000_000
    assert memory_axes([sample(0, 10)], None)["peak_mem_available_drop_kib"].value is None


def test_a_gpu_without_an_answer_is_null_with_the_reason_and_never_zero() -> None:
    value = memory_axes([sample(0, 10)], 1)["peak_gpu_memory_mib"]
    assert value.value is None
    assert value.reason == "no-nvml"


def test_with_a_gpu_a_null_memory_axis_voids_the_run() -> None:
    plan = replace(small_plan(gpu=True), host={})  # as plans were before legs carried telemetry to be judged first
    legs = good_legs(plan)
    result = judged(
        plan, [replace(leg, memory=tuple(replace(row, gpu_mib=None) for row in leg.memory)) for leg in legs]
    )
    assert result["outcome"] == "VOID"
    assert result["void"] == ["axis-null"]


@pytest.mark.parametrize(
    ("code", "name", "change"),
    [
        ("clean-exit", "c2-A-r1", lambda leg: replace(leg, exit="killed by SIGKILL")),
        ("prompts", "c2-A-r2", lambda leg: _record(leg, prompt_sha256="b" * 64)),
        ("request-count", "c2-A-r2", lambda leg: replace(leg, requests=leg.requests[:-1])),
        ("failed-requests", "c2-B-r1", lambda leg: _record(leg, error="no-token")),
        ("input-tokens", "c2-B-r3", lambda leg: _record(leg, prompt_tokens=65)),
        ("output-tokens", "c2-A-r3", lambda leg: _record(leg, output_tokens=None)),
        ("peak-concurrency", "c2-A-r1", lambda leg: replace(leg, load=replace(leg.load, peak_in_flight=1))),
        ("client-lag", "c2-A-r1", lambda leg: replace(leg, load=replace(leg.load, loop_lag_p99_ns=10**9))),
        ("memory-samples", "c2-A-r1", lambda leg: replace(leg, memory=leg.memory[:-1])),
        ("cache-drop", "c2-A-r1", lambda leg: replace(leg, cache_after=CacheDrop(True, 3, "a" * 64, 4096))),
        ("cache-inventory", "c2-A-r1", lambda leg: replace(leg, cache_after=CacheDrop(True, 4, "b" * 64, 0))),
        ("memory-return", "c2-B-r2", lambda leg: replace(leg, memory_return=MemoryReturn(False, 9, 1, 1))),
        ("arm-active", "c2-A-r1", lambda leg: replace(leg, arm_proof=ArmProof(False, "832 swizzles", "208"))),
        ("same-warmups", "c2-A-r1", lambda leg: replace(leg, load=replace(leg.load, warmups=0))),
        ("same-itl-basis", "c2-A-r1", lambda leg: replace(leg, load=replace(leg.load, itl_basis="token"))),
        ("plan-frozen", "c2-A-r1", lambda leg: replace(leg, plans=plan_report(tuned=1))),
        ("plan-frozen", "c2-A-r1", lambda leg: replace(leg, plans=plan_report(lazy_misses=1))),
        ("plan-frozen", "c2-A-r1", lambda leg: replace(leg, plans=plan_report(mode="read-write"))),
        ("plan-loaded", "c2-A-r1", lambda leg: replace(leg, plans=plan_report(loaded=1))),
        ("plan-log", "c2-A-r1", lambda leg: replace(leg, plans=plan_report(faults=("odd line",)))),
        ("plan-metadata", "c2-A-r1", lambda leg: replace(leg, plans=plan_report(metadata="0" * 16))),
        ("plan-document", "c2-A-r1", lambda leg: replace(leg, plan_sha256=("a" * 64, "b" * 64))),
        ("plan-report", "c2-A-r1", lambda leg: replace(leg, plans=None)),
        ("model-gate", "model-gate-A", lambda leg: replace(leg, model_gate=ModelGate(4, 20, 1, 0, 16, 16))),
        ("model-gate", "model-gate-B", lambda leg: replace(leg, model_gate=ModelGate(4, 20, 0, 1, 16, 16))),
        ("model-gate", "model-gate-B", lambda leg: replace(leg, model_gate=ModelGate(4, 20, 0, 0, 15, 16))),
        ("model-gate-counts", "model-gate-B", lambda leg: replace(leg, model_gate=ModelGate(4, 19, 0, 0, 16, 16))),
        ("sequential-equal", "sequential-A", lambda leg: replace(leg, texts=("ab", "ce"))),
        ("sequential-counts", "sequential-B", lambda leg: _record(leg, output_tokens=2)),
    ],
)
def test_what_makes_a_measurement_void(code: str, name: str, change: Callable[[Leg], Leg]) -> None:
    result = judged(PLAN, changed(name, change))
    assert result["outcome"] == "VOID"
    assert code in result["void"]
    assert result["axes"] == []


def _record(leg: Leg, **changes: Any) -> Leg:
    return replace(leg, requests=(replace(leg.requests[0], **changes), *leg.requests[1:]))


def test_one_differing_tactic_is_void_and_named() -> None:
    other = plan_report({(1, 64, 32): 0, (2, 64, 32): 5})
    result = judged(PLAN, changed("c2-A-r1", lambda leg: replace(leg, plans=other)))
    seen = next(check["seen"] for check in result["checks"] if check["code"] == "plan-map")
    assert "1 differ; M=2 N=64 K=32: 1 against 5" in seen
    assert result["plan_control"] == "FAIL"


def test_a_missing_key_is_void_and_counted() -> None:
    other = plan_report({(1, 64, 32): 0})
    result = judged(PLAN, changed("c2-B-r1", lambda leg: replace(leg, plans=other)))
    seen = next(check["seen"] for check in result["checks"] if check["code"] == "plan-map")
    assert "1 keys missing, 0 extra" in seen


def test_plan_control_can_pass_although_the_component_fails() -> None:
    result = judged(PLAN, good_legs(PLAN, scale_a=1.1))
    assert (result["plan_control"], result["component"]) == ("PASS", "FAIL")


def test_texts_of_timed_legs_are_a_diagnostic_and_never_a_predicate() -> None:
    """The seed voided a finished campaign by this predicate; it must not come back."""
    result = judged(PLAN, changed("c2-A-r1", lambda leg: _record(leg, text_sha256="e" * 64)))
    assert result["outcome"] == "PASS"
    assert result["diagnostics"]["equal_texts"][0] == {"concurrency": 2, "repetition": 1, "equal": 3, "of": 4}
    assert not [check for check in result["checks"] if "text" in check["code"]]


def test_a_chunk_that_carries_two_tokens_does_not_void() -> None:
    """An exact-127-gaps rule voided 29 finished raw points of the seed's project."""
    merged = lambda leg: _record(leg, chunk_ns=(10_000_000, 12_000_000))  # noqa: E731
    assert judged(PLAN, changed("c2-A-r1", merged))["outcome"] != "VOID"


def test_missing_legs_are_void() -> None:
    result = judged(PLAN, good_legs(PLAN)[:-1])
    assert result["outcome"] == "VOID"
    assert "legs-complete" in result["void"]


def test_two_levers_are_void_unless_stacked() -> None:
    two = ("+engine.candidate.env.VT_OTHER=1",)
    plan = small_plan(*two)
    assert "one-lever" in judged(plan, good_legs(plan))["void"]
    stacked = small_plan(*two, "gate.stacked=true")
    assert judged(stacked, good_legs(stacked))["outcome"] == "PASS"


def test_an_engine_without_plans_is_judged_without_plan_checks_and_does_not_bind() -> None:
    plan = small_plan(capabilities=("token_ids",))
    result = judged(plan, [replace(leg, plans=None, arm_proof=None) for leg in good_legs(plan)])
    assert result["outcome"] == "PASS"
    assert result["plan_control"] == "not-applicable"
    assert not result["binding"]
    assert {item["what"] for item in result["not_applicable"]} >= {"plan control", "model gate", "peak GPU memory"}


def test_a_journal_with_a_void_event_is_void_with_its_code() -> None:
    events = [
        {"event": "start", "boot_id": "b", "lease": {"token": "1"}},
        {"event": "void", "code": "engine-died", "where": "c2-A-r1", "message": "killed"},
        {"event": "end", "boot_id": "b", "left_behind": []},
    ]
    result = verdict.compute(PLAN, good_legs(PLAN), journal.checks(events))
    assert result["void"] == ["engine-died"]


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([{"event": "start", "boot_id": "b", "lease": {"token": "1"}}], "run-ended"),
        (
            [{"event": "start", "boot_id": "b", "lease": None}, {"event": "end", "boot_id": "b", "left_behind": []}],
            "lease",
        ),
        (
            [{"event": "start", "boot_id": "b", "lease": {}}, {"event": "end", "boot_id": "c", "left_behind": []}],
            "boot-id",
        ),
        (
            [
                {"event": "start", "boot_id": "b", "lease": {}},
                {"event": "end", "boot_id": "b", "left_behind": ["port"]},
            ],
            "nothing-left",
        ),
    ],
)
def test_a_run_that_did_not_end_well_is_void(events: list[dict[str, Any]], code: str) -> None:
    assert code in verdict.compute(PLAN, good_legs(PLAN), journal.checks(events))["void"]


def test_another_document_than_the_planned_one_is_void() -> None:
    plan = replace(PLAN, frozen_plan_sha256="c" * 64)
    assert "plan-same-document" in judged(plan, good_legs(plan))["void"]


def test_an_estimate_of_zero_misses_without_a_ratio_and_does_not_void() -> None:
    """Others on the host freed more memory than a small engine took: a value, if a useless one."""
    legs = [
        replace(leg, memory=tuple(replace(item, mem_available_kib=200_000) for item in leg.memory))
        if leg.arm == "A" and leg.kind == "timed"
        else leg
        for leg in good_legs(PLAN)
    ]
    result = judged(PLAN, legs)
    assert result["outcome"] == "FAIL"
    row = next(row for row in result["axes"] if row["name"] == "peak_mem_available_drop_kib")
    assert (row["candidate"], row["ratio"], row["ratio_text"], row["pass"]) == ("0", None, None, False)
    assert "no ratio, an arm's estimate is zero" in miss_lines(result)[0]
