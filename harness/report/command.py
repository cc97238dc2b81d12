"""`python -m harness report`: from a bundle on disk to pages for people and machines. The only part that writes."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import canonical, index
from harness.errors import EXIT_PASS, EXITS, HarnessError, UsageError
from harness.report import compare, html, joint, joint_pages, junit, pull_request
from harness.report import evidence as evidence_module
from harness.report.evidence import Evidence
from harness.verify import verify

__all__ = ["pages", "run"]

SUMMARY = "GITHUB_STEP_SUMMARY"


def run(options: argparse.Namespace) -> int:
    if options.json is not None and options.join is None:
        raise UsageError("usage", "--json goes with --join")
    if options.compare is not None:
        return _compare(options)
    if options.join is not None:
        return _join(options)
    if options.bundle is None:
        raise UsageError("usage", "which bundle? see `python -m harness report --help`")
    return _report(options)


def _report(options: argparse.Namespace) -> int:
    """Verify the bundle, then write what was asked for. 0 when written; an altered bundle gives 3 and no page."""
    found = _read(options.bundle)
    if isinstance(found, list):
        return _tampered(options.bundle, found)
    attempts, doubts = _attempts(options.bundle, found)
    text = pull_request.render(found, attempts, doubts)
    if options.html is not None:
        _write(options.html, html.render(found, attempts, doubts))
    if options.junit is not None:
        _write(options.junit, junit.render(found))
    return _tell(options, text)


def pages(root: Path) -> dict[str, str]:
    """Every page of the bundle at `root` by file name. HarnessError `tampered` where it is not as it was sealed."""
    found = _read(root)
    if isinstance(found, list):
        raise HarnessError("tampered", f"{root}: {'; '.join(found)}")
    attempts, doubts = _attempts(root, found)
    return {
        "report.md": pull_request.render(found, attempts, doubts),
        "report.html": html.render(found, attempts, doubts),
        "junit.xml": junit.render(found),
    }


def _compare(options: argparse.Namespace) -> int:
    """Two bundles side by side. UsageError `not-comparable` names the first field in which they differ."""
    if options.bundle is not None or options.junit is not None or options.join is not None:
        raise UsageError("usage", "--compare takes two bundles and goes with --html and --markdown alone")
    both: list[Evidence] = []
    for root in options.compare:
        found = _read(root)
        if isinstance(found, list):
            return _tampered(root, found)
        both.append(found)
    compare.refuse(*both)
    if options.html is not None:
        _write(options.html, compare.page(*both))
    return _tell(options, compare.render(*both))


def _join(options: argparse.Namespace) -> int:
    """Several campaigns interpreted together. UsageError `not-joinable` names the first field in which two differ."""
    if options.bundle is not None or options.junit is not None:
        raise UsageError("usage", "--join takes all bundles itself and goes with --html, --markdown and --json alone")
    found: list[Evidence] = []
    for root in options.join:
        run = _read(root)
        if isinstance(run, list):
            return _tampered(root, run)
        found.append(run)
    together = joint.join(found, _known_attempts(options.join, found))
    if options.html is not None:
        _write(options.html, joint_pages.page(together))
    if options.json is not None:
        _write(options.json, canonical.dumps(joint.document(together)).decode())
    return _tell(options, joint_pages.render(together))


def _known_attempts(roots: Sequence[Path], found: Sequence[Evidence]) -> joint.Attempts:
    """All attempts at the subjects of `found`: from the indices beside the bundles, and what each run recorded."""
    rows: dict[str, Mapping[str, Any]] = {}
    starts = [event for run in found for event in run.events if event["event"] == "start" and "earlier" in event]
    for event in starts:
        rows |= {row["bundle"]: row for row in event["earlier"]}
    folders = [
        folder for folder in dict.fromkeys(root.resolve().parent for root in roots) if (folder / index.NAME).is_file()
    ]
    for folder in folders:
        for subject in dict.fromkeys(index.subject_key(run.plan) for run in found):
            rows |= {row["bundle"]: row for row in index.earlier(folder, subject)}
    if not starts and not folders:
        return joint.Attempts(None)
    doubts = [doubt for folder in folders for doubt in index.gaps(folder)]
    return joint.Attempts(sorted(rows.values(), key=lambda row: str(row["utc"])), doubts)


def _tampered(root: Path, faults: list[str]) -> int:
    print(f"TAMPERED: {root} is not the bundle that was sealed, so there is nothing to report")
    print("\n".join(faults))
    return EXITS["TAMPERED"]


def _tell(options: argparse.Namespace, text: str) -> int:
    """To a file or the terminal, and to the summary of a workflow's step where there is one."""
    if options.markdown is not None:
        _write(options.markdown, text)
    else:
        print(text, end="")
    if summary := os.environ.get(SUMMARY):
        _append(Path(summary), text)
    return EXIT_PASS


def _read(root: Path) -> Evidence | list[str]:
    """The evidence at `root`, or what is wrong with it."""
    found = verify(root)
    if found.outcome == "TAMPERED" or found.verdict is None:
        return list(found.faults)
    return evidence_module.read(root, found.verdict, found.digest)


def _attempts(root: Path, found: Evidence) -> tuple[list[Mapping[str, Any]] | None, list[str]]:
    """Attempts before this one, and why their list may not be whole.

    From the index beside the bundle, else those that the run itself recorded at its start; None where it recorded none.
    """
    folder = root.resolve().parent
    if not (folder / index.NAME).is_file():
        recorded = (event["earlier"] for event in found.events if event["event"] == "start" and "earlier" in event)
        return next(recorded, None), []
    rows = index.earlier(folder, index.subject_key(found.plan))
    before = list(itertools.takewhile(lambda row: row["bundle"] != found.digest, rows))
    return [*before], index.gaps(folder)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    except OSError as error:
        raise UsageError("report-unwritable", f"{path}: {error.strerror}; name a file that can be written") from error


def _append(path: Path, text: str) -> None:
    try:
        with path.open("ab") as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError("report-unwritable", f"{SUMMARY}={path}: {error.strerror}; unset it or mend it") from error
