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
from harness.records import MemorySample
from harness.telemetry import procfs
from harness.telemetry.gpu import Gpu
from harness.telemetry.procfs import ProcessId
from harness.telemetry.tree import ProcessTree

__all__ = ["SmapsDuty", "Summary", "main", "sample"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SMAPS_DUTY = 0.1


class SmapsDuty:
    """When PSS is read: as often as rows are taken, but never for more than a tenth of the time.

    smaps_rollup walks the page tables with the engine's memory map locked: 7 ms a GiB in huge pages, 11 ms in small
    ones. So the PSS of an engine of 24 GiB is read every 2 s; its RSS and MemAvailable go on ten times a second. The
    cost is this thread's CPU time, since on a busy machine the wall clock counts the neighbours, too.
    """

    def __init__(self, duty: float = SMAPS_DUTY) -> None:
        self._duty = duty
        self._next_ns = 0
        self.reads = 0
        self.cost_ns = 0

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._next_ns

    def spent(self, now_ns: int, cost_ns: int) -> None:
        """A read that began at `now_ns` cost `cost_ns`."""
        self.reads += 1
        self.cost_ns += cost_ns
        self._next_ns = now_ns + int(cost_ns / self._duty)


@dataclass
class Summary:
    """What the rows come to. Peaks are over non-null values; `largest_gap_ns` is between two rows' stamps.

    `smaps_samples` of the rows have a PSS, on an average every `smaps_period_ns`; the RSS of the others is statm's.
    `gpu_method` is how GPU memory was counted, None without an NVML device. The drop counts from `baseline_kib` (read
    before the engine was started) or from the first row without one. `cpu_ns` of `wall_ns` is what the sampler itself
    cost; `seen` counts every process that ever belonged to the engine.
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
    gpu_method: str | None = None
    smaps_samples: int = 0
    smaps_period_ns: int | None = None
    smaps_cost_ns: int = 0
    cpu_ns: int = 0
    wall_ns: int = 0
    seen: int = 0
    _last: int | None = field(default=None, repr=False)

    def add(self, row: MemorySample) -> None:
        self.samples += 1
        if self._last is not None:
            self.largest_gap_ns = max(self.largest_gap_ns, row.t_ns - self._last)
        self._last = row.t_ns
        self.smaps_samples += row.pss_kib is not None
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
        stamps = {name: value for name, value in values.items() if name.endswith("_ns") and value is not None}
        return {**values, **{name: str(value) for name, value in stamps.items()}}


def _peak(highest: int | None, value: int | None) -> int | None:
    return highest if value is None else value if highest is None else max(highest, value)


def _footprint(processes: Sequence[ProcessId], duty: SmapsDuty) -> procfs.Footprint:
    begun = time.monotonic_ns()
    if not duty.due(begun):
        return procfs.resident(processes)
    cpu = time.thread_time_ns()
    found = procfs.footprint(processes)
    duty.spent(begun, time.thread_time_ns() - cpu)
    return found


def sample(tree: ProcessTree, gpu: Gpu, duty: SmapsDuty) -> MemorySample:
    """One row of what is alive now."""
    found = _footprint(tree.look(), duty)
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
    due, stopped, duty = begun, False, SmapsDuty()
    while summary.ended == "running":
        row = sample(tree, gpu, duty)
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
    summary.smaps_cost_ns = duty.cost_ns
    if summary.smaps_samples:
        summary.smaps_period_ns = summary.wall_ns // summary.smaps_samples
    summary.gpu_method = gpu.method
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
