"""JUnit XML: each validity code and each axis as a test case. Pure; standard library only, same bytes each time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from harness.axes import LADDER
from harness.report import words
from harness.report.evidence import Evidence, Row
from harness.report.summary import ratio_words, reason_lines

__all__ = ["render"]

UNSAYABLE = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 cannot hold these

Case = tuple[str, str | None]  # its name, and why it failed


def render(evidence: Evidence) -> str:
    """A void run fails in its validity and has its axes skipped: none was judged."""
    checks = [
        (code, None if good == of else f"{check['where']}: {check['seen']}; required: {check['required']}")
        for code, good, of, check in words.validity(evidence)
    ]
    axes = [(words.row_words(row), None if row.passed else _miss(evidence, row)) for row in evidence.rows]
    cases, skipped = [*checks, *axes], int(evidence.void)
    failed = sum(why is not None for _, why in cases)
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<testsuites name="{_said(words.title(evidence))}" tests="{len(cases) + skipped}" failures="{failed}">',
            f'<testsuite name="provenance" tests="0"><properties>{_properties(evidence)}</properties></testsuite>',
            _suite("validity", checks),
            _skipped(evidence) if evidence.void else _suite("axes", axes),
            "</testsuites>\n",
        ]
    )


def _properties(evidence: Evidence) -> str:
    rows = [
        ("outcome", str(evidence.verdict["outcome"])),
        ("binding", words.binding_line(evidence)),
        ("interpretation", words.floor_line(evidence)),
        *words.provenance(evidence),
    ]
    return "".join(f'<property name="{_said(what)}" value="{_said(value)}"/>' for what, value in rows)


def _said(text: str) -> str:
    """For an attribute: escaped, with what XML cannot hold replaced and line ends kept."""
    return escape(UNSAYABLE.sub("\ufffd", text)).replace("\t", "&#9;").replace("\n", "&#10;").replace("\r", "&#13;")


def _miss(evidence: Evidence, row: Row) -> str:
    axes = evidence.verdict["axes"]
    judged = next(item for item in axes if (item["concurrency"] or LADDER, item["name"]) == row.key)
    return f"{ratio_words(judged)}; {row.label or 'not interpreted'}"


def _suite(name: str, cases: Sequence[Case]) -> str:
    failed = sum(why is not None for _, why in cases)
    lines = [f'<testsuite name="{name}" tests="{len(cases)}" failures="{failed}">']
    for case, why in cases:
        inner = "/>" if why is None else f'><failure message="{_said(why)}"/></testcase>'
        lines.append(f'<testcase classname="{name}" name="{_said(case)}"{inner}')
    return "\n".join([*lines, "</testsuite>"])


def _skipped(evidence: Evidence) -> str:
    why = _said("; ".join(reason_lines(evidence.verdict)))
    return (
        '<testsuite name="axes" tests="1" skipped="1"><testcase classname="axes" name="all">'
        f'<skipped message="{why}"/></testcase></testsuite>'
    )
