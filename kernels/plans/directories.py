"""Bounded looks at directories that strangers fill; every failure is a PlanDocumentError."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernels.errors import PlanDocumentError

__all__ = ["MAX_NAMES", "is_directory", "names"]

# A real directory of plans has one file, or one for each rank or operation: a few hundred.
MAX_NAMES = 20_000


def names(directory: Path) -> list[str]:
    """What lies in `directory`, sorted. PlanDocumentError `unreadable`, or `too-many-entries` above MAX_NAMES."""
    try:
        with os.scandir(directory) as found:
            seen = [entry.name for _, entry in zip(range(MAX_NAMES + 1), found, strict=False)]
    except OSError as error:
        raise PlanDocumentError("unreadable", f"{directory} cannot be listed: {error.strerror}") from error
    if len(seen) > MAX_NAMES:
        text = f"{directory} has more than {MAX_NAMES} files; that is no directory of plans, give one file"
        raise PlanDocumentError("too-many-entries", text)
    return sorted(seen)


def is_directory(path: Path) -> bool:
    """Whether `path` is a directory or a link to one; False where that cannot be said (reading it will say why)."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False
