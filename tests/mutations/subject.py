"""A synthetic sealed bundle with a file of every class: GPU, floor, frozen plans, logs, statements, a signature."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harness import canonical, floor_documents, signing
from harness.ed25519 import PrivateKey
from harness.floor_documents import Campaign
from harness.plan import Plan
from harness.records import Leg
from tests.builders import MS, STARTED, good_leg, small_plan, write_bundle

__all__ = ["signed_bundle"]


CAMPAIGNS = 8


def signed_bundle(root: Path) -> PrivateKey:
    """Write it to `root`; returns the key that signed it."""
    plan = small_plan(gpu=True)
    runs = [Campaign(_timed(plan, seed), [str(seed)], STARTED.isoformat()) for seed in range(CAMPAIGNS)]
    floor = floor_documents.from_campaigns(plan, runs, {"campaigns": CAMPAIGNS, "attempts": CAMPAIGNS})
    plan = replace(plan, floor={"digests": [floor["digest"]]})
    legs = _legs(plan, CAMPAIGNS)
    extra = {
        "floor.json": canonical.dumps({"floors": [floor]}),
        "command.json": canonical.dumps({"invoked_in": "/somewhere", "evidence_root": "/somewhere/evidence"}),
        "frozen-plans.json": canonical.dumps({"format": "synthetic", "plans": {}}),
    }
    for number, leg in enumerate(legs):
        folder = f"legs/{leg.name}"
        rows = b"".join(canonical.dumps({"t_ns": str(step * 100 * MS), "reading": number}) for step in range(3))
        extra |= {
            f"{folder}/engine.log": f"line 1 of {leg.name}\nline 2\nline 3\n".encode(),
            f"{folder}/command.json": canonical.dumps({"argv": ["engine", leg.name], "env": {}, "cwd": "/somewhere"}),
            f"{folder}/gpu.jsonl": rows,
        }
    write_bundle(root, plan, legs, extra=extra)
    key = PrivateKey(Ed25519PrivateKey.generate())
    signing.sign(root, key)
    return key


def _legs(plan: Plan, seed: int) -> list[Leg]:
    rng = random.Random(seed)
    return [good_leg(leg, plan, scale=rng.gauss(1, 0.002)) for leg in plan.legs]


def _timed(plan: Plan, seed: int) -> list[Leg]:
    return [leg for leg in _legs(plan, seed) if leg.kind == "timed"]
