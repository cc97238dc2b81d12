"""A day of campaigns in two minutes: real leases, processes, samplers and journals, a fake engine and a fake clock.

Each leg's load is a jump of CLOCK_MONOTONIC as this process sees it, so grace times stay real and hours do not. One
leg in two meets a random fault. Afterwards nothing may be left that was not there before: no child, no descriptor, no
thread, no file.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from harness import lease, leg, ports, process, settings
from harness.context import Context
from harness.engines.base import Engine, Launch
from harness.errors import HarnessError
from harness.holder import HolderRecord
from harness.journal import Journal
from harness.plan import LegPlan, Plan
from harness.state import RunState
from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId
from harness.telemetry.tree import descendants
from harness.watchdog import Deadline

DAY_S = 86400.0
LEGS = 12
SHORTEST_S, LONGEST_S = 400.0, 2000.0  # of one leg's load
LEG_DEADLINE_S = 2500.0
FAULTS = {
    "deaf": (),  # needs KILL, and is a valid leg for the life cycle
    "daemon": (),
    "silent": ("not-ready",),
    "killed": ("engine-died",),
    "killed-at-the-end": (),
    "sampler": ("sampler-died",),
    "late": ("leg-deadline",),
    "lease": ("lease-lost",),
    "port": ("port-in-use",),
    "stopped": (),
}


class Clock:
    """CLOCK_MONOTONIC that can be moved forward."""

    def __init__(self) -> None:
        self._real = time.monotonic
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return self._real() + self.ahead_s


class Fake:
    """The adapter of `fake.py`."""

    name, vocabulary, first_token = "fake", 64, 1
    capabilities: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.mode = "plain"

    def launch(self, arm: Mapping[str, Any], port: int, plan: Path | None, read_only: bool) -> Launch:
        known = self.mode if self.mode in ("deaf", "daemon", "silent") else "plain"
        program = str(Path(__file__).with_name("fake.py"))
        return Launch([sys.executable, "-I", "-S", program, str(port), known], {}, Path("/"))

    def served_model(self) -> str:
        return "fake"

    def proof_paths(self) -> tuple[str, ...]:
        return ()


class Day:
    """One simulated day in `root`."""

    def __init__(self, root: Path, seed: int, day_s: float) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.day_s = day_s
        self.clock = Clock()
        self.engine = Fake()
        self.faults: Counter[str] = Counter()
        self.runs = self.legs = 0
        self.port = ports.free_port()
        self.config = settings.compose_config(
            [f"host.port={self.port}", f"host.lease_path={root / 'gpu.lock'}", "host.stop_grace_s=0.1"]
        )

    def live(self) -> None:
        while self.clock.ahead_s < self.day_s:
            self.runs += 1
            self._run(RunState(self.root / f"run-{self.runs}"))

    def _run(self, state: RunState) -> None:
        state.bundle.mkdir(parents=True)
        journal = Journal(state.journal)
        record = HolderRecord.mine(state.root.name)
        with lease.acquire(Path(self.config.host.lease_path), 5.0, record, lambda _: None) as held:
            journal.write("start", boot_id=procfs.boot_id())
            for number in range(LEGS):
                fault = self.random.choice(list(FAULTS)) if self.random.random() < 0.5 else "none"
                self.faults[fault] += 1
                code = self._leg(state, held, number, fault)
                journal.write("leg" if code is None else "void", code=code)
                wanted = FAULTS.get(fault, ())
                if (code is None) == bool(wanted) or (code is not None and code not in wanted):
                    raise SystemExit(f"run {self.runs} leg {number}: {fault} gave {code}, wanted {wanted or 'a leg'}")
                if code is not None:
                    break
            journal.write("end", boot_id=procfs.boot_id())
        shutil.rmtree(state.root)
        if left := _below():
            raise SystemExit(f"run {self.runs} left {left}")

    def _leg(self, state: RunState, held: lease.Lease, number: int, fault: str) -> str | None:
        self.legs += 1
        self.engine.mode = fault
        context = self._context(state, held)
        folder = state.bundle / "legs" / f"{number:02d}-c2-A-r1"
        folder.mkdir(parents=True)
        planned = LegPlan(folder.name, "timed", "A", 2, 1)
        try:
            with self._around(held, fault), leg._server(context, planned, folder, sample=True) as owned:
                self._load(context, owned, fault)
        except HarnessError as error:
            return error.code
        return None

    @contextmanager
    def _around(self, held: lease.Lease, fault: str) -> Iterator[None]:
        if fault == "lease":
            held.path.unlink()
            if not held.intact():
                raise HarnessError("lease-lost", "removed")
        with socket.socket() as stranger:
            if fault == "port":
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                stranger.bind(("127.0.0.1", self.port))
                stranger.listen()
            yield

    def _load(self, context: Context, owned: process.Owned, fault: str) -> None:
        """The time of a load, and what happens in it."""
        self.clock.ahead_s += self.random.uniform(SHORTEST_S, LONGEST_S) + (LEG_DEADLINE_S if fault == "late" else 0.0)
        if fault == "sampler":
            self._kill_sampler(owned)
        if fault == "stopped":
            process.send(owned.identity, signal.SIGSTOP)
        if fault.startswith("killed"):
            process.send(owned.identity, signal.SIGKILL)
            died = owned.wait(10.0)
            if fault == "killed":
                raise HarnessError("engine-died", f"under load: {died}")

    def _kill_sampler(self, owned: process.Owned) -> None:
        for one in _below():
            if one != owned.identity and "harness.telemetry.sampler" in procfs.command(one.pid):
                process.send(one, signal.SIGKILL)

    def _context(self, state: RunState, held: lease.Lease) -> Context:
        def check() -> None:
            if self.engine.mode == "silent":
                self.clock.ahead_s += 30.0  # a server that never answers is waited for in simulated time, too

        return Context(
            plan=cast(Plan, None),  # only a load looks at it
            config=self.config,
            engine=cast(Engine, self.engine),
            second=None,
            state=state,
            frozen=None,
            lease_fd=held.fd,
            keeper_pid=os.getppid(),
            check=check,
            tell=lambda news: None,
            deadline=Deadline(LEG_DEADLINE_S),
        )


def _below() -> tuple[ProcessId, ...]:
    """Everything alive below the reaper but this process: daemons and orphans, too."""
    return tuple(one for one in descendants(procfs.scan(), os.getppid()) if one.pid != os.getpid())


def _reap(supervisor: int) -> int:
    """What the keeper does: adopt orphans and collect them, until the one that works has ended."""
    while True:
        pid, status = os.wait()
        if pid == supervisor:
            return os.waitstatus_to_exitcode(status)


def _left(root: Path) -> dict[str, object]:
    """What may not grow: descriptors, threads, children, files."""
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "processes": len(_below()),
        "files": sorted(path.name for path in root.iterdir() if not path.name.startswith("gpu.lock")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours")
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args()
    process.become_subreaper()
    child = os.fork()
    if child:
        return abs(_reap(child))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        day = Day(Path(folder), options.seed, options.hours * 3600.0)
        before = _left(day.root)
        time.monotonic = day.clock
        day.live()
        time.monotonic = day.clock._real
        after = _left(day.root)
    took = time.monotonic() - begun
    met = ", ".join(f"{name} {count}" for name, count in sorted(day.faults.items()))
    print(f"{options.hours:g} h simulated in {took:.0f} s: {day.runs} runs, {day.legs} legs; faults: {met}")
    print(f"before {before}; after {after}")
    if after != before:
        print("something is left behind", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
