"""What a log of compute-sanitizer says: the errors of its closing line. Pure."""

from __future__ import annotations

import re

from harness.records import SuiteReport

__all__ = ["parse"]

SUMMARY = re.compile(r"^=+ ERROR SUMMARY: (\d+) errors?", re.MULTILINE)
RACES = re.compile(r"^=+ RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)", re.MULTILINE)


def parse(log: str) -> SuiteReport | None:
    """Errors as counted by one tool, racecheck's warnings with them; None without a summary: nothing was checked."""
    plain, races = SUMMARY.findall(log), RACES.findall(log)
    if not plain and not races:
        return None
    counts = {"errors": sum(map(int, plain)) + sum(int(errors) for errors, _ in races)}
    if races:
        counts["warnings"] = sum(int(warnings) for _, warnings in races)
    return SuiteReport(counts, (), ())
