"""What somebody without the signing key can make anew, so that a changed bundle agrees with itself again.

`resealed`: manifest, seal and the statements that hold their digest. `rewritten`: also the journal (what it noted of
the files, and its chain), verdict and report. Nothing but a signature, or the digest published elsewhere, tells a
rewritten bundle from an honest one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import bundle, canonical, verify, witnesses
from harness.derived import derived
from harness.plan import Plan
from harness.statement import statements

__all__ = ["FAILURES", "resealed", "rewritten"]

AFTERWARDS = (*bundle.SEAL, *bundle.DERIVED, bundle.SIGNATURES)  # not there yet when the journal was closed
FAILURES = verify.UNREADABLE  # the change was such that nothing can be made of it


def resealed(root: Path) -> None:
    names = bundle.derived_names((root / "manifest.json").read_bytes())
    manifest = bundle.manifest_bytes(root, names)
    (root / "manifest.json").write_bytes(manifest)
    (root / "seal.json").write_bytes(bundle.seal_bytes(manifest))
    if names is not None:
        plan = Plan.from_bytes((root / "plan.json").read_bytes())
        verdict = canonical.loads((root / "verdict.json").read_bytes())
        for name, data in statements(plan, canonical.sha256_bytes(manifest), verdict).items():
            (root / name).write_bytes(data)


def rewritten(root: Path) -> None:
    _journal(root)
    verdict = verify.assess(root)
    (root / "verdict.json").write_bytes(canonical.dumps(verdict))
    resealed(root)
    names = bundle.derived_names((root / "manifest.json").read_bytes()) or bundle.DERIVED_AT_FIRST
    made = derived(root, verdict, canonical.sha256_file(root / "manifest.json"))
    for name in names:
        (root / name).write_bytes(made[name])


def _journal(root: Path) -> None:
    """Every line that still is one, with what it notes of the files and its place in the chain made right."""
    previous, lines = "0" * 64, []
    for line in (root / "journal.jsonl").read_bytes().splitlines():
        event = canonical.loads(line)
        _note(root, event)
        event |= {"n": len(lines), "previous": previous}
        lines.append(canonical.dumps(event))
        previous = canonical.sha256_bytes(lines[-1])
    (root / "journal.jsonl").write_bytes(b"".join(lines))


def _note(root: Path, event: dict[str, Any]) -> None:
    folder = root / "legs" / str(event["leg"]) if event["event"] == "leg" else root
    if "files" in event:
        present = witnesses.of_folder(folder)
        event["files"] = {name: sha256 for name, sha256 in present.items() if name not in AFTERWARDS}
    if "leg_sha256" in event:
        event["leg_sha256"] = canonical.sha256_file(folder / "leg.json")
