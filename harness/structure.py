"""What G3's predicates need beside a leg's own records, out of a bundle's raw files. Standard library only.

The plan says which line of /metrics counts what, which map is the oracle, and which traces were given; everything else
is read from the files each time, so that a verdict is recomputed from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import canonical, traces
from harness.errors import HarnessError
from harness.plan import Plan
from harness.records import Leg, Structure

__all__ = ["END", "FROZEN", "KIND", "READY", "attach", "counter", "document_rows", "first_tactics"]

KIND = "structure"
READY, END = "metrics-ready.txt", "metrics-end.txt"
FROZEN = "frozen-plans.json"

Rows = tuple[tuple[int, int, int, int], ...]


def attach(root: Path, plan: Plan, legs: Sequence[Leg]) -> list[Leg]:
    """The legs, those of G3's kind with their `structure`. HarnessError `bad-record` or `bad-trace` names a file."""
    demands = plan.structure
    if demands is None:
        return list(legs)
    found: list[Leg] = []
    traced: set[str] = set()
    for leg in legs:
        if leg.kind == KIND:
            given = None if leg.arm in traced else (demands.get("traces") or {}).get(leg.arm)
            traced.add(leg.arm)
            leg = replace(leg, structure=_structure(root, leg.name, demands, given))
        found.append(leg)
    return found


def _structure(root: Path, leg: str, demands: Mapping[str, Any], given: Mapping[str, Any] | None) -> Structure:
    texts = [_text(root / "legs" / leg / name) for name in (READY, END)]
    ready, end = ({name: counter(text, line) for name, line in demands["counters"].items()} for text in texts)
    oracle = _oracle(root, demands, texts[0])
    trace = None if given is None else root / str(given["file"])
    if trace is None or not trace.is_file():
        return Structure(ready, end, oracle)
    return Structure(ready, end, oracle, traces.read(trace), canonical.sha256_file(trace))


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""


def counter(metrics: str, name: str) -> int | None:
    """The value of a Prometheus counter without labels, or whatever its labels; None where it is not there once."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", metrics, re.MULTILINE)
    return int(float(found[0])) if len(found) == 1 else None


def first_tactics(metrics: str, name: str) -> dict[str, int]:
    """Runner to the value of its line of the gauge `name`."""
    lines = re.findall(rf'^{re.escape(name)}\{{runner="([^"]*)"\}} (\d+)$', metrics, re.MULTILINE)
    return {runner: int(value) for runner, value in lines}


def _oracle(root: Path, demands: Mapping[str, Any], metrics: str) -> Rows | None:
    """The rows that the plan itself holds, else those of the frozen document in the bundle."""
    if demands.get("oracle") is not None:
        return tuple(sorted((int(m), int(n), int(k), int(tactic)) for m, n, k, tactic in demands["oracle"]))
    path = root / FROZEN
    runners = first_tactics(metrics, str(demands["runners"])) if "runners" in demands else {}
    return document_rows(path.read_bytes(), runners) if path.is_file() else None


def document_rows(data: bytes, runners: Mapping[str, int]) -> Rows:
    """(M bucket, N, K, tactic) of a native plan document, sorted. `runners` has the first id of each runner's tactics
    where several share one numbering. HarnessError `bad-record`."""
    try:
        plans = json.loads(data)["plans"]
        rows = sorted(
            (int(row["m_bucket"]), int(row["n"]), int(row["k"]), int(row["tactic_id"]) + runners.get(row["runner"], 0))
            for row in plans
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError("bad-record", f"{FROZEN} is no native plan document: {error!r}") from error
    if len({row[:3] for row in rows}) != len(rows):
        raise HarnessError("bad-record", f"{FROZEN} has two plans for one shape")
    return tuple(rows)
