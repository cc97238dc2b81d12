"""`python -m tests.many_hosts [ray] [slurm]`: whole sweeps on real small clusters, and what their bundles prove.

Sweeps on each: two hosts (jobs side by side), one host (jobs one after another, by its lease), a job that fails; on Ray
also a worker that dies under its job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness import journal, lease, ports
from harness.errors import EXIT_BUG, EXIT_FAIL, EXIT_PASS, EXIT_USAGE
from harness.holder import HolderRecord
from harness.verify import verify
from tests.many_hosts.clusters import ray_cluster, slurm_missing, slurm_node

LIMIT_S = 400.0
SMALL = (
    *("gate=g4", "workload=fault", "gate.concurrencies=[2]", "workload.points={2: 4}", "gate.repetitions=1"),
    *("gate.sequential_requests=1", "gate.model_gate=false", "engine.options.max_num_batched_tokens=64"),
)
# Two engines side by side on one machine take memory and time from each other: such a run says so, and is sealed.
DISTURBED = {"axis-null", "same-stamps", "canary-slow", "memory-return", "legs-complete"}
Cluster = Callable[[Path], AbstractContextManager[dict[str, str]]]


class Missed(AssertionError):
    """A sweep did not end as it must: the text says what was seen."""


@dataclass(frozen=True)
class Job:
    """One job as its own records tell it. Stamps are UTC, ISO 8601 with milliseconds, so they sort as text."""

    number: str
    exit: int
    message: str
    began: str
    host: str = ""
    token: int = 0
    held: tuple[str, str] = ("", "")  # the run's first and last line of the journal: the lease was held all that time

    def line(self) -> str:
        parts = f"job {self.number}  exit {self.exit}  {self.message[:60]:60}  asked {self.began[11:23] or 'before'}"
        start, end = (stamp[11:23] for stamp in self.held)
        return f"{parts}  host {self.host}  held {start} to {end}  token {self.token}" if self.host else parts


@dataclass
class Place:
    """Where sweeps are asked for: two hosts of this machine with a lease, a port and a state folder each."""

    root: Path
    env: Mapping[str, str]
    launcher: str
    leases: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folder = self.root / "config" / "nvfp4-gates" / "host"
        folder.mkdir(parents=True)
        for name in ("a", "b"):
            own = self.root / f"host-{name}"
            own.mkdir()
            self.leases[name] = own / "gpu.lock"
            lines = [f"name: {name}", f"lease_path: {self.leases[name]}", f"state_dir: {own / 'state'}"]
            lines += [f"port: {ports.free_port()}", f"cache_dir: {self.root / 'cache'}", "lease_timeout_s: 300"]
            (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """`harness run WORDS…` of the small workload, in the folder `name`."""
        work = self.root / name
        work.mkdir(exist_ok=True)
        env = {**os.environ, **self.env, "XDG_CONFIG_HOME": str(self.root / "config")}
        command = [sys.executable, "-m", "harness", "run", *words, *SMALL]
        return subprocess.Popen(command, cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def start_sweep(self, name: str, *overrides: str) -> subprocess.Popen[str]:
        return self.start(name, "-m", f"hydra/launcher={self.launcher}", *overrides)

    def sweep(self, name: str, *overrides: str) -> tuple[int, list[Job]]:
        """Run one sweep in a folder of its own; its exit code and jobs. Missed where a bundle does not verify."""
        done = self.start_sweep(name, *overrides)
        said = _said(done)
        work = self.root / name
        records = sorted(work.glob("multirun/*/*/outcome.json"))
        if not records:
            raise Missed(f"exit {done.returncode} and no outcome; it said: {said[-3000:]}")
        return done.returncode, [_job(path, work / "evidence") for path in records]

    def nothing_left(self) -> None:
        """Every lease is free and no process of a run lives."""
        for path in self.leases.values():
            with lease.acquire(path, 10.0, HolderRecord.mine("many-hosts"), lambda _: None):
                pass
        words = ("harness.keeper", "harness.supervisor", "kernels.serve", "harness.client")
        left = [line for line in map(_line, _naming(self.root)) if any(word in line for word in words)]
        _demand(not left, f"these processes are left: {left}")


def _said(process: subprocess.Popen[str]) -> str:
    """What it printed until its end; it never outlives this."""
    try:
        return process.communicate(timeout=LIMIT_S)[0]
    finally:
        process.kill()
        process.wait()


def _naming(root: Path) -> list[psutil.Process]:
    """Live processes whose command line names this temporary folder: nobody else's can."""
    found = psutil.process_iter(["cmdline", "status"])
    return [one for one in found if str(root) in _line(one) and one.info["status"] != psutil.STATUS_ZOMBIE]


def _line(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or [])


def _end(processes: list[psutil.Process]) -> None:
    """TERM, then KILL: a keeper that gets TERM ends its run and gives the lease back."""
    for action in ("terminate", "kill"):
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(one, action)()
        processes = psutil.wait_procs(processes, timeout=20)[1]


def _job(record: Path, evidence: Path) -> Job:
    said = json.loads(record.read_text())
    found = Job(record.parent.name, said["exit"], said["message"], said["began"])
    bundle = evidence / said["message"].split()[-1]
    if not bundle.is_dir():
        return found
    checked = verify(bundle)
    _demand(checked.faults == () and checked.verdict is not None, f"{bundle.name}: {checked.faults}")
    assert checked.verdict is not None
    disturbed = set(checked.verdict["void"])
    seen = [check["seen"] for check in checked.verdict["checks"] if not check["ok"]]
    _demand(disturbed <= DISTURBED, f"{bundle.name} is void: {sorted(disturbed)}: {seen}")
    events = journal.parse((bundle / "journal.jsonl").read_bytes())
    keeper: dict[str, Any] = json.loads((bundle / "keeper.json").read_text())
    _demand(keeper["phase"] == "released" and keeper["token"] == events[0]["lease"]["token"], f"keeper: {keeper}")
    host = Path(keeper["lease_path"]).parent.name.removeprefix("host-")
    stamps = (events[0]["utc"], events[-1]["utc"])
    return Job(found.number, found.exit, found.message, found.began, host, int(keeper["token"]), stamps)


def _demand(fulfilled: bool, otherwise: str) -> None:
    if not fulfilled:
        raise Missed(otherwise)


def two_hosts(place: Place) -> list[Job]:
    """Each host's job holds its own lease, both at the same time: with one CPU a worker, on both workers."""
    code, jobs = place.sweep("two-hosts", "host=a,b")
    _demand([job.host for job in jobs] == ["a", "b"], f"jobs: {jobs}")
    _demand(code == max(job.exit for job in jobs), f"exit {code}, jobs {jobs}")
    first, second = sorted(jobs, key=lambda job: job.held)
    _demand(second.held[0] < first.held[1], f"the jobs were not side by side: {jobs}")
    return jobs


def one_host(place: Place) -> list[Job]:
    """Both jobs were there at the same time, and the later one's journal begins after the earlier one's has ended."""
    code, jobs = place.sweep("one-host", "host=a", "workload.seed=0,1")
    _demand([job.host for job in jobs] == ["a", "a"], f"jobs: {jobs}")
    _demand(code == max(job.exit for job in jobs), f"exit {code}, jobs {jobs}")
    first, second = sorted(jobs, key=lambda job: job.held)
    _demand(second.began < first.held[1], f"the jobs never met, so this shows nothing: {jobs}")
    _demand(first.held[1] <= second.held[0], f"two runs held one lease: {jobs}")
    _demand(first.token < second.token, f"the lease's token did not grow: {jobs}")
    return jobs


def failing_job(place: Place) -> list[Job]:
    """The job with a bad value starts nothing and sets the sweep's exit code; the other one is whole."""
    code, jobs = place.sweep("failing-job", "host=a", "rule.order=seed,nonsense")
    _demand((code, jobs[1].exit) == (EXIT_USAGE, EXIT_USAGE), f"exit {code}, jobs {jobs}")
    _demand(jobs[0].host == "a" and jobs[0].exit != EXIT_USAGE, f"jobs: {jobs}")
    return jobs


def lost_worker(place: Place) -> list[Job]:
    """A worker is killed under its job: the sweep ends with 70, the run goes on, the command for it alone seals it."""
    sweep = place.start_sweep("lost-worker", "host=a")
    state = place.leases["a"].parent / "state"
    deadline = time.monotonic() + LIMIT_S
    while not list(state.glob("g4-*/bundle/legs/*")):  # the run is in its first leg
        _demand(time.monotonic() < deadline and sweep.poll() is None, "the job's first leg never began")
        time.sleep(0.1)
    name = next(state.glob("g4-*")).name
    workers = [one for one in psutil.process_iter() if _in_cluster(one, place.root.parent, "ray::_run_job")]
    _demand(len(workers) == 1, f"workers with a job: {workers}")
    workers[0].kill()
    said = _said(sweep)
    _demand(sweep.returncode == EXIT_BUG and "the job left no outcome" in said, f"exit {sweep.returncode}: {said}")
    again = place.start("lost-worker", "host=a")
    said = _said(again)
    _demand(f"attaching to the unfinished run {name}" in said, f"exit {again.returncode}: {said[-2000:]}")
    checked = verify(place.root / "lost-worker" / "evidence" / name)
    _demand(checked.faults == () and checked.verdict is not None, f"{name}: {checked.faults}")
    assert checked.verdict is not None
    _demand(set(checked.verdict["void"]) <= DISTURBED, f"{name} is void: {checked.verdict['void']}")
    return [Job("0", again.returncode, f"{checked.outcome} {name}, by the second command", "")]


def _in_cluster(process: psutil.Process, root: Path, title: str) -> bool:
    """Whether it has this title and was started by the cluster in `root`."""
    try:
        family = process.parents() if title in " ".join(process.cmdline()) else []
        return any(str(root) in " ".join(one.cmdline()) for one in family)
    except psutil.Error:
        return False


CASES: dict[str, tuple[Callable[[Place], list[Job]], ...]] = {
    # Slurm's launcher sees a lost job only with accounting, which is a database: not shown on one node
    "ray_cluster": (two_hosts, one_host, failing_job, lost_worker),
    "slurm": (two_hosts, one_host, failing_job),
}


def show(launcher: str, cluster: Cluster, root: Path, only: str) -> bool:
    """All sweeps on one cluster, as lines; whether each ended as it must."""
    good = True
    try:
        with cluster(root / "cluster") as env:
            place = Place(root / "place", env, launcher)
            for case in (case for case in CASES[launcher] if only in case.__name__):
                good &= _tell(place, case)
    finally:
        left = _naming(root)
        for one in left:
            print(f"{launcher}: still running, and ended now: {_line(one)}")
        _end(left)
    return good and not left


def _tell(place: Place, case: Callable[[Place], list[Job]]) -> bool:
    begun, jobs, missed = time.monotonic(), [], ""
    try:
        jobs = case(place)
        place.nothing_left()
    except (Missed, subprocess.TimeoutExpired) as error:
        missed = str(error)
    print(f"{place.launcher} {case.__name__} {time.monotonic() - begun:.0f} s: {missed or 'ok'}", flush=True)
    for job in jobs:
        print(f"  {job.line()}", flush=True)
    return not missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.many_hosts")
    parser.add_argument("engines", nargs="*", metavar="ray|slurm", help="which; without: both, Slurm if it is here")
    parser.add_argument("--only", default="", help="only sweeps whose name holds this word")
    options = parser.parse_args()
    asked = options.engines
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the clusters are stopped, too
    clusters: dict[str, tuple[str, Cluster]] = {"ray": ("ray_cluster", ray_cluster), "slurm": ("slurm", slurm_node)}
    missing = slurm_missing()
    if missing and not asked:
        print(f"Slurm is not shown: {missing}")
        del clusters["slurm"]
    results = []
    for name in asked or clusters:
        with tempfile.TemporaryDirectory(prefix="mh-", ignore_cleanup_errors=True) as folder:
            results.append(show(*clusters[name], Path(folder), options.only))
    return EXIT_PASS if all(results) else EXIT_FAIL


if __name__ == "__main__":
    sys.exit(main())
