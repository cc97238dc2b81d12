"""A lost link is waited out with growing pauses and two lines; anything else is passed on at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.errors import UsageError
from harness.transport.base import FIRST_PAUSE_S, LONGEST_PAUSE_S, LinkLost, Patient


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [times]

    def action() -> str:
        if left[0]:
            left[0] -= 1
            raise error
        return "answer"

    return action


def test_a_lost_link_is_told_once_and_its_return_once_however_long_it_took() -> None:
    lines: list[str] = []
    pauses: list[float] = []
    patient = Patient("dgx", lines.append, pauses.append)
    assert patient(failing(9, LinkLost("ssh-lost", "no route"))) == "answer"
    assert len(lines) == 2
    assert "lost the link to dgx (no route)" in lines[0]
    assert "is back" in lines[1]
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_second_gap_begins_with_a_short_pause_again() -> None:
    pauses: list[float] = []
    patient = Patient("dgx", lambda _: None, pauses.append)
    patient(failing(5, LinkLost("ssh-lost", "")))
    patient(failing(1, LinkLost("ssh-lost", "")))
    assert pauses[-1] == FIRST_PAUSE_S


def test_a_changed_host_key_is_not_waited_out() -> None:
    pauses: list[float] = []
    with pytest.raises(UsageError, match="changed"):
        Patient("dgx", lambda _: None, pauses.append)(failing(1, UsageError("ssh-host-key-changed", "changed")))
    assert pauses == []
