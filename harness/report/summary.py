"""The few lines a person reads at the end of a run, of `verify`, and at the top of `report.md`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.axes import place
from harness.journal import VOIDED

__all__ = [
    "MEANING",
    "MEANING_OF_CHECKS",
    "NEWCOMER",
    "NEWCOMER_AT_FIRST",
    "checks_line",
    "counts_line",
    "failed_lines",
    "miss_lines",
    "reason_lines",
    "summary",
]

NEWCOMER = (
    "A strict FAIL is the expected first result: none of 200,000 simulated runs of identical arms passed every axis, "
    "so read the misses and their ratios, not the word alone."
)
NEWCOMER_AT_FIRST = (  # in the reports of bundles that were sealed before this project's own simulation
    "A strict FAIL is the expected first result: of 100,000 simulated pairs of identical arms about 3 pass every axis, "
    "so read the misses and their ratios, not the word alone."
)
MEANING = {
    "PASS": "a complete, valid measurement: no axis of the candidate is worse",
    "FAIL": "a complete, valid measurement: at least one axis of the candidate is worse",
    "VOID": "not a valid measurement: no number of it may be quoted",
}
MEANING_OF_CHECKS = {
    "PASS": "every check holds",
    "FAIL": "the run is whole, and at least one check does not hold",
    "VOID": MEANING["VOID"],
}


def counts_line(verdict: Mapping[str, Any]) -> str:
    timing, memory = verdict["counts"]["timing"], verdict["counts"]["memory"]
    return f"{timing['pass']}/{timing['of']} timing + {memory['pass']}/{memory['of']} memory axes"


def checks_line(verdict: Mapping[str, Any]) -> str:
    """How many checks hold, for a gate that has no axes."""
    checks = verdict["checks"]
    return f"{sum(check['ok'] for check in checks)} of {len(checks)} checks hold"


def failed_lines(verdict: Mapping[str, Any]) -> list[str]:
    return [f"{check['code']} at {check['where']}: {_because(check)}" for check in verdict["checks"] if not check["ok"]]


def _unbound(verdict: Mapping[str, Any]) -> list[str]:
    reasons = verdict["not_binding_because"]
    return ["non-binding: " + "; ".join(reasons)] if reasons else []


def miss_lines(verdict: Mapping[str, Any]) -> list[str]:
    """One line a missed axis, the worst first; an axis without a ratio comes before all others."""
    missed = sorted((row for row in verdict["axes"] if not row["pass"]), key=lambda row: float(row["ratio_text"] or 0))
    return [
        f"{place(row['concurrency'])} {row['name']}: {ratio_words(row)} "
        f"({float(row['candidate']):.6g} against {float(row['baseline']):.6g} {row['unit']})"
        for row in missed
    ]


def ratio_words(row: Mapping[str, Any]) -> str:
    return f"no ratio, {row['reason']}" if row["ratio_text"] is None else f"ratio {float(row['ratio_text']):.6f}"


def reason_lines(verdict: Mapping[str, Any]) -> list[str]:
    """One line a failed check. What the run itself said comes alone: the other failures follow from it."""
    failed = [check for check in verdict["checks"] if not check["ok"]]
    said = [check for check in failed if check["required"] == VOIDED]
    lines = [f"{check['code']} at {check['where']}: {_because(check)}" for check in said or failed]
    rest = len(failed) - len(said)
    return [*lines, f"{rest} further checks have nothing to look at"] if said and rest else lines


def _because(check: Mapping[str, Any]) -> str:
    return str(check["seen"]) if check["required"] == VOIDED else f"{check['seen']}; required: {check['required']}"


def summary(verdict: Mapping[str, Any]) -> list[str]:
    """Outcome, counts, misses or reasons, and what makes the run non-binding, as plain lines."""
    outcome = verdict["outcome"]
    lines = [f"{outcome}: {(MEANING_OF_CHECKS if 'failed' in verdict else MEANING)[outcome]}"]
    if outcome == "VOID":
        return lines + reason_lines(verdict)
    if "failed" in verdict:
        return [*lines, checks_line(verdict), *(f"failed {line}" for line in failed_lines(verdict)), *_unbound(verdict)]
    totals = verdict["totals"]
    lines.append(
        f"{counts_line(verdict)}; {totals['legs']} legs, {totals['requests']} requests, "
        f"{totals['input_tokens']:,} tokens in, {totals['output_tokens']:,} out, "
        f"{totals['cache_drops']} cache drops, {totals['memory_returns']} memory returns"
    )
    lines.append(f"plan control: {verdict['plan_control']}; component: {verdict['component']}")
    lines += [f"missed {line}" for line in miss_lines(verdict)]
    lines += _unbound(verdict)
    if outcome == "FAIL":
        lines.append(NEWCOMER)
    return lines
