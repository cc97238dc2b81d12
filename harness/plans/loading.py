"""Plan documents of any kind as one value, valid in themselves, whatever machine they are of."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import canonical
from harness.errors import UsageError
from kernels.errors import PlanDocumentError, shown
from kernels.json_strict import loads_object
from kernels.plans import document as native
from kernels.plans import flashinfer, store
from kernels.plans.metadata import FORMAT, Metadata
from kernels.plans.selected import map_sha256
from kernels.tactics import CUTLASS_TACTICS, TacticSet

__all__ = ["Native", "PlanFile", "Shape", "load", "load_native", "own_metadata", "read_bytes", "rows", "shapes"]

Shape = tuple[int, int, int]  # M bucket, N, K in FP4 values
_NAMES = {
    FORMAT: f"native ({FORMAT})",
    "flashinfer-0.6.13": "FlashInfer 0.6.13",
    "flashinfer-0.6.18": "FlashInfer 0.6.18",
    "flashinfer-0.7": "FlashInfer 0.7.x",
    "flashinfer-managed-v2": "FlashInfer managed store (v2)",
}
_LAYOUTS = {
    "file": "one file",
    "vllm-0.25": "vLLM 0.25, one file",
    "vllm-0.33": "vLLM 0.33, one file a rank",
    "managed-store": "managed store, one file an entry",
}


@dataclass(frozen=True)
class Native:
    """What a native document says of itself, the tactic set it names, and its content."""

    metadata: Metadata
    tactics: TacticSet
    document: native.Document


@dataclass(frozen=True)
class PlanFile:
    """A valid document. Exactly one of `native` and `upstream` is there; `data` is None for a directory."""

    path: Path
    data: bytes | None
    plans: Mapping[Shape, int]
    files: tuple[flashinfer.SourceFile, ...]
    native: Native | None = None
    upstream: flashinfer.UpstreamDocument | None = None

    @property
    def format(self) -> str:
        return FORMAT if self.upstream is None else self.upstream.format

    @property
    def layout(self) -> str:
        return "file" if self.upstream is None else self.upstream.layout

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        if self.native is not None:
            return self.native.metadata.to_json()
        return None if self.upstream is None else self.upstream.metadata

    @property
    def foreign(self) -> int:
        return 0 if self.upstream is None else self.upstream.foreign

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self.upstream is None else self.upstream.notes

    @property
    def title(self) -> str:
        """Format and layout for a person."""
        name = _NAMES.get(self.format, self.format)
        layout = _LAYOUTS.get(self.layout, self.layout)
        return name if self.layout in ("file", "managed-store") else f"{name}, {layout}"

    @property
    def map_sha256(self) -> str:
        return map_sha256((*shape, tactic) for shape, tactic in self.plans.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "files": [vars(file) for file in self.files],
            "foreign": self.foreign,
            "format": self.format,
            "layout": self.layout,
            "map_sha256": self.map_sha256,
            "metadata": None if self.metadata is None else dict(self.metadata),
            "notes": list(self.notes),
            "plan_count": len(self.plans),
            "plans": rows(self.plans),
        }


def rows(plans: Mapping[Shape, int]) -> list[dict[str, int]]:
    """A map as its JSON form, in (M, N, K) order."""
    return [{"k": k, "m": m, "n": n, "tactic": tactic} for (m, n, k), tactic in sorted(plans.items())]


def load(path: Path) -> PlanFile:
    """Read and validate whatever document is at `path`. KernelError refuses it whole, with the entry and the reason."""
    if not _is_directory(path):
        data = read_bytes(path)
        content = loads_object(data, str(path))
        if _looks_native(content):
            return _native_file(path, data, content)
    else:
        data = None
    found = flashinfer.read_upstream(path)
    return PlanFile(path, data, found.plans, found.files, upstream=found)


def load_native(path: Path) -> Native:
    """The same for a place where only a native document makes sense. UsageError `not-native`."""
    found = load(path)
    if found.native is None:
        raise UsageError("not-native", f"{path} is {found.title}; give a native document ({FORMAT})")
    return found.native


def read_bytes(path: Path) -> bytes:
    """One file's bytes. PlanDocumentError `absent`, `not-a-file`, `too-large`, `unreadable`."""
    data = store.read(path)
    if data is None:
        raise PlanDocumentError("absent", f"{path} does not exist; correct the path")
    return data


def shapes(plans: Mapping[Any, int]) -> dict[Shape, int]:
    """A map by PlanKey as one by (M, N, K): within one document the runtime is the same for all."""
    return {(key[0], key[1], key[2]): tactic for key, tactic in plans.items()}


def _native_file(path: Path, data: bytes, content: Mapping[str, Any]) -> PlanFile:
    name = str(path)
    metadata = own_metadata(content.get("_metadata"), name)
    tactics = _tactics(metadata, name)
    parsed = native.parse_document(data, metadata, tactics, name)
    source = flashinfer.SourceFile(name, len(data), canonical.sha256_bytes(data))
    return PlanFile(path, data, shapes(parsed.plans), (source,), native=Native(metadata, tactics, parsed))


def own_metadata(saved: Any, name: str) -> Metadata:
    """A native document's metadata as it states it. PlanDocumentError `missing-field` or `unknown-format`."""
    if not isinstance(saved, dict):
        raise PlanDocumentError("wrong-type", f"{name} _metadata is {shown(saved)}, must be an object")
    missing = [field for field in Metadata.mandatory_names() if field not in saved]
    if missing:
        text = f"{name} _metadata lacks {', '.join(missing)}; it is not a complete {FORMAT} document"
        raise PlanDocumentError("missing-field", text)
    if saved["format"] != FORMAT:
        text = f"{name} has the format {shown(saved['format'])}, known is {FORMAT}"
        raise PlanDocumentError("unknown-format", f"{text}; read it with the version that wrote it")
    known = {field: saved[field] for field in Metadata.mandatory_names()}
    further = {field: value for field, value in saved.items() if field not in known and isinstance(value, str | int)}
    return Metadata(**known, extra=further)


def _tactics(metadata: Metadata, name: str) -> TacticSet:
    known: Sequence[TacticSet] = (CUTLASS_TACTICS,)
    if metadata.tactic_descriptor_digest != CUTLASS_TACTICS.digest:
        from kernels.backends.cpu import CPU_TACTICS  # brings NumPy

        known = (CUTLASS_TACTICS, CPU_TACTICS)
    for tactics in known:
        if (metadata.tactic_descriptor_digest, metadata.tactic_set_version) == (tactics.digest, tactics.version):
            return tactics
    listed = ", ".join(f"{tactics.digest} set {tactics.version} ({tactics.runner})" for tactics in known)
    seen = f"{metadata.tactic_descriptor_digest} set {metadata.tactic_set_version}"
    text = f"{name} numbers the tactics of the set {seen}, known are {listed}"
    raise PlanDocumentError("unknown-tactics", f"{text}; what its ids mean cannot be checked here")


def _looks_native(content: Mapping[str, Any]) -> bool:
    saved = content.get("_metadata")
    return "plans" in content or (isinstance(saved, dict) and "format" in saved)


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False  # reading it says what is wrong
