"""Joined campaigns as Markdown and as a page. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from harness.report import html, words
from harness.report.evidence import Evidence, Row
from harness.report.joint import Joint

__all__ = ["page", "render"]

AXES = 40  # rows of the Markdown table; the page and the JSON have all
ATTEMPTS = 8
RUNS = ("campaign", "run", "began", "strict outcome", "distinct axes missed", "omnibus p", "bundle")
HEAD = ("axis", "together", "label", "95 % interval", "Holm p", "each campaign", "pairs needed in all")
NOT_JOINED = (
    "Acceptance is not joined: each run keeps the strict verdict that it was sealed with, and nothing here changes one."
)
STOPPING = (
    "The labels hold for a number of campaigns that was fixed before the first: the pairs needed of a run tell it. "
    "Looking after each and stopping once a label pleases, or leaving out what does not please, finds REAL more often "
    "than the level says."
)


def _title(joint: Joint) -> str:
    return f"{joint.plan.gate.upper()} of {joint.plan.engine}: {len(joint.runs)} campaigns together"


def _said(joint: Joint) -> list[str]:
    labels = ", ".join(f"{count} {label}" for label, count in joint.counts.items() if count)
    pairs = len(joint.runs) * joint.plan.repetitions
    return [
        NOT_JOINED,
        f"{'; '.join(joint.plan.difference) or 'The arms are the same'}.",
        f"Of {joint.tests} distinct axes after {len(joint.runs)} campaigns of {joint.plan.repetitions} pairs "
        f"({pairs} in all): {labels}.",
        words.floor_line(joint.runs[0]),
    ]


def _chosen(joint: Joint) -> list[str]:
    """Which of the known attempts these are: what was left out is said whether or not somebody asks."""
    if joint.left_out is None:
        return ["No index lies beside the bundles, so it cannot be told which attempts were left out.", STOPPING]
    omitted, other = joint.omitted, len(joint.left_out) - len(joint.omitted)
    known = len(joint.runs) + len(omitted)
    lines = [f"{len(joint.runs)} of the {known} valid runs of this plan that are known"]
    lines[0] += f"; left out: {', '.join(str(row['run']) for row in omitted)}." if omitted else "; none is left out."
    if other:
        lines.append(f"{other} further attempts at this subject are void or of another plan, and cannot be joined.")
    return [*lines, *joint.doubts, STOPPING]


def _left_out(joint: Joint) -> list[str]:
    rows = joint.left_out or ()
    same = joint.plan.digest()
    return [
        line + (", of another plan" if row["plan"] != same else "")
        for row, line in zip(rows, words.attempt_lines(rows), strict=True)
    ]


def _runs(joint: Joint) -> list[tuple[str, ...]]:
    return [(str(number), *_run(run)) for number, run in enumerate(joint.runs, 1)]


def _run(run: Evidence) -> tuple[str, ...]:
    omnibus: Mapping[str, object] = (run.interpretation or {})["omnibus"]
    p = omnibus["p"]
    return (
        run.run,
        str(run.started),
        str(run.verdict["outcome"]),
        f"{omnibus['misses']} of {omnibus['of']}",
        f"{p:.3g}" if isinstance(p, float) else "cannot be told",
        run.digest,
    )


def _axes(joint: Joint) -> list[tuple[Row, tuple[str, ...]]]:
    """Distinct axes, the worst first; one without a ratio comes before all others."""
    pairs = [(row, axis) for row, axis in zip(joint.rows, joint.axes, strict=True) if not row.repeats]
    pairs.sort(key=lambda pair: float("-inf") if pair[0].log_ratio is None else pair[0].log_ratio)
    return [
        (
            row,
            (
                words.row_words(row),
                words.percent(row.log_ratio),
                row.label or "none",
                "unknown" if row.interval is None else " to ".join(words.percent(bound) for bound in row.interval),
                "unknown" if axis["holm_p"] is None else f"{axis['holm_p']:.3g}",
                ", ".join(words.percent(value) for value in row.pairs),
                "unknown" if row.pairs_needed is None else f"{row.pairs_needed:,}",
            ),
        )
        for row, axis in pairs
    ]


def render(joint: Joint) -> str:
    """Markdown."""
    left_out, axes = _left_out(joint), _axes(joint)
    lines = [
        f"# {_title(joint)}",
        "",
        *_listed(_said(joint)),
        "",
        "## Which campaigns",
        "",
        *_listed(_chosen(joint)),
        "",
    ]
    lines += [*_table(RUNS, _runs(joint)), ""]
    if left_out:
        lines += [f"Left out ({len(left_out)}):", "", *_listed(left_out[-ATTEMPTS:]), ""]
    lines += ["## Distinct axes, the worst first", "", *_table(HEAD, [cells for _, cells in axes[:AXES]])]
    if len(axes) > AXES:
        lines += ["", f"{len(axes) - AXES} further axes are on the page (`--html`) and in the document (`--json`)."]
    return "\n".join(lines) + "\n"


def _listed(lines: Sequence[str]) -> list[str]:
    return [f"* {_cell(line)}" for line in lines]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def page(joint: Joint) -> str:
    """HTML, in the style of the report."""
    rows, left_out = joint.rows, _left_out(joint)
    note = (
        "<p>Diamond: the campaigns together. Rings: each campaign. Line: 95 % interval. Grey band: what identical arms "
        "do in as many campaigns, 95 %; dotted: margin; dashed: mean of identical arms. Left of the line at 0 A is "
        "worse.</p>"
    )
    chosen = html.listed(_chosen(joint)) + html.table(
        RUNS, [tuple(map(escape, row)) for row in _runs(joint)], "figures"
    )
    chosen += f"<h3>Left out ({len(left_out)})</h3>{html.listed(left_out)}" if left_out else ""
    cells = [(*map(escape, row[:2]), html.badge(shown), *map(escape, row[3:])) for shown, row in _axes(joint)]
    sections = [
        ("campaigns", "Which campaigns", chosen),
        ("axes", "Distinct axes, the worst first", html.key(rows) + html.table(HEAD, cells, "figures")),
        ("forest", "Every axis", note + html.forest_rows(rows, "campaigns", judged=False)),
    ]
    return html.page(_title(joint), f"<h1>{escape(_title(joint))}</h1>{html.listed(_said(joint))}", sections)
