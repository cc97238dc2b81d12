"""`evidence/index.jsonl`: every attempt at a subject, so that nobody retries until PASS unseen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.plan import Plan

__all__ = ["append", "earlier", "subject_key"]

NAME = "index.jsonl"


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
    """Earlier attempts at `subject` under this evidence root, the oldest first. A line cut by a crash is left out."""
    path = root / NAME
    if not path.is_file():
        return []
    rows = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            row = canonical.loads(line, NAME)
        except HarnessError:
            continue
        if isinstance(row, dict) and row.get("subject") == subject:
            rows.append(row)
    return rows


def append(root: Path, *, run: str, plan: Plan, digest: str, verdict: Mapping[str, Any]) -> None:
    """Record one sealed attempt. One short write, so that two runs that end together do not mix their lines."""
    row = {
        "run": run,
        "subject": subject_key(plan),
        "plan": plan.digest(),
        "bundle": digest,
        "outcome": verdict["outcome"],
        "binding": verdict["binding"],
        "void": verdict["void"],
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with (root / NAME).open("ab") as file:
        file.write(canonical.dumps(row))
