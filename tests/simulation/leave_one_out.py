"""How often a real floor calls one of its own campaigns REAL when it is made of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import canonical, floor, logratios
from harness.axes import Axis
from harness.client.metrics import TIMING_AXES
from harness.floor import Floor
from harness.interpretation import Comparison, rows
from harness.logratios import AxisKey, AxisLogs
from harness.weighing import Terms

__all__ = ["FLOORS", "LeftOut", "leave_one_out"]

FLOORS = Path(__file__).resolve().parents[1] / "data" / "floors"


@dataclass(frozen=True)
class LeftOut:
    """Over the campaigns of one floor: in how many any distinct axis was REAL or REAL-SMALL, and labels summed."""

    campaigns: int
    pairs: int
    any_real: int
    labels: Counter[str]


def leave_one_out(path: Path, terms: Terms) -> LeftOut:
    """Judge each campaign of the sealed floor at `path` by the floor of the others."""
    whole = floor.loads(canonical.loads(path.read_bytes(), path.name), path.name)
    judged = [_judged(whole, number, terms) for number in range(len(whole.campaigns))]
    labels = Counter(row["label"] for found in judged for row in found if row["same_as"] is None)
    any_real = sum(any(row["label"].startswith("REAL") for row in found) for found in judged)
    return LeftOut(len(judged), whole.repetitions, any_real, labels)


def _judged(whole: Floor, number: int, terms: Terms) -> Sequence[dict[str, Any]]:
    axes = [_axis(key) for key in whole.axes]
    logs = {key: AxisLogs(row["log_ratios"][number], tuple(row["pairs"][number])) for key, row in whole.axes.items()}
    twins = {(c, name): logratios.same_as(name, whole.one_token[c]) for c, name in whole.axes}
    return rows(Comparison(axes, [logs], twins, [_without(whole, number)], terms, whole.repetitions))


def _axis(key: AxisKey) -> Axis:
    return Axis(key[1], key[0], "timing" if key[1] in TIMING_AXES else "memory", "", "")


def _without(whole: Floor, number: int) -> Floor:
    axes = {
        key: {name: [v for i, v in enumerate(row[name]) if i != number] for name in ("log_ratios", "pairs")}
        for key, row in whole.axes.items()
    }
    return replace(whole, axes=axes, campaigns=[c for i, c in enumerate(whole.campaigns) if i != number])
