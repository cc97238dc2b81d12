"""Several campaigns of one plan, interpreted together: a small effect needs more of them than one run holds.

Pure; standard library only. Acceptance is not joined: each run keeps its own strict verdict, and there is none of all.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness import index
from harness.axes import LADDER
from harness.errors import UsageError
from harness.floor import moment
from harness.interpretation import compared, counts, rows, usable_floors
from harness.plan import Plan
from harness.report.compare import difference
from harness.report.evidence import Evidence, Row
from harness.weighing import Terms

__all__ = ["FORMAT", "Attempts", "Joint", "document", "join"]

FORMAT = "nvfp4-gates-joint-v1"
CODE = "not-joinable"

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 70


@dataclass(frozen=True)
class Attempts:
    """Every attempt at the subject that is known, as rows of the index; `doubts` say why some may be missing.

    `rows` is None where no index lies beside the bundles and none of them recorded earlier attempts.
    """

    rows: Sequence[Mapping[str, Any]] | None
    doubts: Sequence[str] = ()


@dataclass(frozen=True)
class Joint:
    """The runs in the order of their start, and what they say together.

    `axes` are rows as in a verdict's interpretation, with `campaigns`, each run's own log ratio, in the place of
    `pairs`. `left_out` are the known attempts at the subject that are not among the runs, the oldest first.
    """

    runs: Sequence[Evidence]
    floor: Mapping[str, Any]
    terms: Terms
    tests: int
    axes: Sequence[Mapping[str, Any]]
    left_out: Sequence[Mapping[str, Any]] | None
    doubts: Sequence[str]

    @property
    def plan(self) -> Plan:
        return self.runs[0].plan

    @property
    def omitted(self) -> list[Mapping[str, Any]]:
        """What was left out though it could have been joined: valid runs of the very same plan."""
        same = self.plan.digest()
        return [row for row in self.left_out or () if row["plan"] == same and row["outcome"] != "VOID"]

    @property
    def counts(self) -> dict[str, int]:
        return counts(self.axes)

    @property
    def rows(self) -> list[Row]:
        """The axes as they are shown; the marks are the campaigns."""
        shown = {row.key: row for row in self.runs[0].rows}
        return [_shown(shown[axis["concurrency"] or LADDER, axis["name"]], axis) for axis in self.axes]


def join(found: Sequence[Evidence], attempts: Attempts) -> Joint:
    """Runs of one plan against the floor that it names. UsageError `not-joinable` says what does not fit, and where."""
    _refuse(found)
    runs = sorted(found, key=lambda run: moment(str(run.started)))  # a usable floor has seen to it that it has one
    plan = runs[0].plan
    terms = Terms.from_json(plan.rule["interpretation"])
    floors, head = usable_floors(plan, runs[0].legs, runs[0].floors, runs[0].started, terms)
    comparison = compared(plan, [run.legs for run in runs], floors, terms)
    mine = {run.digest for run in runs}
    left_out = None if attempts.rows is None else [row for row in attempts.rows if row["bundle"] not in mine]
    axes = [_by_campaign(row, [logs[_key(row)].log_ratio for logs in comparison.campaigns]) for row in rows(comparison)]
    return Joint(runs, head, terms, len(comparison.own), axes, left_out, attempts.doubts)


def _key(row: Mapping[str, Any]) -> tuple[int, str]:
    return row["concurrency"] or LADDER, row["same_as"] or row["name"]


def _by_campaign(row: Mapping[str, Any], logs: Sequence[float | None]) -> dict[str, Any]:
    return {**{name: value for name, value in row.items() if name != "pairs"}, "campaigns": list(logs)}


def _refuse(runs: Sequence[Evidence]) -> None:
    """UsageError `not-joinable` unless these are different valid runs of one plan with a usable floor."""
    if len(runs) < 2:
        raise UsageError(CODE, "one bundle alone has nothing to be joined with; give two or more")
    first = runs[0]
    seen: dict[str, Evidence] = {}
    for run in runs:
        if run.digest in seen:
            raise UsageError(CODE, f"{run.run} and {seen[run.digest].run} are the same bundle; give each once")
        seen[run.digest] = run
        _refuse_one(run)
        if (apart := difference(_identity(first), _identity(run))) is not None:
            field, one, two = apart
            raise UsageError(
                CODE,
                f"{field} is {_short.repr(one)} in {first.run} and {_short.repr(two)} in {run.run}; campaigns are runs "
                "of one plan: the same command with the same engine.plan and floor.paths",
            )


def _refuse_one(run: Evidence) -> None:
    if run.timeless:
        raise UsageError(CODE, f"{run.run} is of a gate of checks, which has no axes to join")
    if run.void:
        raise UsageError(CODE, f"{run.run} is VOID: no number of it may be quoted")
    if run.interpretation is None:
        raise UsageError(CODE, f"{run.run} was judged by a rule without interpretation, so nothing of it can be joined")
    floor = run.interpretation["floor"]
    if floor["status"] != "used":
        raise UsageError(CODE, f"{run.run} has no usable floor ({floor['status']}): {floor['reason']}")


def _identity(run: Evidence) -> dict[str, Any]:
    """The whole plan, since a campaign is a repetition of the same measurement; a run's id and date are not in it."""
    return asdict(run.plan)


def _shown(row: Row, axis: Mapping[str, Any]) -> Row:
    interval, estimate = axis["interval"], axis["log_ratio"]
    return replace(
        row,
        passed=estimate is not None and estimate >= 0,
        log_ratio=estimate,
        pairs=tuple(axis["campaigns"]),
        label=axis["label"],
        interval=None if interval is None else (interval[0], interval[1]),
        noise=None if interval is None else (interval[1] - interval[0]) / 2,
        floor_mean=axis["floor_mean"],
        pairs_needed=axis["pairs_needed"],
        repeats=axis["same_as"],
    )


def document(joint: Joint) -> dict[str, Any]:
    """All of it as JSON: the same runs give the same bytes, but for what the index has learned meanwhile."""
    return {
        "format": FORMAT,
        "plan": joint.plan.digest(),
        "subject": index.subject_key(joint.plan),
        "runs": [
            {
                "run": run.run,
                "bundle": run.digest,
                "started_utc": run.started,
                "outcome": run.verdict["outcome"],
                "omnibus": (run.interpretation or {})["omnibus"],
            }
            for run in joint.runs
        ],
        "left_out": None if joint.left_out is None else [dict(row) for row in joint.left_out],
        "omitted": [row["run"] for row in joint.omitted],
        "doubts": list(joint.doubts),
        "floor": dict(joint.floor),
        "alpha": joint.terms.alpha,
        "margins": dict(joint.terms.margins),
        "campaigns": len(joint.runs),
        "tests": joint.tests,
        "axes": [dict(axis) for axis in joint.axes],
        "counts": joint.counts,
    }
