"""Names of temporary files, which say who writes them, so that those of dead writers are recognised and removed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from pathlib import Path

from kernels.plans.system import System

__all__ = ["sweep", "temporary_path"]

_NAME = re.compile(r"\.(?P<pid>\d{1,10})-(?P<start>\d{1,20})-(?P<place>[0-9a-f]{12})-[0-9a-f]{8}\.tmp")
# A writer of another machine or container cannot be asked whether it lives; none writes for a day.
_FOREIGN_AGE_S = 86_400


def temporary_path(path: Path) -> Path:
    """A new name beside `path`: `.NAME.PID-START-PLACE-RANDOM.tmp`, START in clock ticks since boot."""
    pid = os.getpid()
    return path.with_name(f".{path.name}.{pid}-{_started(pid) or 0}-{_place()}-{secrets.token_hex(4)}.tmp")


def sweep(path: Path, system: System) -> None:
    """Remove the temporary files of `path` whose writers are dead; for other places those older than a day.

    Called by the holder of the side lock. What cannot be removed stays for the next writer.
    """
    prefix = f".{path.name}"
    with contextlib.suppress(OSError):
        for name in system.listdir(path.parent):
            match = _NAME.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if match is not None and _is_stale(path.with_name(name), match, system):
                with contextlib.suppress(OSError):
                    system.unlink(path.with_name(name))


def _is_stale(file: Path, match: re.Match[str], system: System) -> bool:
    if match["place"] == _place() and match["start"] != "0":
        return _started(int(match["pid"])) != int(match["start"])
    with contextlib.suppress(OSError):
        return time.time() - system.stat(file).st_mtime > _FOREIGN_AGE_S
    return False


def _started(pid: int) -> int | None:
    """When a living process started, in clock ticks since boot; None for none, a zombie, or a system without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _place() -> str:
    """Where a process number means something: this boot of this machine, this PID namespace."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot}|{Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:12]
    return "0" * 12
