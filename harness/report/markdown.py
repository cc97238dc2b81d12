"""`report.md`: what a reviewer reads. A pure function of the plan, the journal and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import journal
from harness.axes import place
from harness.plan import Plan
from harness.report.summary import NEWCOMER, checks_line, counts_line, failed_lines, miss_lines, reason_lines

__all__ = ["derived", "render"]


def derived(root: Path, verdict: Mapping[str, Any]) -> dict[str, bytes]:
    """The derived files of the bundle at `root`, by name."""
    plan = Plan.from_bytes((root / "plan.json").read_bytes())
    events = journal.parse((root / "journal.jsonl").read_bytes())
    return {"report.md": render(plan, events, verdict).encode()}


def render(plan: Plan, events: Sequence[Mapping[str, Any]], verdict: Mapping[str, Any]) -> str:
    sections = [
        _head(plan, verdict),
        _outcome(verdict),
        _attempts(events),
        _subject(plan),
        _engine(verdict),
        _axes(verdict),
        _checks(verdict),
        _diagnostics(verdict),
    ]
    return "\n".join(line for section in sections for line in section) + "\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(_cell(item) for item in row) + " |" for row in rows), ""]


def _head(plan: Plan, verdict: Mapping[str, Any]) -> list[str]:
    binding = "binding" if verdict["binding"] else "non-binding"
    if "failed" in verdict:
        return [
            f"# {plan.gate.upper()} of {plan.engine}: {verdict['outcome']} ({binding})",
            "",
            "A gate of checks: nothing is timed, and every check must hold. `python -m harness verify` recomputes this "
            "page.",
            "",
            *_rehearsed(plan),
        ]
    return [
        f"# {plan.gate.upper()} of {plan.engine}: {verdict['outcome']} ({binding})",
        "",
        f"Rule {plan.rule['name']} version {plan.rule['version']}: ratio of {plan.rule['estimator']}s over "
        f"{plan.repetitions} repetitions, at least {plan.rule['threshold']} on every axis. Arm A is the candidate, B "
        "is the baseline; a ratio above 1 means that A is better. `python -m harness verify` recomputes this page.",
        "",
        *_rehearsed(plan),
        *_overridden(plan),
    ]


def _rehearsed(plan: Plan) -> list[str]:
    said = "**A rehearsal against made processes: nothing was measured, and no number here means anything.**"
    return [said, ""] if plan.rehearsal else []


def _overridden(plan: Plan) -> list[str]:
    """At the top, whatever the outcome: a grid that does not stand on its gates must not be quoted as one that does."""
    said = plan.prerequisites["overridden"] if plan.prerequisites else None
    return [f"**Never binding: {said}.**", ""] if said else []


def _outcome(verdict: Mapping[str, Any]) -> list[str]:
    if verdict["outcome"] == "VOID":
        return [
            "## Why this measurement is void",
            "",
            "No number of this run may be quoted.",
            "",
            *(f"* {line}" for line in reason_lines(verdict)),
            "",
        ]
    if "failed" in verdict:
        lines = ["## Result", "", f"* {checks_line(verdict)}.", f"* Plan control: {verdict['plan_control']}."]
        lines += [f"* Failed: {line}." for line in failed_lines(verdict)]
        return [*lines, *(f"* Not binding: {reason}." for reason in verdict["not_binding_because"]), ""]
    totals = verdict["totals"]
    lines = [
        "## Result",
        "",
        f"* {counts_line(verdict)} pass.",
        f"* Plan control: {verdict['plan_control']}. Component: {verdict['component']}.",
        f"* {totals['legs']} timed legs, {totals['requests']} requests, {totals['input_tokens']:,} tokens in, "
        f"{totals['output_tokens']:,} tokens out, {totals['cache_drops']} page-cache drops, "
        f"{totals['memory_returns']} memory returns.",
    ]
    lines += [f"* Not binding: {reason}." for reason in verdict["not_binding_because"]]
    lines.append("")
    if verdict["outcome"] == "FAIL":
        lines += [NEWCOMER, "", "## Misses, the worst first", "", *(f"* {line}" for line in miss_lines(verdict)), ""]
    return lines


def _attempts(events: Sequence[Mapping[str, Any]]) -> list[str]:
    earlier: list[Mapping[str, Any]] = next(
        (event["earlier"] for event in events if event["event"] == "start" and "earlier" in event), []
    )
    if not earlier:
        return ["## Attempts", "", "This is the first recorded attempt at this subject under this evidence root.", ""]
    rows = [(item["run"], item["outcome"], "yes" if item["binding"] else "no", item["utc"]) for item in earlier]
    return [
        "## Attempts",
        "",
        f"{len(rows)} earlier attempts at this subject under this evidence root:",
        "",
        *_table(("run", "outcome", "binding", "sealed (UTC)"), rows),
    ]


def _subject(plan: Plan) -> list[str]:
    rows: list[tuple[str, object]] = [("difference", item) for item in plan.difference]
    rows += [(f"subject {name}", value) for name, value in sorted(plan.subject.items())]
    rows += [(f"host {name}", value) for name, value in sorted(plan.host.items())]
    gates = plan.prerequisites["gates"] if plan.prerequisites else {}
    rows += [(f"stands on {gate.upper()}", row["digest"]) for gate, row in sorted(gates.items())]
    rows += [
        ("workload", f"{plan.input_tokens} tokens in, {plan.output_tokens} out, seed {plan.workload['seed']}"),
        ("order", plan.rule["order"]),
        ("plan SHA-256", plan.digest()),
        ("harness", plan.harness),
    ]
    rows += [(f"not applicable: {item.what}", item.reason) for item in plan.not_applicable]
    return ["## What was compared", "", *_table(("what", "value"), rows)]


def _engine(verdict: Mapping[str, Any]) -> list[str]:
    """Only where the servers say what they are; older verdicts and other engines have no such part."""
    found = verdict.get("engine_configuration")
    if found is None:
        return []
    names = sorted({name for values in found["arms"].values() for name in values})
    rows = [(name, *(found["arms"].get(arm, {}).get(name) or "not said" for arm in "AB")) for name in names]
    lines = ["## Engine configuration", "", *_table(("what", "A", "B"), rows)]
    return [*lines, *(f"* {line}." for line in found["differences"]), *([""] if found["differences"] else [])]


def _axes(verdict: Mapping[str, Any]) -> list[str]:
    if not verdict["axes"]:
        return []
    rows = [
        (
            place(row["concurrency"]),
            row["name"],
            f"{float(row['candidate']):.6g}",
            f"{float(row['baseline']):.6g}",
            row["unit"],
            row["direction"],
            "none" if row["ratio_text"] is None else f"{float(row['ratio_text']):.6f}",
            "pass" if row["pass"] else "**miss**",
        )
        for row in verdict["axes"]
    ]
    head = ("c", "axis", "candidate", "baseline", "unit", "better", "ratio", "")
    return ["## Axes", "", *_table(head, rows)]


def _checks(verdict: Mapping[str, Any]) -> list[str]:
    codes: dict[str, list[bool]] = {}
    for check in verdict["checks"]:
        codes.setdefault(check["code"], []).append(check["ok"])
    rows = [
        (code, f"{sum(results)} of {len(results)}", "" if all(results) else "**failed**")
        for code, results in codes.items()
    ]
    return ["## Validity", "", *_table(("check", "passed", ""), rows)]


def _diagnostics(verdict: Mapping[str, Any]) -> list[str]:
    rows = [
        (f"c{row['concurrency']}", f"r{row['repetition']}", f"{row['equal']} of {row['of']}")
        for row in verdict["diagnostics"]["equal_texts"]
    ]
    if not rows:
        return []
    return [
        "## Diagnostics, which decide nothing",
        "",
        "Completions with equal text in both arms (batched output depends on the batch's shape):",
        "",
        *_table(("c", "pair", "equal"), rows),
    ]
