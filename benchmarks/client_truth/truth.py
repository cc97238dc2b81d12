"""The ground-truth server as a process, and errors of a client's stamps against what it noted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from harness.client.metrics import percentile

__all__ = ["Cell", "Errors", "Seen", "Stream", "TruthServer", "build", "compare", "pinned"]

_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Cell:
    """A load: so many streams at once, each of `tokens` tokens at `rate` a second, staggered or in step."""

    streams: int
    rate: int
    lockstep: bool
    tokens: int


@dataclass(frozen=True)
class Stream:
    """One stream as the server sent it: CLOCK_MONOTONIC ns of the request's arrival and of each token's send."""

    arrived: int
    sent: tuple[int, ...]


@dataclass(frozen=True)
class Seen:
    """One stream as a client reports it: TTFT and the gaps between chunks, in ns."""

    ttft: float
    gaps: Sequence[float]


@dataclass(frozen=True)
class Errors:
    """Absolute errors in ms as (p50, p99, max), chunks compared, and the share of chunks given the stamp before."""

    ttft: tuple[float, float, float]
    gap: tuple[float, float, float]
    chunks: int
    merged_share: float


def build(folder: Path) -> Path:
    """Compile the server with `cc`. SystemExit with a sentence where there is no compiler."""
    if shutil.which("cc") is None:
        raise SystemExit("no C compiler: the ground-truth server is a C program, so install `cc` (gcc or clang)")
    program = folder / "truth_server"
    source = Path(__file__).with_name("truth_server.c")
    subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), str(source)], check=True)
    return program


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started inside runs on that core from its first instruction."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class TruthServer:
    """`with TruthServer(...) as server:` serves on `server.port`; after it, `streams()` is the truth."""

    def __init__(self, program: Path, cell: Cell, requests: int, core: int) -> None:
        self._out = program.with_name("truth.txt")
        shape = (requests, cell.tokens, 1_000_000_000 // cell.rate, int(cell.lockstep))
        self._command = [str(program), *map(str, shape), str(self._out)]
        self._core = core

    def __enter__(self) -> TruthServer:
        with pinned(self._core):
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        if code != 0 and kind is None:
            raise RuntimeError(f"the ground-truth server ended with {code}")

    def streams(self) -> dict[int, Stream]:
        rows = [[int(field) for field in line.split()] for line in self._out.read_text().splitlines()]
        return {row[0]: Stream(row[1], tuple(row[2:])) for row in rows}


def compare(truth: Mapping[int, Stream], seen: Mapping[int, Seen]) -> Errors:
    """Errors of every stream and every gap. RuntimeError when a client missed a stream or a token."""
    ttft_errors: list[int] = []
    gap_errors: list[int] = []
    merged = 0
    for key, stream in truth.items():
        gaps = [after - before for before, after in zip(stream.sent, stream.sent[1:], strict=False)]
        if key not in seen or len(seen[key].gaps) != len(gaps):
            raise RuntimeError(f"stream {key} was not seen whole: it had {len(stream.sent)} tokens")
        ttft_errors.append(round(abs(seen[key].ttft - (stream.sent[0] - stream.arrived))))
        gap_errors.extend(round(abs(a - b)) for a, b in zip(seen[key].gaps, gaps, strict=True))
        merged += sum(gap < 20_000 for gap in seen[key].gaps)  # two reads of one wake-up lie closer than 20 µs
    return Errors(_summary(ttft_errors), _summary(gap_errors), len(gap_errors), merged / len(gap_errors))


def _summary(errors: Sequence[int]) -> tuple[float, float, float]:
    p50, p99 = (float(percentile(errors, p) or 0) / _NS_PER_MS for p in (50, 99))
    return round(p50, 4), round(p99, 4), round(max(errors) / _NS_PER_MS, 4)
