"""What a person sees of a run while the link fails and Ctrl-C is pressed: a transport that follows a script."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.agent.values import FileRow, Seen
from harness.config import HostConfig
from harness.display import Display
from harness.errors import UsageError
from harness.transport.base import LinkLost
from harness.watching import Refused, Watch

LOST = LinkLost("ssh-lost", "no route")


class Scripted:
    """Each poll and each stop takes the next entry of its script; an exception is raised, a value returned."""

    where = "dgx"
    poll_s = 0.0

    def __init__(self, polls: Sequence[Any], stops: Sequence[Any] = ()) -> None:
        self.left = {"poll": list(polls), "stop": list(stops)}
        self.asked: list[str] = []

    def call(self, command: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        if command == "stop":
            self.asked.append(request["how"])
        item = self.left[command].pop(0)
        if isinstance(item, BaseException):
            raise item
        return dict(item)

    def fetch(self, folder: str, rows: Sequence[FileRow], into: Path) -> None:
        raise AssertionError("nothing is fetched while a run is watched")

    def close(self) -> None:
        pass


def seen(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"stamp": "s", "alive": True, "phase": "held", "waiting": None, "progress": None}
    return Seen(**{**plain, "refused": None, **changes}).to_json()


def watch(transport: Scripted) -> str:
    text = io.StringIO()
    display = Display(Console(file=text, width=200))
    Watch(HostConfig(name="dgx"), "g4-abc-1", transport, display).until_ended()
    return text.getvalue()


def test_ctrl_c_asks_for_the_end_of_the_leg_and_then_for_now() -> None:
    transport = Scripted([KeyboardInterrupt(), KeyboardInterrupt(), seen(alive=False)], [{"alive": True}] * 2)
    said = watch(transport)
    assert transport.asked == ["after-leg", "now"]
    assert "press Ctrl-C again to stop now" in said


def test_ctrl_c_twice_while_the_link_is_lost_leaves_the_run_going_on() -> None:
    transport = Scripted([KeyboardInterrupt(), KeyboardInterrupt()], [LOST, LOST])
    with pytest.raises(UsageError, match="goes on on dgx") as caught:
        watch(transport)
    assert caught.value.code == "left-running"


def test_ctrl_c_that_was_not_heard_does_not_count_once_the_link_is_back() -> None:
    polls = [KeyboardInterrupt(), seen(), KeyboardInterrupt(), seen(alive=False)]
    transport = Scripted(polls, [LOST, {"alive": True}])
    watch(transport)
    assert transport.asked == ["after-leg", "after-leg"]


def test_who_holds_the_lease_is_told_once() -> None:
    waiting = seen(phase="waiting", waiting="lease held by somebody")
    assert watch(Scripted([waiting, waiting, seen(), seen(alive=False)])).count("held by somebody") == 1


def test_a_lease_that_was_never_held_is_told_apart_from_other_errors() -> None:
    with pytest.raises(Refused, match="held by somebody"):
        watch(Scripted([seen(alive=False, refused=["lease-held", "held by somebody"])]))
