"""`report.md` for a pull request: under 100 lines whatever the run, misses first. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.report import words
from harness.report.evidence import Evidence, Row
from harness.report.summary import failed_lines, reason_lines

__all__ = ["render"]

MISSES = 24
REASONS = 30
ATTEMPTS = 5
MIXTURES = 8


def render(evidence: Evidence, attempts: Sequence[Mapping[str, Any]] | None = None, doubts: Sequence[str] = ()) -> str:
    """Markdown. `attempts` are earlier ones at the same subject, None where nobody looked.

    `doubts` say why their list may not be whole.
    """
    parts = [
        [
            f"# {words.title(evidence)}",
            "",
            f"{_sentence(words.title_meaning(evidence))} {words.binding_line(evidence)}",
            "",
        ],
        _body(evidence),
        _validity(evidence),
        _provenance(evidence),
        _attempts(attempts, doubts),
    ]
    return "\n".join(line for part in parts for line in part).rstrip("\n") + "\n"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _cell(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(_cell(item) for item in row) + " |" for row in rows), ""]


def _body(evidence: Evidence) -> list[str]:
    if evidence.void:
        return _void(evidence)
    return _checked(evidence) if evidence.timeless else [*_misses(evidence), *_interpretation(evidence)]


def _checked(evidence: Evidence) -> list[str]:
    failed = failed_lines(evidence.verdict)
    lines = [f"{words.counts(evidence)}.", "", *(f"* {_cell(line)}" for line in failed[:REASONS])]
    return [*lines, *_more(len(failed) - REASONS, "checks"), ""]


def _void(evidence: Evidence) -> list[str]:
    reasons = reason_lines(evidence.verdict)
    lines = ["## Why it is void", "", *(f"* {_cell(line)}" for line in reasons[:REASONS])]
    return [*lines, *_more(len(reasons) - REASONS, "reasons"), ""]


def _more(rest: int, what: str) -> list[str]:
    return [f"* and {rest} more {what}; `report.html` has all"] if rest > 0 else []


def _misses(evidence: Evidence) -> list[str]:
    misses = evidence.misses
    if not misses:
        return [f"{words.counts(evidence)}.", ""]
    lines = [
        f"{words.counts(evidence)}. Misses, the worst first (A the candidate, B the baseline; below 0 A is worse):",
        "",
        *_table(
            ("axis", "A against B", "label", "95 % interval", "pairs needed", "A", "B"), map(_miss, misses[:MISSES])
        ),
    ]
    return [*lines, *_more(len(misses) - MISSES, "misses"), *([""] if len(misses) > MISSES else [])]


def _miss(row: Row) -> tuple[str, ...]:
    interval = "unknown" if row.interval is None else " to ".join(words.percent(bound) for bound in row.interval)
    label = f"as {row.repeats}" if row.repeats else row.label or "none"
    needed = "unknown" if row.pairs_needed is None else f"{row.pairs_needed:,}"
    values = (f"{words.number(value)} {row.unit}" for value in (row.candidate, row.baseline))
    return (words.row_words(row), words.percent(row.log_ratio), label, interval, needed, *values)


def _interpretation(evidence: Evidence) -> list[str]:
    found = words.mixture_lines(evidence)
    lines = [words.floor_line(evidence), *words.interpretation_lines(evidence), *found[:MIXTURES]]
    return ["## Is it more than identical arms do?", "", *(f"* {_cell(line)}" for line in lines), ""]


def _validity(evidence: Evidence) -> list[str]:
    rows = words.validity(evidence)
    failed = [code for code, good, of, _ in rows if good < of]
    said = f"failed: {', '.join(failed)}" if failed else "all passed"
    checks = sum(of for _, _, of, _ in rows)
    control = f"plan control {evidence.verdict['plan_control']}"
    return ["## Validity", "", f"{checks} checks of {len(rows)} codes, {said}; {control}.", ""]


def _provenance(evidence: Evidence) -> list[str]:
    plan, host = evidence.plan, evidence.plan.host
    lines = [
        f"Run {evidence.run} on {host.get('hostname', 'an unnamed host')}, {evidence.started or 'start unknown'}",
        f"{'; '.join(plan.difference) or 'the arms are the same'}",
        f"bundle `{evidence.digest}`",
        f"plan `{plan.digest()}`",
        f"rule {plan.rule['name']} version {plan.rule['version']}, workload {plan.workload['name']}",
        "`python -m harness verify BUNDLE` recomputes the verdict from the raw files",
    ]
    return ["## Provenance", "", *(f"* {_cell(line)}" for line in lines), ""]


def _attempts(attempts: Sequence[Mapping[str, Any]] | None, doubts: Sequence[str]) -> list[str]:
    if attempts is None:
        return []
    lines = [*doubts[:ATTEMPTS], *words.attempt_lines(attempts)[-ATTEMPTS:]]
    lines = lines or ["None recorded at this subject under this evidence root."]
    return [f"## Earlier attempts: {len(attempts)}", "", *(f"* {_cell(line)}" for line in lines), ""]
