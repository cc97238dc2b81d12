"""An autotune file seen from both sides: what the real FlashInfer would do with it, and what this project does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.errors import PlanDocumentError
from kernels.plans.audit_model import (
    METADATA_FIELDS,
    VERSIONS,
    Entry,
    Lookup,
    Prediction,
    assumed_environment,
    predict,
    stated_metadata,
)
from kernels.plans.flashinfer_file import PlanEntries, parse_upstream
from kernels.plans.flashinfer_key import RUNNER
from kernels.plans.upstream import Environment, match

__all__ = [
    "METADATA_FIELDS",
    "VERSIONS",
    "Audit",
    "Entry",
    "Lookup",
    "Prediction",
    "Row",
    "assumed_environment",
    "audit",
    "predict",
]

_CONSEQUENCES = {
    "re-profiled": "timed again at every start that tunes",
    "wrong-runner": "silently run another runner or its number",
    "default-config": "silently run the fixed default and are never tuned",
    "wrong-tactic": "silently run a tactic that nobody chose",
    "crash-at-gemm": "crash at the first GEMM of their shape",
    "skipped": "silently not used",
    "never-matched": "never matched",
    "other-runner": "answer only another runner",
    "crash-at-load": "stop the loading",
    "not-loaded": "lie behind the entry that stops the loading",
    "ignored": "ignored with the whole file",
}


@dataclass(frozen=True)
class Row:
    """One entry: what FlashInfer does with it, and `ours`: `hit`, `refused` (`reason` says why) or `foreign`.

    An entry that is sound itself is refused, too, when the document is; its reason is then None.
    """

    entry: Entry
    ours: str
    reason: str | None = None


@dataclass(frozen=True)
class Audit:
    """`refusal` is the code and text with which this project refuses the document, None where it takes all of it."""

    prediction: Prediction
    rows: tuple[Row, ...]
    refusal: tuple[str, str] | None
    environment: Mapping[str, str]

    @property
    def agreed(self) -> bool:
        """Whether every FP4 entry is a hit on both sides."""
        sound = self.prediction.load == "loaded" and self.refusal is None and not self.prediction.duplicates
        return sound and all(row.entry.fate == "hit" for row in self.rows if row.entry.fp4)

    def counts(self) -> dict[str, int]:
        """How many FP4 entries have each fate, the most frequent first."""
        return dict(Counter(row.entry.fate for row in self.rows if row.entry.fp4).most_common())

    def summary(self) -> str:
        """Sentences for a person whose cache does not do what it should: what happens, and what to do."""
        return " ".join([self._upstream(), self._ours(), self._mend()])

    def _upstream(self) -> str:
        counts, found = self.counts(), self.prediction
        total = sum(counts.values())
        who = f"FlashInfer {found.version}"
        if found.load == "ignored":
            return f"{who} ignores the whole file, {total} FP4 entries in it: {found.detail}."
        parts = [f"{count} {_CONSEQUENCES[fate]}" for fate, count in counts.items() if fate != "hit"]
        listed = "".join(f", {part}" for part in parts)
        if found.load == "raises":
            text = f"{who} raises {found.error}, which ends a server that starts with this cache: {found.detail}"
            return f"{text}; {total} FP4 entries{listed}."
        twice = f"; {len(found.duplicates)} keys stand twice, the last value counts" if found.duplicates else ""
        return f"{who} hits {counts.get('hit', 0)} of {total} FP4 entries{listed}{twice}."

    def _ours(self) -> str:
        if self.refusal is None:
            return "This project takes all of them."
        return f"This project refuses the document: {self.refusal[1]}."

    def _mend(self) -> str:
        found = self.prediction
        if self.agreed:
            return "Nothing to do."
        if found.load == "ignored":
            return "Give the file to a machine it was tuned on, or tune into another path."
        if self.refusal is not None:
            return "Delete the file, or restore or remove what is named, and tune again."
        return "Tune again with the FlashInfer that will read it."


def audit(
    data: bytes, version: str, environment: Mapping[str, str], name: str, runners: Sequence[str] = (RUNNER,)
) -> Audit:
    """Both sides of the file `data` on a machine whose FlashInfer `version` has the metadata `environment`.

    KernelError `unknown-version`, or `too-deep` for values nested so deeply that neither side can be told. This project
    reads files of any version: for its side, `flashinfer_version` is the one that the file names.
    """
    try:
        return _audit(data, version, environment, name, runners)
    except RecursionError as error:
        raise PlanDocumentError("too-deep", f"{name} nests too deeply to be audited; it is no plan document") from error


def _audit(data: bytes, version: str, environment: Mapping[str, str], name: str, runners: Sequence[str]) -> Audit:
    prediction = predict(data, version, environment, runners)
    saved = stated_metadata(data)
    refusal = None
    try:
        document = parse_upstream(data, name)
        match(document, _environment(environment, saved), name)
    except PlanDocumentError as error:
        refusal = (error.code, error.message)
    # The version a file names decides how long its values may be.
    own = PlanEntries(_text(saved, "flashinfer_version"))
    rows = tuple(_row(entry, own, refusal is not None) for entry in prediction.entries)
    return Audit(prediction, rows, refusal, dict(environment))


def _environment(stated: Mapping[str, str], saved: Mapping[str, Any]) -> Environment:
    writer = _text(saved, "flashinfer_version") or stated["flashinfer_version"]
    # Files of 0.6 do not have this field, and nothing of theirs depends on it.
    dsl = _text(saved, "cutlass_dsl_version")
    dsl = dsl and stated.get("cutlass_dsl_version", dsl)
    others = {name: stated[name] for name in METADATA_FIELDS["0.6.13"] if name != "flashinfer_version"}
    return Environment(flashinfer_version=writer, cutlass_dsl_version=dsl, **others)


def _text(saved: Mapping[str, Any], name: str) -> str | None:
    value = saved.get(name)
    return value if isinstance(value, str) else None


def _row(entry: Entry, own: PlanEntries, refused: bool) -> Row:
    if not entry.fp4:
        return Row(entry, "foreign")
    try:
        own.add(entry.key, entry.value, "the entry")
    except PlanDocumentError as error:
        return Row(entry, "refused", error.message)
    return Row(entry, "refused" if refused else "hit")
