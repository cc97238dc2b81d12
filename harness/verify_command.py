"""What `verify` prints and its exit code, from the checkout and as a single file. Standard library only.

Exit codes: 0 PASS, 1 FAIL, 2 VOID, 3 TAMPERED or, with `--key`, UNPROVEN; 64 bad usage, 70 our own bug.
"""

from __future__ import annotations

import argparse
import io
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from harness import origin, pipe
from harness.bundle import SIGNATURES
from harness.ed25519 import PublicKey, read_public
from harness.errors import EXIT_BUG, EXIT_USAGE, EXITS, HarnessError, UsageError
from harness.report.summary import summary
from harness.verify import Verification, verify

__all__ = ["main", "run"]

INTEGRITY = "compare it with the one its author published: a digest proves integrity, not origin"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", f"{message}; see --help")


def run(options: argparse.Namespace) -> int:
    """Print what the bundle gives and return the exit code of its outcome."""
    key = None if options.key is None else read_public(options.key)
    found = verify(options.bundle)
    if found.outcome == "TAMPERED" or found.verdict is None:
        print("TAMPERED: this is not the bundle that was sealed")
        print("\n".join(found.faults))
        return EXITS["TAMPERED"]
    signed = _signatures(options.bundle)
    if key is not None and (why := origin.doubt(signed, found.statements, key)):
        print(f"UNPROVEN: the bundle is as it was sealed, but {why}")
        return EXITS["TAMPERED"]
    print("\n".join(summary(found.verdict)))
    print(f"digest {found.digest} ({INTEGRITY})")
    print(_origin(found, signed, key))
    return EXITS[found.outcome]


def _signatures(root: Path) -> bytes | None:
    path = root / SIGNATURES
    return path.read_bytes() if path.is_file() else None


def _origin(found: Verification, signed: bytes | None, key: PublicKey | None) -> str:
    if key is not None:
        return f"signed by the key that was given ({key.keyid[:16]})"
    if signed is None:
        return "not signed"
    names = ", ".join(keyid[:16] for keyid in origin.keyids(signed, found.statements))
    return f"says that it is signed by {names}: not checked; `--key PUB` checks it"


def main(argv: Sequence[str] | None = None) -> int:
    """`python verify.py BUNDLE`: the single file's command line; 141 where its reader closed the output early."""
    return pipe.quietly(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no "…" gets its escape
            stream.reconfigure(errors="backslashreplace")
    try:
        parser = _Parser(prog="verify.py", description="Check a bundle's seal and recompute its verdict, offline.")
        parser.add_argument("bundle", type=Path, help="folder of a sealed run")
        parser.add_argument("--key", type=Path, metavar="PUB", help="public Ed25519 key that must have signed it")
        return run(parser.parse_args(argv))
    except HarnessError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_USAGE
    except Exception as error:
        if pipe.unread(error):
            raise
        traceback.print_exc()
        print("internal error: this is a bug of verify; please report the lines above", file=sys.stderr)
        return EXIT_BUG
