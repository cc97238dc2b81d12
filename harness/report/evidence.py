"""What a report is made of: the raw files of a verified bundle as values. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import bundle, canonical, journal, logratios
from harness.axes import LADDER, axes_of
from harness.logratios import AxisKey
from harness.plan import Plan
from harness.records import Leg
from harness.telemetry.phases import Stamps

__all__ = ["Evidence", "Row", "read"]


@dataclass(frozen=True)
class Row:
    """One axis as it is shown. Logs are natural; None is unknown. `label` is None where a plan asks for none.

    `noise` is how far identical arms stray (95 %), as half a width about 0; `repeats` names the axis it is a copy of.
    """

    concurrency: int  # LADDER for all of them
    name: str
    kind: str
    unit: str
    candidate: float
    baseline: float
    passed: bool
    log_ratio: float | None
    pairs: tuple[float | None, ...]
    label: str | None
    interval: tuple[float, float] | None
    noise: float | None
    floor_mean: float | None
    margin: float | None
    pairs_needed: int | None
    repeats: str | None

    @property
    def key(self) -> AxisKey:
        return self.concurrency, self.name


@dataclass(frozen=True)
class Evidence:
    """A bundle as values: `verdict` is the recomputed one, `digest` the manifest's SHA-256, `run` its folder's name.

    `floors` are the documents of the floors in it. `phases` holds the stamps of each timed leg that has them, by the
    leg's name.
    """

    run: str
    digest: str
    plan: Plan
    legs: Sequence[Leg]
    verdict: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    phases: Mapping[str, Stamps]
    floors: Sequence[Any] = ()

    @property
    def void(self) -> bool:
        return bool(self.verdict["outcome"] == "VOID")

    @property
    def timeless(self) -> bool:
        """A gate of checks alone: nothing is timed and there are no axes."""
        return "failed" in self.verdict

    @property
    def interpretation(self) -> Mapping[str, Any] | None:
        return self.verdict.get("interpretation")

    @property
    def timed(self) -> list[Leg]:
        """Timed legs in the order in which they ran."""
        return [leg for leg in self.legs if leg.kind == "timed"]

    @property
    def started(self) -> str | None:
        return next((str(event["utc"]) for event in self.events if event["event"] == "start"), None)

    @property
    def ended(self) -> str | None:
        return str(self.events[-1]["utc"]) if self.events else None

    @cached_property
    def rows(self) -> list[Row]:
        """Every axis in the plan's order; none of a void run, of which no number may be quoted."""
        if self.void:
            return []
        logs = logratios.campaign_logs(self.plan, self.legs)
        weighed = {
            (row["concurrency"] or LADDER, row["name"]): row for row in (self.interpretation or {}).get("axes", ())
        }
        judged = {(row["concurrency"] or LADDER, row["name"]): row for row in self.verdict["axes"]}
        axes = axes_of(self.plan.measured, self.plan.gpu, self.plan.memory, self.plan.ladder)
        keys = [(axis.concurrency, axis.name) for axis in axes]
        return [_row(judged[key], logs[key], weighed.get(key, {})) for key in keys if key in judged]

    @cached_property
    def misses(self) -> list[Row]:
        """Missed axes, the worst first; one without a ratio comes before all others."""
        return sorted((row for row in self.rows if not row.passed), key=_worst)


def _worst(row: Row) -> float:
    return float("-inf") if row.log_ratio is None else row.log_ratio


def _row(judged: Mapping[str, Any], logs: logratios.AxisLogs, weighed: Mapping[str, Any]) -> Row:
    interval = weighed.get("interval")
    return Row(
        concurrency=judged["concurrency"] or LADDER,
        name=judged["name"],
        kind=judged["kind"],
        unit=judged["unit"],
        candidate=float(judged["candidate"]),
        baseline=float(judged["baseline"]),
        passed=judged["pass"],
        log_ratio=logs.log_ratio,
        pairs=logs.pairs,
        label=weighed.get("label"),
        interval=None if interval is None else (interval[0], interval[1]),
        noise=None if interval is None else (interval[1] - interval[0]) / 2,
        floor_mean=weighed.get("floor_mean"),
        margin=weighed.get("margin"),
        pairs_needed=weighed.get("pairs_needed"),
        repeats=weighed.get("same_as"),
    )


def read(root: Path, verdict: Mapping[str, Any], digest: str) -> Evidence:
    """The bundle at `root`, which has been verified and gave `verdict` and `digest`."""
    plan = Plan.from_bytes((root / "plan.json").read_bytes())
    legs = bundle.read_legs(root, plan)
    phases = {
        leg.name: stamps for leg in legs if (stamps := _stamps(root / "legs" / leg.name / "leg.json")) is not None
    }
    events = journal.parse((root / "journal.jsonl").read_bytes())
    return Evidence(root.resolve().name, digest, plan, legs, verdict, events, phases, bundle.read_floors(root))


def _stamps(path: Path) -> Stamps | None:
    found = canonical.loads(path.read_bytes(), path.name).get("phases")
    return None if not found else Stamps(**{name: int(found[name]) for name in ("ready_ns", "timed_ns", "done_ns")})
