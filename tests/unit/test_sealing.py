"""Two controllers of one run end with the same bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.agent.values import Packed
from harness.errors import HarnessError
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
    packed = Packed(folder=str(tmp_path / "state" / "bundle"), files=(), keeper={}, said="")
    sealed = seal_run("run", packed, NoTransport(), tmp_path)
    assert sealed.digest == verify(tmp_path / "run").digest
    assert sealed.verdict["outcome"] == "PASS"


def test_a_folder_that_is_no_bundle_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    packed = Packed(folder=str(tmp_path / "state" / "bundle"), files=(), keeper={}, said="")
    with pytest.raises(HarnessError, match="no bundle"):
        seal_run("run", packed, NoTransport(), tmp_path)
