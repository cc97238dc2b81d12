"""`python -m harness.telemetry.sampler --pid P --start TICKS --out FILE`: memory of one engine, ten times a second.

A program of its own, so that neither the client nor the supervisor pays for it and NVML is initialised where it is
used. Each row is a `MemorySample`, flushed. It ends by itself when the engine's tree is gone, with a row alive=false;
on TERM it takes a last honest row, which still says alive=true if the engine lives.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from harness import canonical
from harness.errors import HarnessError
from harness.records import MemorySample
from harness.telemetry import nvml, procfs
from harness.telemetry.procfs import ProcessId
from harness.telemetry.tree import ProcessTree

__all__ = ["Gpu", "Summary", "main", "sample"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Gpu:
    """GPU memory of a tree, and the whole reading as a row of its own. Absence has a reason."""

    def __init__(self, out: BinaryIO | None) -> None:
        self._out = out
        self._nvml: nvml.Nvml | None = None
        self.reason: str | None = None
        try:
            self._nvml = nvml.Nvml()
        except HarnessError as error:
            self.reason = error.code
        self._write({"identity": None if self._nvml is None else self._nvml.identity(), "reason": self.reason})

    def read(self, t_ns: int, pids: Sequence[ProcessId]) -> tuple[int | None, str | None]:
        if self._nvml is None:
            return None, self.reason
        reading = self._nvml.read()
        self._write({"t_ns": str(t_ns), **reading.to_json()})
        if not pids:
            return None, "no process"
        known = [process.pid for process in pids]
        aliases = {pid: procfs.namespace_pids(pid) for pid in known}
        return nvml.attribute(reading, known, lambda pid: procfs.read_stat(pid) is not None, aliases)

    def _write(self, row: dict[str, Any]) -> None:
        if self._out is not None:
            self._out.write(canonical.dumps(row))
            self._out.flush()


@dataclass
class Summary:
    """What the rows come to. Peaks are over non-null values; `largest_gap_ns` is between two rows' stamps.

    The drop counts from `baseline_kib` (read before the engine was started) or from the first row without one.
    `cpu_ns` of `wall_ns` is what the sampler itself cost; `seen` counts every process that ever belonged to the engine.
    """

    baseline_kib: int | None
    period_ns: int
    samples: int = 0
    largest_gap_ns: int = 0
    peak_pss_kib: int | None = None
    peak_rss_kib: int | None = None
    peak_gpu_mib: int | None = None
    peak_mem_available_drop_kib: int | None = None
    ended: str = "running"  # tree-gone | stopped | bound
    cpu_ns: int = 0
    wall_ns: int = 0
    seen: int = 0
    _last: int | None = field(default=None, repr=False)

    def add(self, row: MemorySample) -> None:
        self.samples += 1
        if self._last is not None:
            self.largest_gap_ns = max(self.largest_gap_ns, row.t_ns - self._last)
        self._last = row.t_ns
        self.peak_pss_kib = _peak(self.peak_pss_kib, row.pss_kib)
        self.peak_rss_kib = _peak(self.peak_rss_kib, row.rss_kib)
        self.peak_gpu_mib = _peak(self.peak_gpu_mib, row.gpu_mib)
        if self.baseline_kib is None:
            self.baseline_kib = row.mem_available_kib
        if self.baseline_kib is not None and row.mem_available_kib is not None:
            drop = self.baseline_kib - row.mem_available_kib
            self.peak_mem_available_drop_kib = _peak(self.peak_mem_available_drop_kib, drop)

    def to_json(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**values, **{name: str(value) for name, value in values.items() if name.endswith("_ns")}}


def _peak(highest: int | None, value: int | None) -> int | None:
    return highest if value is None else value if highest is None else max(highest, value)


def sample(tree: ProcessTree, gpu: Gpu) -> MemorySample:
    """One row of what is alive now."""
    found = procfs.footprint(tree.look())
    t_ns = time.monotonic_ns()
    gpu_mib, gpu_reason = gpu.read(t_ns, found.pids)
    return MemorySample(
        t_ns=t_ns,
        alive=bool(found.pids),
        pids=tuple((process.pid, process.start_ticks) for process in found.pids),
        pss_kib=found.pss_kib,
        rss_kib=found.rss_kib,
        mem_available_kib=procfs.meminfo().available_kib,
        gpu_mib=gpu_mib,
        gpu_reason=gpu_reason,
    )


def _loop(tree: ProcessTree, gpu: Gpu, out: BinaryIO, summary: Summary, limit_s: float) -> None:
    """Rows at multiples of the period. One that comes late is not made up for, its gap is recorded."""
    begun = time.monotonic_ns()
    cpu_begun = time.process_time_ns()
    due, stopped = begun, False
    while summary.ended == "running":
        row = sample(tree, gpu)
        out.write(canonical.dumps(row.to_json()))
        out.flush()
        summary.add(row)
        now = time.monotonic_ns()
        if not row.alive:
            summary.ended = "tree-gone"
        elif stopped:
            summary.ended = "stopped"
        elif now - begun >= limit_s * 1e9:
            summary.ended = "bound"
        else:
            due += max(1, -(-(now - due) // summary.period_ns)) * summary.period_ns
            stopped = signal.sigtimedwait(SIGNALS, max(0, due - now) / 1e9) is not None
    summary.cpu_ns = time.process_time_ns() - cpu_begun
    summary.wall_ns = time.monotonic_ns() - begun
    summary.seen = len(tree.known)


@contextmanager
def _new_file(path: Path | None) -> Iterator[BinaryIO | None]:
    if path is None:
        yield None
    else:
        with path.open("xb") as file:
            yield file


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.telemetry.sampler")
    parser.add_argument("--pid", type=int, required=True, help="the engine's first process")
    parser.add_argument("--start", type=int, required=True, help="its start time in clock ticks since boot")
    parser.add_argument("--reaper", type=int, help="pid of the subreaper above: what it adopts belongs to the engine")
    parser.add_argument("--period", type=float, default=0.1, help="seconds between rows")
    parser.add_argument("--limit", type=float, default=6 * 3600.0, help="seconds after which it ends in any case")
    parser.add_argument("--baseline", type=int, help="MemAvailable in KiB before the engine was started")
    parser.add_argument("--out", type=Path, required=True, help="rows; must not exist")
    parser.add_argument("--gpu", type=Path, help="whole NVML readings; must not exist")
    parser.add_argument("--summary", type=Path, help="one JSON object at the end; must not exist")
    options = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.nice(5)  # the engine and the client go first
    tree = ProcessTree(ProcessId(options.pid, options.start), options.reaper)
    summary = Summary(options.baseline, int(options.period * 1e9))
    try:
        with _new_file(options.out) as out, _new_file(options.gpu) as gpu_out:
            assert out is not None
            _loop(tree, Gpu(gpu_out), out, summary, options.limit)
        with _new_file(options.summary) as file:
            if file is not None:
                file.write(canonical.dumps(summary.to_json()))
    except FileExistsError as error:
        print(f"sampler: {error.filename} exists; each leg has its own files", file=sys.stderr)
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main())
