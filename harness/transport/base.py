"""What carries a run's commands to its host, and the patience for links that are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from harness.agent.values import FileRow
from harness.errors import HarnessError

__all__ = ["LinkLost", "Patient", "Transport"]

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class LinkLost(HarnessError):
    """The host cannot be reached now. What runs there goes on, so this is waited out, not an error of the run."""


class Transport(Protocol):
    """`where` is the host's name for a person; `poll_s` is how long a poll may wait on the host for news."""

    where: str
    poll_s: float

    def call(self, command: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """The answer of one command. HarnessError as the agent raised it, LinkLost where none came."""

    def fetch(self, folder: str, rows: Sequence[FileRow], into: Path) -> None:
        """Copy files of the host's `folder`; each has its size and SHA-256 then. What is there already is kept."""

    def close(self) -> None:
        """Let go of the link. The run does not notice."""


class Patient:
    """Repeats what a lost link interrupted, with growing pauses, and says so in one line at each end of the gap.

    Only for what may be repeated: every command may, `start` included, since it names its run.
    """

    def __init__(self, where: str, note: Callable[[str], None], pause: Callable[[float], None] = time.sleep) -> None:
        self._where = where
        self._note = note
        self._pause = pause
        self.lost = False

    def __call__(self, action: Callable[[], T]) -> T:
        pause = FIRST_PAUSE_S
        while True:
            try:
                result = action()
            except LinkLost as error:
                if not self.lost:
                    self._note(f"lost the link to {self._where} ({error.message}); the run goes on there; trying again")
                self.lost = True
                self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                if self.lost:
                    self._note(f"the link to {self._where} is back")
                self.lost = False
                return result
