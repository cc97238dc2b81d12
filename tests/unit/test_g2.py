"""G2's predicates on synthetic evidence: each one can fail, and says what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gates import g2
from harness import campaign, sanitizer_log, verdict
from harness.engines.reference import Reference
from harness.records import Check, Leg, ModelGate
from harness.report.summary import summary
from tests.builders import ALL, SHA, good_legs, load_report, plan_report, small_config, small_plan

PLAN = small_plan("gate=g2", "gate.replays=6", "workload.output_tokens=3")
OK = [Check("run-ended", "journal", "end", "end", True)]
IDLE = {"candidates": 0, "warmups": 0, "delays": 0, "timed": 0}
TUNED = {"candidates": 12, "warmups": 36, "delays": 0, "timed": 120}


def legs() -> list[Leg]:
    """What a healthy G2 leaves behind."""
    found = []
    for leg in good_legs(PLAN):
        changes: dict[str, Any] = {"plans": replace(plan_report(), tuning=IDLE)}
        if leg.kind == "seed":
            changes = {"plans": plan_report(mode="read-write", tuned=2, loaded=0, saved=2, tuning=TUNED)}
        if leg.kind == "concurrent":
            changes["load"] = load_report(2, 2)
        found.append(replace(leg, **changes))
    return found


def judged(change: Callable[[Leg], Leg] = lambda leg: leg, name: str = "") -> dict[str, Any]:
    hit = [leg for leg in legs() if name and name in leg.name]
    assert hit or not name
    return verdict.compute(PLAN, [change(leg) if name and name in leg.name else leg for leg in legs()], OK)


def test_the_plan_seeds_proves_both_arms_and_alternates_six_fresh_processes() -> None:
    assert [leg.name for leg in PLAN.legs] == [
        *("00-seed-plans", "01-model-gate-A", "02-model-gate-B", "03-sequential-A", "04-sequential-B"),
        *("05-concurrent-A", "06-concurrent-B", "07-second-model-A", "08-second-model-B"),
        *(f"{8 + number:02d}-replay-{number}" for number in range(1, 7)),
    ]
    assert "".join(leg.arm for leg in PLAN.legs if leg.kind == "replay") == "ABABAB"


def test_a_healthy_run_passes_without_any_axis() -> None:
    found = judged()
    assert (found["outcome"], found["axes"], found["failed"]) == ("PASS", [], [])
    assert summary(found)[1] == f"{len(found['checks'])} of {len(found['checks'])} checks hold"


@pytest.mark.parametrize(
    ("code", "name", "change"),
    [
        ("tuning-counts", "seed", {"plans": plan_report(tuned=2, saved=2, loaded=0, tuning={**TUNED, "warmups": 35})}),
        ("tuning-counts", "seed", {"plans": plan_report(tuned=2, saved=2, loaded=0, tuning={**TUNED, "timed": 108})}),
        ("tuning-counts", "seed", {"plans": plan_report(tuned=2, saved=2, loaded=0, delay_us=5000, tuning=TUNED)}),
        ("tuning-counts", "seed", {"plans": plan_report(tuned=2, saved=2, loaded=0)}),
        ("tuning-complete", "seed", {"plans": plan_report(tuned=1, saved=2, loaded=1, tuning=TUNED)}),
        ("hit-launches-nothing", "replay-3", {"plans": plan_report(tuning=TUNED)}),
        ("hit-launches-nothing", "sequential-A", {"plans": plan_report()}),
        ("plan-map", "replay-5", {"plans": plan_report({(1, 64, 32): 0, (2, 64, 32): 5}, tuning=IDLE)}),
        ("plan-frozen", "replay-2", {"plans": plan_report(lazy_misses=1, tuning=IDLE)}),
        ("replays-equal", "replay-6", {"plans": plan_report(metadata="0" * 16, tuning=IDLE)}),
        ("model-gate", "model-gate-B", {"model_gate": ModelGate(4, 20, 0, 1, 16, 16)}),
        ("model-gate-counts", "model-gate-B", {"model_gate": ModelGate(4, 21, 0, 0, 16, 16)}),
        ("sequential-equal", "sequential-B", {"texts": ("ab", "ce")}),
        ("concurrent-counts", "concurrent-A", {"texts": ("ab",)}),
        ("second-model-inert", "second-model-A", {"texts": ("ab", "ce")}),
        ("second-model-inert", "second-model-B", {"texts": ("ab",)}),
        ("arm-active", "second-model-B", {"arm_proof": None}),
        ("concurrent-begins-alike", "concurrent-B", {"texts": ("ab", "xx")}),
        ("clean-exit", "replay-4", {"exit": "signal 9"}),
    ],
)
def test_what_does_not_hold_fails_the_gate_by_its_name(code: str, name: str, change: dict[str, Any]) -> None:
    found = judged(lambda leg: replace(leg, **change), name)
    assert found["outcome"] == "FAIL"
    assert code in found["failed"]
    assert any(line.startswith(f"failed {code} at ") for line in summary(found))


def test_the_second_model_may_have_plans_of_other_shapes() -> None:
    other = plan_report({(1, 96, 32): 3}, lazy_misses=1, tuning=IDLE)
    assert judged(lambda leg: replace(leg, plans=other), "second-model-A")["outcome"] == "PASS"


SANITIZED = campaign.plan(
    small_config("gate=g2", "gate.replays=6"),
    subject={"weights_sha256": SHA},
    capabilities=ALL,
    host={"hostname": "testhost"},
    gpu=False,
    corpus={},
    frozen_plan_sha256=None,
    suites=[["sanitizer", "memcheck"], ["sanitizer", "racecheck"]],
    not_tested={"compute-sanitizer": "not on this host"},
)
CLEAN = "========= COMPUTE-SANITIZER\n6 tactics on 4 shapes\n========= ERROR SUMMARY: 0 errors\n"
RACE = "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n"
NO_RACE = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


def test_sanitizers_come_last_and_a_missing_one_is_named() -> None:
    assert [leg.name for leg in SANITIZED.legs[-2:]] == ["15-memcheck", "16-racecheck"]
    assert "compute-sanitizer: not on this host" in "\n".join(SANITIZED.unbinding())


@pytest.mark.parametrize(
    ("log", "counts", "clean"),
    [
        (CLEAN, {"errors": 0}, True),
        (CLEAN.replace("0 errors", "1 error"), {"errors": 1}, False),
        (RACE, {"errors": 1, "warnings": 2}, False),
        (NO_RACE, {"errors": 0, "warnings": 0}, True),
        ("Killed\n", None, False),
    ],
)
def test_a_sanitizer_must_end_with_a_summary_of_nothing(log: str, counts: dict[str, int] | None, clean: bool) -> None:
    report = sanitizer_log.parse(log)
    assert (None if report is None else report.counts) == counts
    leg = Leg("15-memcheck", "sanitizer", "A", None, None, "exit code 0", suite=report)
    assert [check.ok for check in g2.checks(SANITIZED, [leg]) if check.code == "sanitizer-clean"] == [clean]


def test_the_sanitizer_is_called_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = Reference({"backend": "cuda"}, tmp_path)
    assert list(engine.sanitizers()[0].launch.argv[:3]) == [str(tool), "--tool", "memcheck"]
    assert engine.not_sanitized() == {}
    assert Reference({}, tmp_path).sanitizers() == []


def test_without_a_second_model_nothing_is_asked_of_one() -> None:
    plan = small_plan("gate=g2", "gate.replays=6", "engine.second=null")
    assert not [leg for leg in plan.legs if leg.kind == "inertness"]


def test_a_run_that_was_cut_short_is_void() -> None:
    found = verdict.compute(PLAN, legs()[:-1], OK)
    assert (found["outcome"], found["void"]) == ("VOID", ["legs-complete"])
