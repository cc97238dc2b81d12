"""What the harness asks of a server, and what a server may answer: one adapter an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from harness.records import ArmProof, ModelGate, PlanReport, ServerReport, SuiteReport

__all__ = [
    "Address",
    "ArmProof",
    "Engine",
    "Launch",
    "ModelGate",
    "PlanReport",
    "Rehearsing",
    "Said",
    "ServerReport",
    "Suite",
    "WithSanitizer",
    "WithStructure",
    "WithSuites",
]


@dataclass(frozen=True)
class Launch:
    """How one server process is started: no shell, and only this environment (plus the harness's fixed clean base)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True)
class Suite:
    """A command of the engine's own. `kind`: collect (it counts the tests), suite (it runs them), build, or sanitizer
    (its kernels under compute-sanitizer).

    The name is part of its leg's, and of a file's: letters, digits, dashes.
    """

    name: str
    kind: str
    launch: Launch


@dataclass(frozen=True)
class Address:
    """Where a server that somebody else runs answers. `prefix` comes before /v1, without a slash at its end."""

    host: str
    port: int
    prefix: str = ""


class Engine(Protocol):
    """An adapter. `options` of the configuration are validated by its constructor, before anything is started.

    Capabilities: `fp4_plans` (plan documents and a plan log), `arm_counters` (a proof of the arm), `model_gate`
    (fixed assertions of its own), `sequential_proof` (completions are comparable across arms), `token_ids` (prompts may
    be token ids), `server_arguments` (it says its resolved arguments back), `gpu` (it computes on the GPU, so that GPU
    memory is an axis). What is absent is not-applicable and makes the run non-binding; `server_arguments` alone may
    lack without that. `external` says that the servers run already and are not this run's.
    """

    name: str
    capabilities: frozenset[str]
    running_usage: bool  # its clients ask for usage in every chunk, since a chunk may carry several tokens

    @property
    def vocabulary(self) -> int:
        """Token ids in prompts are drawn from [first_token, vocabulary)."""

    @property
    def first_token(self) -> int:
        """The least id that prompts may hold."""

    def identity(self) -> Mapping[str, Any]:
        """What the subject is: versions, weights digest, build id. No absolute path. Goes into the plan's digest."""

    def prepare(self) -> None:
        """Make what every process reads (weights). Idempotent; runs before the lease. UsageError when it cannot."""

    def cache_roots(self) -> Sequence[Path]:
        """Files and folders to be dropped from the page cache around each leg: weights, never libraries or outputs."""

    def launch(self, arm: Mapping[str, Any], port: int, plan: Path | None, read_only: bool) -> Launch:
        """The server of one arm. `arm` is {'flags': {...}, 'env': {...}} out of the configuration."""

    def attached(self, arm: Mapping[str, Any]) -> Address | None:
        """The arm's server where somebody else runs it (`external`); None where `launch` starts it."""

    def served_model(self) -> str:
        """The id under which /v1/models and completions know the model."""

    def plan_report(self, log: str, metrics: str) -> PlanReport | None:
        """The plan state from a finished process's log and last /metrics text; None without `fp4_plans`."""

    def proof_paths(self) -> Sequence[str]:
        """Paths to GET beside /metrics before the server is stopped; their bodies follow its text, each on a line."""

    def arm_proof(self, arm: Mapping[str, Any], log: str, metrics: str) -> ArmProof | None:
        """The proof that the arm was active; None without `arm_counters`."""

    def server_report(self, arm: Mapping[str, Any], log: str, metrics: str) -> ServerReport | None:
        """The arguments that the server says it resolved, beside the arm's; None without `server_arguments`."""

    def tokenizer(self) -> Path | None:
        """The model's tokenizer.json; None where there is none to make text prompts with."""

    def model_gate_argv(self, arm: Mapping[str, Any], plan: Path | None) -> Launch | None:
        """The engine's own correctness program for one arm; None without `model_gate`."""

    def model_gate_report(self, log: str) -> ModelGate | None:
        """Counts parsed from that program's output; None when they are not there."""


@runtime_checkable
class WithSanitizer(Protocol):
    """An engine whose kernels can be run under compute-sanitizer, for G2."""

    def sanitizers(self) -> Sequence[Suite]:
        """One command a tool, the tool by its absolute path; none where the engine does not compute on a GPU."""

    def not_sanitized(self) -> Mapping[str, str]:
        """What keeps a GPU's kernels from being checked, with its reason; nothing without a GPU."""


@runtime_checkable
class WithSuites(Protocol):
    """An engine that brings tests of its own for G1."""

    def suites(self, architectures: Sequence[str]) -> Sequence[Suite]:
        """What G1 runs, in order. UsageError where one cannot be started, or an architecture cannot be compiled for."""

    def not_tested(self, architectures: Sequence[str]) -> Mapping[str, str]:
        """What G1 asks for and `suites` does not hold, each with its reason."""

    def suite_report(self, log: str) -> SuiteReport | None:
        """Counts and names parsed from such a command's output; None when it has no end."""


@dataclass(frozen=True)
class Said:
    """What one healthy process of an engine would leave: its log, what it would answer by path (/metrics and the
    adapter's pages), what of this is another answer `after` a load, and the plan document that a seed would save."""

    log: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    document: bytes | None = None


@runtime_checkable
class Rehearsing(Protocol):
    """An engine that can say, without its program, what its processes say; `harness.rehearsal` then reads that back."""

    def rehearsed(self, kind: str, arm: Mapping[str, Any], plan: Path | None) -> Said:
        """For a leg of `kind`. `plan` is the document that the process reads; of a seed, none is there yet."""


@runtime_checkable
class WithStructure(Protocol):
    """An engine that counts what G3 asks, or of which an oracle's plans are known."""

    def structure(self) -> Mapping[str, Any]:
        """After `prepare`. Each part may be absent:

        `counters`: lines of /metrics that count gemms, forwards, parses (of plan documents) and lazy misses.
        `gemms_per_forward`, from the model's sizes, and `gemms_because`, how it was computed.
        `documents`: how many plan documents a process parses while it loads.
        `oracle`: rows (M bucket, N, K, tactic) and `oracle_source`, what they are; else it is the frozen document.
        `runners`: the gauge of /metrics, labelled `runner`, with the first tactic id of each runner in a document.
        `families`: kernels to be counted in a trace: name, pattern, per_forward.
        """
