"""`python -m tests.mutations [BUNDLE…]`: a table of what `verify` catches; without bundles, those of the repository.

Fails where a mutation that makes no digest anew is not caught or names no file, or where the key is fooled.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harness import signing
from harness.ed25519 import PrivateKey
from tests.mutations.campaign import run, table
from tests.mutations.subject import signed_bundle, structure_bundle

TITLES = {signed_bundle: "a synthetic bundle with every class of file", structure_bundle: "a synthetic bundle of G3"}
EXAMPLE = Path(__file__).resolve().parents[2] / "evidence" / "example"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mutations")
    parser.add_argument("bundles", nargs="*", type=Path, metavar="BUNDLE")
    parser.add_argument("--rounds", type=int, default=1, help="mutations of each kind and file")
    parser.add_argument("--files", type=int, default=3, help="files of each class, drawn by chance")
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    whole = True
    with tempfile.TemporaryDirectory() as folder:
        for number, source in enumerate(options.bundles or [signed_bundle, structure_bundle, EXAMPLE]):
            whole &= _one(source, Path(folder) / str(number), options)
    return 0 if whole else 1


def _one(source: Path | Callable[[Path], PrivateKey], root: Path, options: argparse.Namespace) -> bool:
    """A bundle of the caller's is copied and signed with a key made for this."""
    if not isinstance(source, Path):
        key, title = source(root), TITLES[source]
    else:
        shutil.copytree(source, root)
        key, title = PrivateKey(Ed25519PrivateKey.generate()), source.name
        signing.sign(root, key)
    started = time.monotonic()
    rows = run(root, key.public, rounds=options.rounds, seed=options.seed, most_files=options.files)
    print("\n".join(table(rows, f"{title} (seed {options.seed}, {time.monotonic() - started:.0f} s)")), flush=True)
    missed = [line for row in rows.values() for line in row.missed]
    fooled = sum(row.with_key["accepted"] for row in rows.values())
    print("\n".join(["", *(f"MISSED {line}" for line in missed), f"fooled the key: {fooled}", ""]))
    return not missed and not fooled


sys.exit(main())
