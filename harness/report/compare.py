"""Two bundles side by side, where one floor could serve both: same host, baseline, load and rule. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from harness import floor
from harness.errors import UsageError
from harness.report import html, words
from harness.report.evidence import Evidence, Row

__all__ = ["difference", "page", "refuse", "render"]

HEAD = ("axis", "first", "label", "second", "label", "second against first")


def refuse(first: Evidence, second: Evidence) -> None:
    """UsageError `not-comparable` names the first field in which they differ, with both values."""
    for bundle in (first, second):
        if bundle.timeless:
            raise UsageError("not-comparable", f"{bundle.run} is of a gate of checks, which has no axes to compare")
        if bundle.void:
            raise UsageError("not-comparable", f"{bundle.run} is VOID: no number of it may be quoted")
    found = difference(floor.binding(first.plan), floor.binding(second.plan))
    if found is not None:
        field, one, two = found
        raise UsageError(
            "not-comparable",
            f"{field} is {one!r} in {first.run} and {two!r} in {second.run}; "
            "compare runs that differ in the candidate alone",
        )


def difference(one: Mapping[str, Any], two: Mapping[str, Any], prefix: str = "") -> tuple[str, Any, Any] | None:
    """The dotted name of the first field in which two documents differ, with both values; None where they agree."""
    for name in sorted(one.keys() | two.keys()):
        left, right = one.get(name), two.get(name)
        if left == right:
            continue
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            return difference(left, right, f"{prefix}{name}.")
        return f"{prefix}{name}", left, right
    return None


def _rows(first: Evidence, second: Evidence) -> list[tuple[str, ...]]:
    others = {row.key: row for row in second.rows}
    return [_row(row, others[row.key]) for row in first.rows if row.key in others]


def _row(one: Row, two: Row) -> tuple[str, ...]:
    known = one.log_ratio is not None and two.log_ratio is not None
    change = words.percent((two.log_ratio or 0) - (one.log_ratio or 0)) if known else "no ratio"
    return (words.row_words(one), *_said(one), *_said(two), change)


def _said(row: Row) -> tuple[str, str]:
    label = f"as {row.repeats}" if row.repeats else row.label or "none"
    return f"{words.percent(row.log_ratio)} {'pass' if row.passed else 'miss'}", label


def _heads(first: Evidence, second: Evidence) -> list[str]:
    lines = []
    for name, found in (("First", first), ("Second", second)):
        difference = "; ".join(found.plan.difference) or "the arms are the same"
        lines.append(
            f"{name}: {found.run}, {found.verdict['outcome']}. {words.binding_line(found)} {difference}. "
            f"{words.floor_line(found)} Bundle {found.digest}."
        )
    note = "Each figure is A against B of its own run; the last column compares two such ratios and has no interval."
    return [*lines, note]


def render(first: Evidence, second: Evidence) -> str:
    """Markdown."""
    table = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    table += ["| " + " | ".join(row) + " |" for row in _rows(first, second)]
    lines = [f"* {line}".replace("<", "&lt;") for line in _heads(first, second)]
    return "\n".join([f"# {first.run} and {second.run}", "", *lines, "", *table]) + "\n"


def page(first: Evidence, second: Evidence) -> str:
    """HTML, in the style of the report."""
    title = f"{first.run} and {second.run}"
    rows = [tuple(escape(item) for item in row) for row in _rows(first, second)]
    head = f"<h1>{escape(title)}</h1>{html.listed(_heads(first, second))}"
    return html.page(title, head, [("axes", "Axes side by side", html.table(HEAD, rows, "figures"))])
