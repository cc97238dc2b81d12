"""`evidence/index.jsonl`: every attempt at a subject, so that nobody retries until PASS unseen.

Lines are only ever added, one a sealed run, void ones too. Each carries the SHA-256 of the line before (`previous`), so
that a line taken out or changed shows. What is cut off at the end does not show here; the bundles sealed later tell of
it, since each keeps, in its journal, the attempts that came before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from harness import canonical
from harness.errors import HarnessError
from harness.plan import Plan

__all__ = ["append", "earlier", "gaps", "subject_key"]

NAME = "index.jsonl"
GENESIS = "0" * 64


def subject_key(plan: Plan) -> str:
    """Digest of what is judged: the gate, the engine, its arms and its identity; not the host, the rule or the load."""
    subject = {
        "gate": plan.gate,
        "engine": plan.engine,
        "options": dict(plan.options),
        "candidate": asdict(plan.candidate),
        "baseline": asdict(plan.baseline),
        "subject": dict(plan.subject),
    }
    return canonical.sha256_bytes(canonical.dumps(subject))


def earlier(root: Path, subject: str) -> list[dict[str, Any]]:
    """Earlier attempts at `subject` under this evidence root, the oldest first. A line cut by a crash is left out.

    Each row has `run`, `outcome`, `binding`, `void` (codes), `bundle`, `plan` and `utc`, and `superseded`: whether the
    same plan was measured again later, to an outcome that counts.
    """
    rows = [row for row in _rows(_lines(root)) if row.get("subject") == subject]
    valid = {row["plan"]: number for number, row in enumerate(rows) if row["outcome"] != "VOID"}  # the last of each
    return [{**row, "superseded": number < valid.get(row["plan"], -1)} for number, row in enumerate(rows)]


def gaps(root: Path) -> list[str]:
    """A sentence for each line that does not follow the one before it: an attempt was taken out, or a line changed."""
    found: list[str] = []
    before, chained = GENESIS, False
    for number, line in enumerate(_lines(root), 1):
        row = _row(line)
        if row is not None and (chained or "previous" in row):
            if row.get("previous") != before:
                where = (
                    f"line {number} does not follow line {number - 1}" if number > 1 else "the first lines are missing"
                )
                found.append(f"{NAME}: {where}, so attempts were taken out or changed")
            chained = True
        before = canonical.sha256_bytes(line)
    return found


def append(root: Path, *, run: str, plan: Plan, digest: str, verdict: Mapping[str, Any]) -> None:
    """Record one sealed attempt, once: a run that is listed already is left as it is.

    One writer at a time. A line that a crash cut off is closed and stays, unread, so that it spoils no other.
    """
    with (root / NAME).open("a+b") as file:
        _lock(file)
        file.seek(0)
        data = file.read()
        if any(row.get("run") == run and row.get("bundle") == digest for row in _rows(data.splitlines(keepends=True))):
            return
        closing = b"\n" if data and not data.endswith(b"\n") else b""
        lines = (data + closing).splitlines(keepends=True)
        row = {
            "run": run,
            "subject": subject_key(plan),
            "plan": plan.digest(),
            "bundle": digest,
            "outcome": verdict["outcome"],
            "binding": verdict["binding"],
            "void": verdict["void"],
            "utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "previous": canonical.sha256_bytes(lines[-1]) if lines else GENESIS,
        }
        file.write(closing + canonical.dumps(row))
        file.flush()
        os.fsync(file.fileno())


def _lock(file: BinaryIO) -> None:
    """Until the file is closed. Where there is no flock, one short write has to do."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX)


def _lines(root: Path) -> list[bytes]:
    path = root / NAME
    return path.read_bytes().splitlines(keepends=True) if path.is_file() else []


def _rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    return (row for row in map(_row, lines) if row is not None)


def _row(line: bytes) -> dict[str, Any] | None:
    """None for a line that a crash cut off."""
    try:
        row = canonical.loads(line, NAME)
    except HarnessError:
        return None
    return row if isinstance(row, dict) else None
