"""`python -m tests.fuzz [--count N] [--seed S] [TARGET…]`: N documents in all, a million unless told otherwise.

Prints the counts by outcome; exits 1 when a parser broke its word, with the document's file in tests/fuzz/corpus/,
where the unit tests replay it for ever.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.campaign import run
from tests.fuzz.targets import TARGETS

MILLION = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--count", type=int, default=MILLION)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    unknown = set(asked.targets) - TARGETS.keys()
    if unknown or asked.count < 1:
        parser.error(f"no such target: {', '.join(sorted(unknown))}" if unknown else "--count must be at least 1")
    names = asked.targets or list(TARGETS)
    each = -(-asked.count // len(names))
    finds = {}
    for name in names:
        begin = time.monotonic()
        result = run(TARGETS[name], asked.seed, each)
        finds.update(result.finds)
        spent = time.monotonic() - begin
        counts = ", ".join(f"{outcome} {number:,}" for outcome, number in result.outcomes.most_common())
        print(f"{name}: {each:,} documents, seed {asked.seed}, {spent:.0f} s: {counts}", flush=True)
    for path, fault in finds.items():
        print(f"FIND {path}: {fault}")
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
