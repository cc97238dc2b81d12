"""The lease of a GPU: an exclusive flock on one file that every user of the host shares.

A free lock proves nothing and a record proves nothing: the kernel lock alone decides. The file is never deleted,
truncated or written, since whoever deletes it lets two holders in. `flock FILE -c …` of a shell excludes us and we it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from harness.errors import UsageError
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
from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId

__all__ = ["HolderRecord", "Lease", "LeaseState", "acquire", "describe", "is_current"]

POLL_S = 0.1  # flock(2) has no timeout
RENAME_S = 5.0  # how often a waiting run looks anew at who holds it: that look reads every descriptor of the host

# File system types of mountinfo whose locks may not reach every user of the file, or come from another kernel.
REMOTE = {
    "9p": "9p",
    "afs": "AFS",
    "beegfs": "BeeGFS",
    "ceph": "Ceph",
    "cifs": "CIFS",
    "coda": "Coda",
    "gfs2": "GFS2",
    "gpfs": "GPFS",
    "lustre": "Lustre",
    "ncpfs": "NCP",
    "nfs": "NFS",
    "nfs4": "NFS",
    "ocfs2": "OCFS2",
    "prl_fs": "a Parallels share",
    "smb3": "SMB",
    "smbfs": "SMB",
    "vboxsf": "a VirtualBox share",
    "virtiofs": "virtiofs",
    "vmhgfs": "a VMware share",
}
# FUSE mounts that keep their files on this host: this kernel then arbitrates the lock for all its users.
LOCAL_FUSE = frozenset(
    {
        "fuseblk",
        *("fuse.bindfs", "fuse.encfs", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs"),
        *("fuse.ntfs-3g", "fuse.unionfs", "fuse.unionfs-fuse"),
    }
)


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
        return self.fd >= 0 and is_current(self.fd, self.path)

    def report(self, survivors: Sequence[ProcessId]) -> None:
        """Write into the holder's record what KILL has not ended: the host is dirty while one of them lives."""
        self.holder = replace(self.holder, survivors=tuple((one.pid, one.start_ticks) for one in survivors))
        self.note = write_record(self.path, self.holder)

    def release(self) -> None:
        """Close, never unlock: an explicit unlock would free it for processes that still have the descriptor."""
        if self.fd >= 0:
            if self.note is None and _still_ours(self.path, self.holder):
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
    `lease-path` for what cannot be a lock (link, folder, no permission), `lease-remote` on a network file system,
    `host-dirty` while a process that outlived KILL in the last run is still there.
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
        if not is_current(descriptor, path):
            raise BlockingIOError
        seen = os.fstat(descriptor)
        inode = f"{seen.st_dev}:{seen.st_ino}"
        previous = read_record(path)
        if previous is not None and _holds_elsewhere(previous, inode):
            raise BlockingIOError
        if previous is not None and (dirty := previous.dirty()):
            raise UsageError("host-dirty", dirty_sentence(path, previous, dirty))
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    mine = replace(holder, since=utc(), token=next_token(previous), inode=inode, released=None, survivors=())
    return Lease(path, descriptor, mine, write_record(path, mine))


def dirty_sentence(path: Path, record: HolderRecord, dirty: Sequence[ProcessId]) -> str:
    names = ", ".join(Keeping(one, procfs.command(one.pid)).who() for one in dirty)
    return (
        f"this host is dirty: {names} outlived KILL in {record.who()} and may still hold the GPU; end it (a process "
        f"stuck in a driver needs a reboot), and the lease {path} can be taken again"
    )


def _holds_elsewhere(record: HolderRecord, inode: str) -> bool:
    """Its process lives, did not release, and has locked a file that was removed from under it: two would run."""
    return record.released is None and record.inode not in ("", inode) and record.pid != os.getpid() and record.lives()


def _still_ours(path: Path, holder: HolderRecord) -> bool:
    """False once a later holder of a replaced file has written its own record there."""
    found = read_record(path)
    return found is None or found.token <= holder.token


def is_current(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the file that `descriptor` has open, which is the one that is locked."""
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
    remote = remote_filesystem(_filesystem(descriptor))
    if remote is not None:
        raise UsageError(
            "lease-remote",
            f"lease {path} lies on {remote}, where a lock may not exclude other hosts or survive; "
            "set host.lease to a file on a local disk or tmpfs",
        )


def remote_filesystem(kind: str | None) -> str | None:
    """The name of a file system that cannot hold a lease, by its type in mountinfo, or None. Unknown FUSE is remote."""
    if kind is None or kind in LOCAL_FUSE:
        return None
    if kind == "fuse" or kind.startswith("fuse."):
        return f"{kind}, which may be another host's"
    return REMOTE.get(kind)


def filesystem_type(mountinfo: str, mount_id: str | None, device: int) -> str | None:
    """The type of the mount with this id, else of the last one on `device` (st_dev); None where neither is listed."""
    number, found = f"{os.major(device)}:{os.minor(device)}", None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        words = left.split()
        if len(words) < 3 or not right:
            continue
        if words[0] == mount_id:
            return right.split()[0]
        if words[2] == number:
            found = right.split()[0]
    return found


def _filesystem(descriptor: int) -> str | None:
    """By mount id, since btrfs and overlay give files another st_dev than their mount."""
    mount_id = None
    with contextlib.suppress(OSError):
        text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        mount_id = next((line.split()[1] for line in text.splitlines() if line.startswith("mnt_id:")), None)
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    return filesystem_type(mounts, mount_id, os.fstat(descriptor).st_dev)


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
        if holder is not None and (dirty := holder.dirty()):
            return dirty_sentence(path, holder, dirty)
        return f"lease {path} is free" + (f"; last held by {last}" if last else "")
    if alive:
        return f"lease {path} is held by {last}"
    by = ", ".join(one.who() for one in keeping) or "a process that this user may not see"
    return f"lease {path} is held by {by}" + (f"; the recorded holder is gone: {last}" if last else "")
