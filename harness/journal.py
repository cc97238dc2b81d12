"""The journal: one canonical line an event, each carrying the SHA-256 of the line before. Pure but for `Journal`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.records import Check

__all__ = ["VOIDED", "Journal", "checks", "parse", "whole_lines"]

GENESIS = "0" * 64
VOIDED = "a run that ends by itself"  # what is required where the run itself said why it is void


class Journal:
    """Appends events to a file, new or continued, each on the disk before the next step of the run is taken.

    `now` gives the stamps; only tests have another clock.
    """

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        self._path = path
        self._previous = canonical.sha256_bytes(lines[-1]) if lines else GENESIS
        self._count = len(lines)

    def write(self, event: str, **details: Any) -> None:
        """Append one event. `details` must be canonical JSON."""
        stamp = self._now().isoformat(timespec="milliseconds")
        line = canonical.dumps({**details, "event": event, "n": self._count, "previous": self._previous, "utc": stamp})
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._previous, self._count = canonical.sha256_bytes(line), self._count + 1


def parse(data: bytes) -> list[dict[str, Any]]:
    """The events of a journal. HarnessError `journal-chain` names the first line out of place."""
    events: list[dict[str, Any]] = []
    previous = GENESIS
    for number, line in enumerate(data.splitlines(keepends=True)):
        event = canonical.loads(line, f"journal.jsonl line {number + 1}")
        if not line.endswith(b"\n") or not isinstance(event, dict):
            raise HarnessError("cut-line", f"journal.jsonl ends inside line {number + 1}: its writer was interrupted")
        if event.get("previous") != previous or event.get("n") != number:
            raise HarnessError("journal-chain", f"journal.jsonl line {number + 1} does not follow the line before it")
        previous = canonical.sha256_bytes(line)
        events.append(event)
    return events


def whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """The whole lines of a journal, and the piece of a last one whose writer was interrupted."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def checks(events: Sequence[Mapping[str, Any]]) -> list[Check]:
    """What the run itself must show: it ended, under its lease, on one boot, with nothing left behind."""
    by_name: dict[str, Mapping[str, Any]] = {str(event["event"]): event for event in events}
    found = [_void(event) for event in events if event["event"] == "void"]
    start, end = by_name.get("start"), by_name.get("end")
    found.append(Check("run-ended", "journal", "end" if end else "no end event", "an end event", end is not None))
    found.append(_check_same("boot-id", start, end or _closing(events), "boot_id"))
    lease = start is not None and bool(start.get("lease"))
    found.append(
        Check("lease", "journal", "held" if lease else "not recorded", "the lease held from start to end", lease)
    )
    left = list(end.get("left_behind", ["unknown"])) if end else ["unknown"]
    found.append(Check("nothing-left", "journal", ", ".join(map(str, left)) or "nothing", "nothing", not left))
    return found


def _void(event: Mapping[str, Any]) -> Check:
    return Check(str(event["code"]), str(event["where"]), str(event["message"]), VOIDED, False)


def _closing(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The event by which a journal without an end was closed at its sealing, if it tells the boot of that moment."""
    return next((event for event in reversed(events) if event["event"] == "void" and "boot_id" in event), None)


def _check_same(code: str, start: Mapping[str, Any] | None, end: Mapping[str, Any] | None, key: str) -> Check:
    seen = [str(event.get(key)) if event else "none" for event in (start, end)]
    return Check(
        code,
        "journal",
        " / ".join(dict.fromkeys(seen)),
        "one value at start and end",
        seen[0] == seen[1] and seen[0] not in ("none", "None"),
    )
