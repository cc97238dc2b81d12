"""What `verify` prints and its exit code, from the checkout and as a single file. Standard library only.

Exit codes: 0 PASS, 1 FAIL, 2 VOID, 3 TAMPERED; 64 bad usage, 70 our own bug.
"""

from __future__ import annotations

import argparse
import io
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from harness.errors import EXIT_BUG, EXIT_USAGE, EXITS, HarnessError, UsageError
from harness.report.summary import summary
from harness.verify import verify

__all__ = ["add_arguments", "main", "run"]

INTEGRITY = "compare it with the one its author published: a digest proves integrity, not origin"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", f"{message}; see --help")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="folder of a sealed run")


def run(options: argparse.Namespace) -> int:
    """Print what the bundle gives and return the exit code of its outcome."""
    found = verify(options.bundle)
    if found.outcome == "TAMPERED" or found.verdict is None:
        print("TAMPERED: this is not the bundle that was sealed")
        print("\n".join(found.faults))
        return EXITS["TAMPERED"]
    print("\n".join(summary(found.verdict)))
    print(f"digest {found.digest} ({INTEGRITY})")
    return EXITS[found.outcome]


def main(argv: Sequence[str] | None = None) -> int:
    """`python verify.py BUNDLE`: the single file's command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no "…" gets its escape
            stream.reconfigure(errors="backslashreplace")
    try:
        parser = _Parser(prog="verify.py", description="Check a bundle's seal and recompute its verdict, offline.")
        add_arguments(parser)
        return run(parser.parse_args(argv))
    except HarnessError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_USAGE
    except Exception:
        traceback.print_exc()
        print("internal error: this is a bug of verify; please report the lines above", file=sys.stderr)
        return EXIT_BUG
