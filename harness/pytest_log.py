"""What a log of pytest says: counts from its closing line, failed and skipped tests by their names. Pure."""

from __future__ import annotations

import re

from harness.records import SuiteReport

__all__ = ["parse"]

ENDS = re.compile(r"^(?:=+ )?(?P<said>(?:no tests|\d+)\b[^\n]*?) in [\d.]+s\b", re.MULTILINE)
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|rerun)\b")
COLLECTED = re.compile(r"(?:\d+/)?(\d+) tests? collected\b")
NONE_COLLECTED = "no tests collected"
SKIPPED = re.compile(r"^SKIPPED (?!\[\d+\])(\S.*)$", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def parse(log: str) -> SuiteReport | None:
    """The report of one pytest process; None without a closing line: it was cut short, or never began.

    Names are those of the short summary. A line that folds skipped tests by their place (`SKIPPED [2] …`) names none,
    so pytest must be run with `--no-fold-skipped`.
    """
    ends = list(ENDS.finditer(log))
    if not ends:
        return None
    said = ends[-1]["said"]
    counts = {("errors" if word == "error" else word): int(number) for number, word in COUNT.findall(said)}
    if found := COLLECTED.search(said):
        counts["collected"] = int(found[1])
    elif NONE_COLLECTED in said:
        counts["collected"] = 0
    if not counts:
        return None
    return SuiteReport(counts, tuple(SKIPPED.findall(log)), tuple(FAILED.findall(log)))
