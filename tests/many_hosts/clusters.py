"""Small real clusters of this machine, as processes of their own: Ray (head, two workers) and Slurm (one node).

Each lies in one temporary folder, with its own ports and keys, and is gone when its context ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from harness import ports

READY_S = 120.0
STOP_S = 20.0
BIN = Path(sys.executable).parent
SLURM_PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "scancel")
SLURM_CONF = """\
ClusterName=gates
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=gates Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class NotReady(RuntimeError):
    """A cluster did not come up; the text has the end of its logs."""


def slurm_missing() -> str | None:
    """Why Slurm cannot be started here, or None."""
    missing = [name for name in SLURM_PROGRAMS if _program(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: apt install slurmctld slurmd slurm-client munge)"
    return None if os.getuid() == 0 else "slurmd needs root"


@contextlib.contextmanager
def ray_cluster(root: Path) -> Iterator[dict[str, str]]:
    """A head that runs no job and two workers of one CPU each. Yields the environment that finds the cluster."""
    address = f"127.0.0.1:{ports.free_port()}"
    common = ["--node-ip-address=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"]
    common += ["--dashboard-agent-listen-port=0", "--block"]
    head = [f"--port={address.rpartition(':')[2]}", f"--ray-client-server-port={ports.free_port()}", "--num-cpus=0"]
    dashboard = f"--dashboard-port={ports.free_port()}"  # a part of it runs even so
    start = [str(BIN / "ray"), "start", *common]
    with _processes(root, {}) as launch:
        launch("head", [*start, "--head", *head, "--include-dashboard=false", f"--temp-dir={root}/tmp", dashboard])
        _until(partial(_has_nodes, address, 1), "the head of the Ray cluster", root)
        for number in (1, 2):  # one after another: two that start at once on one machine take each other's sockets
            launch(f"worker-{number}", [*start, f"--address={address}", "--num-cpus=1"])
            _until(partial(_has_nodes, address, 1 + number), f"worker {number} of the Ray cluster", root)
        yield {"RAY_ADDRESS": address}


def _has_nodes(address: str, wanted: int) -> bool:
    """Whether the cluster answers and has so many live nodes."""
    ask = (
        f"import ray; ray.init({address!r}, log_to_driver=False); print('alive', sum(n['Alive'] for n in ray.nodes()))"
    )
    try:
        done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    found = re.search(r"alive (\d+)", done.stdout)  # Ray's own lines stand around it
    return found is not None and int(found[1]) == wanted


@contextlib.contextmanager
def slurm_node(root: Path) -> Iterator[dict[str, str]]:
    """munge, slurmctld and slurmd for one node of two CPUs. Yields the environment in which sbatch finds it."""
    for name in ("state", "spool"):
        (root / name).mkdir(parents=True)
    conf = root / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    numbers = {"controller": ports.free_port(), "node": ports.free_port()}
    conf.write_text(SLURM_CONF.format(root=root, host=host, **numbers))
    env = {"SLURM_CONF": str(conf)}
    subprocess.run([_needed("mungekey"), "--create", f"--keyfile={root}/munge.key"], check=True)
    munge = [f"--{word}={root}/munge.{word.partition('-')[0]}" for word in ("key-file", "socket", "pid-file")]
    munge += [f"--{word}={root}/munge.{word.partition('-')[0]}" for word in ("log-file", "seed-file")]
    with _processes(root, env) as launch:
        launch("munged", [_needed("munged"), "--foreground", "--force", *munge])
        _until((root / "munge.socket").exists, "munged", root)
        launch("slurmctld", [_needed("slurmctld"), "-D", "-f", str(conf)])
        launch("slurmd", [_needed("slurmd"), "-D", "-f", str(conf)])
        _until(lambda: _slurm_state(env) == "idle", "an idle Slurm node", root)
        try:
            yield env
        finally:  # a job's steps outlive slurmd, so they go first
            subprocess.run([_needed("scancel"), "--partition=gates"], env={**os.environ, **env}, check=False)
            _until(lambda: _slurm_state(env) == "idle", "the end of Slurm's jobs", root)


def _slurm_state(env: Mapping[str, str]) -> str:
    command = [_needed("sinfo"), "--noheader", "--format=%t"]
    return subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, check=False
    ).stdout.strip()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _needed(name: str) -> str:
    found = _program(name)
    if found is None:
        raise NotReady(f"{name} is not installed")
    return found


@contextlib.contextmanager
def _processes(root: Path, env: Mapping[str, str]) -> Iterator[Callable[[str, Sequence[str]], None]]:
    """Start programs in sessions of their own, a log each; TERM, then KILL, for all of them and what they started."""
    root.mkdir(parents=True, exist_ok=True)
    started: list[psutil.Popen] = []

    def launch(name: str, command: Sequence[str]) -> None:
        with (root / f"{name}.log").open("wb") as log:
            process = psutil.Popen(
                list(command),
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)

    try:
        yield launch
    finally:
        family = {one for process in started for one in _family(process)}
        for process in reversed(started):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=STOP_S)
        for one in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(alive, timeout=STOP_S)


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _until(condition: Callable[[], bool], what: str, root: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            tails = [f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in sorted(root.glob("*.log"))]
            raise NotReady(f"waited {READY_S:g} s in vain for {what}\n" + "\n".join(tails))
        time.sleep(0.2)
