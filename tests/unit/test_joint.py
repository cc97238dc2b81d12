"""`report --join`: several campaigns of one plan, what may be joined, and what is said of those left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness import canonical, index
from harness.cli import main
from harness.plan import Plan
from harness.verify import verify
from tests.builders import STARTED, good_legs, plan_report, small_plan, write_bundle
from tests.unit import test_g2
from tests.unit.test_interpretation import FLOOR, FLOORED, PLAN, noisy
from tests.unit.test_report import Page


def made(root: Path, plan: Plan = FLOORED, seed: int = 50, effect: float = 1.0, **options: Any) -> Path:
    """A sealed run under `root`'s folder, one line of the index beside it. Its seed is also the hour of its start."""
    extra = {"floor.json": canonical.dumps({"floors": [FLOOR]})} if plan.floor else {}
    legs = options.pop("legs", None) or noisy(plan, seed, effect)
    write_bundle(root, plan, legs, extra=extra, started=STARTED + timedelta(hours=seed - 50), **options)
    found = verify(root)
    assert found.verdict is not None, found.faults
    index.append(root.parent, run=root.name, plan=plan, digest=found.digest, verdict=found.verdict)
    return root


def three(folder: Path, effect: float = 1.007) -> list[Path]:
    return [made(folder / f"g4-{seed}", seed=seed, effect=effect) for seed in (50, 51, 52)]


def joined(tmp_path: Path, roots: Sequence[Path]) -> dict[str, Any]:
    """The document; the exit code must be 0."""
    out = tmp_path / "joint.json"
    assert main(["report", "--join", *map(str, roots), "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def row_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in found["axes"] if row["name"] == name)


def test_a_small_effect_is_unresolved_in_each_run_and_real_in_all_of_them(tmp_path: Path) -> None:
    roots = three(tmp_path)
    for root in roots:
        verdict = verify(root).verdict
        assert verdict is not None
        assert row_of(verdict["interpretation"], "request_throughput")["label"] == "UNRESOLVED"
    row = row_of(joined(tmp_path, roots), "request_throughput")
    assert (row["label"], row["direction"]) == ("REAL", "worse")
    assert row["log_ratio"] == pytest.approx(sum(row["campaigns"]) / 3, rel=1e-8)


def test_identical_arms_are_real_nowhere(tmp_path: Path) -> None:
    counts = joined(tmp_path, three(tmp_path, effect=1.0))["counts"]
    assert counts["REAL"] == counts["REAL-SMALL"] == 0


def test_nothing_of_a_bundle_changes_and_no_outcome_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = three(tmp_path)
    before = {path: path.read_bytes() for root in roots for path in root.rglob("*") if path.is_file()}
    found = joined(tmp_path, roots)
    assert "outcome" not in found
    assert "Acceptance is not joined" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for root in roots for path in root.rglob("*") if path.is_file()}


def test_campaigns_are_in_the_order_of_their_start_however_they_are_named(tmp_path: Path) -> None:
    roots = three(tmp_path)
    assert joined(tmp_path, roots) == joined(tmp_path, roots[::-1])
    assert [run["run"] for run in joined(tmp_path, roots)["runs"]] == ["g4-50", "g4-51", "g4-52"]


def test_a_run_that_is_left_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = three(tmp_path)
    found = joined(tmp_path, roots[1:])
    assert found["omitted"] == ["g4-50"]
    said = capsys.readouterr().out
    assert "2 of the 3 valid runs of this plan that are known; left out: g4-50." in said
    assert "g4-50: FAIL" in said.partition("Left out")[2]
    joined(tmp_path, roots)
    assert "3 of the 3 valid runs of this plan that are known; none is left out." in capsys.readouterr().out


def test_a_void_attempt_and_one_of_another_load_are_told_but_could_not_have_been_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = three(tmp_path)
    made(tmp_path / "g4-cut", seed=53, legs=good_legs(FLOORED)[:-1])
    made(tmp_path / "g4-lax", small_plan("client.stall_timeout_s=9"), seed=54)
    found = joined(tmp_path, roots)
    assert found["omitted"] == []
    assert [row["run"] for row in found["left_out"]] == ["g4-cut", "g4-lax"]
    said = capsys.readouterr().out
    assert "2 further attempts at this subject are void or of another plan" in said
    assert "g4-lax" in said.partition("Left out")[2]


def test_attempts_are_known_from_what_the_runs_recorded_where_no_index_lies_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = made(tmp_path / "g4-50")
    earlier = index.earlier(tmp_path, index.subject_key(FLOORED))
    second = made(tmp_path / "g4-51", seed=51, earlier=earlier)
    third = made(tmp_path / "g4-52", seed=52, earlier=earlier)
    (tmp_path / index.NAME).unlink()
    assert joined(tmp_path, [second, third])["omitted"] == [first.name]
    bare = [shutil.copytree(root, tmp_path / "elsewhere" / root.name) for root in (second, third)]
    assert joined(tmp_path, bare)["omitted"] == [first.name]
    assert "left out: g4-50" in capsys.readouterr().out


def test_a_gap_in_the_index_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = three(tmp_path)
    lines = (tmp_path / index.NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / index.NAME).write_bytes(lines[0] + lines[2])
    joined(tmp_path, roots)
    assert "so attempts were taken out or changed" in capsys.readouterr().out


OTHER_LOAD = replace(small_plan("client.stall_timeout_s=9"), floor=FLOORED.floor)
OTHER_ARM = replace(small_plan("engine.candidate.env.VT_FP4_DIRECT_SF=7"), floor=FLOORED.floor)
OTHER_HOST = replace(FLOORED, host={**FLOORED.host, "name": "alias"})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (OTHER_ARM, "candidate.env.VT_FP4_DIRECT_SF is '1' in g4-50 and '7' in g4-51"),
        (OTHER_HOST, "host.name is 'local' in g4-50 and 'alias' in g4-51"),
        (replace(FLOORED, frozen_plan_sha256="b" * 64), "frozen_plan_sha256 is None in g4-50 and"),
    ],
)
def test_another_plan_is_refused_by_the_field_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Plan, said: str
) -> None:
    legs = [replace(leg, plan_sha256=("b" * 64,) * 2 if leg.plan_sha256 else None) for leg in good_legs(other)]
    roots = [made(tmp_path / "g4-50"), made(tmp_path / "g4-51", other, 51, legs=legs)]
    assert main(["report", "--join", *map(str, roots)]) == 64
    error = capsys.readouterr().err
    assert error.startswith(f"not-joinable: {said}"), error
    assert error.count("\n") == 1


def test_void_runs_gates_of_checks_lone_runs_and_twins_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = made(tmp_path / "g4-50")
    void = made(tmp_path / "g4-51", seed=51, legs=good_legs(FLOORED)[:-1])
    unfloored = made(tmp_path / "g4-52", PLAN, 52)
    g2 = made(tmp_path / "g2", test_g2.PLAN, 53, legs=good_legs(test_g2.PLAN))
    copy = shutil.copytree(good, tmp_path / "copy")
    tuned = [
        replace(leg, plans=plan_report({(1, 64, 32): 3}) if leg.kind != "seed" else leg.plans)
        for leg in noisy(FLOORED, 54)
    ]
    foreign = made(tmp_path / "g4-54", seed=54, legs=tuned)
    for roots, said in (
        ([good], "one bundle alone"),
        ([good, copy], "copy and g4-50 are the same bundle"),
        ([good, void], "g4-51 is VOID"),
        ([good, g2], "g2 is of a gate of checks"),
        ([unfloored, good], "g4-52 has no usable floor (none): the plan names no floor"),
        ([good, foreign], "g4-54 has no usable floor (foreign): the floor was made with another FP4 plan map"),
    ):
        assert main(["report", "--join", *map(str, roots)]) == 64
        assert capsys.readouterr().err.startswith(f"not-joinable: {said}")


def test_an_altered_bundle_is_named_and_gives_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = three(tmp_path)
    (roots[1] / "keeper.json").write_text("{}\n")
    assert main(["report", "--join", *map(str, roots), "--html", str(tmp_path / "out.html")]) == 3
    assert "g4-51" in capsys.readouterr().out
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("words", [["BUNDLE"], ["--junit", "OUT"]])
def test_join_goes_with_its_own_outputs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["report", *words, "--join", "one", "two"]) == 64
    assert main(["report", "BUNDLE", "--json", "OUT"]) == 64
    assert capsys.readouterr().err.count("usage: ") == 2


def test_the_page_shows_every_campaign_as_a_mark_and_never_a_pass_or_a_miss(tmp_path: Path) -> None:
    roots = three(tmp_path)
    made(tmp_path / "g4-53", seed=53)
    out = tmp_path / "joint.html"
    assert (
        main(["report", "--join", *map(str, roots), "--html", str(out), "--markdown", str(tmp_path / "joint.md")]) == 0
    )
    page = Page(out.read_text())
    assert page.open == []
    assert "script" not in page.tags
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert "left out: g4-53" in page.text
    forest = out.read_text().partition('id="forest"')[2]
    assert forest.count('class="forest-row"') == 23
    assert "; campaigns " in forest
    assert "miss" not in forest
    assert len((tmp_path / "joint.md").read_text().splitlines()) < 100
