"""`harness floor`: A/A campaigns until the stopping rule that was fixed before the first, then a sealed floor.

Each campaign is an ordinary run whose arms are both the baseline. One that was stopped or lost keeps its finished
pairs, and the next run of it measures the pairs that are missing; one that is void for another reason is measured anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import bundle, canonical, controller, floor, floor_documents, settings
from harness.config import Config
from harness.errors import UsageError
from harness.floor_store import FILE, FOLDER, Pair, Run, campaign_of, read, read_run

__all__ = ["from_bundles", "make"]

PLAN = "floor-plan.json"
RUNS = "runs"
KEY = ("gate", "engine", "workload", "client", "rule")  # what makes one floor another, beside the host
FROZEN = "frozen-plans.json"
Measure = Callable[[Config, Mapping[str, Any]], Sequence[str]]  # returns why the run was void


def make(config: Config, invoked_in: Path, console: Console, run: Measure | None = None) -> Path:
    """Measure what is missing of the floor that `config` asks for, and seal it. Returns the path of `floor.json`.

    UsageError when the stopping rule is another than at the start, when host or baseline changed in between, or when
    the attempts are used up. A floor that is sealed and still fresh is returned as it is.
    """
    if config.rehearse:
        mend = "`run` rehearses any gate, and the campaigns of a floor are rehearsed by themselves"
        raise UsageError("bad-value", f"rehearse=true is for `run`: {mend}")
    if not config.rule.interpretation:
        raise UsageError("no-interpretation", f"rule {config.rule.name} version {config.rule.version} uses no floor")
    aa = _same_arms(config)
    folder = _folder(aa, (invoked_in / config.evidence.root).resolve() / FOLDER)
    if (folder / FILE).is_file():
        console.print(f"the floor {folder.name} is sealed and still fresh", highlight=False)
        return folder / FILE
    stopping = _fixed(aa, folder)
    aa.evidence.root = str(folder / RUNS)
    measure = run or (lambda changed, campaign: _run(changed, campaign, invoked_in, console))
    while (missing := _missing(aa, folder)) is not None:
        number, pairs, attempts = missing
        if attempts >= stopping["attempts"]:
            raise UsageError(
                "floor-attempts", f"{attempts} attempts did not give {stopping['campaigns']} campaigns; see {folder}"
            )
        console.print(f"campaign {number} of {stopping['campaigns']}, {len(pairs)} pairs to measure", highlight=False)
        aa.engine.plan = _frozen(aa, folder)
        void = measure(aa, {"campaign": number, "pairs": [list(pair) for pair in pairs]})
        if "interrupted" in void:
            raise UsageError(
                "interrupted", f"stopped in campaign {number}; the same command goes on with what is missing"
            )
    return _seal(folder, stopping)


def _run(config: Config, campaign: Mapping[str, Any], invoked_in: Path, console: Console) -> Sequence[str]:
    found: list[str] = controller.run(config, invoked_in, console, aa=campaign).verdict["void"]
    return found


def _same_arms(config: Config) -> Config:
    changed = copy.deepcopy(config)
    changed.engine.candidate = copy.deepcopy(config.engine.baseline)
    return changed


def _folder(config: Config, root: Path) -> Path:
    """The folder of this floor: the first that is not sealed, or the last if it is still fresh."""
    asked = settings.dump(replace(Config(), **{name: getattr(config, name) for name in KEY}))
    key = canonical.sha256_bytes(asked.encode())[:8]
    number = 1
    while True:
        folder = root / f"{config.host.name}-{config.engine.name}-{key}-{number}"
        if not (folder / FILE).is_file():
            return folder
        if floor.moment(read(folder / FILE)[1].expires_utc) >= datetime.now(UTC):
            return folder
        number += 1


def _fixed(config: Config, folder: Path) -> dict[str, Any]:
    """The stopping rule as it was written before the first campaign. UsageError when another is asked for later."""
    wanted = {"campaigns": config.floor.campaigns, "attempts": config.floor.attempts}
    path = folder / PLAN
    if not path.is_file():
        bundle.write_new(path, canonical.dumps(wanted))
    fixed: dict[str, Any] = canonical.loads(path.read_bytes(), PLAN)
    if fixed != wanted:
        said = " ".join(f"floor.{name}={value}" for name, value in fixed.items())
        raise UsageError("floor-stopping", f"{folder.name} was begun with {said}; that cannot be changed once it runs")
    return fixed


def _runs(folder: Path) -> list[Run]:
    """The A/A runs so far, oldest first."""
    roots = [path.parent for path in (folder / RUNS).glob("*/seal.json")]
    found = sorted((read_run(root) for root in roots), key=lambda run: run.started_utc)
    for run in found[1:]:
        one, two = (floor.binding(item.plan) for item in (found[0], run))
        if one != two:
            names = ", ".join(sorted(name for name in one if one[name] != two[name]))
            raise UsageError("floor-changed", f"{folder.name}: {names} changed since campaign 1; move the folder away")
    return found


def _by_campaign(runs: Sequence[Run]) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {}
    for run in runs:
        if run.plan.aa is not None and run.legs:
            found.setdefault(int(run.plan.aa["campaign"]), []).append(run)
    return found


def _missing(config: Config, folder: Path) -> tuple[int, list[Pair], int] | None:
    """The first campaign that is not whole, its missing pairs, and the attempts so far; None when all are there."""
    runs = _runs(folder)
    measured = _by_campaign(runs)
    every = [(c, number + 1) for c in config.gate.concurrencies for number in range(config.gate.repetitions)]
    for campaign in range(1, config.floor.campaigns + 1):
        have = {pair for run in measured.get(campaign, []) for pair in run.legs}
        if lacking := [pair for pair in every if pair not in have]:
            return campaign, lacking, len(runs)
    return None


def _frozen(config: Config, folder: Path) -> str | None:
    """Every campaign after the first reads the plans of the first."""
    given = sorted((folder / RUNS).glob(f"*/{FROZEN}"), key=lambda path: path.stat().st_mtime)
    return config.engine.plan or (str(given[0]) if given else None)


def _seal(folder: Path, stopping: Mapping[str, Any]) -> Path:
    runs = _runs(folder)
    measured = _by_campaign(runs)
    campaigns = [campaign_of(measured[number]) for number in sorted(measured)]
    bundle.write_new(folder / FILE, canonical.dumps(_document(runs, campaigns, stopping)))
    if given := sorted((folder / RUNS).glob(f"*/{FROZEN}")):
        bundle.write_new(folder / FROZEN, given[0].read_bytes())
    return folder / FILE


def _document(runs: Sequence[Run], campaigns: Sequence[Any], stopping: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return floor_documents.from_campaigns(runs[0].plan, campaigns, stopping)
    except ValueError as error:
        raise UsageError("floor-plans", f"the floor cannot be sealed: {error}; give engine.plan") from error


def from_bundles(paths: Sequence[Path], evidence: Path) -> Path:
    """A floor pooled from the residuals within the arms of archived bundles. UsageError where they do not fit."""
    runs = [read_run(path) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        if run.void:
            raise UsageError("floor-void", f"{path} is VOID ({run.void[0]}); no number of it may be used")
        if floor.binding(run.plan) != floor.binding(runs[0].plan):
            raise UsageError("floor-mixed", f"{path} is not of the same host, baseline, load and rule as {paths[0]}")
    if not runs[0].plan.rule.get("interpretation"):
        raise UsageError("no-interpretation", f"{paths[0]} was judged by a rule that uses no floor")
    try:
        document = floor_documents.from_residuals(runs[0].plan, [campaign_of([run]) for run in runs])
    except ValueError as error:
        raise UsageError("floor-plans", f"the floor cannot be sealed: {error}") from error
    path = evidence / FOLDER / f"archived-{document['digest'][:12]}" / FILE
    if not path.is_file():
        bundle.write_new(path, canonical.dumps(document))
    return path
