"""The index of attempts: nothing is forgotten, and what was taken out shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import index, sealing
from harness.agent.values import Packed
from tests.builders import good_legs, small_plan, write_bundle

PLAN = small_plan()
OTHER = small_plan("engine.options.seed=1")  # another subject
AGAIN = small_plan("workload.seed=7")  # the same subject under another plan
WRITER = """
import sys
from pathlib import Path
from harness import index
from harness.plan import Plan
root, name = Path(sys.argv[1]), sys.argv[2]
plan = Plan.from_bytes((root / "plan.json").read_bytes())
for number in range(25):
    verdict = {"outcome": "FAIL", "binding": False, "void": []}
    index.append(root, run=f"{name}-{number}", plan=plan, digest="d", verdict=verdict)
"""


def add(root: Path, run: str, outcome: str = "FAIL", plan: object = PLAN) -> None:
    verdict = {"outcome": outcome, "binding": False, "void": ["lease"] if outcome == "VOID" else []}
    index.append(root, run=run, plan=plan, digest=f"digest of {run}", verdict=verdict)  # type: ignore[arg-type]


def runs(root: Path) -> list[str]:
    return [row["run"] for row in index.earlier(root, index.subject_key(PLAN))]


def test_attempts_at_the_same_subject_are_counted_void_ones_too(tmp_path: Path) -> None:
    assert runs(tmp_path) == []
    add(tmp_path, "one")
    add(tmp_path, "two", plan=OTHER)
    add(tmp_path, "three", "VOID")
    assert runs(tmp_path) == ["one", "three"]
    assert index.gaps(tmp_path) == []


def test_an_attempt_is_superseded_by_a_valid_one_of_the_same_plan_only(tmp_path: Path) -> None:
    for run, outcome, plan in (("a", "FAIL", PLAN), ("b", "FAIL", AGAIN), ("c", "PASS", PLAN), ("d", "VOID", PLAN)):
        add(tmp_path, run, outcome, plan)
    found = {row["run"]: row["superseded"] for row in index.earlier(tmp_path, index.subject_key(PLAN))}
    assert found == {"a": True, "b": False, "c": False, "d": False}


def test_a_line_cut_by_a_crash_spoils_neither_the_one_before_nor_the_next(tmp_path: Path) -> None:
    add(tmp_path, "one")
    path = tmp_path / "index.jsonl"
    cut = path.read_bytes()[:60]
    path.write_bytes(path.read_bytes() + cut)
    assert runs(tmp_path) == ["one"]
    add(tmp_path, "two")
    assert runs(tmp_path) == ["one", "two"]
    assert cut + b"\n" in path.read_bytes().splitlines(keepends=True)
    assert index.gaps(tmp_path) == []


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_line_taken_out_shows(tmp_path: Path, taken: int) -> None:
    for run in ("one", "two", "three", "four"):
        add(tmp_path, run)
    path = tmp_path / "index.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:taken] + lines[taken + 1 :]))
    (gap,) = index.gaps(tmp_path)
    assert ("first lines" if taken == 0 else f"line {taken + 1} does not follow line {taken}") in gap


def test_a_changed_line_and_swapped_lines_show(tmp_path: Path) -> None:
    for run in ("one", "two", "three"):
        add(tmp_path, run)
    path = tmp_path / "index.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"FAIL"', b'"PASS"', 1))
    assert "line 2" in index.gaps(tmp_path)[0]
    row = json.loads(data.splitlines()[1])
    del row["previous"]
    lines = data.splitlines(keepends=True)
    path.write_bytes(lines[0] + json.dumps(row).encode() + b"\n")
    assert "line 2" in index.gaps(tmp_path)[0]
    path.write_bytes(lines[1] + lines[0] + lines[2])
    assert len(index.gaps(tmp_path)) == 3


def test_lines_from_before_the_chain_are_read_and_continued(tmp_path: Path) -> None:
    add(tmp_path, "one")
    path = tmp_path / "index.jsonl"
    row = json.loads(path.read_bytes())
    del row["previous"]
    path.write_text(json.dumps(row) + "\n")
    add(tmp_path, "two")
    assert runs(tmp_path) == ["one", "two"]
    assert index.gaps(tmp_path) == []


def test_writers_at_the_same_time_lose_no_line_and_keep_the_chain(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.to_bytes())
    started = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "abcd"]
    assert [process.wait(60) for process in started] == [0, 0, 0, 0]
    assert sorted(runs(tmp_path)) == sorted(f"{name}-{number}" for name in "abcd" for number in range(25))
    assert index.gaps(tmp_path) == []


def test_a_run_is_listed_once_also_when_its_first_controller_died_before_the_index(tmp_path: Path) -> None:
    class NoTransport:
        where = "nowhere"

    write_bundle(tmp_path / "run", PLAN, good_legs(PLAN))
    packed = Packed(folder=str(tmp_path / "state" / "bundle"), files=(), keeper={}, said="", boot_id=None)
    for _ in range(2):
        sealing.seal_run("run", packed, NoTransport(), tmp_path)  # type: ignore[arg-type]
    assert runs(tmp_path) == ["run"]
