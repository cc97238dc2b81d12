"""The frozen plan of a run, as a value. Its canonical bytes are `plan.json`; their SHA-256 is the run's identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.rule import altered

__all__ = ["FORMAT", "Arm", "LegPlan", "NotApplicable", "Plan", "leg_order", "partition", "prompts_digest"]

FORMAT = "nvfp4-gates-plan-v1"
LATER = ("aa", "floor", "prerequisites", "rehearsal", "structure", "unprofiled")
ORDERS = {"seed": ("AB", "BA", "AB"), "abba": ("AB", "BA", "BA", "AB"), "fixed": ("AB",)}


@dataclass(frozen=True)
class LegPlan:
    """One server process to be run. `name` is its folder under `legs/`."""

    name: str
    kind: str
    arm: str
    concurrency: int | None = None
    repetition: int | None = None


@dataclass(frozen=True)
class NotApplicable:
    """What this engine or host cannot do, fixed before the first leg."""

    what: str
    reason: str


@dataclass(frozen=True)
class Arm:
    """One side of the comparison, as configured."""

    flags: Mapping[str, Any]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """Everything that decides what a run does and how it is judged; nothing that names a place on a disk."""

    gate: str
    concurrencies: tuple[int, ...]
    repetitions: int
    stacked: bool
    workload: Mapping[str, Any]
    client: Mapping[str, Any]
    rule: Mapping[str, Any]
    engine: str
    options: Mapping[str, Any]
    candidate: Arm
    baseline: Arm
    subject: Mapping[str, Any]
    capabilities: tuple[str, ...]
    host: Mapping[str, Any]
    gpu: bool
    corpus: Mapping[str, str]
    frozen_plan_sha256: str | None
    difference: tuple[str, ...]
    legs: tuple[LegPlan, ...]
    not_applicable: tuple[NotApplicable, ...]
    harness: str
    format: str = FORMAT
    aa: Mapping[str, Any] | None = None  # a campaign of an A/A floor: its number, and the pairs it still lacks
    floor: Mapping[str, Any] | None = None  # the floors by which the verdict is interpreted, by their digests
    prerequisites: Mapping[str, Any] | None = None  # G5: the sealed bundles it stands on, and whether it was overridden
    rehearsal: bool | None = None  # true: this is a rehearsal; false: started without one (`rehearse=false`)
    structure: Mapping[str, Any] | None = None  # G3: what the engine must launch and select; the traces that were given
    unprofiled: bool | None = None  # G4, G5: no profiler may have been at work in a timed process

    def requests(self, concurrency: int) -> int:
        return int(self.workload["points"][str(concurrency)])

    @property
    def input_tokens(self) -> int:
        return int(self.workload["input_tokens"])

    @property
    def output_tokens(self) -> int:
        return int(self.workload["output_tokens"])

    @property
    def memory(self) -> bool:
        """Whether memory is measured: not where the servers run already and are not this run's own."""
        return "external" not in self.capabilities

    @property
    def ladder(self) -> bool:
        """Whether memory is one value a repetition, over all concurrencies, and the repetitions are run in turn."""
        return self.gate == "g5"

    @property
    def measured(self) -> tuple[int, ...]:
        """The concurrencies that have timed legs: all, but in a run that finishes a campaign of a floor."""
        timed = {leg.concurrency for leg in self.legs if leg.kind == "timed"}
        return tuple(concurrency for concurrency in self.concurrencies if concurrency in timed)

    def arm(self, letter: str) -> Arm:
        return self.candidate if letter == "A" else self.baseline

    def unbinding(self) -> list[str]:
        """Why a verdict on this plan cannot bind; empty when it can."""
        reasons = [f"{item.what}: {item.reason}" for item in self.not_applicable]
        if self.rehearsal:
            reasons.append("this is a rehearsal against made processes: nothing was measured")
        if not self.workload["binding"]:
            reasons.append(f"workload {self.workload['name']} is a rehearsal")
        if self.rule["order"] == "fixed":
            reasons.append("rule.order=fixed lets drift look like a difference between the arms")
        if (changed := altered(self.rule)) is not None:
            reasons.append(changed)
        reasons += self._unfounded()
        if self.aa is not None:
            reasons.append("both arms are the baseline: this is a campaign of an A/A floor")
        return reasons

    def _unfounded(self) -> list[str]:
        """What the sealed bundles that this run stands on leave open."""
        if self.prerequisites is None:
            return []
        reasons = [str(self.prerequisites["overridden"])] if self.prerequisites["overridden"] else []
        loose = [gate.upper() for gate, row in sorted(self.prerequisites["gates"].items()) if not row["binding"]]
        return reasons + ([f"the verdicts that it stands on do not all bind: {', '.join(loose)}"] if loose else [])

    def to_bytes(self) -> bytes:
        """Fields that came later are left out where they hold nothing, so that old plans keep their bytes."""
        document = asdict(self)
        return canonical.dumps({name: value for name, value in document.items() if not _unsaid(name, value)})

    def digest(self) -> str:
        return canonical.sha256_bytes(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Raises HarnessError `bad-plan` when a field is missing or the format is unknown."""
        document = canonical.loads(data, "plan.json")
        missing = sorted({item.name for item in fields(cls)} - set(document) - set(LATER))
        if missing or document["format"] != FORMAT:
            lack = f"lacks {', '.join(missing)}" if missing else f"has format {document['format']!r}, not {FORMAT!r}"
            raise HarnessError("bad-plan", f"plan.json {lack}")
        values = dict(document)
        for name, kind in (("legs", LegPlan), ("not_applicable", NotApplicable)):
            values[name] = tuple(kind(**item) for item in document[name])
        for name in ("candidate", "baseline"):
            values[name] = Arm(**document[name])
        for name in ("concurrencies", "capabilities", "difference"):
            values[name] = tuple(document[name])
        return cls(**values)


def _unsaid(name: str, value: object) -> bool:
    return name in LATER and value is None


def partition(concurrency: int, repetition: int) -> str:
    """The name of the prompts that both arms of one pair of legs get."""
    return f"c{concurrency}-r{repetition}"


def prompts_digest(prompt_sha256: Sequence[str]) -> str:
    """One digest for the prompts of a partition, in their order: what `Plan.corpus` records."""
    return canonical.sha256_bytes(canonical.dumps(list(prompt_sha256)))


def leg_order(order: str, repetitions: int) -> list[tuple[str, int]]:
    """(arm, repetition) in running order: seed gives A1 B1, B2 A2, A3 B3."""
    pairs = ORDERS[order]
    return [(arm, number + 1) for number in range(repetitions) for arm in pairs[number % len(pairs)]]
