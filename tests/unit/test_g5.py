"""The grid: its counts, its predicates, what it stands on, and how it says that it stands on nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gates import g5
from harness import campaign, canonical, index, prerequisites, verdict, verify
from harness.axes import axes_of, place
from harness.errors import UsageError
from harness.plan import Plan, partition, prompts_digest
from harness.records import Leg
from harness.report import evidence, html
from harness.report.summary import summary
from harness.settings import compose_config
from tests.builders import ALL, SHA, good_legs, small_plan, write_bundle

OVERRIDE = {"gates": {}, "overridden": "gate.override=true: started without a sealed PASS of G1, G2, G3, G4"}
PROVEN = {"gates": {gate: {"digest": SHA, "binding": True} for gate in g5.NEEDED}, "overridden": None}


def grid(*overrides: str, gpu: bool = True, **changes: Any) -> Plan:
    """The default grid with the shortest completions; `changes` are fields of the plan."""
    config = compose_config(["gate=g5", "workload.output_tokens=3", "workload.input_tokens=64", *overrides])
    points = {c: config.workload.points[c] for c in config.gate.concurrencies}
    plan = campaign.plan(
        config,
        subject={"weights_sha256": SHA},
        capabilities=(*ALL, "gpu") if gpu else ALL,
        host={"hostname": "testhost", "cpu": "test"},
        gpu=gpu,
        corpus={partition(c, r): prompts_digest([SHA] * n) for c, n in points.items() for r in (1, 2, 3)},
        frozen_plan_sha256=None,
    )
    return replace(plan, **{"prerequisites": PROVEN, **changes})


def failed(plan: Plan, legs: list[Leg]) -> set[str]:
    return {check.code for check in g5.checks(plan, legs) if not check.ok}


def test_the_default_grid_has_36_legs_2016_requests_and_124_axes() -> None:
    plan = grid()
    timed = [leg for leg in plan.legs if leg.kind == "timed"]
    assert len(timed) == 36
    assert sum(plan.requests(leg.concurrency) for leg in timed if leg.concurrency) == 2016
    axes = axes_of(plan.measured, plan.gpu, plan.memory, plan.ladder)
    assert Counter(axis.kind for axis in axes) == {"timing": 120, "memory": 4}
    assert {place(axis.concurrency) for axis in axes if axis.kind == "memory"} == {"ladder"}
    assert plan.rule["estimator"] == "median"


def test_repetitions_are_run_in_turn_and_the_arms_alternate_at_every_point() -> None:
    names = [leg.name.split("-", 1)[1] for leg in grid().legs if leg.kind == "timed"]
    assert names[:4] == ["c1-A-r1", "c1-B-r1", "c2-A-r1", "c2-B-r1"]
    assert names[12:14] == ["c1-B-r2", "c1-A-r2"]
    fixed = [leg.name.split("-", 1)[1] for leg in grid("rule.order=fixed").legs if leg.kind == "timed"]
    assert fixed[12:14] == ["c1-A-r2", "c1-B-r2"]
    assert any("rule.order=fixed" in reason for reason in grid("rule.order=fixed").unbinding())


def test_a_whole_grid_is_judged_on_124_axes_by_medians_and_binds() -> None:
    plan = grid()
    found = verdict.compute(plan, good_legs(plan, scale_b=1.1), [])
    assert found["outcome"] == "PASS", found["void"]
    assert found["binding"]
    assert found["counts"] == {"timing": {"pass": 120, "of": 120}, "memory": {"pass": 4, "of": 4}}
    assert (found["totals"]["legs"], found["totals"]["requests"]) == (36, 2016)
    assert [row["concurrency"] for row in found["axes"][-4:]] == [None] * 4
    canonical.dumps(found)


def test_memory_is_the_highest_peak_of_the_ladder_and_a_leg_without_a_value_voids() -> None:
    plan = grid(gpu=False)
    legs = good_legs(plan)
    high = next(n for n, leg in enumerate(legs) if leg.name.endswith("c4-A-r2"))
    for repetition in (1, 2):  # the median of three wants two high repetitions
        at = next(n for n, leg in enumerate(legs) if leg.name.endswith(f"c4-A-r{repetition}"))
        legs[at] = replace(legs[at], memory=tuple(replace(s, pss_kib=s.pss_kib and 9999) for s in legs[at].memory))
    row = next(row for row in verdict.compute(plan, legs, [])["axes"] if row["name"] == "peak_pss_kib")
    assert (row["candidate"], row["baseline"], row["concurrency"]) == ("9999", "1100", None)
    legs[high] = replace(legs[high], memory=tuple(replace(s, pss_kib=None) for s in legs[high].memory))
    found = verdict.compute(plan, legs, [])
    assert found["void"] == ["axis-null"]
    assert {check["where"] for check in found["checks"] if not check["ok"]} == {"ladder peak_pss_kib"}


def test_a_lost_leg_a_lost_request_and_arms_out_of_turn_are_each_named() -> None:
    plan = grid()
    legs = good_legs(plan)
    assert failed(plan, legs) == set()
    assert {"grid-files", "grid-pairs", "grid-requests", "plan-grid"} <= failed(plan, legs[:-1])
    short = replace(legs[-1], requests=legs[-1].requests[:-1])
    assert {"grid-requests", "request-count"} <= failed(plan, [*legs[:-1], short])
    swapped = [*legs[:-3], legs[-2], legs[-3], legs[-1]]
    assert "grid-pairs" in failed(plan, swapped)


def test_an_oracle_that_does_not_tell_its_plan_map_fails_plan_control() -> None:
    plan = grid()
    legs = [replace(leg, plans=None) if leg.arm == "B" and leg.kind == "timed" else leg for leg in good_legs(plan)]
    check = next(check for check in g5.checks(plan, legs) if check.code == "plan-grid")
    assert check.seen == "18 legs of A, 0 legs of B, 1 maps"
    assert verdict.compute(plan, legs, [])["plan_control"] == "FAIL"


def test_a_plan_that_says_nothing_of_its_gates_is_void() -> None:
    plan = grid(prerequisites=None)
    assert failed(plan, good_legs(plan)) == {"prerequisites"}


def test_an_override_is_in_the_plan_and_on_every_page(tmp_path: Path) -> None:
    plan = grid(gpu=False, prerequisites=OVERRIDE)
    assert Plan.from_bytes(plan.to_bytes()) == plan
    root = write_bundle(tmp_path / "whole", plan, good_legs(plan))
    found = verify.verify(root)
    assert found.outcome == "PASS", found.faults
    assert found.verdict is not None
    assert not found.verdict["binding"]
    assert OVERRIDE["overridden"] in found.verdict["not_binding_because"]
    assert any(str(OVERRIDE["overridden"]) in line for line in summary(found.verdict))
    void = write_bundle(tmp_path / "void", plan, good_legs(plan)[:-1])
    for bundle in (root, void):
        assert f"**Never binding: {OVERRIDE['overridden']}.**" in (bundle / "report.md").read_text()
        again = verify.verify(bundle)
        assert again.verdict is not None
        page = html.render(evidence.read(bundle, again.verdict, again.digest), [])
        assert str(OVERRIDE["overridden"]) in page
        assert ("All concurrencies together" in page) == (again.outcome == "PASS")


def test_a_trace_file_beside_a_timed_leg_voids_the_grid(tmp_path: Path) -> None:
    plan = grid(gpu=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "leg.nsys-rep").write_bytes(b"x")
    found = verify.verify(write_bundle(tmp_path / "run", plan, good_legs(plan)))
    assert found.verdict is not None
    assert (found.outcome, found.verdict["void"]) == ("VOID", ["untraced"])


def test_prerequisites_that_do_not_bind_take_the_grid_with_them() -> None:
    rows = {**PROVEN["gates"], "g2": {"digest": SHA, "binding": False}}
    reasons = grid(prerequisites={"gates": rows, "overridden": None}).unbinding()
    assert reasons == ["the verdicts that it stands on do not all bind: G2"]


def g4_bundle(root: Path, **scales: float) -> Path:
    plan = small_plan()
    return write_bundle(root, plan, good_legs(plan, **scales))


def gate(*paths: Path, override: bool = False) -> Any:
    config = compose_config(["gate=g5", f"gate.override={str(override).lower()}"])
    config.gate.prerequisites = [str(path) for path in paths]
    return config.gate


def test_the_refusal_names_every_gate_that_is_missing_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no sealed PASS bundle of G1, G2, G3, G4 is among gate.prerequisites=\[\]"):
        prerequisites.demand(gate(), prerequisites.read(gate(), tmp_path))
    passed = gate(g4_bundle(tmp_path / "g4", scale_b=1.1))
    with pytest.raises(UsageError, match=r"no sealed PASS bundle of G1, G2, G3 is among") as error:
        prerequisites.demand(passed, prerequisites.read(passed, tmp_path))
    assert "\n" not in error.value.message
    prerequisites.demand(gate(override=True), [])


def test_a_failed_a_damaged_a_double_and_an_absent_bundle_are_refused(tmp_path: Path) -> None:
    good, bad = g4_bundle(tmp_path / "good", scale_b=1.1), g4_bundle(tmp_path / "bad", scale_a=1.1)
    for paths, words in (
        ((bad,), "is FAIL of G4, not PASS"),
        ((good, good), "are both of G4"),
        ((tmp_path / "none",), "holds no seal.json"),
    ):
        with pytest.raises(UsageError, match=words):
            prerequisites.read(gate(*paths), tmp_path)
    (good / "legs" / "01-model-gate-A" / "leg.json").write_text("{}\n")
    with pytest.raises(UsageError, match="is tampered with"):
        prerequisites.read(gate(good), tmp_path)


def test_a_bundle_of_another_subject_is_refused_even_under_an_override(tmp_path: Path) -> None:
    chosen = gate(g4_bundle(tmp_path / "g4", scale_b=1.1), override=True)
    proofs = prerequisites.read(chosen, tmp_path)
    plan = grid(gpu=False, prerequisites=None)
    said = prerequisites.document(chosen, proofs, plan)
    assert said["gates"]["g4"] == {"digest": proofs[0].digest, "binding": False}  # no GPU here
    assert said["overridden"] == "gate.override=true: started without a sealed PASS of G1, G2, G3"
    other = replace(plan, subject={"weights_sha256": "b" * 64})
    with pytest.raises(UsageError, match="about another subject: its subject differs"):
        prerequisites.document(chosen, proofs, other)


def test_a_second_model_waits_for_the_grid_that_authorises_it(tmp_path: Path) -> None:
    first = grid(gpu=False, prerequisites={**PROVEN, "authorises": ["large"]})
    passed = write_bundle(tmp_path / "first", first, good_legs(first))
    chosen = gate(passed)
    with pytest.raises(UsageError, match=r"is of G5; this grid stands on G1, G2, G3, G4$"):
        prerequisites.read(chosen, tmp_path)
    chosen.second_model = "huge"
    with pytest.raises(UsageError, match=r"authorises large, not gate.second_model=huge"):
        prerequisites.read(chosen, tmp_path)
    chosen.second_model = "large"
    proofs = prerequisites.read(chosen, tmp_path)
    chosen.override = True
    said = prerequisites.document(chosen, proofs, replace(first, subject={"weights_sha256": "b" * 64}))
    assert (list(said["gates"]), said["second_model"]) == (["g5"], "large")
    with pytest.raises(UsageError, match="no sealed PASS bundle of G1, G2, G3, G4, G5 is among"):
        chosen.override = False
        prerequisites.demand(chosen, [])
    second = grid(prerequisites={**PROVEN, "second_model": "large"})
    assert failed(second, good_legs(second)) == {"prerequisites"}


def test_what_a_grid_stands_on_is_part_of_its_identity_and_not_of_its_subject() -> None:
    plan = grid()
    assert plan.digest() != replace(plan, prerequisites=OVERRIDE).digest()
    assert index.subject_key(plan) == index.subject_key(replace(plan, prerequisites=OVERRIDE))
