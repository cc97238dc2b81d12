"""`python -m tests.many_hosts [ray] [slurm]`: whole sweeps on real small clusters, and what their bundles prove.

Three sweeps on each: two hosts (jobs side by side), one host (jobs one after another, by its lease), a job that fails.
"""

from __future__ import annotations

import argparse
import json
import os
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
from harness.errors import EXIT_FAIL, EXIT_PASS, EXIT_USAGE
from harness.holder import HolderRecord
from harness.verify import verify
from tests.many_hosts.clusters import ray_cluster, slurm_missing, slurm_node

LIMIT_S = 400.0
SMALL = (
    *("gate=g4", "workload=fault", "gate.concurrencies=[2]", "workload.points={2: 4}", "gate.repetitions=1"),
    *("gate.sequential_requests=1", "gate.model_gate=false", "engine.options.max_num_batched_tokens=64"),
)
# Two engines side by side on one machine take memory and time from each other: such a run says so, and is sealed.
DISTURBED = {"axis-null", "same-stamps", "canary-slow"}
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
        parts = f"job {self.number}  exit {self.exit}  {self.message[:60]:60}  asked {self.began[11:23]}"
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

    def sweep(self, name: str, *overrides: str) -> tuple[int, list[Job]]:
        """Run one sweep in a folder of its own; its exit code and jobs. Missed where a bundle does not verify."""
        work = self.root / name
        work.mkdir()
        command = [sys.executable, "-m", "harness", "run", "-m", f"hydra/launcher={self.launcher}", *SMALL, *overrides]
        env = {**os.environ, **self.env, "XDG_CONFIG_HOME": str(self.root / "config")}
        done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        records = sorted(work.glob("multirun/*/*/outcome.json"))
        if not records:
            raise Missed(f"exit {done.returncode} and no outcome; it said: {(done.stdout + done.stderr)[-3000:]}")
        return done.returncode, [_job(path, work / "evidence") for path in records]

    def nothing_left(self) -> None:
        """Every lease is free and no process of a run lives."""
        for path in self.leases.values():
            with lease.acquire(path, 10.0, HolderRecord.mine("many-hosts"), lambda _: None):
                pass
        words = ("harness.keeper", "harness.supervisor", "kernels.serve", "harness.client")
        left = [line for line in _command_lines() if str(self.root) in line and any(word in line for word in words)]
        _demand(not left, f"these processes are left: {left}")


def _command_lines() -> list[str]:
    return [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]


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
    _demand(disturbed <= DISTURBED, f"{bundle.name} is void: {sorted(disturbed)}")
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


def show(launcher: str, cluster: Cluster, root: Path) -> bool:
    """All sweeps on one cluster, as lines; whether each ended as it must."""
    good = True
    with cluster(root / "cluster") as env:
        place = Place(root / "place", env, launcher)
        for case in (two_hosts, one_host, failing_job):
            begun, jobs, missed = time.monotonic(), [], ""
            try:
                jobs = case(place)
                place.nothing_left()
            except (Missed, subprocess.TimeoutExpired) as error:
                good, missed = False, str(error)
            print(f"{launcher} {case.__name__} {time.monotonic() - begun:.0f} s: {missed or 'ok'}", flush=True)
            for job in jobs:
                print(f"  {job.line()}", flush=True)
    left = [line for line in _command_lines() if str(root) in line]
    if left:
        print(f"{launcher}: still running: {left}")
    return good and not left


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.many_hosts")
    parser.add_argument("engines", nargs="*", metavar="ray|slurm", help="which; without: both, Slurm if it is here")
    asked = parser.parse_args().engines
    clusters: dict[str, tuple[str, Cluster]] = {"ray": ("ray_cluster", ray_cluster), "slurm": ("slurm", slurm_node)}
    missing = slurm_missing()
    if missing and not asked:
        print(f"Slurm is not shown: {missing}")
        del clusters["slurm"]
    results = []
    for name in asked or clusters:
        with tempfile.TemporaryDirectory(prefix="mh-", ignore_cleanup_errors=True) as folder:
            results.append(show(*clusters[name], Path(folder)))
    return EXIT_PASS if all(results) else EXIT_FAIL


if __name__ == "__main__":
    sys.exit(main())
