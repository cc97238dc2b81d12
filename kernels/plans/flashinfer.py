"""FlashInfer's autotune documents of every kind: read, matched with an environment, written. Sources are never touched.

`read_upstream` takes a file or a directory and finds out what it is; `match` decides whether its plans may be used;
`export_flashinfer` writes a file that FlashInfer loads. All of them refuse as a unit, with PlanDocumentError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.errors import PlanDocumentError
from kernels.plans import managed_store, store, vllm_layout
from kernels.plans.directories import is_directory
from kernels.plans.flashinfer_export import EXPORT_VERSIONS, export_flashinfer
from kernels.plans.flashinfer_file import MAX_BYTES, parse_upstream
from kernels.plans.flashinfer_key import OPERATION, RUNNER, Shape
from kernels.plans.upstream import (
    GB10_ORACLE,
    Environment,
    Mismatch,
    SourceFile,
    UpstreamDocument,
    match,
    mismatches,
)
from kernels.plans.upstream_tactics import KNOWN_VERSIONS
from kernels.tactics import CUTLASS_TACTICS, TacticSet

__all__ = [
    "EXPORT_VERSIONS",
    "GB10_ORACLE",
    "KNOWN_VERSIONS",
    "OPERATION",
    "RUNNER",
    "Environment",
    "FlashInferDocument",
    "Mismatch",
    "SourceFile",
    "UpstreamDocument",
    "export_flashinfer",
    "match",
    "mismatches",
    "parse",
    "parse_upstream",
    "read_upstream",
]


@dataclass(frozen=True)
class FlashInferDocument:
    """`plans` maps (M bucket, N, K) to the tactic id, sorted; `foreign` counts entries of other operations."""

    plans: Mapping[Shape, int]
    foreign: int
    metadata: Mapping[str, Any]


def read_upstream(path: Path) -> UpstreamDocument:
    """Read the document at `path`: a file, a managed store (its root, `v2` or one environment) or a vLLM directory.

    Valid in itself, not matched with anything: `match` does that. PlanDocumentError with the codes of
    `parse_upstream`, `managed_store.read_managed` and `vllm_layout.read_directory`, those of `store.read` (directory
    entries, FIFOs and devices are refused before they are opened) and `absent`.
    """
    if is_directory(path):
        return (
            managed_store.read_managed(path) if managed_store.looks_managed(path) else vllm_layout.read_directory(path)
        )
    data = store.read(path, MAX_BYTES)
    if data is None:
        raise PlanDocumentError("absent", f"{path} does not exist; correct the path")
    return vllm_layout.placed(parse_upstream(data, str(path)), path)


def parse(data: bytes, environment: Environment, name: str, tactics: TacticSet = CUTLASS_TACTICS) -> FlashInferDocument:
    """Read and match one file's bytes for a backend that runs `tactics`: `parse_upstream`, then `match`."""
    document = parse_upstream(data, name)
    plans = match(document, environment, name, tactics)
    return FlashInferDocument(dict(plans), document.foreign, document.metadata or {})
