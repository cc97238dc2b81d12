"""Two controllers of one run end with the same bundle."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness import journal, sealing
from harness.agent.values import Packed
from harness.errors import HarnessError
from harness.keeper import KeeperState
from harness.sealing import seal_run
from harness.verify import verify
from tests.builders import good_legs, small_plan, write_bundle

PLAN = small_plan()


class NoTransport:
    """Nothing may be fetched for a run that is sealed already."""

    where = "nowhere"

    def fetch(self, *_: Any) -> None:
        raise AssertionError("fetched")


def test_a_run_that_another_controller_sealed_is_taken_as_it_is(tmp_path: Path) -> None:
    write_bundle(tmp_path / "run", PLAN, good_legs(PLAN))
    packed = Packed(folder=str(tmp_path / "state" / "bundle"), files=(), keeper={}, said="", boot_id=None)
    sealed = seal_run("run", packed, NoTransport(), tmp_path)
    assert sealed.digest == verify(tmp_path / "run").digest
    assert sealed.verdict["outcome"] == "PASS"


def test_a_folder_that_is_no_bundle_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    packed = Packed(folder=str(tmp_path / "state" / "bundle"), files=(), keeper={}, said="", boot_id=None)
    with pytest.raises(HarnessError, match="no bundle"):
        seal_run("run", packed, NoTransport(), tmp_path)


@pytest.mark.parametrize(
    ("phase", "kept", "now", "code", "boot"),
    [
        ("held", "one", "one", "supervisor-died", "one"),
        ("held", "one", "two", "boot-id", "two"),
        ("held", None, "two", "supervisor-died", "two"),
        ("held", "one", None, "supervisor-died", None),
        ("released", "one", "two", "supervisor-died", "one"),  # the restart came after the run had ended
    ],
)
def test_a_journal_without_an_end_is_closed_with_what_ended_it(
    phase: str, kept: str | None, now: str | None, code: str, boot: str | None
) -> None:
    state = KeeperState(1, 1, kept, "run", phase, "2026-01-01T00:00:00Z")
    packed = Packed("folder", (), asdict(state), "last words", now)
    found = sealing._why_no_end(packed)
    assert (found["code"], found["boot_id"]) == (code, boot)
    assert "last words" in str(found["message"])


@pytest.mark.parametrize(("boot", "good"), [("one", True), ("two", False), (None, False)])
def test_the_boot_at_the_sealing_stands_in_for_that_at_an_end_which_is_missing(boot: str | None, good: bool) -> None:
    events = [
        {"event": "start", "boot_id": "one"},
        {"event": "void", "code": "x", "where": "run", "message": "", "boot_id": boot},
    ]
    assert [check.ok for check in journal.checks(events) if check.code == "boot-id"] == [good]
