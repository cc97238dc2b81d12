"""Labels, floors and rules on synthetic runs: what is called what, and when nothing is called anything."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harness import canonical, floor, floor_documents, verdict
from harness.errors import HarnessError
from harness.floor import joined, spread_of
from harness.floor_documents import Campaign
from harness.mixtures import split, ttft_modes
from harness.omnibus import counts, omnibus
from harness.plan import Plan
from harness.records import Check, Leg
from harness.rule import KNOWN, altered, content_digest
from harness.settings import compose_config
from harness.weighing import LABELS, Family, Terms, label, weigh
from tests.builders import good_leg, good_legs, plan_report, request, small_plan

OK = [Check("run-ended", "journal", "end", "end", True)]
PLAN = small_plan()
STARTED = "2026-12-07T10:00:00+00:00"
LATER = "2027-02-07T10:00:00+00:00"
TERMS = Terms.from_json(asdict(compose_config([]).rule)["interpretation"])


def noisy(plan: Plan, seed: int, effect: float = 1.0, noise: float = 0.002) -> list[Leg]:
    """Legs whose speed varies by `noise`; arm A takes `effect` times as long."""
    rng = random.Random(seed)
    return [good_leg(leg, plan, scale=rng.gauss(1, noise) * (effect if leg.arm == "A" else 1.0)) for leg in plan.legs]


def made(campaigns: int = 10, started: str = STARTED) -> dict[str, Any]:
    runs = [
        Campaign([leg for leg in noisy(PLAN, seed) if leg.kind == "timed"], [f"{seed}"], started)
        for seed in range(campaigns)
    ]
    return floor_documents.from_campaigns(PLAN, runs, {"campaigns": campaigns, "attempts": campaigns})


FLOOR = made()
FLOORED = replace(PLAN, floor={"digests": [FLOOR["digest"]]})


def interpreted(legs: list[Leg], plan: Plan = FLOORED, document: Any = FLOOR, started: str = STARTED) -> dict[str, Any]:
    result = verdict.compute(plan, legs, OK, [document], started)
    found: dict[str, Any] = result["interpretation"]
    return found


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in found["axes"]}


def test_a_large_slowdown_is_real_and_worse_and_a_speedup_real_and_better() -> None:
    for effect, direction in ((1.05, "worse"), (0.95, "better")):
        row = rows(interpreted(noisy(PLAN, 99, effect)))["request_throughput"]
        assert (row["label"], row["direction"]) == ("REAL", direction)
        assert row["holm_p"] < 0.05
        assert row["interval"][0] < row["log_ratio"] < row["interval"][1]


def test_identical_arms_are_nowhere_real_and_the_strict_outcome_is_what_it_is_without_a_floor() -> None:
    legs = noisy(PLAN, 99)
    with_floor = verdict.compute(FLOORED, legs, OK, [FLOOR], STARTED)
    without = verdict.compute(PLAN, legs, OK)
    assert with_floor["interpretation"]["counts"]["REAL"] == 0
    assert (with_floor["outcome"], with_floor["axes"]) == (without["outcome"], without["axes"])


def test_repeated_axes_are_marked_and_counted_once() -> None:
    found = interpreted(noisy(PLAN, 99))
    table = rows(found)
    assert [table[name]["same_as"] for name in ("input_throughput", "mean_itl_ms")] == [
        "request_throughput",
        "mean_tpot_ms",
    ]
    assert found["tests"] == sum(row["same_as"] is None for row in found["axes"]) == 23 - 4
    assert sum(found["counts"].values()) == found["tests"]


def test_the_other_rules_in_use_are_counted_and_decide_nothing() -> None:
    slow_once = [
        good_leg(leg, PLAN, scale=1.01 if (leg.arm, leg.repetition) == ("A", 2) else 0.9 if leg.arm == "A" else 1.0)
        for leg in PLAN.legs
    ]
    result = verdict.compute(PLAN, slow_once, OK)
    assert result["outcome"] == "PASS"  # the mean of three passes
    variants = result["interpretation"]["variants"]
    assert variants["every_pair"] == {"pass": 3, "of": 23, "binding": False}  # memory alone
    assert variants["median"] == {"pass": 23, "of": 23, "binding": False}


@pytest.mark.parametrize(
    ("plan", "document", "started", "status"),
    [
        (PLAN, FLOOR, STARTED, "none"),
        (FLOORED, FLOOR, LATER, "stale"),
        (replace(FLOORED, host={**PLAN.host, "hostname": "elsewhere"}), FLOOR, STARTED, "foreign"),
        (replace(FLOORED, subject={"weights_sha256": "b" * 64}), FLOOR, STARTED, "foreign"),
        (FLOORED, made(9), STARTED, "foreign"),
    ],
)
def test_without_a_usable_floor_nothing_is_labelled_and_the_reason_is_said(
    plan: Plan, document: Any, started: str, status: str
) -> None:
    found = interpreted(good_legs(PLAN), plan, document, started)
    assert found["floor"]["status"] == status
    assert found["floor"]["reason"]
    assert found["floor"]["cannot_tell"]
    assert {row["label"] for row in found["axes"]} == {"NO-FLOOR"}
    assert found["omnibus"]["p"] is None


def test_too_few_campaigns_and_another_plan_map_give_no_floor() -> None:
    thin = made(7)
    found = interpreted(good_legs(PLAN), replace(PLAN, floor={"digests": [thin["digest"]]}), thin)
    assert "7 campaigns, the rule wants 8" in found["floor"]["reason"]
    other = plan_report({(1, 64, 32): 3})
    legs = [replace(leg, plans=other) if leg.kind != "seed" else leg for leg in good_legs(PLAN)]
    assert interpreted(legs)["floor"]["status"] == "foreign"


def test_the_candidate_may_differ_from_the_floors() -> None:
    plan = replace(small_plan("engine.candidate.env.VT_FP4_DIRECT_SF=7"), floor=FLOORED.floor)
    assert interpreted(good_legs(plan), plan)["floor"]["status"] == "used"


def test_a_floor_that_was_changed_is_refused() -> None:
    changed = json.loads(json.dumps(FLOOR))
    changed["axes"][0]["log_ratios"][0] = 0.5
    with pytest.raises(HarnessError, match="changed after it was sealed"):
        floor.loads(changed, "floor.json")


def test_a_plan_from_before_has_no_interpretation_and_keeps_its_bytes() -> None:
    old = replace(PLAN, rule={name: value for name, value in PLAN.rule.items() if name != "interpretation"})
    assert "interpretation" not in verdict.compute(old, good_legs(PLAN), OK)
    assert b'"floor"' not in old.to_bytes()
    assert Plan.from_bytes(old.to_bytes()) == old


def test_every_rule_of_conf_is_released_under_its_digest_and_an_altered_one_does_not_bind() -> None:
    conf = Path(__file__).resolve().parents[2] / "conf" / "rule"
    found = [asdict(compose_config([f"rule={path.stem}"]).rule) for path in conf.glob("*.yaml")]
    assert {(rule["name"], rule["version"]) for rule in found} == set(KNOWN)
    assert all(altered(rule) is None for rule in found)
    assert all(content_digest(rule).startswith(KNOWN[rule["name"], rule["version"]]) for rule in found)
    tolerant = small_plan('rule.threshold="0.995"')
    assert "rule strict-mean version 2 was changed for this run" in tolerant.unbinding()


@pytest.mark.parametrize(
    ("estimate", "holm_p", "tost_p", "campaigns", "called"),
    [
        (-0.02, 0.01, 1.0, 1, "REAL"),
        (-0.007, 0.01, 1.0, 1, "UNRESOLVED"),
        (-0.007, 0.01, 1.0, 2, "REAL"),
        (-0.003, 0.01, 0.2, 1, "REAL-SMALL"),
        (-0.003, 0.5, 0.01, 1, "NOISE"),
        (-0.02, 0.5, 0.9, 1, "UNRESOLVED"),
        (None, 1.0, None, 1, "UNRESOLVED"),
    ],
)
def test_the_labels(estimate: float | None, holm_p: float, tost_p: float | None, campaigns: int, called: str) -> None:
    spread = spread_of([0.001, -0.001] * 4, [[0.001, 0.002, 0.0]] * 8)
    family = Family("mean_tpot_ms", 3, campaigns, 40)
    weighed = replace(weigh(estimate, spread, TERMS, family), tost_p=tost_p)
    assert label(estimate, weighed, holm_p, TERMS, family) == called
    assert called in LABELS


def test_margins_follow_the_statistic_or_the_axis() -> None:
    wanted = {"request_throughput": 0.005, "p90_itl_ms": 0.02, "p99_ttft_ms": 0.05, "peak_gpu_memory_mib": 0.02}
    for name, share in wanted.items():
        assert TERMS.margin(name) == pytest.approx(share, rel=0.03)


def test_variance_within_and_between_campaigns_are_told_apart() -> None:
    apart = spread_of([0.01, -0.01] * 4, [[0.0101, 0.0099, 0.01], [-0.0101, -0.0099, -0.01]] * 4)
    assert apart is not None
    within, between = apart.deviations()
    assert within is not None
    assert between is not None
    assert within < 0.0002
    assert between > 0.009
    one, _ = apart.variance(3, 1)
    four, _ = apart.variance(3, 4)
    assert four == pytest.approx(one / 4)


def test_a_bias_of_the_order_does_not_average_out() -> None:
    spread = spread_of([-0.02, -0.021, -0.019] * 3, [[-0.02, -0.02, -0.02]] * 9)
    assert spread is not None
    assert spread.variance(3, 100)[0] ** 0.5 > 0.019


def test_two_engines_floors_are_averaged() -> None:
    one, two = spread_of([0.01, -0.01] * 4, [[0.01] * 3] * 8), spread_of([0.03, -0.03] * 4, [[0.01] * 3] * 8)
    assert one is not None
    assert two is not None
    assert joined([one, two]).campaign == pytest.approx((one.campaign + two.campaign) / 2)


def test_a_floor_of_residuals_calls_no_small_effect_real_and_has_no_omnibus() -> None:
    runs = [
        Campaign([leg for leg in noisy(PLAN, seed, 1.3) if leg.kind == "timed"], ["x"], STARTED) for seed in range(9)
    ]
    document = floor_documents.from_residuals(PLAN, runs)
    plan = replace(PLAN, floor={"digests": [document["digest"]]})
    found = interpreted(noisy(PLAN, 77, 1.008, noise=0.0001), plan, document)
    assert found["floor"]["source"] == "archived-residuals"
    assert found["omnibus"]["p"] is None
    row = rows(found)["request_throughput"]
    assert row["df"] == 9 * 4
    assert row["label"] != "REAL"
    assert rows(interpreted(noisy(PLAN, 77, 1.1), plan, document))["request_throughput"]["label"] == "REAL"


def test_the_omnibus_counts_misses_of_whole_vectors() -> None:
    assert counts([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]) == [0, 3, 3, 0]
    found = omnibus({2: 3}, {2: 3}, {2: [0, 3, 3, 0]})
    assert (found["misses"], found["p"]) == (3, 0.5)
    assert omnibus({2: 3}, {2: 3}, {})["p"] is None


def test_the_arrival_lottery_is_shown_as_shares_of_modes() -> None:
    legs = [
        replace(leg, requests=tuple(request(i, i, ttft_ns=(900 if i % 2 else 450) * 1_000_000 + i) for i in range(4)))
        if leg.kind == "timed"
        else leg
        for leg in good_legs(PLAN)
    ]
    found = ttft_modes(legs, 2)
    assert found["modes"] == 2
    assert 450 < found["split_ms"] < 900
    assert [mode["share"] for mode in found["arms"]["A"]["modes"]] == [0.5, 0.5]
    assert split([5, 5, 5]) == (None, None)


def test_a_floors_document_survives_its_own_bytes() -> None:
    again = canonical.loads(canonical.dumps(FLOOR))
    assert floor.loads(again, "floor.json").digest == FLOOR["digest"]
