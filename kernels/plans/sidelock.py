"""The writers' lock: an advisory flock on a file beside the document, never on the document, which each publication
replaces. The file is empty, hidden, and stays: removing it would let two writers hold two locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kernels.errors import PlanDocumentError
from kernels.plans.system import System

__all__ = ["LIMIT_S", "lock_path", "side_lock"]

# A publication of 64 plans takes milliseconds, one of 100,000 about a second.
LIMIT_S = 30.0
_FIRST_DELAY, _LAST_DELAY = 0.001, 0.05
_REOPENINGS = 8
# File systems that know no flock (some FUSE and parallel ones; NFS without a lock daemon says ENOLCK).
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL})
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def lock_path(path: Path) -> Path:
    """The lock file of the document at `path`."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def side_lock(path: Path, system: System) -> Iterator[bool]:
    """Hold the lock of `path`. Gives False, unlocked, on a file system without flock: a writer there still publishes
    whole documents, but plans that another one publishes between its reading and its renaming are lost (and tuned
    again). PlanDocumentError `locked` after 30 s; OSError where the lock file cannot be opened."""
    descriptor, held = _locked(path, system)
    try:
        yield held
    finally:
        if held:
            # Said and not left to close(): a child forked meanwhile has the descriptor, too.
            system.flock(descriptor, fcntl.LOCK_UN)
        system.close(descriptor)


def _locked(path: Path, system: System) -> tuple[int, bool]:
    lock = lock_path(path)
    for _ in range(_REOPENINGS):
        descriptor = _open(lock, system)
        try:
            held = _acquire(descriptor, path, system)
            if not held or _is_at(lock, descriptor, system):
                return descriptor, held
        except BaseException:
            system.close(descriptor)
            raise
        system.close(descriptor)
    raise PlanDocumentError("locked", f"{lock} is removed again and again; whatever deletes it must leave it alone")


def _open(lock: Path, system: System) -> int:
    # Without O_CREAT first: in a sticky directory (/tmp) the kernel refuses it on somebody else's existing file.
    # For writing where possible, because NFS makes an exclusive flock of a file that is open for writing only.
    try:
        return system.open(lock, os.O_RDWR | _FLAGS)
    except FileNotFoundError:
        return system.open(lock, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
    except PermissionError:
        return system.open(lock, os.O_RDONLY | _FLAGS)


def _acquire(descriptor: int, path: Path, system: System) -> bool:
    # Polled, because a blocking flock has no time limit and a stopped writer would stop every start of a server.
    waited, delay = 0.0, _FIRST_DELAY
    while True:
        try:
            system.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return False
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        else:
            return True
        if waited >= LIMIT_S:
            text = f"{path} has been locked for {LIMIT_S:.0f} s by another writer; end it (`fuser {lock_path(path)}`)"
            raise PlanDocumentError("locked", text)
        system.sleep(delay)
        waited += delay
        delay = min(2 * delay, _LAST_DELAY)


def _is_at(lock: Path, descriptor: int, system: System) -> bool:
    """Whether the locked file still has its name: a lock on a deleted file excludes nobody."""
    try:
        return os.path.samestat(system.stat(lock), system.fstat(descriptor))
    except FileNotFoundError:
        return False
