"""Put a signature beside a sealed bundle. The key is read before anything else is done, so a bad one costs nothing."""

from __future__ import annotations

import os
from pathlib import Path

from harness import bundle, origin
from harness.ed25519 import PrivateKey
from harness.errors import HarnessError
from harness.plan import Plan
from harness.statement import statements
from harness.verify import verify

__all__ = ["sign"]


def sign(root: Path, key: PrivateKey) -> bool:
    """Sign the bundle at `root` and return True; False where this key has done so. HarnessError `tampered`.

    The signatures' file is the only one of a bundle that may grow: a second person signs by adding lines.
    """
    found = verify(root)
    if found.outcome == "TAMPERED" or found.verdict is None:
        raise HarnessError("tampered", f"{root} is not as it was sealed, and is not signed: {found.faults[0]}")
    plan = Plan.from_bytes((root / "plan.json").read_bytes())
    said = statements(plan, found.digest, found.verdict)
    path = root / bundle.SIGNATURES
    before = path.read_bytes() if path.exists() else b""
    if before and origin.doubt(before, said, key.public) is None:
        return False
    work = path.with_name(f".{path.name}.tmp")
    work.write_bytes(before + origin.sign(said, key))
    with work.open("rb+") as file:
        os.fsync(file.fileno())
    work.replace(path)
    return True
