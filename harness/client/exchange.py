"""One request from its first byte to its end: raw events with their stamps. JSON waits until the leg is over."""

from __future__ import annotations

from dataclasses import dataclass

from harness.client.http import ResponseParser
from harness.client.sse import SseEvent, SseReader
from harness.errors import HarnessError

__all__ = ["DONE", "Exchange", "Job"]

DONE = b"[DONE]"
_KEPT_BODY = 65_536  # of a body that is no event stream; enough for any error message


@dataclass(frozen=True)
class Job:
    """What is sent: the whole HTTP request, ready before the clock starts."""

    index: int
    prompt_sha256: str
    request: bytes


class Exchange:
    """The answer to one job as it arrives. Stamps are CLOCK_MONOTONIC ns.

    `events` holds each complete event with the stamp of the read that completed it. `error` is None or
    `code: sentence`. `ended_ns` is set once nothing more is awaited; `done_ns` at `[DONE]`, which comes before that.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.retries = 0
        self.begin(0)

    def begin(self, start_ns: int) -> None:
        """Start the clock (again, on a retry): nothing of an earlier attempt remains."""
        self.start_ns = start_ns
        self.response = ResponseParser()
        self.events: list[tuple[int, SseEvent]] = []
        self.body = bytearray()
        self.received = 0
        self.done_ns: int | None = None
        self.ended_ns: int | None = None
        self.error: str | None = None
        self._reader = SseReader()

    def take(self, data: bytes, stamp_ns: int) -> None:
        """Bytes off the socket, and when they came."""
        self.received += len(data)
        try:
            body = self.response.feed(data)
        except HarnessError as error:
            self.fail(error.code, error.message, stamp_ns)
            return
        if body:
            if self.response.status == 200:
                for event in self._reader.feed(body):
                    self._event(event, stamp_ns)
            if not self.events and len(self.body) < _KEPT_BODY:
                self.body += body
        if self.response.complete:
            self._end(stamp_ns)

    def close(self, stamp_ns: int, reason: str | None = None) -> None:
        """The connection has ended: by the peer's close, or by the failure named in `reason`."""
        try:
            if reason is None:
                self.response.eof()
            elif not self.response.complete:
                raise HarnessError("cut-stream", reason)
        except HarnessError as error:
            self.fail(error.code, f"{error.message} ({len(self.events)} events had come)", stamp_ns)
        else:
            self._end(stamp_ns)

    def fail(self, code: str, reason: str, stamp_ns: int) -> None:
        """Give up. After `[DONE]` there is nothing left to fail: the completion is whole."""
        if self.done_ns is None and self.error is None:
            self.error = f"{code}: {reason}"
        if self.ended_ns is None:
            self.ended_ns = stamp_ns

    def _event(self, event: SseEvent, stamp_ns: int) -> None:
        if self.done_ns is not None:
            return  # the protocol ends at [DONE]; what a server adds is no token
        if event.data.strip() == DONE:
            self.done_ns = stamp_ns
        else:
            self.events.append((stamp_ns, event))

    def _end(self, stamp_ns: int) -> None:
        if self.ended_ns is not None:
            return
        last = self._reader.close()
        if last is not None:
            if last.data.strip() == DONE and self.done_ns is None:
                self.done_ns = stamp_ns
            elif self.done_ns is None:
                self.fail("cut-stream", "the response ended inside an event", stamp_ns)
        self.ended_ns = stamp_ns
