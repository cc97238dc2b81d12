"""JSON documents on a stream that others write to as well: start files, banners, rc output, warnings of a library.

Who asks draws a random marker and hands it to the helper as an argument; only bytes between that marker's lines are
read as documents. What stands elsewhere is kept and returned as warnings. Standard library only: it runs on the host.
"""

from __future__ import annotations

import codecs
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any

from harness import canonical
from harness.errors import HarnessError

__all__ = ["VERSION", "LogText", "Unframed", "frame", "new_marker", "unframe"]

VERSION = 1
MARKER = re.compile(r"[0-9a-f]{32}")
SHOWN = 400  # characters of foreign output that a warning or an error repeats


@dataclass(frozen=True)
class Unframed:
    """The documents in order, and one sentence for each stretch of foreign bytes."""

    documents: tuple[Any, ...]
    warnings: tuple[str, ...]


def new_marker() -> str:
    """128 random bits in hex: nothing that printed before the question was asked can contain it."""
    return secrets.token_hex(16)


def frame(document: Any, marker: str) -> bytes:
    """`document` as the bytes to write, in one piece. HarnessError `non-canonical` for what JSON cannot hold."""
    if not MARKER.fullmatch(marker):
        raise HarnessError("no-frame", f"{marker!r} is not a marker; pass what new_marker() returned")
    body = canonical.dumps(document)
    # The leading LF ends whatever line a start file left open, so the marker always starts a line.
    return f"\n{_start(marker)} {VERSION} {len(body)}\n".encode() + body + f"{_end(marker)}\n".encode()


def unframe(data: bytes, marker: str) -> Unframed:
    """Documents between the lines of `marker`.

    HarnessError `no-frame`: there is none. `cut-frame`: one has no end, or not the length it gives. `frame-version`:
    the other side speaks another version. `bad-json`: the bytes between the markers are not the JSON that was framed.
    """
    documents: list[Any] = []
    foreign: list[bytes] = []
    rest = data
    pattern = re.compile(rb"\n?" + _start(marker).encode() + rb" (\d{1,9}) (\d{1,12})\r?\n")
    while (found := pattern.search(rest)) is not None:
        foreign.append(rest[: found.start()])
        if int(found[1]) != VERSION:
            raise HarnessError(
                "frame-version",
                f"the host's helper frames with version {int(found[1])}, this side reads {VERSION}; "
                "prepare the host again with this version of the project",
            )
        body, rest = _body(rest[found.end() :], int(found[2]), marker)
        documents.append(canonical.loads(body, "a framed document"))
    if not documents:
        raise HarnessError(
            "no-frame", f"no framed document in {len(data)} bytes of output; it reads: {_shown(data) or 'nothing'}"
        )
    foreign.append(rest)
    return Unframed(tuple(documents), tuple(_warning(part) for part in foreign if part.strip()))


def _body(rest: bytes, size: int, marker: str) -> tuple[bytes, bytes]:
    end = f"{_end(marker)}\n".encode()
    if rest[size : size + len(end)] != end:
        raise HarnessError(
            "cut-frame",
            f"a framed document of {size} bytes has {len(rest)} bytes after its start and no end where it should be; "
            "the output was cut, or something wrote into the middle of it",
        )
    return rest[:size], rest[size + len(end) :]


def _start(marker: str) -> str:
    return f"<<nvfp4-gates {marker}"


def _end(marker: str) -> str:
    return f"nvfp4-gates {marker}>>"


def _warning(part: bytes) -> str:
    return f"{len(part)} bytes of other output: {_shown(part)}"


def _shown(data: bytes) -> str:
    text = data.strip().decode("utf-8", "replace")
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…") if text else ""


class LogText:
    """Text of a log that arrives in blocks cut anywhere. Bytes that are no UTF-8 become U+FFFD; the digest is raw."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._digest = hashlib.sha256()
        self.size = 0

    def feed(self, block: bytes) -> str:
        """The text that `block` completes; a character cut at its end comes with the next block."""
        self._digest.update(block)
        self.size += len(block)
        return self._decoder.decode(block)

    def finish(self) -> str:
        """What was left of a cut character at the end of the log, as U+FFFD."""
        return self._decoder.decode(b"", final=True)

    @property
    def sha256(self) -> str:
        """Digest of the raw bytes so far, never of the decoded text."""
        return self._digest.hexdigest()
