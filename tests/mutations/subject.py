"""Synthetic sealed bundles with a file of every class: GPU, floor, frozen plans, logs, statements, a signature; and of
G3 with its counters and a kernel trace in each form that is kept."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harness import canonical, floor_documents, signing, traces
from harness.ed25519 import PrivateKey
from harness.floor_documents import Campaign
from harness.plan import Plan
from harness.records import Leg, Trace
from tests.builders import ALL, MS, STARTED, frozen_document, good_leg, good_legs, small_plan, write_bundle

__all__ = ["signed_bundle", "structure_bundle"]


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
            f"{folder}/gpu.jsonl": rows,
        }
    write_bundle(root, plan, legs, extra=extra)
    return _signed(root)


def structure_bundle(root: Path) -> PrivateKey:
    """A G3 whose candidate's trace is kept whole and whose baseline's is kept as its launches; as `signed_bundle`."""
    whole = {"traceEvents": [{"cat": "kernel", "name": "fp4_gemm"}] * 16}
    files = {
        "trace-A.pt.trace.json": canonical.dumps(whole),
        "trace-B.kernels.json": traces.table(Trace({"fp4_gemm": 16})),
    }
    named = {
        name[6]: {"file": name, "sha256": canonical.sha256_bytes(data), "forwards": 2} for name, data in files.items()
    }
    family = "gate.families=[{name: fp4_gemm, pattern: fp4_gemm, per_forward: 8}]"
    plan = small_plan("gate=g3", family, capabilities=(*ALL, "gpu"), traces=named)
    write_bundle(root, plan, good_legs(plan), extra={**files, "frozen-plans.json": frozen_document()})
    return _signed(root)


def _signed(root: Path) -> PrivateKey:
    key = PrivateKey(Ed25519PrivateKey.generate())
    signing.sign(root, key)
    return key


def _legs(plan: Plan, seed: int) -> list[Leg]:
    rng = random.Random(seed)
    return [good_leg(leg, plan, scale=rng.gauss(1, 0.002)) for leg in plan.legs]


def _timed(plan: Plan, seed: int) -> list[Leg]:
    return [leg for leg in _legs(plan, seed) if leg.kind == "timed"]
