"""Floors on the disk: reading one, finding the one that fits a plan, and reading the runs that a floor is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import bundle, canonical, floor, journal, verify
from harness.config import FloorConfig
from harness.errors import HarnessError, UsageError
from harness.floor import Floor
from harness.floor_documents import Campaign
from harness.plan import Plan
from harness.records import Leg
from harness.weighing import Terms

__all__ = ["FILE", "FOLDER", "Run", "choose", "packed", "read", "read_run"]

FILE = "floor.json"
FOLDER = "floors"
Pair = tuple[int, int]  # concurrency and repetition
# What a run says that was stopped or lost, and what follows from that: its finished pairs are whole all the same.
CUT = ("interrupted", "supervisor-died", "boot-id", "run-ended", "legs-complete", "lease-released")


@dataclass(frozen=True)
class Run:
    """A sealed run with the pairs of legs that may be used: all of a valid one, the finished ones of one cut short."""

    plan: Plan
    digest: str
    started_utc: str
    legs: dict[Pair, list[Leg]]
    void: tuple[str, ...]


def packed(documents: Sequence[Any]) -> bytes:
    """`floor.json` of a bundle: the floors that its plan names, whole."""
    return canonical.dumps({"floors": list(documents)})


def read(path: Path) -> tuple[Any, Floor]:
    """A sealed floor as its document and its value. UsageError says what is wrong with the file."""
    try:
        document = canonical.loads(path.read_bytes(), path.name)
        return document, floor.loads(document, path.name)
    except OSError as error:
        raise UsageError("unreadable-floor", f"floor.paths: {path}: {error.strerror}; give a sealed floor") from error
    except HarnessError as error:
        raise UsageError(error.code, f"floor.paths: {error.message}; give a sealed floor") from error


def choose(config: FloorConfig, evidence: Path, invoked_in: Path, plan: Plan) -> list[Any]:
    """The documents of the floors for `plan`: those asked for, else the newest under the evidence root that fits."""
    if not plan.rule.get("interpretation") or not (config.paths or config.search):
        return []
    if config.paths:
        return [read(invoked_in / path)[0] for path in config.paths]
    terms, fitting = Terms.from_json(plan.rule["interpretation"]), []
    for path in sorted((evidence / FOLDER).glob(f"*/{FILE}")):
        document, found = read(path)
        fresh = floor.moment(found.expires_utc) >= datetime.now(UTC)
        if fresh and len(found.campaigns) >= terms.min_campaigns and floor.mismatch(found, plan) is None:
            fitting.append((found.source == floor.CAMPAIGNS, found.made_utc, document))
    return [max(fitting, key=lambda item: item[:2])[2]] if fitting else []


def read_run(root: Path) -> Run:
    """The sealed bundle at `root`. UsageError when it is none, or not the one that was sealed."""
    found = verify.verify(root)
    if found.verdict is None or found.outcome == "TAMPERED":
        raise UsageError("bad-bundle", f"{root}: {found.faults[0]}; a floor takes sealed bundles only")
    plan = Plan.from_bytes((root / "plan.json").read_bytes())
    if plan.rehearsal:
        raise UsageError("bad-bundle", f"{root} is a rehearsal: nothing was measured; a floor takes measured runs only")
    events = journal.parse((root / "journal.jsonl").read_bytes())
    started = next((str(event["utc"]) for event in events if event["event"] == "start"), "")
    pairs: dict[Pair, list[Leg]] = {}
    for leg in bundle.read_legs(root, plan):
        if leg.kind == "timed" and leg.concurrency is not None and leg.repetition is not None:
            pairs.setdefault((leg.concurrency, leg.repetition), []).append(leg)
    whole = {pair: legs for pair, legs in pairs.items() if {leg.arm for leg in legs} == {"A", "B"}}
    failed = [check for check in found.verdict["checks"] if not check["ok"]]
    usable = {pair: legs for pair, legs in whole.items() if _sound(legs, failed, plan)}
    return Run(plan, found.digest, started, usable, tuple(found.verdict["void"]))


def _sound(legs: Sequence[Leg], failed: Sequence[Any], plan: Plan) -> bool:
    """No failed check touches the pair: each is of the cut itself, or of another leg."""
    mine, every = {leg.name for leg in legs}, {leg.name for leg in plan.legs}
    for check in failed:
        place = str(check["where"]).split(" ")[0]
        if check["code"] not in CUT and (place in mine or place not in every):
            return False
    return True


def campaign_of(runs: Sequence[Run]) -> Campaign:
    """One campaign out of the run that began it and those that finished it, pairs in the order of the plan."""
    pairs: dict[Pair, list[Leg]] = {}
    for run in runs:
        for pair, legs in run.legs.items():
            pairs.setdefault(pair, legs)
    order = {c: number for number, c in enumerate(runs[0].plan.concurrencies)}
    legs = [leg for pair in sorted(pairs, key=lambda pair: (order[pair[0]], pair[1])) for leg in pairs[pair]]
    return Campaign(legs, [run.digest for run in runs], runs[0].started_utc)
