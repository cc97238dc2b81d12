"""The lease of a GPU: an exclusive flock on one file that every user of the host shares.

A free lock proves nothing and a record proves nothing: the kernel lock alone decides. The file is never deleted,
truncated or written, since whoever deletes it lets two holders in. `flock FILE -c …` of a shell excludes us and we it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from harness.errors import HarnessError, UsageError
from harness.holder import (
    HolderRecord,
    Keeping,
    keepers_of,
    next_token,
    read_record,
    utc,
    with_release,
    write_record,
)

__all__ = ["HolderRecord", "Lease", "LeaseState", "acquire", "describe"]

POLL_S = 0.1  # flock(2) has no timeout
RENAME_S = 5.0  # how often a waiting run looks anew at who holds it: that look reads every descriptor of the host

# statfs(2) magic numbers of file systems whose locks may not reach every user of the file.
REMOTE = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x01021997: "9p",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x73757245: "Coda",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x786F4256: "VirtualBox share",
    0x65735546: "FUSE",
}


@dataclass(frozen=True)
class LeaseState:
    """What can be seen of a lease without taking it. `held` is None where the file cannot be opened (`sentence`)."""

    path: Path
    held: bool | None
    holder: HolderRecord | None
    holder_alive: bool
    keeping: tuple[Keeping, ...]
    sentence: str

    @property
    def survivors(self) -> tuple[Keeping, ...]:
        """What keeps the lock although the recorded holder is gone."""
        return () if self.holder_alive else self.keeping


class Lease:
    """A held lease. `fd` goes to every process that uses the GPU: the lock lasts until the last of them closes it."""

    def __init__(self, path: Path, fd: int, holder: HolderRecord, note: str | None) -> None:
        self.path = path
        self.fd = fd
        self.holder = holder
        self.note = note  # why the holder's record could not be written; it does not weaken the lock

    def intact(self) -> bool:
        """False if somebody removed or replaced the file, so that others may lock another one."""
        return self.fd >= 0 and _is_current(self.fd, self.path)

    def release(self) -> None:
        """Close, never unlock: an explicit unlock would free it for processes that still have the descriptor."""
        if self.fd >= 0:
            if self.note is None:
                self.note = write_record(self.path, with_release(self.holder))
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(
    path: Path,
    timeout_s: float,
    holder: HolderRecord,
    on_wait: Callable[[str], None],
    *,
    pause: Callable[[float], object] = time.sleep,
) -> Lease:
    """Take the lease, waiting at most `timeout_s`; `on_wait` gets a sentence whenever the holder it names changes.

    `pause` waits between two attempts and may raise to give up. Raises UsageError: `lease-held` after the timeout,
    `lease-path` for what cannot be a lock (link, folder, no permission), `lease-remote` on a network file system.
    """
    deadline = time.monotonic() + timeout_s
    told, look_at = "", 0.0
    while True:
        taken = _attempt(path, holder)
        if taken is not None:
            return taken
        now = time.monotonic()
        if now >= deadline or now >= look_at:
            state, look_at = describe(path), now + RENAME_S
            if now >= deadline and state.held is not False:  # free: another's `describe` was in the way
                mend = "wait for it, or raise host.lease_timeout_s"
                raise UsageError("lease-held", f"{state.sentence}; waited {timeout_s:g} s. Mend: {mend}")
            if state.held and state.sentence != told:
                told = state.sentence
                on_wait(f"{told}; waiting up to {deadline - now:.0f} s")
        pause(max(0.0, min(POLL_S, deadline - now)))


def _attempt(path: Path, holder: HolderRecord) -> Lease | None:
    """One try on a fresh descriptor. None: held, or the file was replaced between opening and locking."""
    import fcntl

    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_current(descriptor, path):
            raise BlockingIOError
        seen = os.fstat(descriptor)
        inode = f"{seen.st_dev}:{seen.st_ino}"
        previous = read_record(path)
        if previous is not None and _holds_elsewhere(previous, inode):
            raise BlockingIOError
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    mine = replace(holder, since=utc(), token=next_token(previous), inode=inode, released=None)
    return Lease(path, descriptor, mine, write_record(path, mine))


def _holds_elsewhere(record: HolderRecord, inode: str) -> bool:
    """Its process lives, did not release, and has locked a file that was removed from under it: two would run."""
    return record.released is None and record.inode not in ("", inode) and record.pid != os.getpid() and record.lives()


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino)


def _open(path: Path, create: bool = True) -> int:
    """Without O_CREAT first (in a sticky folder fs.protected_regular refuses it for another user's file)."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(path, flags)
            break
        except FileNotFoundError:
            if not create:
                raise
        except OSError as error:
            raise _unusable(path, error)
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # the umask took bits that other users need
            break
        except FileExistsError:
            continue  # another was quicker: use its file
        except OSError as error:
            raise _unusable(path, error)
    try:
        _check(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unusable(path: Path, error: OSError) -> UsageError:
    if error.errno == errno.ELOOP:
        return UsageError("lease-path", f"lease {path} is a symbolic link; remove it or set host.lease to its target")
    if error.errno == errno.EACCES:
        return UsageError(
            "lease-path", f"lease {path} may not be opened; ask its owner for `chmod 0666 {path}`, or run as that user"
        )
    return UsageError("lease-path", f"lease {path} cannot be opened: {error.strerror}; set host.lease to a local file")


def _check(path: Path, descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise UsageError("lease-path", f"lease {path} is {kind}; set host.lease to a plain file")
    remote = remote_filesystem(_magic(descriptor))
    if remote is not None:
        raise UsageError(
            "lease-remote",
            f"lease {path} lies on {remote}, where a lock may not exclude other hosts or survive; "
            "set host.lease to a file on a local disk or tmpfs",
        )


def remote_filesystem(magic: int) -> str | None:
    """The name of a file system that cannot hold a lease, by its statfs magic, or None."""
    return REMOTE.get(magic & 0xFFFFFFFF)


def _magic(descriptor: int) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    # struct statfs begins with the type as one long on x86-64 and aarch64; 120 bytes there, so 256 are enough.
    buffer = (ctypes.c_long * 32)()
    if libc.fstatfs(descriptor, ctypes.byref(buffer)) != 0:
        raise HarnessError("lease-path", f"statfs failed: {os.strerror(ctypes.get_errno())}")
    return int(buffer[0])


def describe(path: Path) -> LeaseState:
    """Free or held, by whom, and who keeps it. Takes a shared lock for an instant; `acquire` allows for that."""
    import fcntl

    holder = read_record(path)
    alive = holder is not None and holder.released is None and holder.lives()
    try:
        descriptor = _open(path, create=False)
    except FileNotFoundError:
        return _state(path, False, holder, alive, ())
    except UsageError as error:
        return LeaseState(path, None, holder, alive, (), error.message)
    try:
        seen = os.fstat(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _state(path, True, holder, alive, keepers_of(seen.st_dev, seen.st_ino))
        return _state(path, False, holder, alive, ())
    finally:
        os.close(descriptor)


def _state(
    path: Path, locked: bool, holder: HolderRecord | None, alive: bool, keeping: tuple[Keeping, ...]
) -> LeaseState:
    held = locked or (holder is not None and alive)
    return LeaseState(path, held, holder, alive, keeping, _sentence(path, locked, holder, alive, keeping))


def _sentence(path: Path, locked: bool, holder: HolderRecord | None, alive: bool, keeping: tuple[Keeping, ...]) -> str:
    last = "" if holder is None else holder.who()
    if not locked:
        if alive:
            return f"lease {path} was removed or replaced while {last} holds it; stop that run first"
        return f"lease {path} is free" + (f"; last held by {last}" if last else "")
    if alive:
        return f"lease {path} is held by {last}"
    by = ", ".join(one.who() for one in keeping) or "a process that this user may not see"
    return f"lease {path} is held by {by}" + (f"; the recorded holder is gone: {last}" if last else "")
