"""A bundle on disk: reading its legs as values, sealing it, and checking its seal. Standard library only."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.plan import LegPlan, Plan
from harness.records import (
    ArmProof,
    CacheDrop,
    Canary,
    GpuLook,
    Leg,
    LoadReport,
    MemoryReturn,
    MemorySample,
    ModelGate,
    PlanReport,
    RequestRecord,
    SamplerReport,
    ServerReport,
)

__all__ = ["DERIVED", "FORMAT", "manifest_bytes", "read_leg", "read_legs", "seal", "seal_bytes", "write_new"]

FORMAT = "nvfp4-gates-bundle-v1"
SEAL = ("manifest.json", "seal.json")
DERIVED = ("report.md",)  # regenerated and compared by verify; not in the manifest
MAX_FILE = 1 << 30


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, through a temporary name and the disk. Evidence is never overwritten."""
    if path.exists():
        raise HarnessError("would-overwrite", f"{path.name} exists already; nothing in a bundle is ever overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def members(root: Path) -> list[Path]:
    """Every file of a bundle but the seal and the derived ones, sorted by relative path. A link is `bundle-link`."""
    found: list[Path] = []
    for path in sorted(root.rglob("*"), key=lambda item: item.relative_to(root).as_posix()):
        if path.is_symlink():
            raise HarnessError("bundle-link", f"{path.relative_to(root)} is a link; a bundle holds plain files only")
        if path.is_file() and path.relative_to(root).as_posix() not in (*SEAL, *DERIVED):
            found.append(path)
    return found


def manifest_bytes(root: Path) -> bytes:
    """`manifest.json` as the files on the disk demand it."""
    rows = [
        {"path": path.relative_to(root).as_posix(), "size": path.stat().st_size, "sha256": canonical.sha256_file(path)}
        for path in members(root)
    ]
    return canonical.dumps({"files": rows})


def seal_bytes(manifest: bytes) -> bytes:
    return canonical.dumps({"format": FORMAT, "manifest_sha256": canonical.sha256_bytes(manifest)})


def seal(root: Path) -> str:
    """Write manifest and seal. Returns the manifest's SHA-256, which is the bundle's identity."""
    manifest = manifest_bytes(root)
    write_new(root / "manifest.json", manifest)
    write_new(root / "seal.json", seal_bytes(manifest))
    return canonical.sha256_bytes(manifest)


def read_legs(root: Path, plan: Plan) -> list[Leg]:
    """The legs that are there, in the planned order; a leg that never ran has no folder."""
    return [
        read_leg(root / "legs" / leg.name, leg)
        for leg in plan.legs
        if (root / "legs" / leg.name / "leg.json").is_file()
    ]


def read_leg(folder: Path, planned: LegPlan) -> Leg:
    """One leg as values. HarnessError `bad-record` names the file and what it lacks."""
    head = _json(folder / "leg.json")
    before, after = _json(folder / "host-before.json"), _json(folder / "host-after.json")
    plans = _json(folder / "plans.json")
    sha = plans.get("document_sha256") if plans else None
    sampler = _json(folder / "sampler.json")
    return Leg(
        name=planned.name,
        kind=planned.kind,
        arm=planned.arm,
        concurrency=planned.concurrency,
        repetition=planned.repetition,
        exit=str(head.get("exit")),
        requests=tuple(RequestRecord.from_json(row) for row in _lines(folder / "requests.jsonl.gz")),
        load=_optional(LoadReport.from_json, head.get("load")),
        memory=tuple(MemorySample.from_json(row) for row in _lines(folder / "memory.jsonl")),
        mem_baseline_kib=before.get("mem_available_kib"),
        cache_before=_optional(CacheDrop.from_json, before.get("cache_drop")),
        cache_after=_optional(CacheDrop.from_json, after.get("cache_drop")),
        memory_return=_optional(MemoryReturn.from_json, after.get("memory_return")),
        plans=_optional(PlanReport.from_json, plans.get("report")),
        plan_sha256=(sha["before"], sha["after"]) if sha else None,
        arm_proof=_optional(ArmProof.from_json, head.get("arm_proof")),
        server=_optional(ServerReport.from_json, head.get("server")),
        model_gate=_optional(ModelGate.from_json, head.get("model_gate")),
        texts=tuple(str(row["text"]) for row in _lines(folder / "texts.jsonl")),
        gpu_before=_optional(GpuLook.from_json, before.get("gpu")),
        gpu_after=_optional(GpuLook.from_json, after.get("gpu")),
        canary_before=_optional(Canary.from_json, before.get("canary")),
        canary_after=_optional(Canary.from_json, after.get("canary")),
        sampler=SamplerReport.from_json(sampler) if "gpu_method" in sampler else None,
    )


def _optional(parse: Any, data: Mapping[str, Any] | None) -> Any:
    return None if data is None else parse(data)


def _json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where the leg has no such file."""
    if not path.exists():
        return {}
    document = canonical.loads(path.read_bytes(), path.name)
    if not isinstance(document, dict):
        raise HarnessError("bad-record", f"{path.parent.name}/{path.name} is not a JSON object")
    return document


def _lines(path: Path) -> Iterable[Any]:
    if not path.exists():
        return ()
    name = f"{path.parent.name}/{path.name}"
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise HarnessError("bad-record", f"{name} is not a whole gzip file: {error}") from error
    return canonical.loads_lines(data, name)
