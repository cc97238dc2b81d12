"""One FlashInfer autotune file, 0.6.13 to 0.7: bounded, all or nothing; nothing is asked about this machine.

The three formats differ in what stands beside the entries and in how long an entry's value is; which one a file is
follows from the version it names and, where it names none, from its content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kernels.errors import PlanDocumentError, shown
from kernels.json_strict import loads_object
from kernels.plans.document import check_shape
from kernels.plans.flashinfer_key import RUNNER, CommonKeys, Shape, claims_fp4, read_key
from kernels.plans.upstream import ANY, FORMAT_06, FORMAT_0618, FORMAT_07, Policy, SourceFile, UpstreamDocument
from kernels.plans.upstream_tactics import FALLBACK, FALLBACK_ID, FIRST_OF_07, KNOWN_VERSIONS, UPSTREAM, release

__all__ = ["GENERATION", "MAX_BYTES", "MAX_ENTRIES", "METADATA", "PlanEntries", "generation", "parse_upstream"]

METADATA, RECORDS, GENERATION = "_metadata", "_records", "_generation"
# A real entry takes 190 bytes (0.6) to 420 (0.7 with its selection); the largest real file seen has 64 entries.
MAX_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 150_000
_MAX_POLICY = 16


@dataclass
class PlanEntries:
    """Collects the entries of one document, whatever files they lie in. `version` decides which values are allowed."""

    version: str | None
    plans: dict[Shape, int] = field(default_factory=dict)
    policies: dict[Shape, Policy] = field(default_factory=dict)
    foreign: int = 0
    padded: int = 0
    alpha_1d: int = 0
    longest: int = 2
    fallbacks: int = 0
    _common: CommonKeys = field(default_factory=CommonKeys, repr=False)

    def add_common(self, key: str, value: Any) -> bool:
        """Take an entry if it is a right one of two parts; False, and nothing taken, where `add` has to look closer.

        A quarter of the time of `add`, which must make a text of every key for the error that it may raise.
        """
        found = self._common.read(key)
        if found is None or found.shape in self.plans or type(value) is not list or len(value) != 2:
            return False
        runner, tactic = value
        if runner != RUNNER or type(tactic) is not int or tactic not in UPSTREAM:
            return False
        self.plans[found.shape] = tactic
        self.padded += found.padded
        self.alpha_1d += found.alpha_1d
        return True

    def add(self, key: str, value: Any, where: str) -> None:
        """Take an entry of a file. PlanDocumentError if it claims to be an FP4 plan and is none."""
        if not claims_fp4(key):
            self.foreign += 1
            return
        shape = self.add_key(key, where)
        if not isinstance(value, list) or not 2 <= len(value) <= 4:
            raise _bad_value(where, f"has the value {shown(value)}, must be [runner, tactic]")
        if len(value) > 2 and not self._may_have_policy():
            raise _bad_value(where, f"has {len(value)} parts, FlashInfer {self.version} writes [runner, tactic]")
        self.longest = max(self.longest, len(value))
        self.plans[shape] = self.tactic(value[0], value[1], where)
        if len(value) > 2:
            self.policies[shape] = policy(value[2], where)
        if len(value) > 3:
            _check_selection(value[3], where)

    def add_key(self, key: str, where: str) -> Shape:
        """The shape of a key that no earlier entry has."""
        found = read_key(key, where)
        check_shape(*found.shape, where)
        if found.shape in self.plans:
            text = f"duplicate NVFP4 persistent plan key: {where} has the same shape as an earlier entry"
            raise PlanDocumentError("duplicate-plan", text)
        self.padded += found.padded
        self.alpha_1d += found.alpha_1d
        return found.shape

    def tactic(self, runner: Any, tactic: Any, where: str) -> int:
        """The id, if runner and id can be a plan's. Ids of a version whose list is unknown have no upper bound here."""
        if not isinstance(runner, str):
            raise _bad_value(where, f"has the runner {shown(runner)}, must be a text")
        if type(tactic) is not int:
            raise _bad_value(where, f"has the tactic {shown(tactic)}, must be one integer")
        text = f"unknown NVFP4 persistent plan runner/tactic: {where}"
        if runner != RUNNER:
            raise PlanDocumentError("unknown-runner", f"{text} names {shown(runner)}, known is {RUNNER}")
        if tactic < 0 or (tactic not in UPSTREAM and self._tactics_known()):
            text = f"{text} has tactic {shown(tactic)}, {RUNNER} has 0..{max(UPSTREAM)}"
            raise PlanDocumentError("unknown-tactic", f"{text}{' (-1 is the fallback, no plan)' if tactic < 0 else ''}")
        return tactic

    def managed_tactic(self, runner: Any, tactic: Any, where: str) -> int:
        """The same for a managed store, in which the fallback is timed like any other and may be the winner: it is the
        configuration of an id, and that id is what is planned."""
        if type(tactic) is int and tactic == FALLBACK and self._tactics_known():
            self.fallbacks += 1
            tactic = FALLBACK_ID
        return self.tactic(runner, tactic, where)

    def notes(self, metadata: Mapping[str, Any] | None) -> list[str]:
        """What a person should know of the entries and of what they are bound to."""
        saved = metadata or {}
        anything = sorted(name for name, value in saved.items() if value == ANY)
        found = [
            (metadata is None, "no _metadata: FlashInfer itself would use this anywhere; it cannot be imported"),
            (bool(anything), f"made to match anything in: {', '.join(anything)}"),
            (not self._tactics_known(), f"FlashInfer {shown(self.version)} may number tactics differently"),
            (
                self.fallbacks > 0,
                f"{self.fallbacks} plans chose the fallback {FALLBACK}, which is tactic {FALLBACK_ID}",
            ),
            (self.padded > 0, f"{self.padded} plans have scales padded to 4 and 128 in their keys"),
            (self.alpha_1d > 0, f"{self.alpha_1d} plans were tuned with a one-element alpha"),
        ]
        return [text for holds, text in found if holds]

    def _tactics_known(self) -> bool:
        return self.version is None or self.version in (*KNOWN_VERSIONS, ANY)

    def _may_have_policy(self) -> bool:
        released = release(self.version)
        return released is None or released >= FIRST_OF_07


def parse_upstream(data: bytes, name: str) -> UpstreamDocument:
    """Read one file's bytes. PlanDocumentError refuses it whole, naming the entry.

    Codes: those of `json_strict`; `not-flashinfer`, `too-many-entries`, `metadata-mismatch` (no object),
    `bad-records`, `generation-mismatch`; and for an entry `bad-key`, `unknown-runner`, `unknown-tactic`, `bad-value`,
    `bad-shape`, `duplicate-plan`.
    """
    document = loads_object(data, name)
    _refuse_others(document, name)
    if len(document) > MAX_ENTRIES:
        text = f"{name} has {len(document)} entries, {MAX_ENTRIES} are allowed"
        raise PlanDocumentError("too-many-entries", text)
    _check_generation(document, name)
    metadata = _metadata(document.pop(METADATA, None), name)
    version = (metadata or {}).get("flashinfer_version")
    entries = PlanEntries(version if isinstance(version, str) else None)
    beside = _beside(document, name)
    for key, value in document.items():
        if not entries.add_common(key, value):
            entries.add(key, value, f"{name} entry {shown(key)}")
    kind = _format(entries, metadata or {}, bool(beside))
    notes = entries.notes(metadata) + beside
    untimed = len(entries.plans) - len(entries.policies)
    if kind == FORMAT_07 and untimed:
        notes.append(
            f"{untimed} plans carry no measurement policy: FlashInfer 0.7 uses them, but times them when tuning"
        )
    return UpstreamDocument(
        format=kind,
        version=entries.version,
        metadata=metadata,
        plans=MappingProxyType(dict(sorted(entries.plans.items()))),
        foreign=entries.foreign,
        files=(SourceFile(name, len(data), hashlib.sha256(data).hexdigest()),),
        notes=tuple(notes),
        policies=MappingProxyType(dict(sorted(entries.policies.items()))),
    )


def generation(document: Mapping[str, Any]) -> str:
    """`_generation` as FlashInfer computes it: SHA-256 of the compact sorted JSON of everything else."""
    rest = {key: value for key, value in document.items() if key != GENERATION}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def policy(value: Any, where: str) -> Policy:
    """How an entry was measured: names and values in turn. PlanDocumentError `bad-value`."""
    if not isinstance(value, list) or len(value) > _MAX_POLICY:
        raise _bad_value(where, f"has the measurement policy {shown(value)}, must be a list of at most {_MAX_POLICY}")
    if any(item is not None and type(item) not in (str, int) for item in value):
        raise _bad_value(where, f"has the measurement policy {shown(value)}, may hold texts, integers and null")
    return tuple(value)


def _check_selection(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _bad_value(where, f"has the selection {shown(value)}, must be an object")
    for name, item in value.items():
        if item is not None and type(item) not in (int, float):
            raise _bad_value(where, f"has the selection field {shown(name)}={shown(item)}, must be a number or null")


def _refuse_others(document: Mapping[str, Any], name: str) -> None:
    saved = document.get(METADATA)
    if isinstance(document.get("plans"), list) and isinstance(saved, dict) and "format" in saved:
        text = f"{name} is a native plan document ({shown(saved['format'])}), not one of FlashInfer"
        raise PlanDocumentError("not-flashinfer", text)
    if "cache_schema" in document or {"key", "runner", "tactic"} <= document.keys():
        text = f"{name} is one file of a FlashInfer managed store; give the directory that has manifest.json"
        raise PlanDocumentError("not-flashinfer", text)


def _check_generation(document: Mapping[str, Any], name: str) -> None:
    if GENERATION not in document:
        return
    saved, own = document[GENERATION], generation(document)
    if saved != own:
        text = f"{name} has _generation {shown(saved)} but its content gives {own}: it was changed after it was saved"
        raise PlanDocumentError("generation-mismatch", f"{text}; restore it, or remove _generation if that was meant")


def _metadata(saved: Any, name: str) -> Mapping[str, Any] | None:
    if saved is not None and not isinstance(saved, dict):
        text = f"FlashInfer cache metadata mismatch for _metadata: {name} has {shown(saved)}, needs an object"
        raise PlanDocumentError("metadata-mismatch", text)
    return None if saved is None else MappingProxyType(saved)


def _beside(document: dict[str, Any], name: str) -> list[str]:
    """Take out what newer versions keep beside the entries; a sentence for each."""
    found = []
    if RECORDS in document:
        records = document.pop(RECORDS)
        if not isinstance(records, dict):
            raise PlanDocumentError("bad-records", f"{name} has _records {shown(records)}, must be an object")
        found.append(f"{len(records)} namespaces of _records are no tactic plans and were ignored")
    if document.pop(GENERATION, None) is not None:
        found.append("_generation agrees with the content")
    return found


def _format(entries: PlanEntries, metadata: Mapping[str, Any], beside: bool) -> str:
    released = release(entries.version)
    if released is not None:
        newer = released >= FIRST_OF_07
    else:
        newer = entries.longest > 2 or "cutlass_dsl_version" in metadata
    if newer:
        return FORMAT_07
    return FORMAT_0618 if beside else FORMAT_06


def _bad_value(where: str, reason: str) -> PlanDocumentError:
    return PlanDocumentError("bad-value", f"{where} {reason}")
