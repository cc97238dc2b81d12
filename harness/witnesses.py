"""The journal as a second witness: what it noted of the files, against the files. Standard library only.

`leg` events carry the SHA-256 of each file of the leg, `end` those of the files beside the journal. So a file that was
changed under a manifest made anew is still named. In bundles from before that, a `leg` event has leg.json's alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import canonical

__all__ = ["faults", "of_folder"]

AFTERWARDS = ("journal.jsonl", "journal.cut", "keeper.json", "verdict.json")  # written or added to after the last note


def of_folder(folder: Path) -> dict[str, str]:
    """SHA-256 of each file right in `folder`, by name; not of those that come later in a run."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in AFTERWARDS)
    return {path.name: canonical.sha256_file(path) for path in files}


def faults(root: Path, events: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of the bundle at `root` is not as the journal noted it, each with its file."""
    found: list[str] = []
    for event in events:
        if event["event"] == "leg":
            found += _leg(root, event)
        elif event["event"] == "end" and "files" in event:
            found += _differences(root, "", event["files"])
    return found


def _leg(root: Path, event: Mapping[str, Any]) -> Iterator[str]:
    prefix = f"legs/{event['leg']}/"
    if "files" in event:
        yield from _differences(root, prefix, event["files"])
        present = {path.name for path in (root / prefix).glob("*") if path.is_file()}
        yield from (f"{prefix}{name}: not noted by the journal" for name in sorted(present - event["files"].keys()))
    elif "leg_sha256" in event:
        yield from _differences(root, prefix, {"leg.json": event["leg_sha256"]})


def _differences(root: Path, prefix: str, noted: Mapping[str, str]) -> Iterator[str]:
    for name, sha256 in noted.items():
        path = root / prefix / name
        if not path.is_file():
            yield f"{prefix}{name}: missing, and the journal noted it"
        elif (now := canonical.sha256_file(path)) != sha256:
            yield f"{prefix}{name}: SHA-256 {now[:12]}…, and the journal noted {sha256[:12]}…"
