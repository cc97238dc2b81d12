"""A sample of the mutation campaign (`nox -s mutations` makes the whole table)."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from harness.verify import verify
from tests.builders import good_legs, small_plan, write_bundle
from tests.mutations import forgery
from tests.mutations.campaign import run
from tests.mutations.damage import artefact, files
from tests.mutations.subject import signed_bundle, structure_bundle

EXAMPLE = Path(__file__).resolve().parents[2] / "evidence" / "example"


@pytest.mark.slow
def test_damage_to_any_kind_of_file_is_caught_and_named_and_a_forger_needs_the_key(tmp_path: Path) -> None:
    key = signed_bundle(tmp_path / "run")
    rows = run(tmp_path / "run", key.public, rounds=1, seed=11, most_files=1, share=0.15)
    assert len(rows) >= 12
    assert [line for row in rows.values() for line in row.missed] == []
    assert sum(row.with_key["accepted"] for row in rows.values()) == 0
    resealed: Counter[str] = Counter()
    for name, row in rows.items():
        resealed += row.resealed if name.startswith("legs/") else Counter()
    assert set(resealed) == {"named"}, "the journal noted every file of a leg"


@pytest.mark.slow
def test_damage_to_what_g3_leaves_is_caught_and_named(tmp_path: Path) -> None:
    key = structure_bundle(tmp_path / "run")
    assert verify(tmp_path / "run").outcome == "PASS"
    rows = run(tmp_path / "run", key.public, rounds=1, seed=13, most_files=1, share=0.15)
    own = {"trace-A.pt.trace.json", "trace-B.kernels.json", "legs/*/metrics-ready.txt", "legs/*/metrics-end.txt"}
    assert own <= rows.keys()
    assert [line for row in rows.values() for line in row.missed] == []
    assert sum(row.with_key["accepted"] for row in rows.values()) == 0


@pytest.mark.slow
def test_damage_to_the_kept_example_is_caught_and_named(tmp_path: Path) -> None:
    root = Path(shutil.copytree(EXAMPLE, tmp_path / "example"))
    rows = run(root, None, rounds=1, seed=12, most_files=1, share=0.08)
    assert [line for row in rows.values() for line in row.missed] == []


def test_the_synthetic_bundle_has_every_class_of_file_that_a_run_leaves(tmp_path: Path) -> None:
    signed_bundle(tmp_path / "run")
    classes = {artefact(name) for name in files(tmp_path / "run")}
    assert classes >= {artefact(name) for name in files(EXAMPLE)} | {"floor.json", "signatures.intoto.jsonl"}


def test_the_forger_of_the_campaign_is_a_good_one(tmp_path: Path) -> None:
    """Else the table would praise `verify` for the forger's mistakes: without a key a whole forgery is accepted."""
    plan = small_plan()
    root = write_bundle(tmp_path / "run", plan, good_legs(plan, scale_a=1.05))
    assert verify(root).outcome == "FAIL"
    better = write_bundle(tmp_path / "better", plan, good_legs(plan, scale_a=0.9))
    for leg in plan.legs:
        if leg.arm == "A" and leg.kind == "timed":
            for name in ("requests.jsonl.gz", "leg.json"):
                shutil.copyfile(better / "legs" / leg.name / name, root / "legs" / leg.name / name)
    assert verify(root).outcome == "TAMPERED"
    forgery.resealed(root)
    assert "and the journal noted" in verify(root).faults[0]
    forgery.rewritten(root)
    assert verify(root).outcome == "PASS"
