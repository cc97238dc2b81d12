"""Processes the harness owns: a clean start, an honest end, and never a signal to a stranger.

Each owned process leads a session of its own. Signals go through pidfds after the start time was compared, so a pid
that was reused is never hit (the pid alone says nothing an hour later).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness._shim import become_subreaper, die_with_parent
from harness.errors import HarnessError, UsageError
from harness.telemetry.procfs import ProcessId, is_alive, read_stat
from harness.telemetry.tree import ProcessTree

__all__ = [
    "Ending",
    "Exit",
    "Owned",
    "StopReport",
    "become_subreaper",
    "clean_environment",
    "die_with_parent",
    "send",
    "start",
    "stop",
    "tail",
    "terminate",
    "wait_gone",
]

SHIM = Path(__file__).resolve().with_name("_shim.py")
SEARCH_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KILL = 9  # `signal.SIGKILL` has no name on Windows, where this module is imported but not used
BATCH = 256  # descriptors open at a time; the usual limit is 1,024
RESCAN_S = 0.25  # how soon a process that was forked while its tree is being stopped gets its own signal


@dataclass(frozen=True)
class Exit:
    """How a process ended: by exit code or by signal, exactly one of them."""

    code: int | None
    signal: int | None

    @classmethod
    def from_status(cls, status: int) -> Exit:
        """From a wait status (`os.waitpid`)."""
        number = os.waitstatus_to_exitcode(status)
        return cls(None, -number) if number < 0 else cls(number, None)

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        known = self.signal in set(signal.Signals)
        return f"killed by {signal.Signals(self.signal).name if known else f'signal {self.signal}'}"

    def to_json(self) -> dict[str, int | None]:
        return {"code": self.code, "signal": self.signal}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Exit:
        return cls(data["code"], data["signal"])


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a child: a fixed base and `extra`, nothing of the operator's shell."""
    import pwd

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container's user without an entry
        home = "/"
    base = {"HOME": home, "PATH": SEARCH_PATH, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TMPDIR": "/tmp"}
    return {**base, **extra}


class Owned:
    """A process that this one started, leader of its own session and group."""

    def __init__(self, popen: subprocess.Popen[bytes], identity: ProcessId, reaper: int | None) -> None:
        self.pid = identity.pid
        self.start_ticks = identity.start_ticks
        self.pgid = identity.pid
        self.identity = identity
        self._popen = popen
        self._exit: Exit | None = None
        self._tree = ProcessTree(identity, reaper, full_every=1)

    def alive(self) -> bool:
        return is_alive(self.identity)

    def descendants(self) -> tuple[ProcessId, ...]:
        """What is alive of it now, itself included, daemons and own sessions too; each is remembered from now on."""
        return self._tree.look()

    @property
    def recorded(self) -> frozenset[ProcessId]:
        return self._tree.known

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs. Reaps it."""
        if self._exit is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid:
                self.ended(Exit.from_status(status))
        return self._exit

    def wait(self, timeout_s: float) -> Exit | None:
        """As `poll`, after waiting for its end at most `timeout_s`."""
        if self._exit is None:
            wait_gone([self.identity], timeout_s)
        return self.poll()

    def ended(self, how: Exit) -> None:
        """For a reaper that waits for any child: this one was it."""
        self._exit = how
        self._popen.returncode = how.code if how.signal is None else -how.signal


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    log_path: Path,
    *,
    pass_fds: Sequence[int] = (),
    orphan_signal: int = KILL,
    reaper: int | None = None,
) -> Owned:
    """Start `argv` in its own session, with `clean_environment(env)`, no stdin, stdout and stderr to a new `log_path`.

    `pass_fds` keep their numbers; the lease's goes here, so that the lock outlives no user of the GPU. The kernel
    sends `orphan_signal` (0: none) when the *thread* that called this ends, so call it from one that stays. `reaper`
    is the subreaper above, the keeper: what it adopts later counts as this process's descendant.
    Raises UsageError `cannot-start` (no such program or folder) or HarnessError `log-exists`.
    """
    environment = clean_environment(env)
    if not cwd.is_dir():
        raise UsageError("cannot-start", f"cannot start {argv[0]}: {cwd} is not a folder; create it first")
    if shutil.which(cwd / argv[0] if os.sep in argv[0] else argv[0], path=environment["PATH"]) is None:
        where = "" if os.sep in argv[0] else f" on PATH {environment['PATH']}"
        raise UsageError("cannot-start", f"no program {argv[0]}{where}; install it or give its absolute path")
    try:
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    except FileExistsError:
        raise HarnessError("log-exists", f"{log_path} exists; a log has one writer, so give this process its own")
    shim = [sys.executable, "-I", "-S", str(SHIM), str(os.getpid()), str(int(orphan_signal)), *argv]
    try:
        popen = subprocess.Popen(
            shim,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    finally:
        os.close(log)
    stat = read_stat(popen.pid)  # it cannot be gone: nobody else reaps it
    assert stat is not None
    return Owned(popen, stat.identity, reaper)


def _pidfd(process: ProcessId) -> int | None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if is_alive(process):  # compared after opening: from here on the descriptor cannot mean another process
        return descriptor
    os.close(descriptor)
    return None


def send(process: ProcessId, number: int) -> bool:
    """Signal exactly this process. False if it is gone, its pid belongs to another, or permission is missing."""
    descriptor = _pidfd(process)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def wait_gone(processes: Sequence[ProcessId], timeout_s: float, *, first: bool = False) -> bool:
    """Wait for the end of all (or of the `first`) of `processes`, by event. True if that happened in time."""
    deadline = time.monotonic() + timeout_s
    if first:
        return _wait_some(processes[:BATCH], deadline, first=True)
    batches = [processes[index : index + BATCH] for index in range(0, len(processes), BATCH)]
    return all(_wait_some(batch, deadline, first=False) for batch in batches)


def _wait_some(processes: Sequence[ProcessId], deadline: float, *, first: bool) -> bool:
    poller = select.poll()
    running = {descriptor for descriptor in map(_pidfd, processes) if descriptor is not None}
    try:
        for descriptor in running:
            poller.register(descriptor, select.POLLIN)
        while running and not (first and len(running) < len(processes)):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for descriptor, _ in poller.poll(left * 1000):
                poller.unregister(descriptor)
                running.discard(descriptor)
                os.close(descriptor)
        return True
    finally:
        for descriptor in running:
            os.close(descriptor)


@dataclass(frozen=True)
class Ending:
    """When TERM and KILL were sent (CLOCK_MONOTONIC ns, None: not needed) and what would not die."""

    term_at_ns: int | None
    kill_at_ns: int | None
    survivors: tuple[ProcessId, ...]


def terminate(
    find: Callable[[], Sequence[ProcessId]], grace_s: float, kill_s: float, *, reap: Callable[[], object] | None = None
) -> Ending:
    """TERM to all that `find` names, again until none is left; KILL after `grace_s`; give up `kill_s` later.

    `find` is asked anew after each event, so what is forked meanwhile is met too. `reap` collects ended children.
    """
    if not find():
        return Ending(None, None, ())
    term_at = time.monotonic_ns()
    if not _signal_until_gone(find, signal.SIGTERM, grace_s, reap):
        return Ending(term_at, None, ())
    kill_at = time.monotonic_ns()
    return Ending(term_at, kill_at, _signal_until_gone(find, signal.SIGKILL, kill_s, reap))


def _signal_until_gone(
    find: Callable[[], Sequence[ProcessId]], number: int, limit_s: float, reap: Callable[[], object] | None
) -> tuple[ProcessId, ...]:
    deadline = time.monotonic() + limit_s
    sent: set[ProcessId] = set()
    while left := tuple(find()):
        for process in left:
            if process not in sent:
                send(process, number)
                sent.add(process)
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        wait_gone(left, min(remaining, RESCAN_S), first=True)
        if reap is not None:
            reap()
    return left


@dataclass(frozen=True)
class StopReport:
    """The end of an owned process and of everything it started. `survivors` not empty: the host is dirty."""

    term_at_ns: int | None
    kill_at_ns: int | None
    survivors: tuple[ProcessId, ...]
    exit: Exit | None

    def to_json(self) -> dict[str, Any]:
        stamps = {"term_at_ns": self.term_at_ns, "kill_at_ns": self.kill_at_ns}
        return {
            **{name: None if stamp is None else str(stamp) for name, stamp in stamps.items()},
            "survivors": [process.to_json() for process in self.survivors],
            "exit": None if self.exit is None else self.exit.to_json(),
        }


def stop(owned: Owned, grace_s: float, kill_s: float = 10.0) -> StopReport:
    """End the group and every recorded or found descendant: TERM, `grace_s`, KILL; then check that all are gone.

    Takes at most `grace_s + kill_s`. A process that outlives KILL (stuck in a driver) is a survivor and not an error.
    """
    ending = terminate(owned.descendants, grace_s, kill_s, reap=owned.poll)
    return StopReport(ending.term_at_ns, ending.kill_at_ns, ending.survivors, owned.poll())


def tail(path: Path, lines: int = 20, limit_bytes: int = 16384) -> str:
    """The last `lines` lines of at most the last `limit_bytes`, for reports. Bytes that are not UTF-8 are replaced."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit_bytes))
            data = file.read(limit_bytes)
    except FileNotFoundError:
        return ""
    return "\n".join(data.decode("utf-8", "replace").splitlines()[-lines:])
