"""What a leg leaves behind, as values. Standard library only: verify, axes and gates read these anywhere.

Units are in the names: `_ns` nanoseconds, `_kib` KiB, `_mib` MiB. Unknown is None and never 0. Monotonic stamps are
CLOCK_MONOTONIC and are written as strings, offsets from a request's start as integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from harness.errors import HarnessError

__all__ = [
    "ArmProof",
    "CacheDrop",
    "Canary",
    "Check",
    "GpuLook",
    "GpuState",
    "Leg",
    "LoadReport",
    "MemoryReturn",
    "MemorySample",
    "ModelGate",
    "PlanReport",
    "RequestRecord",
    "SamplerReport",
    "ServerReport",
    "Structure",
    "SuiteReport",
    "Trace",
]


def _known(cls: type, data: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The fields of `cls` out of `data`; a missing one is HarnessError `bad-record` naming it."""
    names = {field.name for field in fields(cls)}
    missing = sorted(names - data.keys())
    if missing:
        raise HarnessError("bad-record", f"{what} lacks {', '.join(missing)}")
    return {name: data[name] for name in names}


@dataclass(frozen=True)
class RequestRecord:
    """One streamed completion, as stamped at the socket.

    `start_ns` is taken right before the request's bytes are handed to the kernel; `chunk_ns[i]` is the offset at which
    the bytes that completed the i-th event with a non-empty `choices` list were readable; `done_ns` the offset of
    `[DONE]`. `chunk_tokens` is the running usage after each chunk where the server sends one, else None. Token counts
    come from `usage` alone. A request that failed in any way has `error` set and enters no axis.
    """

    index: int
    prompt_sha256: str
    start_ns: int
    chunk_ns: tuple[int, ...]
    chunk_tokens: tuple[int, ...] | None
    done_ns: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    text_sha256: str
    finish_reason: str | None
    status: int | None
    error: str | None
    retries: int
    shared_stamps: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "start_ns": str(self.start_ns)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RequestRecord:
        values = _known(cls, data, "a request record")
        tokens = values["chunk_tokens"]
        values.update(
            start_ns=int(values["start_ns"]),
            chunk_ns=tuple(values["chunk_ns"]),
            chunk_tokens=None if tokens is None else tuple(tokens),
        )
        return cls(**values)


@dataclass(frozen=True)
class LoadReport:
    """One closed-loop series as the client saw it; the requests themselves are in `requests.jsonl.gz`.

    `duration_ns` runs from the first timed request's start to the last one's end. `peak_in_flight` is computed from
    the intervals themselves, not from whole-second buckets. `loop_lag_p99_ns` is how late the client's loop was; None
    where the client does not measure it.
    """

    concurrency: int
    requests: int
    warmups: int
    duration_ns: int
    peak_in_flight: int
    loop_lag_p99_ns: int | None
    stamp_source: str
    itl_basis: str
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "duration_ns": str(self.duration_ns)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoadReport:
        values = _known(cls, data, "a load report")
        values.update(duration_ns=int(values["duration_ns"]), warnings=tuple(values["warnings"]))
        return cls(**values)


@dataclass(frozen=True)
class MemorySample:
    """One sample of an engine's process tree and of the host. `alive` is False once no process of the tree is left.

    `gpu_mib` sums NVML's per-process memory over the tree; None with `gpu_reason` where there is no device or the
    answer was not available. `pids` are (pid, start time in clock ticks since boot), so that a reused pid is seen.
    """

    t_ns: int
    alive: bool
    pids: tuple[tuple[int, int], ...]
    pss_kib: int | None
    rss_kib: int | None
    mem_available_kib: int | None
    gpu_mib: int | None
    gpu_reason: str | None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "t_ns": str(self.t_ns), "pids": [list(pid) for pid in self.pids]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemorySample:
        values = _known(cls, data, "a memory sample")
        values.update(t_ns=int(values["t_ns"]), pids=tuple((int(pid), int(start)) for pid, start in values["pids"]))
        return cls(**values)


@dataclass(frozen=True)
class PlanReport:
    """The FP4 plan state of one server process, read from its log (and, for lazy misses, its counters)."""

    mode: str
    loaded: int
    tuned: int
    rejected: int
    saved: int
    lazy_misses: int
    delay_us: int
    metadata: str
    selected: tuple[tuple[int, int, int, int], ...]  # (M bucket, N, K, tactic), sorted
    map_sha256: str
    faults: tuple[str, ...] = ()  # lines with a plan-cache prefix that this project does not expect
    tuning: Mapping[str, int] | None = None  # candidates, warmups, delays and timed launches, where they are counted

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "selected": [list(row) for row in self.selected], "faults": list(self.faults)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanReport:
        values = _known(cls, {"tuning": None, **data}, "a plan report")
        values.update(
            selected=tuple((int(m), int(n), int(k), int(tactic)) for m, n, k, tactic in values["selected"]),
            faults=tuple(values["faults"]),
        )
        return cls(**values)


@dataclass(frozen=True)
class ArmProof:
    """Whether the arm's switch was really active in one process: which counter or line says so."""

    active: bool
    seen: str
    required: str
    values: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArmProof:
        return cls(**_known(cls, data, "an arm proof"))


@dataclass(frozen=True)
class ServerReport:
    """What one server process says it runs with, as text. None: it does not say.

    `planned` are the arm's arguments, `resolved` the same names in the server's own words; `configuration` is what
    makes servers different engines (async_scheduling, prefix_caching, capacity, dtype); `source` is where it was read.
    """

    planned: Mapping[str, str]
    resolved: Mapping[str, str | None]
    configuration: Mapping[str, str | None]
    source: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServerReport:
        return cls(**_known(cls, data, "a server's report"))


@dataclass(frozen=True)
class CacheDrop:
    """One page-cache drop, proven by mincore. The inventory digest is over relative paths and sizes."""

    succeeded: bool
    file_count: int
    inventory_sha256: str
    resident_after_bytes: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CacheDrop:
        return cls(**_known(cls, data, "a cache drop"))


@dataclass(frozen=True)
class MemoryReturn:
    """Whether MemAvailable came back after an engine was stopped, within its tolerance."""

    returned: bool
    baseline_kib: int
    final_kib: int
    tolerance_kib: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemoryReturn:
        return cls(**_known(cls, data, "a memory return"))


@dataclass(frozen=True)
class ModelGate:
    """Counts parsed from the engine's own correctness program; `tokens` of `of` were exact."""

    cases: int
    assertions: int
    failed: int
    skipped: int
    tokens: int
    of: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelGate:
        return cls(**_known(cls, data, "a model gate report"))


@dataclass(frozen=True)
class SuiteReport:
    """One process of an engine's own tests: its closing counts by their words (passed, skipped, failed, errors, …, or
    collected; a sanitizer's errors and warnings), what was skipped (test and reason) and what failed, by name."""

    counts: Mapping[str, int]
    skipped: tuple[str, ...]
    failed: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SuiteReport:
        values = _known(cls, data, "a suite report")
        counts = {str(word): int(number) for word, number in values["counts"].items()}
        return cls(counts, tuple(map(str, values["skipped"])), tuple(map(str, values["failed"])))


@dataclass(frozen=True)
class Trace:
    """Launches by kernel name. `graph_launches` counts replays of CUDA graphs, `graph_nodes` the kernels seen in them.

    `graph_launches` is None where the profiler does not tell.
    """

    kernels: Mapping[str, int]
    graph_launches: int | None = None
    graph_nodes: int = 0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Structure:
    """What one process of G3 showed of its work: its counters at readiness and after its load, by what they count.

    `oracle` is the plan map that it should have selected, rows as in `PlanReport.selected`, None where there is none;
    `trace` and the SHA-256 of its file are of the arm, and with the arm's first process only.
    """

    ready: Mapping[str, int | None]
    end: Mapping[str, int | None]
    oracle: tuple[tuple[int, int, int, int], ...] | None = None
    trace: Trace | None = None
    trace_sha256: str | None = None


@dataclass(frozen=True)
class GpuState:
    """One board at one moment. `reasons` are the clock event reasons now active, `counters_ns` their times so far.

    What the board does not answer is None (or absent) and has its reason in `absent`, by the same name.
    """

    uuid: str
    temperature_c: int | None
    power_mw: int | None
    sm_mhz: int | None
    memory_mhz: int | None
    reasons: tuple[str, ...] | None
    counters_ns: Mapping[str, int | None]
    absent: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        counters = {name: None if value is None else str(value) for name, value in self.counters_ns.items()}
        return {**asdict(self), "counters_ns": counters}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GpuState:
        values = _known(cls, data, "a GPU's state")
        counters = {name: None if value is None else int(value) for name, value in values["counters_ns"].items()}
        reasons = values["reasons"]
        return cls(**{**values, "counters_ns": counters, "reasons": None if reasons is None else tuple(reasons)})


@dataclass(frozen=True)
class GpuLook:
    """What NVML said right before or after a leg: who it is (driver, library, devices) and how each board does.

    `identity` is None where there is no NVML device; `reason` says why.
    """

    identity: Mapping[str, Any] | None
    states: tuple[GpuState, ...]
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "states": [state.to_json() for state in self.states],
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GpuLook:
        values = _known(cls, data, "a look at the GPUs")
        return cls(**{**values, "states": tuple(GpuState.from_json(item) for item in values["states"])})


@dataclass(frozen=True)
class Canary:
    """Best times of fixed work by name (cpu_copy, cpu_gemv, gpu_copy, gpu_gemv); `absent` has the others' reasons."""

    best_ns: Mapping[str, int]
    absent: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Canary:
        return cls(**_known(cls, data, "a canary"))


@dataclass(frozen=True)
class SamplerReport:
    """How one leg's memory was measured: by which GPU method, and how often in full (PSS) and in short (RSS)."""

    gpu_method: str | None
    samples: int
    smaps_samples: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SamplerReport:
        return cls(**_known(cls, data, "a sampler's report"))


@dataclass(frozen=True)
class Leg:
    """Everything one process left behind. `kind` is seed, model-gate, sequential, concurrent, inertness, replay,
    structure, sanitizer or timed; in G1, which starts no server, it is collect, suite or build.

    `texts` are the completions of a sequential or concurrent proof, in prompt order. A part that this kind of leg does
    not have, or that the engine cannot give, is None.
    """

    name: str
    kind: str
    arm: str
    concurrency: int | None
    repetition: int | None
    exit: str
    requests: tuple[RequestRecord, ...] = ()
    load: LoadReport | None = None
    memory: tuple[MemorySample, ...] = ()
    mem_baseline_kib: int | None = None
    cache_before: CacheDrop | None = None
    cache_after: CacheDrop | None = None
    memory_return: MemoryReturn | None = None
    plans: PlanReport | None = None
    plan_sha256: tuple[str, str] | None = None  # the frozen document before and after this process
    arm_proof: ArmProof | None = None
    server: ServerReport | None = None
    model_gate: ModelGate | None = None
    suite: SuiteReport | None = None
    texts: tuple[str, ...] = ()
    gpu_before: GpuLook | None = None
    gpu_after: GpuLook | None = None
    canary_before: Canary | None = None
    canary_after: Canary | None = None
    sampler: SamplerReport | None = None
    command: Mapping[str, Any] | None = None  # argv, env and cwd of the process that this leg started
    structure: Structure | None = None


@dataclass(frozen=True)
class Check:
    """One validity check: a stable code, where, what was seen and what was required."""

    code: str
    where: str
    seen: str
    required: str
    ok: bool
