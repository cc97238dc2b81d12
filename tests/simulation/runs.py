"""Whole simulated campaigns as the product's own values: legs with each request's stamps, to be sealed as bundles.

The same legs and the same world as the trials of `nox -s simulation`, at the full size of the gate, but for the GPU's
axes: there is no NVML device in these runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from harness import campaign, floor_documents, index
from harness.floor_documents import Campaign
from harness.floor_store import packed
from harness.plan import LegPlan, Plan, partition, prompts_digest
from harness.records import Leg, MemorySample
from harness.settings import compose_config
from harness.verify import verify
from tests.builders import ALL, MS, SHA, STARTED, good_leg, load_report, request, sample, write_bundle
from tests.simulation import trials
from tests.simulation.legs import OUTPUT, POINTS, PROMPT, leg_times
from tests.simulation.trials import LEGS, PAIRS, World

__all__ = ["floor_of", "plan_of", "simulated", "write_run"]

NS = 1_000_000_000


def plan_of(floor: Any = None) -> Plan:
    """Gate G4 with its own workload; `floor` is the document of the floor that it names."""
    made = campaign.plan(
        compose_config(["gate=g4", "gate.model_gate=false", "gate.sequential_requests=0"]),
        subject={"weights_sha256": SHA},
        capabilities=ALL,
        host={"hostname": "testhost", "cpu": "simulated"},
        gpu=False,
        corpus={
            partition(c, number): prompts_digest([SHA] * count)
            for c, count in POINTS.items()
            for number in range(1, PAIRS + 1)
        },
        frozen_plan_sha256=None,
    )
    return made if floor is None else replace(made, floor={"digests": [floor["digest"]]})


def simulated(plan: Plan, world: World, rng: np.random.Generator, tpot: float = 0.0) -> list[Leg]:
    """One campaign of `plan` in `world`; arm A at c16 takes exp(`tpot`) times as long a token after the first."""
    slope, shift = rng.uniform(*world.drift) / LEGS, rng.normal(0, world.campaign)
    timed = [leg for leg in plan.legs if leg.kind == "timed"]
    times = {c: leg_times(c, 2 * PAIRS, rng) for c in POINTS}
    found = []
    for leg in plan.legs:
        if leg.kind != "timed" or leg.concurrency is None:
            found.append(good_leg(leg, plan))
            continue
        position = timed.index(leg)
        stretch = slope * position + (shift if leg.arm == "A" else 0.0)
        stretch += rng.normal(*world.cold) if position == 0 else 0.0
        ttft, gaps, duration = (each[position % (2 * PAIRS)] * np.exp(-stretch) for each in times[leg.concurrency])
        slower = np.exp(tpot) if (leg.arm, leg.concurrency) == ("A", 16) else 1.0
        found.append(_timed(leg, plan, (ttft, gaps * slower, duration), rng))
    return found


def _timed(planned: LegPlan, plan: Plan, times: tuple[Any, Any, Any], rng: np.random.Generator) -> Leg:
    ttft, gaps, duration = times
    stamps = np.rint(np.concatenate([ttft[:, None], ttft[:, None] + np.cumsum(gaps, axis=1)], axis=1) * NS).astype(int)
    records = tuple(
        replace(
            request(number, number * 20 * MS, tokens=OUTPUT),
            chunk_ns=tuple(row.tolist()),
            done_ns=int(row[-1]),
            prompt_tokens=PROMPT,
        )
        for number, row in enumerate(stamps)
    )
    assert planned.concurrency is not None
    load = load_report(planned.concurrency, len(records), round(float(duration) * NS))
    return replace(good_leg(planned, plan), requests=records, load=load, memory=_memory(rng))


def _memory(rng: np.random.Generator) -> tuple[MemorySample, ...]:
    pss = round(trials.PSS_KIB * (1 + rng.normal(0, trials.PSS_SD)))
    left = 90_000 - round(1000 * (1 + rng.normal(0, trials.DROP_SD)))
    return (sample(0, pss - 50_000), sample(1, pss, available=left), sample(2, None))


def floor_of(world: World, campaigns: int, rng: np.random.Generator) -> Any:
    """The document of a floor out of `campaigns` simulated campaigns of identical arms."""
    plan = plan_of()
    runs = [_campaign(simulated(plan, world, rng), number) for number in range(campaigns)]
    return floor_documents.from_campaigns(plan, runs, {"campaigns": campaigns, "attempts": campaigns})


def _campaign(legs: Sequence[Leg], number: int) -> Campaign:
    return Campaign([leg for leg in legs if leg.kind == "timed"], [str(number)], STARTED.isoformat())


def write_run(root: Path, plan: Plan, legs: Sequence[Leg], floor: Any, started: datetime) -> Path:
    """A sealed bundle of `legs`, listed in the index beside it."""
    write_bundle(root, plan, legs, extra={"floor.json": packed([floor])}, started=started)
    found = verify(root)
    assert found.verdict is not None, found.faults
    index.append(root.parent, run=root.name, plan=plan, digest=found.digest, verdict=found.verdict)
    return root
