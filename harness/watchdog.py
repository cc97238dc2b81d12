"""What only exists while a hung leg is still there, saved before anything is killed: `legs/NN-…/autopsy.json`.

The seed's project lost a run of more than an hour to a server with 16 open sockets, a busy GPU and a silent log, and
could say no more about it. Reading is bounded and never fails a leg: what cannot be read has its reason in its place.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import canonical
from harness.bundle import write_new
from harness.errors import HarnessError
from harness.process import Owned, tail
from harness.telemetry import probe, procfs
from harness.telemetry.procfs import ProcessId

__all__ = ["FILE", "LATE", "Deadline", "autopsied", "autopsy", "stopped"]

FILE = "autopsy.json"
LATE = frozenset({"client-stalled", "engine-stalled", "leg-deadline", "not-ready", "timeout"})
PY_SPY_S = 10.0
MAX_THREADS = 512  # of one process; a Python engine has dozens, a JVM hundreds
MAX_BYTES = 16384
THREAD_FILES = ("wchan", "syscall", "stack", "status")


class Deadline:
    """The time of one leg: start, load and stop together, in seconds of CLOCK_MONOTONIC from its creation."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._began = time.monotonic()

    @property
    def left_s(self) -> float:
        return self._began + self.limit_s - time.monotonic()

    def check(self, doing: str) -> None:
        """HarnessError `leg-deadline` once the time is over; `doing` says during what."""
        if self.left_s <= 0:
            raise HarnessError(
                "leg-deadline", f"the leg was still {doing} after client.leg_deadline_s={self.limit_s:g} s"
            )


def stopped(process: ProcessId) -> bool:
    """Whether somebody stopped it (SIGSTOP, a debugger): it is alive, but does nothing."""
    stat = procfs.read_stat(process.pid)
    return stat is not None and stat.identity == process and stat.state in "Tt"


@contextmanager
def autopsied(folder: Path, owned: Mapping[str, Owned], logs: Mapping[str, Path]) -> Iterator[None]:
    """Save the autopsy of `owned` (by role) in the leg's `folder` when the block ends as late or stalled.

    The innermost one wins: it still sees the load client beside the engine.
    """
    try:
        yield
    except HarnessError as error:
        if error.code in LATE and not (folder / FILE).exists():
            found = autopsy(owned, logs)
            document = {"code": error.code, "message": error.message, **found}
            write_new(folder / FILE, canonical.dumps(document))
        raise


def autopsy(owned: Mapping[str, Owned], logs: Mapping[str, Path]) -> dict[str, Any]:
    """Processes with start times, sockets, threads, Python stacks, the GPU's processes and the logs' last lines."""
    members = {role: one.descendants() for role, one in owned.items()}
    pids = sorted({process.pid for group in members.values() for process in group})
    return {
        "t_ns": str(time.monotonic_ns()),
        "processes": [_process(role, process) for role, group in members.items() for process in group],
        "sockets": _sockets(set(pids)),
        "threads": [row for pid in pids for row in _threads(pid)],
        "python_stacks": _python_stacks(pids),
        "gpu": _gpu(),
        "logs": {name: tail(path) for name, path in logs.items()},
    }


def _process(role: str, process: ProcessId) -> dict[str, Any]:
    row: dict[str, Any] = {"role": role, **_named(process), "command": procfs.command(process.pid)}
    stat = procfs.read_stat(process.pid)
    if stat is None or stat.identity != process:
        return {**row, "state": "gone"}
    more = {"state": stat.state, "ppid": stat.ppid, "pgid": stat.pgid, "session": stat.session}
    return {**row, **more, "threads": stat.threads}


def _named(process: ProcessId) -> dict[str, Any]:
    started = procfs.started_at(process)
    return {
        "pid": process.pid,
        "start_ticks": process.start_ticks,
        "started_utc_s": None if started is None else round(started, 2),
    }


def _sockets(pids: set[int]) -> list[dict[str, Any]]:
    """TCP, UDP and UNIX sockets that the processes have open, as psutil tells them."""
    import psutil

    try:
        found = psutil.net_connections("all")
    except (psutil.Error, OSError) as error:
        return [{"reason": f"not readable: {error}"}]
    rows = [
        {
            "pid": one.pid,
            "fd": one.fd,
            "kind": getattr(one.type, "name", str(one.type)),
            "local": _address(one.laddr),
            "remote": _address(one.raddr),
            "status": one.status,
        }
        for one in found
        if one.pid in pids
    ]
    return sorted(rows, key=lambda row: (row["pid"], row["fd"]))


def _address(address: Any) -> str | None:
    if not address:
        return None
    return address if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _threads(pid: int) -> list[dict[str, Any]]:
    """What each thread waits for. `stack` is the kernel's and needs root; each absence has its reason."""
    try:
        names = sorted((entry.name for entry in Path(f"/proc/{pid}/task").iterdir()), key=int)
    except OSError:
        return []
    return [
        {
            "pid": pid,
            "tid": int(name),
            **{file: _text(Path(f"/proc/{pid}/task/{name}/{file}")) for file in THREAD_FILES},
        }
        for name in names[:MAX_THREADS]
    ]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        return f"not readable: {error.strerror}"


def _python_stacks(pids: list[int]) -> dict[str, str]:
    """By py-spy, where the host has it. Nothing is injected into an engine that did not ask for it."""
    tool = shutil.which("py-spy")
    if tool is None:
        return {"reason": "py-spy is not installed on this host"}
    return {str(pid): _py_spy(tool, pid) for pid in pids if "python" in procfs.command(pid)}


def _py_spy(tool: str, pid: int) -> str:
    try:
        done = subprocess.run(
            [tool, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, timeout=PY_SPY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not readable: {error}"
    return (done.stdout or done.stderr)[:MAX_BYTES].decode("utf-8", "replace")


def _gpu() -> dict[str, Any]:
    try:
        answer = probe.ask()
    except (HarnessError, OSError, subprocess.SubprocessError) as error:
        return {"processes": None, "reason": str(error)}
    listed = None if answer.processes is None else [[pid, used] for pid, used in answer.processes]
    return {"processes": listed, "reason": answer.reason}
