"""`report.html`: one self-contained page, no script, nothing fetched. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from harness.axes import LADDER
from harness.report import figures, words
from harness.report.evidence import Evidence, Row
from harness.report.style import STYLE
from harness.report.summary import failed_lines, reason_lines

__all__ = ["badge", "forest_rows", "key", "listed", "page", "render", "table"]

Section = tuple[str, str, str]  # anchor, heading, content

SIGNS = {"PASS": "✓", "FAIL": "✗", "VOID": "∅"}
LABEL_SIGNS = {"REAL": "●", "REAL-SMALL": "◐", "NOISE": "○", "UNRESOLVED": "?", "NO-FLOOR": "–"}


def render(evidence: Evidence, attempts: Sequence[Mapping[str, Any]] | None = None, doubts: Sequence[str] = ()) -> str:
    """The whole page. `attempts` are earlier ones at the same subject, None where nobody looked.

    `doubts` say why their list may not be whole.
    """
    sections = _body(evidence)
    sections += [_validity(evidence), _provenance(evidence)]
    sections += [_attempts(attempts, doubts)] if attempts is not None else []
    outcome = evidence.verdict["outcome"]
    meaning = words.title_meaning(evidence)
    arms = "" if evidence.timeless else _arms()
    head = (
        f'<p class="outcome {outcome.lower()}"><span aria-hidden="true">{SIGNS[outcome]}</span> {outcome}</p>'
        f"<h1>{escape(evidence.plan.gate.upper())} of {escape(evidence.plan.engine)}</h1>"
        f"<p>{escape(meaning[0].upper() + meaning[1:])}. {escape(words.binding_line(evidence))}</p>"
        + ("" if evidence.void else f"<p><strong>{escape(words.counts(evidence))}.</strong> {arms}</p>")
    )
    return page(words.title(evidence), head, sections)


def _body(evidence: Evidence) -> list[Section]:
    if evidence.void:
        return [_void(evidence)]
    return _checked(evidence) if evidence.timeless else _measured(evidence)


def page(title: str, head: str, sections: Sequence[Section]) -> str:
    links = "".join(f'<li><a href="#{anchor}">{escape(heading)}</a></li>' for anchor, heading, _ in sections)
    body = "".join(
        f'<section id="{anchor}" aria-labelledby="{anchor}-h"><h2 id="{anchor}-h">{escape(heading)}</h2>'
        f"{content}</section>"
        for anchor, heading, content in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        '<a class="skip" href="#main">Skip to the content</a>'
        f'<header>{head}</header><nav aria-label="Sections"><ul>{links}</ul></nav>'
        f'<main id="main" tabindex="-1">{body}</main>'
        "</body></html>\n"
    )


def _arms() -> str:
    return (
        'Arm <span class="arm-key a">● A</span> is the candidate, <span class="arm-key b">□ B</span> the baseline; '
        "above 0 % A is better."
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], css: str = "") -> str:
    """Cells are HTML already. The table scrolls by itself where it is too wide, also by keyboard."""
    columns = "".join(f'<th scope="col">{item}</th>' for item in head)
    lines = "".join("<tr>" + "".join(f"<td>{item}</td>" for item in row) + "</tr>" for row in rows)
    inner = f'<table class="{css}"><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table>'
    return scrolling(inner, f"Table: {head[0]}")


def scrolling(inner: str, name: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{inner}</div>'


def listed(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _void(evidence: Evidence) -> Section:
    return (
        "void",
        "Why it is void",
        "<p>No number of this run may be quoted.</p>" + listed(reason_lines(evidence.verdict)),
    )


def _checked(evidence: Evidence) -> list[Section]:
    failed = failed_lines(evidence.verdict)
    said = listed(failed) if failed else "<p>None: every check holds.</p>"
    return [("failed", f"Checks that do not hold ({len(failed)})", said), _plan_map(evidence)]


def _measured(evidence: Evidence) -> list[Section]:
    return [
        _misses(evidence),
        _interpretation(evidence),
        _forest(evidence),
        _latency(evidence),
        _order(evidence),
        _memory(evidence),
        _plan_map(evidence),
    ]


def badge(row: Row) -> str:
    if row.label is None:
        return ""
    sign = LABEL_SIGNS[row.label]
    return f'<span class="badge {row.label.lower()}"><span aria-hidden="true">{sign}</span> {row.label}</span>'


def _misses(evidence: Evidence) -> Section:
    misses = evidence.misses
    if not misses:
        return "misses", "Misses", "<p>None: every axis passes.</p>"
    rows = [
        (
            escape(words.row_words(row)),
            words.percent(row.log_ratio),
            (f"as {escape(row.repeats)}" if row.repeats else badge(row)) or "none",
            "unknown" if row.interval is None else " to ".join(words.percent(bound) for bound in row.interval),
            "unknown" if row.pairs_needed is None else f"{row.pairs_needed:,}",
            f"{words.number(row.candidate)} {row.unit}",
            f"{words.number(row.baseline)} {row.unit}",
        )
        for row in misses
    ]
    head = ("axis", "A against B", "label", "95 % interval", "pairs needed", "A", "B")
    return "misses", f"Misses, the worst first ({len(misses)})", table(head, rows, "figures")


def _interpretation(evidence: Evidence) -> Section:
    lines = [words.floor_line(evidence), *words.interpretation_lines(evidence), *words.mixture_lines(evidence)]
    return "noise", "Is it more than identical arms do?", listed(lines) + key(evidence.rows)


def key(rows: Sequence[Row]) -> str:
    """What the labels of `rows` mean; nothing where they have none."""
    items = "".join(
        f'<li><span class="badge {label.lower()}"><span aria-hidden="true">{LABEL_SIGNS[label]}</span> {label}</span> '
        f"{escape(meaning)}</li>"
        for label, meaning in words.LABEL_MEANING.items()
        if any(row.label == label for row in rows)
    )
    return f'<ul class="key">{items}</ul>' if items else ""


def _forest(evidence: Evidence) -> Section:
    note = (
        "<p>Diamond: the ratio that is judged (filled where it passes, hollow where it misses). Rings: each pair of "
        "legs. Line: 95 % interval. Grey band: what identical arms do, 95 %; dotted: margin; dashed: mean of identical "
        "arms. Left of the line at 0 A is worse. What is wider than the drawing ends at its edge.</p>"
    )
    if all(row.noise is None for row in evidence.rows):
        note += (
            "<p>No floor, so there are no bands and no intervals: dots alone do not tell a difference from noise.</p>"
        )
    return "forest", "Every axis", note + forest_rows(evidence.rows)


def forest_rows(rows: Sequence[Row], rings: str = "pairs", judged: bool = True) -> str:
    """A drawing an axis under one scale. `rings` says what the small marks are; `judged`: with pass and miss."""
    scale, parts = figures.forest_scale(rows), []
    for concurrency in dict.fromkeys(row.concurrency for row in rows):
        lines = [row for row in rows if row.concurrency == concurrency]
        items = "".join(_forest_row(row, figures.forest(row, scale, rings), judged) for row in lines)
        ends = '<div class="ends" aria-hidden="true"><span>← A worse</span><span>A better →</span></div>'
        axis = f'<div class="forest-row axis"><div></div><div>{ends}{figures.forest_axis(scale)}</div></div>'
        parts.append(f"<h3>{_heading(concurrency)}</h3>{axis}{items}")
    return "".join(parts)


def _heading(concurrency: int) -> str:
    return "All concurrencies together" if concurrency == LADDER else f"Concurrency {concurrency}"


def _forest_row(row: Row, drawing: str, judged: bool) -> str:
    said = f"as {escape(row.repeats)}" if row.repeats else badge(row)
    verdict = "" if not judged else "pass" if row.passed else "<strong>miss</strong>"
    return (
        f'<div class="forest-row"><div><span class="axis-name">{escape(row.name)}</span> '
        f'<span class="said">{words.percent(row.log_ratio)} {verdict} {said}</span></div><div>{drawing}</div></div>'
    )


def _figures(found: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>" for title, drawing in found)
    return f'<div class="figures">{items}</div>'


def _latency(evidence: Evidence) -> Section:
    note = (
        f"<p>Share of requests (or gaps) that took at most so long; time is logarithmic. {KEY_LINES} "
        "All repetitions together.</p>"
    )
    found = [item for concurrency in evidence.plan.measured for item in figures.ecdfs(evidence, concurrency)]
    return "latency", "Latency, whole distributions", note + _figures(found)


KEY_MARKS = '<span class="arm-key a">● A</span>, <span class="arm-key b">□ B</span>.'
KEY_LINES = '<span class="arm-key a">━ A</span> solid, <span class="arm-key b">╍ B</span> dashed.'


def _order(evidence: Evidence) -> Section:
    note = f"<p>Legs from left to right as they ran: {KEY_MARKS} Two marks of one leg: before and after it.</p>"
    return "order", "Order of the legs, temperature and clocks", note + _figures(figures.order(evidence))


def _memory(evidence: Evidence) -> Section:
    found = figures.memory(evidence)
    if not found:
        return (
            "memory",
            "Memory over time",
            "<p>Not measured: the servers are not the run's own, or nothing was read.</p>",
        )
    note = (
        "<p>One drawing a leg, in the order run. Solid: proportional set size of the engine's processes. Dashed: "
        "drop of MemAvailable since before the start. Dotted: GPU memory, where there is one. Shades: load, warm-up, "
        "serve, stop.</p>"
    )
    return "memory", "Memory over time", note + _figures(found)


def _plan_map(evidence: Evidence) -> Section:
    maps: dict[str, list[Any]] = {}
    legs = [leg for leg in evidence.legs if leg.plans is not None and leg.kind != "seed"]
    for leg in legs:
        if leg.plans is not None:
            maps.setdefault(leg.plans.map_sha256, []).append(leg)
    if not maps:
        return "plans", "FP4 plan map", "<p>Not applicable: this engine has no FP4 plans.</p>"
    parts = [
        f"<p>{len(found)} of {len(legs)} legs, map <code>{escape(digest)}</code>. "
        "A number is a tactic.</p>" + scrolling(figures.plan_map(found[0].plans.selected), "FP4 plan map")
        for digest, found in maps.items()
    ]
    return "plans", "FP4 plan map", "".join(parts)


def _validity(evidence: Evidence) -> Section:
    rows = [
        (
            f"<code>{escape(code)}</code>",
            f"{good} of {of}" + ("" if good == of else " <strong>✗ failed</strong>"),
            escape(str(check["where"])),
            escape(str(check["seen"])) if not evidence.void or good < of else "not quoted",
            escape(str(check["required"])),
        )
        for code, good, of, check in words.validity(evidence)
    ]
    note = "<p>Failed codes first; each row shows the first check that failed, or else the first of all.</p>"
    return "validity", "Validity", note + table(("code", "passed", "where", "seen", "required"), rows, "wrap")


def _provenance(evidence: Evidence) -> Section:
    items = "".join(f"<dt>{escape(what)}</dt><dd>{escape(value)}</dd>" for what, value in words.provenance(evidence))
    note = "<p>A digest proves integrity, not origin: compare it with the one its author published.</p>"
    return "provenance", "Provenance", f"<dl>{items}</dl>{note}"


def _attempts(attempts: Sequence[Mapping[str, Any]], doubts: Sequence[str]) -> Section:
    lines = [*doubts, *words.attempt_lines(attempts)]
    none = "" if attempts else "<p>None recorded at this subject under this evidence root.</p>"
    return "attempts", f"Earlier attempts ({len(attempts)})", none + (listed(lines) if lines else "")
