"""Where a cell runs: a lease, a port, a cache, state and evidence of its own, and what is left there afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness import axes, keeper, lease, ports, process
from harness.holder import HolderRecord
from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId
from harness.verify import Verification, verify

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
SMALL = ("workload.points={2: 4}",)
BASE = (
    *("gate=g4", "workload=fault", "gate.concurrencies=[2]", "gate.repetitions=1", "gate.sequential_requests=0"),
    *("gate.model_gate=false", "engine.name=faulty", "engine.options.max_num_batched_tokens=64"),
    *("host.lease_timeout_s=1", "host.ready_timeout_s=15", "host.stop_grace_s=1", "host.min_disk_free_mib=1"),
    *("client.stall_timeout_s=2", "client.request_timeout_s=15", "client.leg_deadline_s=30"),
)
PROGRAMS = {
    "sampler": "harness.telemetry.sampler",
    "client": "harness.client",
    "front": "tests.faults.engine",
    "gate": "kernels.serve.gate",
}


class Missed(AssertionError):
    """A cell did not end as it must: the text says what was seen."""


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Missed(f"waited {limit_s:g} s in vain for {what}")
        time.sleep(0.02)
    return found


@dataclass
class Place:
    """One of the few places that run cells side by side, one after another in each."""

    root: Path
    plan: Path | None = None
    port: int = field(default_factory=ports.free_port)
    controllers: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for folder in (self.root, self.folder):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def lease(self) -> Path:
        return self.root / "gpu.lock"

    @property
    def folder(self) -> Path:
        return self.root / "signs"

    @property
    def evidence(self) -> Path:
        return self.root / "evidence"

    def start(self, *overrides: str, inject: str = "") -> subprocess.Popen[str]:
        """The harness's run command, with the engine that has a worker."""
        plan = () if self.plan is None else (f"engine.plan={self.plan}",)
        places = (f"host.port={self.port}", f"host.lease_path={self.lease}", f"host.state_dir={self.root / 'state'}")
        more = (f"host.cache_dir={self.root / 'cache'}", f"+engine.options.folder={self.folder}")
        env = {**os.environ, "FAULTS_FOLDER": str(self.folder), "FAULTS_INJECT": inject, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.faults.child", "run", *BASE, *plan, *places, *more, *overrides]
        started = subprocess.Popen(
            command, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.controllers.append(started)
        return started

    def hold(self, *phases: str) -> None:
        for phase in phases:
            (self.folder / f"hold-{phase}").touch()

    def reached(self, phase: str) -> None:
        until((self.folder / f"at-{phase}").exists, f"an engine that is {phase}")

    def go(self) -> None:
        for path in self.folder.glob("hold-*"):
            path.unlink(missing_ok=True)

    def trip(self) -> None:
        (self.folder / "tripped").touch()

    def state(self) -> Path:
        return until(lambda: next(iter((self.root / "state").glob("g4-*")), None), "the run's folder")  # type: ignore[no-any-return]

    def progress(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.state() / "progress.json").read_text()))
        except (OSError, ValueError):
            return {}

    def under_load(self, leg: int = 1) -> None:
        def loaded() -> bool:
            news = self.progress()
            return news.get("leg", 0) >= leg and news.get("phase") == "load" and news.get("done", 0) >= 1

        until(loaded, "load")

    def target(self, name: str) -> ProcessId:
        """The process of that role, as it is now."""
        if name == "controller":
            return _identity(self.controllers[-1].pid)
        if name in ("keeper", "supervisor"):
            found = until(lambda: keeper.read_state(self.state()), "the keeper's state")
            pid = found.pid if name == "keeper" else found.supervisor[0]
            return _identity(pid)
        if name == "worker":
            return until(lambda: next(iter(self.workers()), None), "a worker")  # type: ignore[no-any-return]
        return until(lambda: next(iter(self.mine(PROGRAMS[name])), None), f"the {name}")  # type: ignore[no-any-return]

    def workers(self) -> list[ProcessId]:
        pids = [int(path.name.removeprefix("worker-")) for path in self.folder.glob("worker-*")]
        found = [procfs.identify(pid) for pid in pids if "tests.faults.engine" in procfs.command(pid)]
        return [one for one in found if one is not None and procfs.is_alive(one)]

    def mine(self, word: str = "") -> list[ProcessId]:
        """Living processes of this place whose command line holds `word`, workers left out where a word is given."""
        workers = {one.pid for one in self.workers()} if word else set()
        found = []
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(one.cmdline())
                here = str(self.root) in line or f"--port {self.port}" in line
                if here and word in line and one.pid not in workers and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(_identity(one.pid))
        return [one for one in found if procfs.is_alive(one)]

    def end(self, controller: subprocess.Popen[str]) -> tuple[int, str]:
        """Its exit code and all it said."""
        try:
            said, _ = controller.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            controller.kill()
            said, _ = controller.communicate()
            raise Missed(f"the controller did not end; it said: {said[-600:]}") from None
        return controller.returncode, said

    def bundles(self) -> list[Path]:
        return sorted(self.evidence.glob("g4-*"), key=lambda path: path.stat().st_mtime_ns)

    def newest(self) -> Verification:
        if not self.bundles():
            raise Missed("no bundle was sealed")
        return verify(self.bundles()[-1])

    def nothing_quoted(self) -> None:
        """No axis and no figure of a void run stands in what people read."""
        found = self.newest()
        assert found.verdict is not None
        if found.verdict["axes"] or any(row["of"] for row in found.verdict["counts"].values()):
            raise Missed("a void verdict carries axes")
        report = (self.bundles()[-1] / "report.md").read_text()
        quoted = [one.name for one in axes.axes_of((2,), True) if one.name in report]
        if quoted or "tok/s" in report:
            raise Missed(f"a void report names the axes {quoted}")

    def nothing_left(self) -> None:
        until(lambda: not self.mine(), "the end of every process", 30.0)
        if self.workers():
            raise Missed(f"workers are left: {self.workers()}")
        if ports.listening(self.port):
            raise Missed(f"port {self.port} is open")
        with lease.acquire(self.lease, 1.0, HolderRecord.mine("look"), lambda _: None):
            pass
        if left := list((self.root / "state").glob("g4-*")):
            raise Missed(f"state is left: {left}")

    def clear(self) -> None:
        """For the next cell, whatever became of this one."""
        self.go()
        for one in self.controllers:
            if one.poll() is None:
                one.kill()
                one.communicate()
        self.controllers.clear()
        left = [*self.mine(), *self.workers()]
        for one in left:
            process.send(one, signal.SIGKILL)
        process.wait_gone(left, 10.0)
        for path in self.folder.iterdir():
            path.unlink()


def _identity(pid: int) -> ProcessId:
    found = procfs.identify(pid)
    if found is None:
        raise Missed(f"pid {pid} is gone")
    return found
