"""The operating-system calls of the store. Real by default; a test passes its own to watch their order or to die
between two of them."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["BUSY", "REAL", "System", "patiently"]

_T = TypeVar("_T")

# What a network file system answers when the same call may succeed a moment later. ESTALE: NFS, the name now stands for
# another file than the handle at hand. EBUSY, ETXTBSY: SMB and FUSE, somebody has the file open without sharing.
# EAGAIN: a server in its grace period after a restart. ENOSPC, EDQUOT, EIO, EACCES are answers, not moods.
BUSY = frozenset({errno.ESTALE, errno.EBUSY, errno.ETXTBSY, errno.EAGAIN})
_DELAYS = (0.01, 0.02, 0.04, 0.08, 0.16)


@dataclass(frozen=True)
class System:
    """Each field is the call of that name in `os`; `flock` is fcntl's and `sleep` is time's."""

    stat: Callable[[Path], os.stat_result] = os.stat
    fstat: Callable[[int], os.stat_result] = os.fstat
    mkdir: Callable[[Path], Any] = os.mkdir
    listdir: Callable[[Path], list[str]] = os.listdir
    open: Callable[..., int] = os.open
    read: Callable[[int, int], bytes] = os.read
    write: Callable[[int, Any], int] = os.write
    fsync: Callable[[int], Any] = os.fsync
    close: Callable[[int], Any] = os.close
    replace: Callable[[Path, Path], Any] = os.replace
    unlink: Callable[[Path], Any] = os.unlink
    flock: Callable[[int, int], Any] = fcntl.flock
    sleep: Callable[[float], Any] = time.sleep


REAL = System()


def patiently(action: Callable[[], _T], system: System) -> _T:
    """What `action` returns; on a busy file system it is done again from its beginning, six times within 0.31 s."""
    for delay in _DELAYS:
        try:
            return action()
        except OSError as error:
            if error.errno not in BUSY:
                raise
        system.sleep(delay)
    return action()
