"""Plan documents on disk: bounded reads of regular files, atomic publication, writers that lose nothing.

A publication: side lock, read, change, temporary file in the same directory, fsync, rename, fsync of the directory,
read back. A symbolic link at the path is followed by readers and replaced by a publication, as FlashInfer does: its
target may be somebody else's document.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from kernels.errors import PlanDocumentError
from kernels.plans.sidelock import side_lock
from kernels.plans.system import REAL, System, patiently
from kernels.plans.temporary import sweep, temporary_path

__all__ = ["MAX_BYTES", "publish", "read", "update"]

# About 190,000 native or 320,000 FlashInfer plans; the largest real document seen is 12 kB.
MAX_BYTES = 64 * 1024 * 1024
_CHUNK = 1 << 20
_ROUNDS = 5
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def read(path: Path, limit: int = MAX_BYTES, *, system: System = REAL) -> bytes | None:
    """The file's bytes; None where there is no file. Symbolic links are followed. Never blocks on what is no file.

    PlanDocumentError: `not-a-file` (directory, FIFO, device, socket), `symlink-loop`, `too-large` (more than `limit`
    bytes), `unreadable` (the system's reason).
    """
    try:
        data = patiently(lambda: _read_once(path, limit, system), system)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _refusal("unreadable", "read", path, error) from error
    if len(data) > limit:
        raise PlanDocumentError("too-large", f"{path} has more than {limit} bytes; that is no plan document")
    return data


def publish(path: Path, data: bytes, *, system: System = REAL) -> None:
    """Replace whatever document is at `path` by `data`; otherwise as `update`."""
    update(path, lambda _: data, system=system)


def update(path: Path, change: Callable[[bytes | None], bytes], *, system: System = REAL) -> bytes:
    """Replace the document at `path` by `change(document)`, None standing for no file; returns the new bytes.

    A reader sees the old document or the new one, also after a power cut. `change` may be called several times, must
    depend on its argument alone, and leaves everything as it was by raising. Equal bytes are not written again, so a
    complete document in a read-only directory is no error. Parents are made; mode 0666 less the umask, so that another
    user's frozen process can read. PlanDocumentError: those of `read`, `unwritable`, `locked`, `too-large`, and
    `read-back-differs` when the file does not hold what was written to it, five times.
    """
    before = read(path, system=system)
    data = change(before)
    if data == before:
        return data
    try:
        made = _make_parents(path.parent, system)
        with side_lock(path, system):
            sweep(path, system)
            for _ in range(_ROUNDS):
                now = read(path, system=system)
                if now != before:
                    before, data = now, change(now)
                _bounded(data, path)
                patiently(lambda new=data: _replace(path, new, system), system)  # type: ignore[misc]
                for directory in (path.parent, *made):
                    _sync_directory(directory, system)
                if read(path, system=system) == data:
                    return data
    except (OSError, ValueError) as error:
        raise _refusal("unwritable", "written", path, error) from error
    mend = "another program writes it without taking the lock, or the file system loses writes"
    raise PlanDocumentError("read-back-differs", f"{path} does not hold the document just written to it: {mend}")


def _read_once(path: Path, limit: int, system: System) -> bytes:
    # Looked at before opening, because opening a device can act on it, and again after, because names move.
    _require_file(path, system.stat(path).st_mode)
    descriptor = system.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = system.fstat(descriptor)
        _require_file(path, status.st_mode)
        if status.st_size > limit:
            raise PlanDocumentError("too-large", f"{path} has {status.st_size} bytes, {limit} are allowed")
        chunks = []
        left = limit + 1
        while left > 0 and (chunk := system.read(descriptor, min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)
    finally:
        system.close(descriptor)


def _require_file(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((text for matches, text in _KINDS if matches(mode)), "no regular file")
        raise PlanDocumentError("not-a-file", f"{path} is {kind}; a plan document must be a regular file")


def _bounded(data: bytes, path: Path) -> None:
    if len(data) > MAX_BYTES:
        raise PlanDocumentError("too-large", f"{path} would get {len(data)} bytes, {MAX_BYTES} can be read back")


def _make_parents(folder: Path, system: System) -> list[Path]:
    """Make the missing folders; returns the folders whose entries that changed, the deepest first."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        with contextlib.suppress(FileExistsError):
            system.mkdir(parent)
    return [parent.parent for parent in missing]


def _replace(path: Path, data: bytes, system: System) -> None:
    temporary = temporary_path(path)
    try:
        _write_synced(temporary, data, system)
        system.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            system.unlink(temporary)
        raise


def _write_synced(path: Path, data: bytes, system: System) -> None:
    # os.open and not mkstemp: the kernel applies the umask, which mkstemp's 0600 ignores.
    descriptor = system.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[system.write(descriptor, rest) :]
        system.fsync(descriptor)
    finally:
        system.close(descriptor)


def _sync_directory(path: Path, system: System) -> None:
    # The rename is done and complete; some file systems cannot sync a directory, and that is not a failed publication.
    with contextlib.suppress(OSError):
        descriptor = system.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            system.fsync(descriptor)
        finally:
            system.close(descriptor)


def _refusal(code: str, done: str, path: Path, error: Exception) -> PlanDocumentError:
    if getattr(error, "errno", None) == errno.ELOOP:
        return PlanDocumentError("symlink-loop", f"{path} is a loop of symbolic links; correct the link or the path")
    reason = getattr(error, "strerror", None) or str(error)
    return PlanDocumentError(code, f"{path} cannot be {done}: {reason}")
