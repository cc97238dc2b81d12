"""Who holds a lease: the record beside the lock, and the processes that really have it open.

The record only informs. What decides is the kernel's lock, and who has it can be seen in `/proc/PID/fdinfo`: unlike
`/proc/locks`, which names the process that once called flock, it names every process that keeps the lock alive.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId

__all__ = ["HolderRecord", "Keeping", "keepers_of", "read_record", "record_path", "utc", "write_record"]

RECORD_LIMIT = 65536


def utc(seconds: float | None = None) -> str:
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


@dataclass(frozen=True)
class HolderRecord:
    """Who took the lease. `since` (UTC), `token` and `inode` are filled in by `lease.acquire`.

    `token` grows with each acquisition of the lease on this host, so that a late writer can be told from the present
    one. `inode` is `device:inode` of the lock file. `released` is UTC, None while held. `survivors` are (pid, start
    ticks) of what outlived KILL: while one of them lives on this boot, no run may start.
    """

    run_id: str
    pid: int
    start_ticks: int
    boot_id: str | None
    host: str
    user: str
    since: str = ""
    token: int = 0
    inode: str = ""
    released: str | None = None
    survivors: tuple[tuple[int, int], ...] = ()

    @classmethod
    def mine(cls, run_id: str) -> HolderRecord:
        """Of this process."""
        me = procfs.identify(os.getpid())
        ticks = 0 if me is None else me.start_ticks
        return cls(run_id, os.getpid(), ticks, procfs.boot_id(), socket.gethostname(), user_name(os.getuid()))

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.start_ticks)

    def lives(self) -> bool:
        """True only for this very boot, pid and start time. False proves nothing about another host's process."""
        return self.boot_id is not None and self.boot_id == procfs.boot_id() and procfs.is_alive(self.identity)

    def dirty(self) -> tuple[ProcessId, ...]:
        """The survivors that are still there; none of another boot or another host is."""
        if self.boot_id is None or self.boot_id != procfs.boot_id():
            return ()
        return tuple(one for one in (ProcessId(*pair) for pair in self.survivors) if procfs.is_alive(one))

    def who(self) -> str:
        return f"run {self.run_id} ({self.user}, pid {self.pid} on {self.host}) since {self.since}"

    def to_json(self) -> dict[str, Any]:
        survivors = [list(pair) for pair in self.survivors]
        return {**asdict(self), "token": str(self.token), "survivors": survivors}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HolderRecord:
        """Raises HarnessError `bad-record` naming what is missing or of another type."""
        values: dict[str, Any] = {}
        for name, kinds in _KINDS.items():
            value = data.get(name)
            if name == "token" and isinstance(value, str) and value.isdecimal():
                value = int(value)
            if not isinstance(value, kinds):
                raise HarnessError("bad-record", f"a holder record's {name} is {value!r}")
            values[name] = value
        return cls(**values, survivors=_pairs(data.get("survivors", [])))


def _pairs(data: Any) -> tuple[tuple[int, int], ...]:
    """Absent in records of earlier versions."""
    good = isinstance(data, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(item) is int for item in pair) for pair in data
    )
    if not good:
        raise HarnessError("bad-record", f"a holder record's survivors is {data!r}")
    return tuple((pair[0], pair[1]) for pair in data)


_OPTIONAL = (str, type(None))
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("run_id", "host", "user", "since", "inode"), str),
    **dict.fromkeys(("pid", "start_ticks", "token"), int),
    **dict.fromkeys(("boot_id", "released"), _OPTIONAL),
}


@dataclass(frozen=True)
class Keeping:
    """A process that keeps the lock alive through an open descriptor."""

    process: ProcessId
    command: str

    def who(self) -> str:
        started = procfs.started_at(self.process)
        since = "" if started is None else f", started {utc(started)}"
        return f"pid {self.process.pid} ({self.command}{since})"


def record_path(lock: Path) -> Path:
    return lock.with_name(lock.name + ".holder.json")


def read_record(lock: Path) -> HolderRecord | None:
    """None if there is none, or if it is not a record: text left by others must not stop a run."""
    try:
        descriptor = os.open(record_path(lock), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = canonical.loads(os.read(descriptor, RECORD_LIMIT), "holder record")
        return HolderRecord.from_json(data) if isinstance(data, dict) else None
    except (OSError, HarnessError):
        return None
    finally:
        os.close(descriptor)


def write_record(lock: Path, record: HolderRecord) -> str | None:
    """Write in place, since in a sticky folder nobody can rename over another user's file. Returns why not, or None.

    The file is opened without O_CREAT first: with fs.protected_regular another user's file cannot be opened with it.
    """
    path = record_path(lock)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            with contextlib.suppress(PermissionError):
                os.fchmod(descriptor, 0o666)  # the umask took bits that the next user needs
        try:
            seen = os.fstat(descriptor)
            if not stat.S_ISREG(seen.st_mode) or seen.st_nlink != 1:
                return f"{path} is not a plain file with one name; remove it"
            data = canonical.dumps(record.to_json())
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{path} cannot be written ({error.strerror}); waiting users will not see who holds the lease"
    return None


def next_token(previous: HolderRecord | None) -> int:
    """Above the last one, and above any that a lost record may have held unless the clock went back."""
    return max(time.time_ns(), 0 if previous is None else previous.token + 1)


def with_release(record: HolderRecord) -> HolderRecord:
    return replace(record, released=utc())


def keepers_of(device: int, inode: int) -> tuple[Keeping, ...]:
    """Every process with a descriptor that has the flock on this file. Other users' processes are seen only by root."""
    found = []
    for pid in procfs.pids():
        process = procfs.identify(pid)
        if process is not None and _keeps(pid, device, inode):
            found.append(Keeping(process, procfs.command(pid)))
    return tuple(sorted(found, key=lambda keeping: keeping.process))


def _keeps(pid: int, device: int, inode: int) -> bool:
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - every descriptor of the host; Path objects cost 5 times
    except OSError:
        return False
    for name in names:
        try:
            seen = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116
            if (seen.st_dev, seen.st_ino) == (device, inode) and _has_flock(Path(f"/proc/{pid}/fdinfo/{name}")):
                return True
        except OSError:
            continue
    return False


def _has_flock(fdinfo: Path) -> bool:
    return any(line.startswith("lock:") and "FLOCK" in line for line in fdinfo.read_text().splitlines())
