"""Look at a run until it has ended. The link may fail meanwhile, and Ctrl-C asks it to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harness.agent.values import Seen
from harness.config import HostConfig
from harness.display import Display
from harness.errors import UsageError
from harness.transport.base import LinkLost, Patient, Transport

__all__ = ["CALL_S", "Refused", "Watch"]

CALL_S = 60.0  # longest answer to a short command; a poll adds the time that it waits on the host


class Refused(UsageError):
    """The lease was never held, so nothing was started and nothing needs to be kept."""


class Watch:
    """One run on one host, seen through a transport."""

    def __init__(self, host: HostConfig, run: str, transport: Transport, display: Display) -> None:
        self._request: dict[str, Any] = {"host": asdict(host), "run": run}
        self._run = run
        self._transport = transport
        self._display = display
        self._patient = Patient(transport.where, display.note)
        self._asked = 0
        self._unheard = False
        self._told: str | None = None

    def until_ended(self) -> None:
        """Show progress. Refused where the lease was never held.

        Ctrl-C once: stop after this leg; twice: stop now. Where the link is lost, a second one leaves the run alone.
        """
        stamp = ""
        while True:
            try:
                seen = self._patient(lambda since=stamp: self._poll(since))  # type: ignore[misc]
                stamp = seen.stamp
                if self._unheard:  # what was pressed while the link was lost asked for nothing
                    self._asked, self._unheard = 0, False
                self._show(seen)
                if seen.refused is not None:
                    raise Refused(*seen.refused)
                if not seen.alive:
                    return
            except KeyboardInterrupt:
                self._interrupted()

    def patiently(self, action: Callable[[], Any]) -> Any:
        """Any repeatable step with the same patience."""
        return self._patient(action)

    def _poll(self, since: str) -> Seen:
        wait = self._transport.poll_s
        request = {**self._request, "since": since, "wait_s": wait}
        return Seen.from_json(self._transport.call("poll", request, timeout_s=CALL_S + wait))

    def _show(self, seen: Seen) -> None:
        if seen.waiting is not None and seen.waiting != self._told:
            self._told = seen.waiting
            self._display.note(seen.waiting)
        if seen.progress:
            self._display.show(seen.progress)

    def _interrupted(self) -> None:
        """A third Ctrl-C, or one while the request is on its way, must not leave the terminal in a traceback."""
        self._asked += 1
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            how = "after-leg" if self._asked == 1 else "now"
            self._transport.call("stop", {**self._request, "how": how}, timeout_s=CALL_S)
        except LinkLost as error:
            self._unheard = True
            self._not_heard(error)
        else:
            said = "stopping after this leg; press Ctrl-C again to stop now" if self._asked == 1 else "stopping now"
            self._display.note(said)
        finally:
            signal.signal(signal.SIGINT, before)

    def _not_heard(self, error: LinkLost) -> None:
        where = self._transport.where
        if self._asked > 1:
            raise UsageError(
                "left-running",
                f"{self._run} goes on on {where}, which cannot be reached now ({error.message}); the same command "
                "attaches to it again",
            )
        self._display.note(f"{where} cannot be asked to stop ({error.message}); Ctrl-C again leaves the run alone")
