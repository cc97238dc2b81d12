"""The sampler as the program it is, on real processes that end when they are told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest

from harness import process
from harness.records import MemorySample
from harness.telemetry import procfs, sampler
from harness.telemetry.procfs import ProcessId

REPOSITORY = Path(sampler.__file__).parents[2]
# Two processes, the second started by a thread that is not the first one; each holds 32 MiB of its own.
ENGINE = (
    "import os, signal, subprocess, sys, threading\n"
    "held = bytearray(os.urandom(4096)) * 8192\n"
    "if len(sys.argv) == 1:\n"
    " run = lambda: subprocess.run([sys.executable, '-c', open(f'/proc/self/cmdline').read().split(chr(0))[2], 'x'])\n"
    " threading.Thread(target=run).start()\n"
    "else:\n print(os.getpid(), flush=True)\n"
    "signal.pause()\n"
)


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = folder / "memory.jsonl"
        self.engine = subprocess.Popen(
            [sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.engine.stdout is not None
        second, first = procfs.identify(int(self.engine.stdout.readline())), procfs.identify(self.engine.pid)
        assert first is not None and second is not None
        self.first, self.second = first, second
        self.sampler: subprocess.Popen[str] | None = None

    def sample(self, *more: object, root: ProcessId | None = None) -> subprocess.Popen[str]:
        root = root or self.first
        argv = ["--pid", root.pid, "--start", root.start_ticks, "--out", self.rows, "--period", 0.01]
        argv += ["--summary", self.folder / "summary.json", "--gpu", self.folder / "gpu.jsonl", *more]
        command = [sys.executable, "-m", "harness.telemetry.sampler", *map(str, argv)]
        self.sampler = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
        return self.sampler

    def until_rows(self, count: int) -> None:
        """Rows are flushed one by one; reading waits for the writer in short steps and ends with it."""
        assert self.sampler is not None
        while not self.rows.exists() or self.rows.read_bytes().count(b"\n") < count:
            assert self.sampler.poll() is None
            process.wait_gone([ProcessId(self.sampler.pid, ticks(self.sampler.pid))], 0.01)

    def end_engine(self) -> None:
        os.killpg(self.engine.pid, signal.SIGKILL)
        self.engine.wait()

    def samples(self) -> list[MemorySample]:
        return [MemorySample.from_json(json.loads(line)) for line in self.rows.read_text().splitlines()]

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found


def ticks(pid: int) -> int:
    found = procfs.identify(pid)
    assert found is not None
    return found.start_ticks


def close(stream: IO[str] | None) -> None:
    if stream is not None:
        stream.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    one = Run(tmp_path)
    yield one
    one.end_engine()
    close(one.engine.stdout)
    if one.sampler is not None:
        one.sampler.kill()
        one.sampler.wait()
        close(one.sampler.stderr)


def test_it_sums_the_whole_tree_and_ends_with_it(run: Run) -> None:
    watcher = run.sample("--baseline", 10**9)
    run.until_rows(3)
    run.end_engine()
    assert watcher.wait(60) == 0
    samples, summary = run.samples(), run.summary()
    assert samples[0].pids == tuple(sorted((one.pid, one.start_ticks) for one in (run.first, run.second)))
    assert samples[0].rss_kib is not None and samples[0].rss_kib >= 2 * 32 * 1024
    assert samples[0].pss_kib is not None and samples[0].pss_kib <= samples[0].rss_kib
    assert [one.alive for one in samples] == [True] * (len(samples) - 1) + [False]
    assert (samples[-1].pids, samples[-1].pss_kib, samples[-1].rss_kib) == ((), None, None)
    assert (summary["ended"], summary["samples"], summary["seen"]) == ("tree-gone", len(samples), 2)
    stamps = [one.t_ns for one in samples]
    assert int(summary["largest_gap_ns"]) == max(b - a for a, b in pairwise(stamps))
    assert summary["peak_rss_kib"] == max(one.rss_kib for one in samples if one.rss_kib is not None)
    lowest = min(one.mem_available_kib for one in samples if one.mem_available_kib is not None)
    assert summary["peak_mem_available_drop_kib"] == 10**9 - lowest


def test_a_worker_that_outlives_its_front_keeps_the_tree_alive(run: Run) -> None:
    watcher = run.sample()
    run.until_rows(2)
    process.send(run.first, signal.SIGKILL)
    run.engine.wait()
    seen = len(run.samples())
    run.until_rows(seen + 3)
    assert run.samples()[-1].alive and run.samples()[-1].pids == ((run.second.pid, run.second.start_ticks),)
    run.end_engine()
    assert watcher.wait(60) == 0


def test_term_ends_it_with_a_last_row_that_does_not_claim_the_engine_gone(run: Run) -> None:
    watcher = run.sample()
    run.until_rows(1)
    watcher.terminate()
    assert watcher.wait(60) == 0
    assert run.samples()[-1].alive and run.summary()["ended"] == "stopped"


def test_it_has_a_bound(run: Run) -> None:
    assert run.sample("--limit", 0.05).wait(60) == 0
    assert run.summary()["ended"] == "bound"


def test_a_reused_pid_is_nobody(run: Run) -> None:
    assert run.sample(root=ProcessId(run.first.pid, run.first.start_ticks - 1)).wait(60) == 0
    assert [(one.alive, one.pids) for one in run.samples()] == [(False, ())]


def test_files_of_another_leg_are_not_overwritten(run: Run) -> None:
    run.rows.write_text("rows of another leg")
    watcher = run.sample()
    assert watcher.wait(60) == 64
    assert watcher.stderr is not None and "memory.jsonl exists" in watcher.stderr.read()
    assert run.rows.read_text() == "rows of another leg"


def test_gpu_memory_is_measured_or_unknown_with_a_reason(run: Run) -> None:
    assert run.sample("--limit", 0.01).wait(60) == 0
    first = json.loads((run.folder / "gpu.jsonl").read_text().splitlines()[0])
    for one in run.samples():
        assert (one.gpu_mib is None) is (one.gpu_reason is not None)
        assert first["reason"] is None or one.gpu_reason == first["reason"]
