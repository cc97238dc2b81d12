"""Server-sent events out of bytes as they come, whatever the sizes of the reads.

Mirrors the WHATWG event-stream grammar, but on bytes: only LF, CR and CRLF end a line, so U+2028 and U+0085 inside
a payload stay there, and a character cut by a packet is whole again before anybody decodes it.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.errors import HarnessError

__all__ = ["SseEvent", "SseReader"]

_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event: its name (b"" when the server sent none) and its data, lines joined by LF."""

    name: bytes
    data: bytes

    def text(self) -> str:
        """The data as text. HarnessError `bad-utf8` with the offset of the first invalid byte."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"event data is not UTF-8 at byte {error.start} of {len(self.data)}: {error.reason}"
            raise HarnessError("bad-utf8", reason) from error


class SseReader:
    """Incremental reader. `feed` returns the events that these bytes completed, in order.

    A blank line that ends in CR completes its event at once; an LF that comes with the next read belongs to it.
    Time and memory are linear in the stream, also at one byte a read.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._skip_lf = False
        self._first = True
        self._name = b""
        self._data: list[bytes] = []

    @property
    def pending(self) -> bool:
        """True while bytes of an unfinished event are held."""
        return bool(self._line or self._data or self._name)

    def feed(self, data: bytes) -> list[SseEvent]:
        if self._skip_lf and data:
            data = data.removeprefix(b"\n")
            self._skip_lf = False
        events: list[SseEvent] = []
        # bytes.splitlines, unlike str.splitlines, knows no line ends but LF, CR and CRLF.
        for line in data.splitlines(keepends=True):
            if line[-1] not in b"\r\n":
                self._line += line
                break
            if self._line:
                line = bytes(self._line + line)
                self._line.clear()
            event = self._take(line.rstrip(b"\r\n"))
            if event is not None:
                events.append(event)
        self._skip_lf = data.endswith(b"\r") or (self._skip_lf and not data)
        return events

    def close(self) -> SseEvent | None:
        """The stream has ended: the event that lacks only its blank line, if any. The grammar drops it; so may you."""
        if self._line:
            self._take(bytes(self._line))
            self._line.clear()
        return self._dispatch()

    def _take(self, line: bytes) -> SseEvent | None:
        if self._first:
            line = line.removeprefix(_BOM)
            self._first = False
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        return None  # comments, id and retry mean nothing to a completion

    def _dispatch(self) -> SseEvent | None:
        # The grammar drops an event without data; an error named in its event line alone is still an error.
        event = SseEvent(self._name, b"\n".join(self._data)) if self._data or self._name == b"error" else None
        self._data = []
        self._name = b""
        return event
