"""Plan documents on disk: bounded reads of regular files, atomic publication."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from kernels.errors import PlanDocumentError

__all__ = ["MAX_BYTES", "publish", "read"]

# About 48,000 native or 80,000 FlashInfer plans; the largest real document seen is 12 kB.
MAX_BYTES = 16 * 1024 * 1024
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def read(path: Path, limit: int = MAX_BYTES) -> bytes | None:
    """The file's bytes; None where there is no file. Symbolic links are followed. Never blocks on what is no file.

    PlanDocumentError: `not-a-file` (directory, FIFO, device, socket), `too-large` (more than `limit` bytes),
    `unreadable` (the system's reason).
    """
    try:
        # Looked at before opening, because opening a device can act on it, and again after, because names move.
        _require_file(path, path.stat().st_mode)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            _require_file(path, os.fstat(descriptor).st_mode)
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise PlanDocumentError("unreadable", f"{path} cannot be read: {_reason(error)}") from error
    if len(data) > limit:
        raise PlanDocumentError("too-large", f"{path} has more than {limit} bytes; that is no plan document")
    return data


def publish(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a reader sees the old document or the new one, also after a power cut.

    Parents are made. Mode 0666 less the umask, so that another user's frozen process can read it. A symbolic link is
    replaced, its target untouched. PlanDocumentError `not-a-file` or `unwritable`; no temporary file is left.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            _require_file(path, path.stat().st_mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            _write_synced(temporary, data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        raise PlanDocumentError("unwritable", f"{path} cannot be written: {_reason(error)}") from error
    _sync_directory(path.parent)


def _require_file(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((text for matches, text in _KINDS if matches(mode)), "no regular file")
        raise PlanDocumentError("not-a-file", f"{path} is {kind}; a plan document must be a regular file")


def _write_synced(path: Path, data: bytes) -> None:
    # os.open and not mkstemp: the kernel applies the umask, which mkstemp's 0600 ignores.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_directory(path: Path) -> None:
    # The rename is done and complete; some file systems cannot sync a directory, and that is not a failed publication.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
