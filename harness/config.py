"""Every configuration key, typed and explained. `conf/` holds the values; these classes hold types, units, meaning."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

__all__ = [
    "ArmConfig",
    "ClientConfig",
    "Config",
    "EngineConfig",
    "EvidenceConfig",
    "FloorConfig",
    "GateConfig",
    "HostConfig",
    "InterpretationConfig",
    "Key",
    "RuleConfig",
    "SigningConfig",
    "TraceConfig",
    "TracesConfig",
    "WorkloadConfig",
    "keys",
]


def key(meaning: str, *, unit: str = "", default: Any = "???") -> Any:
    """A configuration key: its meaning and unit are what `harness explain` prints. No default means mandatory."""
    metadata = {"meaning": meaning, "unit": unit}
    if isinstance(default, dict | list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class TraceConfig:
    path: str | None = key(
        "g3: a profiler's file of this arm: an `nsys export --type sqlite` file, or a torch profiler's JSON, plain or "
        "gzip; relative to where the command was started",
        default=None,
    )
    forwards: int = key("g3: whole forwards in that trace", default=0)


@dataclass
class TracesConfig:
    candidate: TraceConfig = field(default_factory=TraceConfig, metadata={"meaning": "arm A", "unit": ""})
    baseline: TraceConfig = field(default_factory=TraceConfig, metadata={"meaning": "arm B", "unit": ""})


@dataclass
class GateConfig:
    name: str = key("which gate's demands apply: g1, g2, g3, g4 or g5")
    concurrencies: list[int] = key("closed-loop concurrencies, in the order they are run", unit="requests in flight")
    repetitions: int = key("pairs of legs per concurrency")
    model_gate: bool = key("run the engine's own model gate for both arms first", default=True)
    sequential_requests: int = key(
        "prompts sent one at a time to each arm for the same-shape proof (g3: its load); 0 = none",
        unit="requests",
        default=6,
    )
    replays: int = key("g2: fresh processes that must load the frozen plan alike, arms alternating", default=0)
    traces: TracesConfig = field(default_factory=TracesConfig, metadata={"meaning": "g3: kernel traces", "unit": ""})
    families: list[dict[str, Any]] = key(
        "g3: kernels to be counted in a trace, as [{name: NAME, pattern: REGEX, per_forward: N}]; empty = those that "
        "the engine's adapter names",
        default=[],
    )
    architectures: list[str] = key("g1: GPU architectures to compile the sources for, such as 121a", default=[])
    stacked: bool = key("allow the arms to differ in more than one lever", default=False)
    prerequisites: list[str] = key("g5: sealed PASS bundles of G1 to G4 of the same subject", default=[])
    override: bool = key("g5: run without its prerequisites; the verdict then never binds", default=False)
    authorises: list[str] = key("g5: names of models whose grid may be timed once this one passes", default=[])
    second_model: str | None = key(
        "g5: this grid is of a second model, by its name; gate.prerequisites then also holds the sealed PASS of a grid "
        "that authorises it; null = this is the first model",
        default=None,
    )


@dataclass
class HostConfig:
    name: str = key("name of the host in reports")
    transport: str = key("how the host is reached: local (this machine) or ssh", default="local")
    address: str | None = key("ssh: the host's name, address or alias in the SSH configuration", default=None)
    user: str | None = key("ssh: user there; null = the SSH configuration's, else this one's", default=None)
    ssh_port: int | None = key("ssh: port of its sshd; null = the SSH configuration's, else 22", default=None)
    identity_file: str | None = key(
        "ssh: private key to log in with; null = the SSH configuration's, the agent's, then the usual files",
        default=None,
    )
    ssh_config: str | None = key(
        "ssh: SSH configuration file to read; null = ~/.ssh/config and the system's", default=None
    )
    known_hosts: str | None = key(
        "ssh: the one file of host keys to believe; null = the SSH configuration's and the usual files", default=None
    )
    connect_timeout_s: float = key("ssh: longest time for each step of connecting to a hop", unit="s", default=15.0)
    silence_s: float = key(
        "ssh: a link on which nothing was heard for so long is given up and opened again", unit="s", default=30.0
    )
    poll_s: float = key(
        "ssh: how long one look at a run may wait on the host for news; each costs it one short process",
        unit="s",
        default=30.0,
    )
    remote_dir: str | None = key(
        "ssh: folder there for sources, wheels and environment; null = ~/.local/share/nvfp4-gates", default=None
    )
    remote_python: str = key("ssh: the host's Python (3.11 to 3.13) that makes the environment", default="python3")
    lease_path: str = key("the lock file that means `GPU in use`", default="/tmp/gpu")
    lease_timeout_s: float = key("how long to wait for a lease that somebody holds", unit="s", default=600.0)
    port: int = key("port the engine listens on, on 127.0.0.1", default=8001)
    state_dir: str | None = key("where runs live while they run; null = the user's state directory", default=None)
    cache_dir: str | None = key(
        "where weights, corpora and engine environments are kept; null = the user's cache", default=None
    )
    max_load_average: float | None = key(
        "refuse to start above this one-minute load average; null = do not check", default=None
    )
    min_mem_available_mib: int = key("refuse to start a leg below this MemAvailable", unit="MiB", default=1024)
    min_disk_free_mib: int = key(
        "refuse to start below this free space in the state directory", unit="MiB", default=1024
    )
    ready_timeout_s: float = key("how long an engine may take until its first completion", unit="s", default=180.0)
    stop_grace_s: float = key("time between TERM and KILL for an engine's process group", unit="s", default=20.0)
    memory_return_timeout_s: float = key(
        "how long MemAvailable may take to come back after a leg", unit="s", default=60.0
    )
    sample_period_s: float = key("period of the memory sampler", unit="s", default=0.1)
    canary_factor: float = key(
        "void a leg whose canary (a fixed copy and product) is slower than the run's median by this factor", default=2.5
    )


@dataclass
class ArmConfig:
    flags: dict[str, Any] = key("server options of this arm", default={})
    env: dict[str, str] = key("environment variables of this arm", default={})


@dataclass
class EngineConfig:
    name: str = key(
        "which engine adapter runs the server: reference, llama_cpp, vllm, vllm_cpp, sglang, tensorrt_llm, openai"
    )
    options: dict[str, Any] = key("options of the adapter, the same for both arms", default={})
    candidate: ArmConfig = field(default_factory=ArmConfig, metadata={"meaning": "arm A: the change", "unit": ""})
    baseline: ArmConfig = field(default_factory=ArmConfig, metadata={"meaning": "arm B: what it replaces", "unit": ""})
    second: dict[str, Any] | None = key(
        "g2: options, beside `options`, of a second model whose tokens the change must leave alone; null = none",
        default=None,
    )
    plan: str | None = key("a native plan document to freeze; null seeds one in a read-write run", default=None)


@dataclass
class WorkloadConfig:
    name: str = key("name of the workload in reports")
    input_tokens: int = key("prompt length, exact", unit="tokens")
    output_tokens: int = key("completion length, exact", unit="tokens")
    points: dict[int, int] = key("timed requests per concurrency", unit="requests")
    tokenizer: str | None = key(
        "a tokenizer.json on the host, or `engine` for the engine's own: prompts are then texts of exact token counts; "
        "null = prompts are token ids",
        default=None,
    )
    seed: int = key("seed of the prompts and of the requests", default=0)
    binding: bool = key("whether a verdict on this workload may bind (rehearsals may not)", default=True)


@dataclass
class ClientConfig:
    name: str = key("which load client runs: closed_loop (our own) or vllm_bench (the real `vllm bench serve`)")
    executable: str | None = key(
        "vllm_bench: the `vllm` program on the host; null = the CPU build in its own environment", default=None
    )
    request_timeout_s: float = key("longest time one request may take", unit="s", default=300.0)
    leg_deadline_s: float = key("longest time one leg may take: start, load and stop together", unit="s", default=900.0)
    stall_timeout_s: float = key("longest time without a new token in the whole leg", unit="s", default=120.0)
    warmups: int | None = key(
        "untimed requests before a leg; null = as many as the concurrency", unit="requests", default=None
    )
    max_loop_lag_ms: float = key(
        "p99 lag of the client's loop above which a leg is void (arrivals are stamped by the kernel)",
        unit="ms",
        default=100.0,
    )


@dataclass
class InterpretationConfig:
    alpha: str = key("family-wise level of REAL and REAL-SMALL, after Holm", default="0.05")
    tost_alpha: str = key("level of the two one-sided tests behind NOISE", default="0.05")
    power: str = key("power behind smallest detectable effects and pairs needed", default="0.8")
    margins: dict[str, str] = key(
        "largest effect that does not matter, as a fraction, by axis or by statistic", default={}
    )
    one_campaign_from: str = key("an effect smaller than this is REAL only after two campaigns", default="0.01")
    min_campaigns: int = key("campaigns a floor must hold", default=8)
    floor_days: int = key("how long a floor may be used", unit="days", default=30)


@dataclass
class RuleConfig:
    name: str = key("name of the acceptance rule")
    version: int = key("version of the acceptance rule; old bundles are judged by the one they name")
    estimator: str = key("how repetitions are joined before the ratio: mean or median")
    threshold: str = key("smallest accepted direction-normalised ratio, as exact decimal text", default="1")
    order: str = key("order of the arms: seed = AB/BA/AB, abba = AB/BA/BA/AB, fixed = AB/AB/AB", default="seed")
    interpretation: InterpretationConfig | None = key(
        "levels, margins and demands on a floor for telling real misses from noise; null = strict verdict only",
        default=None,
    )


@dataclass
class EvidenceConfig:
    root: str = key(
        "folder under which sealed bundles are put; relative to where the command was started", default="evidence"
    )


@dataclass
class FloorConfig:
    paths: list[str] = key("sealed A/A floors to interpret the verdict by; G5 takes one of each engine", default=[])
    search: bool = key(
        "without floor.paths: take the newest floor under <evidence.root>/floors that fits the plan", default=True
    )
    campaigns: int = key("`harness floor`: campaigns to measure; fixed once it runs", default=14)
    attempts: int = key("`harness floor`: runs after which it gives up; fixed once it runs", default=28)


@dataclass
class SigningConfig:
    key: str | None = key(
        "private Ed25519 key that signs the sealed bundle; relative to where the command was started; null = unsigned",
        default=None,
    )


@dataclass
class Config:
    gate: GateConfig = field(default_factory=GateConfig)
    host: HostConfig = field(default_factory=HostConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    rule: RuleConfig = field(default_factory=RuleConfig)
    floor: FloorConfig = field(default_factory=FloorConfig)
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    signing: SigningConfig = field(default_factory=SigningConfig)
    rehearse: bool | None = key(
        "true = rehearse the plan against made processes and start nothing; null = rehearse before the lease is taken; "
        "false = start without, which the plan says",
        default=None,
    )
    rehearse_dir: str | None = key(
        "folder in which rehearsals are kept; relative to where the command was started; null = they are removed",
        default=None,
    )


@dataclass(frozen=True)
class Key:
    """One configuration key as `harness explain` prints it."""

    name: str
    type: str
    unit: str
    meaning: str


def keys() -> dict[str, Key]:
    """Every leaf key of the configuration by its dotted name."""
    return {found.name: found for found in _walk(Config, "")}


def _walk(cls: Any, prefix: str) -> list[Key]:
    hints = get_type_hints(cls)
    found: list[Key] = []
    for item in fields(cls):
        name, hint = prefix + item.name, hints[item.name]
        if is_dataclass(hint):
            found += _walk(hint, name + ".")
        else:
            kind = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
            found.append(Key(name, kind.replace("typing.", ""), item.metadata["unit"], item.metadata["meaning"]))
    return found
