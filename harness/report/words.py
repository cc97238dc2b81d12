"""The sentences that every form of a report shares. Pure; standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.axes import place
from harness.report.evidence import Evidence, Row
from harness.report.summary import MEANING, MEANING_OF_CHECKS, checks_line, counts_line

__all__ = [
    "attempt_lines",
    "binding_line",
    "counts",
    "floor_line",
    "interpretation_lines",
    "mixture_lines",
    "number",
    "percent",
    "provenance",
    "title",
    "title_meaning",
    "validity",
]

LABEL_MEANING = {
    "REAL": "more than identical arms do, and larger than the margin",
    "REAL-SMALL": "more than identical arms do, but within the margin",
    "NOISE": "what identical arms do, and within the margin",
    "UNRESOLVED": "too little is known to say",
    "NO-FLOOR": "nothing to compare with",
}


def number(value: float) -> str:
    return f"{value:.6g}"


def percent(log_ratio: float | None) -> str:
    """A log ratio as a change in percent; above 0 the candidate is better."""
    if log_ratio is None:
        return "no ratio"
    change = 100 * math.expm1(log_ratio)
    digits = 2 if abs(change) < 10 else 1
    return f"{change:+.{digits}f} %".replace("-", "−")


def title(evidence: Evidence) -> str:
    return f"{evidence.plan.gate.upper()} of {evidence.plan.engine}: {evidence.verdict['outcome']}"


def title_meaning(evidence: Evidence) -> str:
    return (MEANING_OF_CHECKS if evidence.timeless else MEANING)[evidence.verdict["outcome"]]


def counts(evidence: Evidence) -> str:
    """How much of the gate holds, as a clause without its full stop."""
    return checks_line(evidence.verdict) if evidence.timeless else f"{counts_line(evidence.verdict)} pass"


def binding_line(evidence: Evidence) -> str:
    """Whether the verdict binds, and why not where it does not."""
    if evidence.verdict["binding"]:
        return "Binding."
    reasons = list(evidence.verdict["not_binding_because"])
    reasons += ["the measurement is not valid"] if evidence.void else []
    return f"Not binding: {'; '.join(reasons)}."


def floor_line(evidence: Evidence) -> str:
    """What the interpretation stands on, and what it cannot tell."""
    if evidence.void:
        return "A void run is not interpreted."
    if evidence.timeless:
        return "A gate of checks has nothing to interpret."
    found = evidence.interpretation
    if found is None:
        return (
            "This plan is from before interpretations: whether any miss or pass differs from what two identical arms "
            "do on this host cannot be told."
        )
    floor = found["floor"]
    if floor["status"] != "used":
        return f"NO-FLOOR ({floor['status']}): {floor['reason']}. It cannot be told {floor['cannot_tell']}."
    said = (
        f"Compared with a floor of {floor['campaigns']} campaigns of identical arms ({floor['source']}), made "
        f"{floor['made'][:10]}, good until {floor['expires'][:10]}."
    )
    return said if floor["cannot_tell"] is None else f"{said} It cannot be told {floor['cannot_tell']}."


def interpretation_lines(evidence: Evidence) -> list[str]:
    """Labels, the omnibus test, bias of the order and the other rules in use. None of them decides."""
    found = evidence.interpretation
    if found is None:
        return []
    counts = ", ".join(f"{count} {label}" for label, count in found["counts"].items() if count)
    lines = [f"Of {found['tests']} distinct axes: {counts}."]
    omnibus = found["omnibus"]
    chance = "cannot be told without a floor of whole campaigns" if omnibus["p"] is None else f"p = {omnibus['p']:.3g}"
    lines.append(f"{omnibus['misses']} of {omnibus['of']} distinct axes missed; as many by identical arms: {chance}.")
    lines += _order_lines(found["order_bias"])
    every, median = found["variants"]["every_pair"], found["variants"]["median"]
    lines.append(
        f"Other rules, which do not bind: every pair {every['pass']} of {every['of']}, "
        f"medians {median['pass']} of {median['of']}."
    )
    return lines


def _order_lines(bias: Mapping[str, Any]) -> list[str]:
    axes = bias["axes"]
    if axes is None:
        lines = ["Bias of the order: cannot be told without a floor."]
    elif axes:
        named = ", ".join(f"{place(row['concurrency'])} {row['name']} {percent(row['floor_mean'])}" for row in axes)
        lines = [f"Identical arms differ by the order alone on {named}."]
    else:
        lines = ["No axis on which identical arms differ by the order alone."]
    first = [
        f"c{row['concurrency']} {percent(row['log_ratio'])}"
        + ("" if row["floor_mean"] is None else f" ({percent(row['floor_mean'])} in the floor)")
        for row in bias["first_leg"]
        if row["log_ratio"] is not None
    ]
    return [*lines, f"First leg's throughput against the later ones: {', '.join(first)}."] if first else lines


def mixture_lines(evidence: Evidence) -> list[str]:
    """TTFT by modes, never as a mean alone, and stalls apart from steady gaps."""
    found = evidence.interpretation
    if found is None:
        return []
    lines = [f"c{row['concurrency']} TTFT, {_modes(row)}" for row in found["ttft_modes"]]
    for row in found["stall_share"]:
        arms = "; ".join(f"{arm} {_stalls(item)}" for arm, item in row["arms"].items())
        lines.append(f"c{row['concurrency']} gaps of {row['threshold_ms']} ms and more: {arms}.")
    return lines


def _modes(row: Mapping[str, Any]) -> str:
    arms = "; ".join(
        f"{arm} " + " and ".join(_mode(mode) for mode in item["modes"]) for arm, item in row["arms"].items()
    )
    if row["modes"] == 1:
        return f"one mode: {arms}."
    return f"two modes, parted at {row['split_ms']:.4g} ms: {arms}."


def _mode(mode: Mapping[str, Any]) -> str:
    if mode["share"] is None:
        return "no requests"
    return f"{100 * mode['share']:.0f} % " + ("" if mode["mean_ms"] is None else f"at {mode['mean_ms']:.4g} ms")


def _stalls(item: Mapping[str, Any]) -> str:
    if item["share"] is None:
        return "no gaps"
    steady = "" if item["steady_median_ms"] is None else f", steady median {item['steady_median_ms']:.4g} ms"
    return f"{item['stalls']} of {item['gaps']} ({100 * item['share']:.2g} %){steady}"


def validity(evidence: Evidence) -> list[tuple[str, int, int, Mapping[str, Any]]]:
    """By check code: how many passed, of how many, and the check to show: the first that failed, else the first.

    Failed codes come first.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for check in evidence.verdict["checks"]:
        groups.setdefault(check["code"], []).append(check)
    rows = [
        (code, sum(check["ok"] for check in found), len(found), next((c for c in found if not c["ok"]), found[0]))
        for code, found in groups.items()
    ]
    return sorted(rows, key=lambda row: row[1] == row[2])


def provenance(evidence: Evidence) -> list[tuple[str, str]]:
    """Who measured what, where, when: one (what, value) a line."""
    plan = evidence.plan
    rows = [("run", evidence.run), ("started (UTC)", evidence.started or "unknown: the journal has no start")]
    rows += [("ended (UTC)", evidence.ended or "unknown: the journal is empty"), ("bundle SHA-256", evidence.digest)]
    rows += [("plan SHA-256", plan.digest()), ("harness", plan.harness)]
    rows += [("rule", f"{plan.rule['name']} version {plan.rule['version']}"), ("order", str(plan.rule["order"]))]
    rows += [("difference", item) for item in plan.difference]
    rows += [("workload", f"{plan.workload['name']}: {plan.input_tokens} tokens in, {plan.output_tokens} out")]
    gates = plan.prerequisites["gates"] if plan.prerequisites else {}
    rows += [(f"stands on {gate.upper()}", str(row["digest"])) for gate, row in sorted(gates.items())]
    rows += [(f"subject {name}", str(value)) for name, value in sorted(plan.subject.items())]
    rows += [(f"host {name}", str(value)) for name, value in sorted(plan.host.items())]
    rows += [
        (f"floor {position}", str(digest)) for position, digest in enumerate((plan.floor or {}).get("digests", ()), 1)
    ]
    return rows + [(f"not applicable: {item.what}", item.reason) for item in plan.not_applicable]


def attempt_lines(attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence an earlier attempt at the same subject, the oldest first."""
    return [
        f"{row['run']}: {row['outcome']}, {'binding' if row['binding'] else 'not binding'}, sealed {row['utc']}"
        + (f" ({', '.join(row['void'])})" if row.get("void") else "")
        + (", measured again later" if row.get("superseded") else "")
        for row in attempts
    ]


def row_words(row: Row) -> str:
    return f"{place(row.concurrency)} {row.name}"
