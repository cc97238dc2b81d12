"""Synthetic evidence for tests: a plan, legs as values, and a bundle on disk. No engine is involved."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import bundle, campaign, canonical, verify, witnesses
from harness.config import Config
from harness.derived import derived
from harness.journal import Journal
from harness.plan import LegPlan, Plan, partition, prompts_digest
from harness.records import (
    ArmProof,
    CacheDrop,
    Canary,
    GpuLook,
    GpuState,
    Leg,
    LoadReport,
    MemoryReturn,
    MemorySample,
    ModelGate,
    PlanReport,
    RequestRecord,
    SamplerReport,
    Structure,
)
from harness.settings import compose_config
from harness.structure import END, READY

ALL = ("arm_counters", "fp4_plans", "model_gate", "sequential_proof", "token_ids")
SMALL = (
    "gate.concurrencies=[2]",
    "gate.repetitions=3",
    "gate.sequential_requests=2",
    "workload=rehearsal",
    "workload.points={2: 4}",
    "workload.output_tokens=3",
)
MS = 1_000_000
STARTED = datetime(2026, 12, 7, 12, tzinfo=UTC)
SHA = "a" * 64
COMMAND = {"argv": ["/engine"], "env": {"VT_FP4_DIRECT_SF": "1"}, "cwd": "/"}
# What an adapter says of its engine for G3, and what two forwards before readiness and ten after it then count.
STRUCTURE = {
    "counters": {
        "gemms": "gemms_total",
        "forwards": "forwards_total",
        "parses": "parses_total",
        "misses": "misses_total",
    },
    "documents": 1,
    "gemms_per_forward": 8,
    "gemms_because": "2 layers x 4 projections",
}
COUNTED = (
    {"gemms": 16, "forwards": 2, "parses": 1, "misses": 0},
    {"gemms": 96, "forwards": 12, "parses": 1, "misses": 0},
)
CANARY = Canary({"cpu_copy": 2_500_000, "cpu_gemv": 15_000}, dict.fromkeys(("gpu_copy", "gpu_gemv"), "no NVML device"))


def small_config(*overrides: str) -> Config:
    return compose_config([*SMALL, *overrides])


def small_plan(
    *overrides: str, capabilities: Sequence[str] = ALL, gpu: bool = False, traces: Mapping[str, Any] | None = None
) -> Plan:
    able = (*capabilities, "gpu") if gpu else capabilities
    return campaign.plan(
        small_config(*overrides),
        subject={"weights_sha256": SHA},
        capabilities=able,
        host={"hostname": "testhost", "cpu": "test"},
        gpu=gpu,
        corpus={partition(2, number): prompts_digest([SHA] * 4) for number in (1, 2, 3)},
        frozen_plan_sha256=None,
        structure=STRUCTURE,
        traces=traces,
    )


def request(
    index: int, start_ns: int, *, ttft_ns: int = 10 * MS, gap_ns: int = MS, tokens: int = 3, **changes: Any
) -> RequestRecord:
    offsets = tuple(ttft_ns + gap_ns * step for step in range(tokens))
    record = RequestRecord(
        index=index,
        prompt_sha256=SHA,
        start_ns=start_ns,
        chunk_ns=offsets,
        chunk_tokens=None,
        done_ns=offsets[-1],
        prompt_tokens=64,
        output_tokens=tokens,
        text_sha256=SHA,
        finish_reason="length",
        status=200,
        error=None,
        retries=0,
        shared_stamps=0,
    )
    return replace(record, **changes)


def plan_report(tactics: Mapping[tuple[int, int, int], int] | None = None, **changes: Any) -> PlanReport:
    plans = {(1, 64, 32): 0, (2, 64, 32): 1} if tactics is None else dict(tactics)
    selected = tuple(sorted((m, n, k, tactic) for (m, n, k), tactic in plans.items()))
    report = PlanReport(
        mode="read-only",
        loaded=len(selected),
        tuned=0,
        rejected=0,
        saved=0,
        lazy_misses=0,
        delay_us=0,
        metadata="f" * 16,
        selected=selected,
        map_sha256=canonical.sha256_bytes(canonical.dumps([list(row) for row in selected])),
    )
    return replace(report, **changes)


def frozen_document(rows: Sequence[tuple[int, int, int, int]] | None = None) -> bytes:
    """A native plan document of these (M bucket, N, K, tactic), as far as G3 reads it."""
    plans = plan_report().selected if rows is None else rows
    entries = [{"m_bucket": m, "n": n, "k": k, "tactic_id": tactic, "runner": "R"} for m, n, k, tactic in plans]
    return canonical.dumps({"plans": entries})


def good_leg(planned: LegPlan, plan: Plan, *, scale: float = 1.0) -> Leg:
    """A leg as a healthy run leaves it. `scale` stretches every latency."""
    base = Leg(planned.name, planned.kind, planned.arm, planned.concurrency, planned.repetition, "exit code 0")
    base = replace(base, plans=plan_report(), plan_sha256=(SHA, SHA), command=COMMAND)
    if planned.kind == "seed":
        return replace(base, plans=plan_report(mode="read-write", tuned=2, loaded=0, saved=2), plan_sha256=None)
    if planned.kind == "model-gate":
        return replace(base, model_gate=ModelGate(4, 20, 0, 0, 16, 16))
    base = replace(base, arm_proof=ArmProof(True, "0 swizzles", "0 swizzles"))
    if planned.kind == "replay":
        return base
    if planned.kind == "structure":
        assert planned.concurrency is not None
        records = tuple(request(index, index * 100 * MS) for index in range(2))
        idle = {"candidates": 0, "warmups": 0, "delays": 0, "timed": 0}
        shown = Structure(*COUNTED, plan_report().selected)
        load = load_report(planned.concurrency, 2)
        return replace(base, requests=records, load=load, plans=plan_report(tuning=idle), structure=shown)
    if planned.kind in ("sequential", "concurrent", "inertness"):
        records = tuple(request(index, index * 100 * MS) for index in range(2))
        return replace(base, requests=records, texts=("ab", "cd"), load=load_report(1, 2))
    return replace(_timed(base, plan, scale), repetition=planned.repetition)


def load_report(concurrency: int, requests: int, duration_ns: int = 1000 * MS) -> LoadReport:
    return LoadReport(concurrency, requests, concurrency, duration_ns, concurrency, MS // 10, "kernel", "chunk", ())


def _timed(base: Leg, plan: Plan, scale: float) -> Leg:
    assert base.concurrency is not None
    count = plan.requests(base.concurrency)
    ttft, gap = round(10 * MS * scale), round(MS * scale)
    records = tuple(request(index, index * 20 * MS, ttft_ns=ttft + index, gap_ns=gap) for index in range(count))
    drop = CacheDrop(True, 3, SHA, 0)
    timed = replace(
        base,
        requests=records,
        load=load_report(base.concurrency, count, round(1000 * MS * scale)),
        memory=(sample(0, 1000), sample(1, 1100), sample(2, None)),
        mem_baseline_kib=100_000,
        cache_before=drop,
        cache_after=drop,
        memory_return=MemoryReturn(True, 100_000, 99_990, 1000),
        canary_before=CANARY,
        canary_after=CANARY,
    )
    return replace(timed, **_gpu_records()) if plan.gpu else timed


def _gpu_records() -> dict[str, Any]:
    """What a leg on a GPU has beside the rest: 4,096 MiB in every live sample and a cool board."""
    look = GpuLook({"driver_version": "580.10"}, (gpu_state(),), None)
    rows = (sample(0, 1000, gpu=4096), sample(1, 1100, gpu=4096), sample(2, None))
    return {
        "memory": rows,
        "gpu_before": look,
        "gpu_after": look,
        "sampler": SamplerReport("per-process-sum", len(rows), len(rows)),
    }


def gpu_state(uuid: str = "GPU-0", **counters: int | None) -> GpuState:
    known = {"sw_thermal": 5, "hw_thermal": 0, "hw_power_brake": 0, **counters}
    return GpuState(uuid, 50, 30_000, 2400, None, ("gpu_idle",), known, {"memory_mhz": "not supported"})


def sample(step: int, kib: int | None, available: int = 90_000, gpu: int | None = None) -> MemorySample:
    alive = kib is not None
    reason = None if gpu is not None else "no-nvml"
    return MemorySample(step * 100 * MS, alive, ((42, 7),) if alive else (), kib, kib, available, gpu, reason)


def good_legs(plan: Plan, *, scale_a: float = 1.0, scale_b: float = 1.0) -> list[Leg]:
    return [good_leg(leg, plan, scale=scale_a if leg.arm == "A" else scale_b) for leg in plan.legs]


def write_bundle(
    root: Path,
    plan: Plan,
    legs: Sequence[Leg],
    *,
    drained: int = 0,
    extra: Mapping[str, bytes] | None = None,
    started: datetime = STARTED,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """A sealed bundle of `legs`, written as the supervisor and the controller would. `extra` are further files."""
    bundle.write_new(root / "plan.json", plan.to_bytes())
    for name, data in (extra or {}).items():
        bundle.write_new(root / name, data)
    journal = Journal(root / "journal.jsonl", lambda: started)
    journal.write("start", boot_id="boot", lease={"since": "now", "token": "1"}, earlier=list(earlier), nonce="00")
    for leg in legs:
        write_leg(root / "legs" / leg.name, leg)
        journal.write("leg", leg=leg.name, files=witnesses.of_folder(root / "legs" / leg.name))
    journal.write("end", boot_id="boot", left_behind=[], files=witnesses.of_folder(root))
    bundle.write_new(root / "keeper.json", canonical.dumps({"phase": "released", "drained": drained}))
    verdict = verify.assess(root)
    bundle.write_new(root / "verdict.json", canonical.dumps(verdict))
    digest = bundle.seal(root)
    for name, data in derived(root, verdict, digest).items():
        bundle.write_new(root / name, data)
    return root


def write_leg(folder: Path, leg: Leg) -> None:
    head = {"name": leg.name, "kind": leg.kind, "arm": leg.arm, "exit": leg.exit}
    for name, value in (("load", leg.load), ("arm_proof", leg.arm_proof), ("model_gate", leg.model_gate)):
        if value is not None:
            head[name] = value.to_json() if hasattr(value, "to_json") else vars(value)
    bundle.write_new(folder / "leg.json", canonical.dumps(head))
    rows = b"".join(canonical.dumps(record.to_json()) for record in leg.requests)
    bundle.write_new(folder / "requests.jsonl.gz", gzip.compress(rows, mtime=0))
    bundle.write_new(folder / "memory.jsonl", b"".join(canonical.dumps(item.to_json()) for item in leg.memory))
    bundle.write_new(folder / "texts.jsonl", b"".join(canonical.dumps({"text": text}) for text in leg.texts))
    if leg.plans is not None:
        sha = {"before": leg.plan_sha256[0], "after": leg.plan_sha256[1]} if leg.plan_sha256 else None
        bundle.write_new(
            folder / "plans.json", canonical.dumps({"report": leg.plans.to_json(), "document_sha256": sha})
        )
    if leg.command is not None:
        bundle.write_new(folder / "command.json", canonical.dumps(dict(leg.command)))
    if leg.structure is not None:
        for name, counted in ((READY, leg.structure.ready), (END, leg.structure.end)):
            lines = [f"# TYPE {role}_total counter\n{role}_total {value}\n" for role, value in counted.items()]
            bundle.write_new(folder / name, "".join(lines).encode())
    if leg.sampler is not None:
        bundle.write_new(folder / "sampler.json", canonical.dumps(vars(leg.sampler)))
    if leg.cache_before and leg.cache_after and leg.memory_return:
        before = {"mem_available_kib": leg.mem_baseline_kib, "cache_drop": vars(leg.cache_before)}
        after = {"cache_drop": vars(leg.cache_after), "memory_return": vars(leg.memory_return)}
        for host, look, canary in (
            (before, leg.gpu_before, leg.canary_before),
            (after, leg.gpu_after, leg.canary_after),
        ):
            host |= {"gpu": look.to_json()} if look else {}
            host |= {"canary": canary.to_json()} if canary else {}
        bundle.write_new(folder / "host-before.json", canonical.dumps(before))
        bundle.write_new(folder / "host-after.json", canonical.dumps(after))
