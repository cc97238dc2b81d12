"""A document of FlashInfer's autotuner as values, and whether it may be used in a given environment.

`UpstreamDocument` is what a valid file says; `match` decides, apart from reading, whether its plans mean the same here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from kernels.errors import PlanDocumentError, shown
from kernels.plans.flashinfer_key import RUNNER, Shape
from kernels.plans.upstream_tactics import FIRST_OF_07, KNOWN_VERSIONS, check_descriptors, release
from kernels.tactics import CUTLASS_TACTICS, TacticSet

__all__ = [
    "ANY",
    "FORMAT_06",
    "FORMAT_0618",
    "FORMAT_07",
    "FORMAT_MANAGED",
    "GB10_ORACLE",
    "Environment",
    "Mismatch",
    "Policy",
    "SourceFile",
    "UpstreamDocument",
    "match",
    "mismatches",
]

ANY = "*"
FORMAT_06 = "flashinfer-0.6.13"  # entries [runner, tactic]
FORMAT_0618 = "flashinfer-0.6.18"  # the same, with _records and _generation
FORMAT_07 = "flashinfer-0.7"  # entries [runner, tactic, policy, selection]
FORMAT_MANAGED = "flashinfer-managed-v2"  # a directory: manifest.json and entries/*.json
Policy = tuple[str | int | None, ...]


@dataclass(frozen=True)
class Environment:
    """The strings a FlashInfer document is bound to. In a document, `*` in a field's place matches anything.

    `cutlass_dsl_version` is the seventh field, of 0.7; None on a runtime whose FlashInfer does not record it.
    """

    flashinfer_version: str
    cuda_version: str
    cublas_version: str
    cudnn_version: str
    cudnn_frontend_version: str
    gpu: str
    cutlass_dsl_version: str | None = None

    def stated(self) -> dict[str, str]:
        """The fields that are not None, in the order in which FlashInfer writes them (`gpu` last)."""
        names = [entry.name for entry in fields(self) if entry.name != "gpu"]
        found = {name: getattr(self, name) for name in (*names, "gpu")}
        return {name: value for name, value in found.items() if value is not None}


GB10_ORACLE = Environment(
    flashinfer_version="0.6.13",
    cuda_version="13.0",
    cublas_version="13.1.0",
    cudnn_version="91900",
    cudnn_frontend_version="1.26.0",
    gpu="NVIDIA GB10",
)


@dataclass(frozen=True)
class SourceFile:
    """A file that was read: its path as given or found, its size in bytes and its SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class UpstreamDocument:
    """A document that is valid in itself; nothing is said about this machine (see `match`).

    `format` is one of the FORMAT_ names; `layout` says where it was found: `file`, `vllm-0.25` (a directory of one
    file), `vllm-0.33` (a file a rank, all equal) or `managed-store`. `version` is the FlashInfer that wrote it, `*` or
    None if it does not say. `metadata` is None where there was none. `plans` maps (M bucket, N, K) to the tactic id,
    sorted; `policies` holds the measurement policy of those that carry one. `foreign` counts entries of other
    operations. `notes` are sentences for a person, in a stable order.
    """

    format: str
    version: str | None
    metadata: Mapping[str, Any] | None
    plans: Mapping[Shape, int]
    foreign: int
    files: tuple[SourceFile, ...] = ()
    notes: tuple[str, ...] = ()
    layout: str = "file"
    policies: Mapping[Shape, Policy] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Mismatch:
    """A metadata field that binds the document to another environment; `saved` is None where it is absent or null."""

    field: str
    saved: Any
    current: str

    def __str__(self) -> str:
        seen = "absent" if self.saved is None else shown(self.saved)
        return f"{self.field} ({seen} in the document, {self.current!r} here)"


def mismatches(document: UpstreamDocument, environment: Environment) -> tuple[Mismatch, ...]:
    """Every field of `environment` for which the document has neither the same text nor exactly `*`.

    Fields that only the document has do not count, except a DSL version where an environment of 0.7 leaves it open. A
    document without metadata differs in every field.
    """
    saved = document.metadata or {}
    wanted = environment.stated()
    if (release(environment.flashinfer_version) or (0, 0)) >= FIRST_OF_07 and saved.get("cutlass_dsl_version"):
        wanted.setdefault("cutlass_dsl_version", "not stated")
    return tuple(
        Mismatch(name, saved.get(name), own) for name, own in wanted.items() if saved.get(name) not in (own, ANY)
    )


def match(
    document: UpstreamDocument, environment: Environment, name: str, tactics: TacticSet = CUTLASS_TACTICS
) -> Mapping[Shape, int]:
    """The plans, if all of them mean here what they meant where they were tuned; otherwise PlanDocumentError.

    `metadata-mismatch` (absent, or each differing field with both values), `unknown-version` (the tactic list of the
    FlashInfer that wrote it is not known to be ours), `unknown-runner` (`tactics` is of another runner),
    `foreign-tactic` (the local tactic of that id is another configuration).
    """
    if document.metadata is None:
        text = f"FlashInfer cache metadata mismatch for _metadata: {name} has none, so nothing says where it was tuned"
        raise PlanDocumentError("metadata-mismatch", f"{text}; tune again with FlashInfer 0.6.13 or later")
    differing = mismatches(document, environment)
    if differing:
        listed = ", ".join(str(item) for item in differing)
        text = f"FlashInfer cache metadata mismatch for {listed}: {name} was tuned in another environment"
        raise PlanDocumentError("metadata-mismatch", text)
    if document.version not in (*KNOWN_VERSIONS, ANY):
        known = ", ".join(KNOWN_VERSIONS)
        text = f"{name} was written by FlashInfer {shown(document.version)}, whose tactic list is not known to be ours"
        raise PlanDocumentError("unknown-version", f"{text} (known: {known}); newer lists number tactics differently")
    if document.plans and tactics.runner != RUNNER:
        text = f"unknown NVFP4 persistent plan runner/tactic: {name} has plans of {RUNNER}, known is {tactics.runner}"
        raise PlanDocumentError("unknown-runner", text)
    check_descriptors(document.plans, tactics, name)
    return document.plans
