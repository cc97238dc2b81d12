"""The bundle kept in the repository verifies for ever: each format version keeps one."""

from __future__ import annotations

import json
from pathlib import Path

from harness.verify import verify

EXAMPLE = Path(__file__).resolve().parents[2] / "evidence" / "example"


def test_the_sealed_example_gives_the_outcome_that_was_sealed() -> None:
    found = verify(EXAMPLE)
    assert found.faults == ()
    assert found.outcome == json.loads((EXAMPLE / "verdict.json").read_text())["outcome"] == "FAIL"


def test_the_example_is_small_and_says_that_it_does_not_bind() -> None:
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*") if path.is_file()) < 600_000
    assert "FAIL (non-binding)" in (EXAMPLE / "report.md").read_text()
