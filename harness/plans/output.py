"""Files that verbs write: whole or not at all, and never over something that is there, unless that was asked for."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from harness.errors import UsageError

__all__ = ["refuse_existing", "refuse_source", "write"]


def refuse_existing(path: Path, force: bool) -> None:
    """UsageError `exists` if there is something at `path` (also a dangling link) and it may not be replaced."""
    if os.path.lexists(path) and not force:
        raise UsageError("exists", f"{path} exists; choose another --out, or replace it with --force")


def refuse_source(path: Path, *sources: Path) -> None:
    """UsageError `source-is-target` if `path` is one of the files that are read: a source is never modified."""
    for source in sources:
        with contextlib.suppress(OSError):
            if path.samefile(source):
                raise UsageError("source-is-target", f"{path} is the source {source} itself; choose another --out")


def write(path: Path, data: bytes, *, force: bool, mode: int | None = None) -> None:
    """Publish `data` at `path`; `mode` None means 0666 less the umask. UsageError `exists` or `unwritable`."""
    refuse_existing(path, force)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            _write_synced(temporary, data, mode)
            if force:
                temporary.replace(path)
            else:
                # A hard link and not a rename: it fails if somebody made the file meanwhile.
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except FileExistsError:
        refuse_existing(path, False)
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("unwritable", f"{path} cannot be written: {reason}; choose another --out") from error


def _write_synced(path: Path, data: bytes, mode: int | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if mode is not None:
            os.fchmod(descriptor, mode)
        os.fsync(descriptor)


def _sync_directory(path: Path) -> None:
    # Some file systems cannot sync a directory; the file itself is complete.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
