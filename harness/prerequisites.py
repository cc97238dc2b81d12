"""The sealed bundles that a grid stands on: read, verified, and of the same subject, or a sentence why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gates.g5 import needed
from harness import canonical, verify
from harness.config import GateConfig
from harness.errors import HarnessError, UsageError
from harness.plan import Plan

__all__ = ["Proof", "about", "demand", "document", "read"]

OVERRIDDEN = "gate.override=true: started without a sealed PASS of "
MEND = "run those gates, or give gate.override=true for a verdict that never binds"


@dataclass(frozen=True)
class Proof:
    """One sealed bundle: its gate, its outcome as recomputed from its raw files, and what it was about."""

    path: str
    gate: str
    outcome: str
    binding: bool
    digest: str
    about: Mapping[str, Any]
    authorises: Sequence[str] = ()
    rehearsal: bool = False


def read(gate: GateConfig, invoked_in: Path) -> list[Proof]:
    """The bundles of `gate.prerequisites`, each verified. UsageError `prerequisite` names the one that is unfit."""
    proofs = [_read((invoked_in / path).resolve()) for path in gate.prerequisites]
    seen: dict[str, Proof] = {}
    for proof in proofs:
        if proof.gate in seen:
            _refuse(f"{seen[proof.gate].path} and {proof.path} are both of {proof.gate.upper()}; name one")
        seen[proof.gate] = proof
        if proof.gate not in needed(gate.second_model):
            _refuse(f"{proof.path} is of {proof.gate.upper()}; this grid stands on {_names(needed(gate.second_model))}")
        if proof.rehearsal:
            _refuse(f"{proof.path} is a rehearsal of {proof.gate.upper()}: nothing was measured; run that gate")
        if proof.outcome != "PASS":
            _refuse(f"{proof.path} is {proof.outcome} of {proof.gate.upper()}, not PASS; {MEND}")
        if proof.gate == "g5" and gate.second_model not in proof.authorises:
            named = ", ".join(proof.authorises) or "no model"
            _refuse(f"{proof.path} authorises {named}, not gate.second_model={gate.second_model}")
    return proofs


def _missing(gate: GateConfig, proofs: Sequence[Proof]) -> list[str]:
    """The gates without a bundle, in order."""
    given = {proof.gate for proof in proofs}
    return [name for name in needed(gate.second_model) if name not in given]


def demand(gate: GateConfig, proofs: Sequence[Proof]) -> None:
    """UsageError `prerequisites` where a gate has no bundle and nobody said to go on without."""
    if (lacking := _missing(gate, proofs)) and not gate.override:
        _refuse(f"no sealed PASS bundle of {_names(lacking)} is among gate.prerequisites={gate.prerequisites}; {MEND}")


def document(gate: GateConfig, proofs: Sequence[Proof], plan: Plan) -> dict[str, Any]:
    """`prerequisites` of the plan: digests by gate, and what an override did without.

    UsageError `prerequisites` for a bundle about another subject; an override does not excuse that.
    """
    mine = about(canonical.loads(plan.to_bytes(), "plan.json"))
    for proof in proofs:
        first_model = proof.gate == "g5"  # another subject by intent
        differing = [name for name in mine if proof.about.get(name) != mine[name] and not first_model]
        if differing:
            _refuse(f"{proof.path} ({proof.gate.upper()}) is about another subject: its {differing[0]} differs")
    lacking = _missing(gate, proofs)
    rows = {proof.gate: {"digest": proof.digest, "binding": proof.binding} for proof in proofs}
    found = {"gates": rows, "overridden": OVERRIDDEN + _names(lacking) if lacking else None}
    said = {"authorises": list(gate.authorises), "second_model": gate.second_model}
    return found | {name: value for name, value in said.items() if value}


def about(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What two plans must share to speak of the same subject: engine, its identity, and the candidate arm.

    The baseline may differ: G4's is the candidate without its lever, G5's is the oracle.
    """
    found = {name: plan.get(name) for name in ("engine", "subject", "candidate")}
    subject = found["subject"]
    if isinstance(subject, dict):  # G2 alone starts a second model
        found["subject"] = {name: value for name, value in subject.items() if name != "second_model"}
    return found


def _read(root: Path) -> Proof:
    try:
        found = verify.verify(root)
        if found.verdict is None:
            _refuse(f"{root} is tampered with: {found.faults[0]}")
        plan = canonical.loads((root / "plan.json").read_bytes(), "plan.json")
        verdict: Mapping[str, Any] = found.verdict or {}
        binding = bool(verdict.get("binding"))
        authorises = tuple((plan.get("prerequisites") or {}).get("authorises", ()))
        rehearsal, gate = bool(plan.get("rehearsal")), str(plan["gate"])
        return Proof(str(root), gate, found.outcome, binding, found.digest, about(plan), authorises, rehearsal)
    except (HarnessError, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError) and error.code == "prerequisites":
            raise
        raise UsageError("prerequisites", f"gate.prerequisites: {root}: {error}; give sealed bundles") from error


def _refuse(message: str) -> None:
    raise UsageError("prerequisites", message)


def _names(gates: Sequence[str]) -> str:
    return ", ".join(gate.upper() for gate in gates)
