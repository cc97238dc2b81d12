"""Re-read a bundle: seal, manifest, files, journal chain, then the verdict and the report again, byte for byte.

Standard library only. A digest proves integrity, not origin: compare the seal's digest with the one its author
published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gates import kernel_traces
from harness import bundle, canonical, journal, origin, verdict, witnesses
from harness.derived import at_first, derived
from harness.errors import HarnessError, UsageError
from harness.plan import Plan
from harness.records import Check
from harness.statement import statements

__all__ = ["Verification", "assess", "verify"]

# What reading files of another shape may raise; anything else is a bug of ours.
UNREADABLE = (*bundle.MALFORMED, AssertionError, HarnessError, OSError, RecursionError)


@dataclass(frozen=True)
class Verification:
    """`outcome` is the recomputed one, or TAMPERED with `faults` naming each file and what is wrong with it.

    `statements` are what a signature on the bundle says, by name, where the verdict could be recomputed.
    """

    outcome: str
    digest: str
    faults: tuple[str, ...]
    verdict: dict[str, Any] | None
    statements: Mapping[str, bytes] = field(default_factory=dict)


def assess(root: Path) -> dict[str, Any]:
    """The verdict that the raw files of a bundle give, whatever its verdict.json says."""
    plan = Plan.from_bytes((root / "plan.json").read_bytes())
    events = journal.parse((root / "journal.jsonl").read_bytes())
    checks = [*journal.checks(events), _drained(root)]
    if plan.ladder or plan.unprofiled:  # older bundles keep the checks that they were sealed with
        files = (path.relative_to(root).as_posix() for path in bundle.members(root))
        checks.append(kernel_traces.untraced(files, "bundle"))
    started = next((str(event["utc"]) for event in events if event["event"] == "start"), None)
    return verdict.compute(plan, bundle.read_legs(root, plan), checks, bundle.read_floors(root), started)


def _drained(root: Path) -> Check:
    """The keeper released the lease, and had nothing to end that the supervisor left behind."""
    keeper = canonical.loads((root / "keeper.json").read_bytes(), "keeper.json")
    phase, drained = keeper.get("phase"), keeper.get("drained")
    seen = f"{phase}, {drained} processes ended by the keeper"
    return Check(
        "lease-released",
        "keeper",
        seen,
        "released, 0 processes ended by the keeper",
        (phase, drained) == ("released", 0),
    )


def verify(root: Path) -> Verification:
    """Check and recompute the bundle at `root`. A folder without a seal is UsageError `no-bundle`."""
    if not (root / "seal.json").is_file():
        raise UsageError("no-bundle", f"{root} holds no seal.json, so it is not a sealed bundle")
    faults = _seal_faults(root)
    digest = canonical.sha256_file(root / "manifest.json") if (root / "manifest.json").is_file() else ""
    if faults:
        return Verification("TAMPERED", digest, tuple(faults), None)
    try:
        if faults := witnesses.faults(root, journal.parse((root / "journal.jsonl").read_bytes())):
            return Verification("TAMPERED", digest, tuple(faults), None)
        recomputed = assess(root)
        said = statements(Plan.from_bytes((root / "plan.json").read_bytes()), digest, recomputed)
        faults = [*_derived_faults(root, recomputed, digest), *_signature_faults(root, said)]
    except UNREADABLE as error:
        return Verification("TAMPERED", digest, (f"the raw files cannot be read again: {error!s}",), None)
    return Verification("TAMPERED" if faults else recomputed["outcome"], digest, tuple(faults), recomputed, said)


def _seal_faults(root: Path) -> list[str]:
    """What disagrees between the seal, the manifest and the files. Three witnesses tell which one was altered."""
    manifest_path = root / "manifest.json"
    stored = manifest_path.read_bytes() if manifest_path.is_file() else b""
    seal = (root / "seal.json").read_bytes()
    try:
        rebuilt = _rebuilt(root, stored, seal)
    except HarnessError as error:
        return [error.message]
    if seal == bundle.seal_bytes(stored):
        return _file_faults(root, stored, rebuilt)
    if rebuilt == stored:
        return ["seal.json: does not hold the digest of manifest.json"]
    if seal == bundle.seal_bytes(rebuilt):
        return ["manifest.json: differs from the files, which agree with the seal"]
    return ["manifest.json: its digest is not the one in seal.json", *_file_faults(root, stored, rebuilt)]


def _rebuilt(root: Path, stored: bytes, seal: bytes) -> bytes:
    """The manifest that the files demand. One that was altered need not say which are derived, so the seal decides."""
    named = bundle.derived_names(stored)
    for names in (named, bundle.DERIVED, None):
        rebuilt = bundle.manifest_bytes(root, names)
        if seal == bundle.seal_bytes(rebuilt):
            return rebuilt
    return bundle.manifest_bytes(root, named)


def _file_faults(root: Path, stored: bytes, rebuilt: bytes) -> list[str]:
    if stored == rebuilt:
        return []
    try:
        recorded = {row["path"]: row for row in canonical.loads(stored, "manifest.json")["files"]}
    except (HarnessError, KeyError, TypeError) as error:
        return [f"manifest.json: {error}"]
    present = {row["path"]: row for row in canonical.loads(rebuilt)["files"]}
    faults = [f"{path}: missing" for path in sorted(recorded.keys() - present.keys())]
    faults += [f"{path}: not part of the sealed bundle" for path in sorted(present.keys() - recorded.keys())]
    for path in sorted(recorded.keys() & present.keys()):
        if recorded[path] != present[path]:
            sealed = str(recorded[path].get("sha256"))
            hint = canonical.line_ending_hint((root / path).read_bytes(), sealed)
            found = present[path]["sha256"]
            faults.append(f"{path}: SHA-256 {found[:12]}…, sealed as {sealed[:12]}…" + (f"; {hint}" if hint else ""))
    return faults or ["manifest.json: is not canonical"]


def _derived_faults(root: Path, recomputed: dict[str, Any], digest: str) -> list[str]:
    faults = []
    if (root / "verdict.json").read_bytes() != canonical.dumps(recomputed):
        faults.append("verdict.json: is not what the raw files give")
    known = derived(root, recomputed, digest)
    for name in bundle.derived_names((root / "manifest.json").read_bytes()) or bundle.DERIVED_AT_FIRST:
        path = root / name
        if name not in known:
            faults.append(f"{name}: named as derived, but this version of verify cannot make it; take a newer one")
        elif not path.is_file():
            faults.append(f"{name}: missing")
        elif path.read_bytes() not in (known[name], at_first(known[name])):
            faults.append(f"{name}: is not what the verdict gives")
    return faults


def _signature_faults(root: Path, said: Mapping[str, bytes]) -> list[str]:
    path = root / bundle.SIGNATURES
    return origin.faults(path.read_bytes(), said) if path.is_file() else []
