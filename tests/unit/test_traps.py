"""Every test that docs/traps.md names exists, and every trap has a test or a sentence."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "traps.md").read_text().splitlines()
    return [line.strip("| ").split(" | ") for line in lines if re.match(r"\| [A-H]\d", line)]


def test_every_named_test_exists() -> None:
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "traps.md").read_text())
    assert len(named) > 50
    assert sorted(set(named) - known) == []


def test_every_trap_has_a_test_or_says_why_not() -> None:
    found = rows()
    assert len(found) > 55
    for row in found:
        assert re.search(r"`test_\w+`|no test: |nox -s", " | ".join(row)), row[0]
