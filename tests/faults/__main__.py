"""`python -m tests.faults [--only WORD] [--side-by-side N] [--out FILE]`: the fault matrix.

Every cell breaks one thing at one moment of a real run, then checks what is left: the sealed reason, processes, port,
lease, state, and that the next run works: the next cell's, which must reach its phase, and now and then a whole one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EXIT_FAIL, EXIT_PASS, EXIT_VOID
from tests.faults.cells import CELLS, Cell
from tests.faults.place import SMALL, Missed, Place

VALID = (EXIT_PASS, EXIT_FAIL)
STEPPED = ["same-stamps"]  # the only reason when the machine's own wall clock was set during one leg: try again
TRIES = 3
WHOLE_EVERY = 4  # the next cell of a place is its next run; every fourth time a whole one without a fault is made, too


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float
    reason: str
    missed: str | None


def run_cell(place: Place, cell: Cell, whole: bool) -> Row:
    begun = time.monotonic()
    reason, missed = "", None
    try:
        reason = _patiently(place, lambda: _break(place, cell))
    except Missed as error:
        missed = str(error)
    except Exception as error:
        missed = repr(error)
    took = time.monotonic() - begun
    try:
        if missed is None and whole:
            place.clear()
            _patiently(place, lambda: _next_run(place))
    except Missed as error:
        missed = f"the next run: {error}"
    finally:
        place.clear()
    return Row(cell.name, took, reason, missed)


class _Stepped(Missed):
    """Not the cell's doing."""


def _patiently(place: Place, action: Callable[[], str]) -> str:
    for _ in range(TRIES - 1):
        try:
            return action()
        except _Stepped:
            place.clear()
    return action()


def _valid(place: Place, code: int, said: str) -> None:
    if code in VALID:
        return
    found = place.newest().verdict if place.bundles() and code == EXIT_VOID else None
    reasons = [] if found is None else found["void"]
    kind = _Stepped if reasons == STEPPED else Missed
    raise kind(f"exit {code}, reasons {reasons}; wanted a valid run; it said: {said[-600:]}")


def _break(place: Place, cell: Cell) -> str:
    code, said = cell.act(place)
    found = place.newest()
    if found.faults:
        raise Missed(f"the bundle does not verify: {found.faults}")
    assert found.verdict is not None
    reasons = found.verdict["void"]
    if cell.codes:
        if code != EXIT_VOID or not cell.codes & set(reasons):
            raise Missed(f"exit {code}, reasons {reasons}; wanted {sorted(cell.codes)}; it said: {said[-600:]}")
        if wrong := cell.never & set(reasons):
            raise Missed(f"reasons {reasons}; {sorted(wrong)} is not what happened")
        place.nothing_quoted()
        if cell.leaves_autopsy and not list(place.bundles()[-1].glob("legs/*/autopsy.json")):
            raise Missed("no autopsy was saved")
    else:
        _valid(place, code, said)
    place.nothing_left()
    return next(iter(sorted(cell.codes & set(reasons))), found.outcome)


def _next_run(place: Place) -> str:
    code, said = place.end(place.start(*SMALL))
    _valid(place, code, said)
    place.nothing_left()
    return ""


def prepare(root: Path) -> Path:
    """A whole small run, which must be valid, and the plan document that it froze."""
    place = Place(root)
    try:
        _patiently(place, lambda: _next_run(place))
    finally:
        place.clear()
    plan = root / "frozen-plans.json"
    shutil.copyfile(place.bundles()[-1] / "frozen-plans.json", plan)
    return plan


def matrix(root: Path, cells: list[Cell], side_by_side: int) -> list[Row]:
    plan = prepare(root / "base")
    left, rows = deque(enumerate(cells)), dict[int, Row]()
    lock = threading.Lock()

    places = [Place(root / f"place-{number}", plan) for number in range(side_by_side)]

    def worker(place: Place) -> None:
        for count in itertools.count(1):
            with lock:
                if not left:
                    return
                index, cell = left.popleft()
                last = len(left) < side_by_side
            row = run_cell(place, cell, last or count % WHOLE_EVERY == 0)
            with lock:
                rows[index] = row
                print(_line(row), flush=True)

    threads = [threading.Thread(target=worker, args=(place,), daemon=True) for place in places]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        left.clear()
        raise
    finally:
        for place in places:
            place.clear()
    return [rows[index] for index in sorted(rows)]


def _line(row: Row) -> str:
    return f"{row.seconds:5.1f} s  {row.name:45} {row.reason:18} {'ok' if row.missed is None else row.missed}"


def table(rows: list[Row], seconds: float) -> str:
    good = sum(row.missed is None for row in rows)
    lines = [
        f"{good} of {len(rows)} cells ok in {seconds:.0f} s on {os.cpu_count()} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}, as uid {os.getuid()}. The time is that of the broken run.",
        "",
        "| cell | seconds | reason code or outcome | ok |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.seconds:.1f} | {row.reason} | {'ok' if row.missed is None else row.missed[:120]} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--only", default="", help="only cells whose name holds this word")
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the table goes, as Markdown")
    options = parser.parse_args()
    cells = [cell for cell in CELLS if options.only in cell.name]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        rows = matrix(Path(folder), cells, options.side_by_side)
    text = table(rows, time.monotonic() - begun)
    print(text)
    if options.out is not None:
        options.out.write_text(text)
    return 0 if all(row.missed is None for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
