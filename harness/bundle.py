"""A bundle on disk: reading its legs as values, sealing it, and checking its seal. Standard library only."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from harness import canonical, structure
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
    SuiteReport,
)

__all__ = [
    "DERIVED",
    "FORMAT",
    "SIGNATURES",
    "derived_names",
    "manifest_bytes",
    "members",
    "read_floors",
    "read_leg",
    "read_legs",
    "seal",
    "seal_bytes",
    "write_new",
]

T = TypeVar("T")

FORMAT = "nvfp4-gates-bundle-v1"
SEAL = ("manifest.json", "seal.json")
DERIVED = (
    "report.md",
    "statement.json",
    "test-result.json",
)  # regenerated and compared by verify; only named in the manifest
DERIVED_AT_FIRST = ("report.md",)  # of a bundle whose manifest names none
SIGNATURES = "signatures.intoto.jsonl"  # comes after the seal
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # JSON of another shape


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


def members(root: Path, derived: Iterable[str] = DERIVED) -> list[Path]:
    """Every file of a bundle but seal, derived ones and signatures, by relative path. A link is `bundle-link`."""
    outside = {*SEAL, *derived, SIGNATURES}
    found: list[Path] = []
    for path in sorted(root.rglob("*"), key=lambda item: item.relative_to(root).as_posix()):
        if path.is_symlink():
            raise HarnessError("bundle-link", f"{path.relative_to(root)} is a link; a bundle holds plain files only")
        if path.is_file() and path.relative_to(root).as_posix() not in outside:
            found.append(path)
    return found


def derived_names(manifest: bytes) -> tuple[str, ...] | None:
    """The derived files that a manifest names; None where it is older than that, or no manifest."""
    try:
        names = canonical.loads(manifest, "manifest.json").get("derived")
    except (HarnessError, AttributeError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) else None


def manifest_bytes(root: Path, derived: tuple[str, ...] | None = DERIVED) -> bytes:
    """`manifest.json` as the files on the disk demand it. `derived` None gives the first form, which names none."""
    rows = [
        {"path": path.relative_to(root).as_posix(), "size": path.stat().st_size, "sha256": canonical.sha256_file(path)}
        for path in members(root, DERIVED_AT_FIRST if derived is None else derived)
    ]
    return canonical.dumps({"files": rows} if derived is None else {"derived": sorted(derived), "files": rows})


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
    found = [
        read_leg(root / "legs" / leg.name, leg)
        for leg in plan.legs
        if (root / "legs" / leg.name / "leg.json").is_file()
    ]
    return structure.attach(root, plan, found)


def read_floors(root: Path) -> list[Any]:
    """The floors in the bundle, whole, as documents; none where it has none."""
    path = root / "floor.json"
    return list(canonical.loads(path.read_bytes(), path.name)["floors"]) if path.is_file() else []


def read_leg(folder: Path, planned: LegPlan) -> Leg:
    """One leg as values. HarnessError `bad-record` names the leg or its file, and what is wrong."""
    try:
        return _leg(folder, planned)
    except MALFORMED as error:
        raise _malformed(folder.name, error) from error


def _leg(folder: Path, planned: LegPlan) -> Leg:
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
        requests=tuple(_rows(folder / "requests.jsonl.gz", RequestRecord.from_json)),
        load=_optional(LoadReport.from_json, head.get("load")),
        memory=tuple(_rows(folder / "memory.jsonl", MemorySample.from_json)),
        mem_baseline_kib=before.get("mem_available_kib"),
        cache_before=_optional(CacheDrop.from_json, before.get("cache_drop")),
        cache_after=_optional(CacheDrop.from_json, after.get("cache_drop")),
        memory_return=_optional(MemoryReturn.from_json, after.get("memory_return")),
        plans=_optional(PlanReport.from_json, plans.get("report")),
        plan_sha256=(sha["before"], sha["after"]) if sha else None,
        arm_proof=_optional(ArmProof.from_json, head.get("arm_proof")),
        server=_optional(ServerReport.from_json, head.get("server")),
        model_gate=_optional(ModelGate.from_json, head.get("model_gate")),
        suite=_optional(SuiteReport.from_json, head.get("suite")),
        texts=tuple(_rows(folder / "texts.jsonl", lambda row: str(row["text"]))),
        gpu_before=_optional(GpuLook.from_json, before.get("gpu")),
        gpu_after=_optional(GpuLook.from_json, after.get("gpu")),
        canary_before=_optional(Canary.from_json, before.get("canary")),
        canary_after=_optional(Canary.from_json, after.get("canary")),
        sampler=SamplerReport.from_json(sampler) if "gpu_method" in sampler else None,
        command=_json(folder / "command.json") or None,
    )


def _optional(parse: Any, data: Mapping[str, Any] | None) -> Any:
    return None if data is None else parse(data)


def _json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where the leg has no such file."""
    if not path.exists():
        return {}
    document = canonical.loads(path.read_bytes(), f"{path.parent.name}/{path.name}")
    if not isinstance(document, dict):
        raise HarnessError("bad-record", f"{path.parent.name}/{path.name} is not a JSON object")
    return document


def _rows(path: Path, parse: Callable[[Any], T]) -> Iterator[T]:
    """Each line as a value. HarnessError `bad-record` names the file and the line that has another shape."""
    for number, row in enumerate(_lines(path), 1):
        try:
            yield parse(row)
        except MALFORMED as error:
            raise _malformed(f"{path.parent.name}/{path.name} line {number}", error) from error


def _malformed(where: str, error: Exception) -> HarnessError:
    return HarnessError("bad-record", f"{where} is not a record of this format: {type(error).__name__} {error}")


def _lines(path: Path) -> Iterable[Any]:
    if not path.exists():
        return ()
    name = f"{path.parent.name}/{path.name}"
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise HarnessError("bad-record", f"{name} is not a whole gzip file: {error}") from error
    return canonical.loads_lines(data, name)
