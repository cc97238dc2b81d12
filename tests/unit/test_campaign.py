"""The frozen plan: its legs, its digest, its prompts, and what it must not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import campaign, corpus
from harness.config import ArmConfig
from harness.errors import HarnessError
from harness.plan import Plan, leg_order
from harness.settings import compose_config
from tests.builders import ALL, small_plan


def test_the_default_g4_has_twelve_timed_legs_in_the_seeds_order() -> None:
    legs = campaign.legs(compose_config([]), ALL)
    timed = [f"{leg.concurrency}{leg.arm}{leg.repetition}" for leg in legs if leg.kind == "timed"]
    assert timed == ["2A1", "2B1", "2B2", "2A2", "2A3", "2B3", "16A1", "16B1", "16B2", "16A2", "16A3", "16B3"]
    assert [leg.kind for leg in legs[:5]] == ["seed", "model-gate", "model-gate", "sequential", "sequential"]


def test_the_orders_are_what_they_are_called() -> None:
    assert "".join(arm for arm, _ in leg_order("abba", 4)) == "ABBABAAB"
    assert "".join(arm for arm, _ in leg_order("fixed", 2)) == "ABAB"
    assert leg_order("seed", 3) == [("A", 1), ("B", 1), ("B", 2), ("A", 2), ("A", 3), ("B", 3)]


def test_a_given_document_needs_no_seed_leg() -> None:
    legs = campaign.legs(compose_config(["engine.plan=x.json"]), ALL)
    assert legs[0].kind == "model-gate"


def test_a_plan_survives_its_own_bytes_and_names_what_it_lacks() -> None:
    plan = small_plan()
    assert Plan.from_bytes(plan.to_bytes()) == plan
    document = json.loads(plan.to_bytes())
    del document["legs"]
    with pytest.raises(HarnessError, match="lacks legs"):
        Plan.from_bytes(json.dumps(document).encode())


def test_the_digest_depends_on_the_rule_and_the_arms_and_not_on_places() -> None:
    digest = small_plan().digest()
    assert small_plan("host.state_dir=/elsewhere", "evidence.root=/other", "host.port=9001").digest() == digest
    assert small_plan("rule.order=abba").digest() != digest
    assert small_plan("rule=strict-median").digest() != digest
    assert small_plan("engine.baseline.env.VT_FP4_DIRECT_SF=0").digest() == digest


def test_a_secret_is_neither_in_the_plan_nor_in_the_difference() -> None:
    plan = small_plan("+engine.candidate.env.HF_TOKEN=hf_abcdef")
    assert b"hf_abcdef" not in plan.to_bytes()
    assert "env HF_TOKEN: <secret> against unset" in plan.difference


def test_the_difference_between_arms_is_computed() -> None:
    one, two = ArmConfig({"slots": 16}, {"A": "1"}), ArmConfig({"slots": 1}, {"A": "1"})
    assert campaign.difference(one, two) == ["flag slots: 16 against 1"]
    assert campaign.difference(one, one) == []


def prompts(seed: int = 0) -> corpus.Corpus:
    return corpus.build(seed=seed, tokens=64, counts={2: 6, 16: 20}, repetitions=3, first_token=256, vocabulary=1024)


def test_prompts_are_exact_disjoint_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    made = prompts()
    rows = [json.loads(line) for data in made.files.values() for line in data.splitlines()]
    assert set(made.files) == {"c2-r1", "c16-r1", "c2-r2", "c16-r2", "c2-r3", "c16-r3"}
    assert {len(row["prompt_token_ids"]) for row in rows} == {64}
    assert len({row["prompt_sha256"] for row in rows}) == len(rows) == 78
    assert made.digests == prompts().digests
    assert made.digests != prompts(seed=1).digests
    corpus.write(made, tmp_path)
    assert (tmp_path / "c2-r1.jsonl").read_bytes() == made.files["c2-r1"]


def test_prompts_that_share_a_kv_block_are_refused() -> None:
    with pytest.raises(HarnessError, match="leading tokens"):
        corpus.build(seed=0, tokens=40, counts={1: 2}, repetitions=1, first_token=0, vocabulary=1)


def test_gpu_memory_is_an_axis_only_where_a_gpu_exists_and_the_engine_uses_it() -> None:
    assert small_plan(gpu=True).gpu
    config = compose_config([])
    arguments = {"subject": {}, "host": {}, "corpus": {}, "frozen_plan_sha256": None}
    on_cpu = campaign.plan(config, capabilities=ALL, gpu=True, **arguments)
    assert not on_cpu.gpu
    assert "peak GPU memory: the engine does not compute on the GPU" in on_cpu.unbinding()
    nowhere = campaign.plan(config, capabilities=(*ALL, "gpu"), gpu=False, **arguments)
    assert "peak GPU memory: no NVML device on this host" in nowhere.unbinding()


def test_a_campaign_of_a_floor_has_only_the_pairs_that_it_lacks_and_never_binds() -> None:
    config = compose_config([])
    arguments = {"subject": {}, "host": {}, "corpus": {}, "frozen_plan_sha256": None, "gpu": False}
    plan = campaign.plan(config, capabilities=ALL, aa={"campaign": 2, "pairs": [[16, 2]]}, **arguments)
    assert [leg.name[3:] for leg in plan.legs if leg.kind == "timed"] == ["c16-B-r2", "c16-A-r2"]
    assert plan.measured == (16,)
    assert any("A/A floor" in reason for reason in plan.unbinding())
