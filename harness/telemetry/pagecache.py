"""Drop files from the page cache without root, and prove it: fadvise, then mincore counts what is still resident.

A file that a process has mapped stays resident; that is reported with the pids, not hidden. mincore answers truthfully
only to the file's owner or to who may write it (Linux 5.2 and later; to others every page looks resident), so for
anybody else the residency is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.telemetry import procfs

__all__ = ["METHOD", "DropReport", "Droppable", "DroppedFile", "drop", "droppable", "inventory", "resident_bytes"]

METHOD = "posix_fadvise-dontneed+mincore"
TRIES = 3
PAUSE_S = 0.05  # pages in another CPU's batch list are freed a moment later
WINDOW = 1 << 30  # bytes mapped at a time: 256 KiB of mincore answer
_ODD = bytes(range(1, 256, 2))  # only the lowest bit of mincore's bytes has a meaning


@dataclass(frozen=True)
class DroppedFile:
    """One file. `path` is relative to root number `root`. Residencies are bytes in whole pages, None with `reason`."""

    root: int
    path: str
    size_bytes: int
    resident_before_bytes: int | None
    resident_after_bytes: int | None
    attempts: int
    mapped_by: tuple[int, ...]
    reason: str | None


@dataclass(frozen=True)
class DropReport:
    """What was dropped. `inventory_sha256` covers relative paths and sizes alone, so it is equal on every host.

    `succeeded` means: of every file the residency is known and 0 after. A sum with an unknown part is None.
    """

    method: str
    page_size_bytes: int
    inventory_sha256: str
    file_count: int
    duplicate_inode_count: int
    logical_bytes: int
    resident_before_bytes: int | None
    resident_after_bytes: int | None
    succeeded: bool
    files: tuple[DroppedFile, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def failures(self) -> str:
        """A sentence for the report: which files stayed and why. Empty after success."""
        stayed = [one for one in self.files if one.resident_after_bytes != 0]
        return "; ".join(f"{one.path}: {one.reason}" for one in stayed)


@dataclass(frozen=True)
class _Found:
    root: int
    relative: str
    path: Path
    size: int
    inode: tuple[int, int]


def drop(roots: Sequence[Path], *, pause: Callable[[float], object] = time.sleep) -> DropReport:
    """Write back, then drop every regular file under `roots` (files or folders, links followed, each inode once).

    HarnessError `cache-root` names a root or link target that does not exist. Never asks for more permission.
    """
    found, duplicates = inventory(roots)
    os.sync()  # a dirty page cannot be dropped
    files = tuple(_drop_one(one, pause) for one in found)
    before = _sum([one.resident_before_bytes for one in files])
    after = _sum([one.resident_after_bytes for one in files])
    return DropReport(
        method=METHOD,
        page_size_bytes=os.sysconf("SC_PAGE_SIZE"),
        inventory_sha256=_digest(found),
        file_count=len(files),
        duplicate_inode_count=duplicates,
        logical_bytes=sum(one.size for one in found),
        resident_before_bytes=before,
        resident_after_bytes=after,
        succeeded=after == 0,
        files=files,
    )


@dataclass(frozen=True)
class Droppable:
    """Whether a drop of `files` could be proven (`told`), and who maps some of them now, which would keep them."""

    files: int
    told: bool
    mapped_by: tuple[int, ...]


def droppable(root: Path) -> Droppable:
    """Look at the files under `root` without dropping any. HarnessError `cache-root` as `drop`."""
    found, _ = inventory([root])
    told = True
    for one in found:
        try:
            descriptor = os.open(one.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise HarnessError("cache-root", f"cannot open {one.path}: {error.strerror}; make it readable")
        try:
            told = told and _residency_is_told(descriptor, one.path)
            resident_bytes(descriptor)  # some file systems and sandboxes have no mincore
        except OSError as error:
            raise HarnessError("no-mincore", f"mincore fails on {one.path}: {error.strerror}; use a local file system")
        finally:
            os.close(descriptor)
    return Droppable(len(found), told, _mapped_by(*(one.inode for one in found)))


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _digest(found: Sequence[_Found]) -> str:
    rows = [{"root": one.root, "path": one.relative, "size_bytes": one.size} for one in found]
    return canonical.sha256_bytes(canonical.dumps(rows))


def inventory(roots: Sequence[Path]) -> tuple[list[_Found], int]:
    """Regular files in the order of root and relative path, each inode once, and how many were left out as doubles."""
    kept: dict[tuple[int, int], _Found] = {}
    doubles = 0
    for number, root in enumerate(roots):
        for one in sorted(_walk(number, root), key=lambda one: one.relative):
            if one.inode in kept:
                doubles += 1
            else:
                kept[one.inode] = one
    return list(kept.values()), doubles


def _walk(number: int, root: Path) -> Iterator[_Found]:
    base = root if root.is_dir() else root.parent
    pending, folders = [root], set()
    while pending:
        path = pending.pop()
        try:
            seen = path.stat()
            if path.is_dir():
                identity = (seen.st_dev, seen.st_ino)
                if identity not in folders:  # a link may lead back up
                    folders.add(identity)
                    pending.extend(path.iterdir())
            elif path.is_file():
                relative = path.relative_to(base).as_posix()
                yield _Found(number, relative, path, seen.st_size, (seen.st_dev, seen.st_ino))
        except OSError as error:
            kind = "a broken link" if path.is_symlink() else (error.strerror or "unreadable").lower()
            raise HarnessError(
                "cache-root", f"cannot drop {path} from the page cache: {kind}; complete the files first"
            )


def _drop_one(one: _Found, pause: Callable[[float], object]) -> DroppedFile:
    try:
        descriptor = os.open(one.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HarnessError("cache-root", f"cannot open {one.path}: {error.strerror}; make it readable")
    try:
        readable = _residency_is_told(descriptor, one.path)
        before = resident_bytes(descriptor) if readable else None
        after, attempts = before, 0
        while attempts < TRIES and (attempts == 0 or after):
            if attempts:
                pause(PAUSE_S)
            attempts += 1
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            after = resident_bytes(descriptor) if readable else None
    finally:
        os.close(descriptor)
    mapped = _mapped_by(one.inode) if after else ()
    return DroppedFile(one.root, one.relative, one.size, before, after, attempts, mapped, _reason(after, mapped))


def _reason(after: int | None, mapped: Sequence[int]) -> str | None:
    if after is None:
        return "mincore-not-permitted: run as the file's owner or make it writable for this user"
    if after == 0:
        return None
    by = f"mapped by pid {', '.join(map(str, mapped))}" if mapped else "in use; no process that maps it can be seen"
    return f"still-resident: {after} bytes, {by}"


def _residency_is_told(descriptor: int, path: Path) -> bool:
    return os.geteuid() in (0, os.fstat(descriptor).st_uid) or os.access(path, os.W_OK, effective_ids=True)


def resident_bytes(descriptor: int) -> int:
    """Bytes of the file in the page cache, in whole pages. Reads nothing: the mapping is never touched."""
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    page, size, pages = mmap.PAGESIZE, os.fstat(descriptor).st_size, 0
    for offset in range(0, size, WINDOW):
        length = min(WINDOW, size - offset)
        # By ctypes and read-only: Python's mmap gives its address only for writable maps, which count as commitment.
        address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, offset)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        answer = ctypes.create_string_buffer(-(-length // page))
        try:
            if libc.mincore(address, length, answer) != 0:
                raise OSError(ctypes.get_errno(), "mincore")
        finally:
            libc.munmap(address, length)
        pages += len(answer.raw) - len(answer.raw.translate(None, _ODD))
    return pages * page


def _mapped_by(*inodes: tuple[int, int]) -> tuple[int, ...]:
    """Pids that map one of the files, as far as this user may see."""
    wanted = {(f"{os.major(dev):02x}:{os.minor(dev):02x}".encode(), str(number).encode()) for dev, number in inodes}
    found = []
    for pid in procfs.pids():
        try:
            maps = Path(f"/proc/{pid}/maps").read_bytes()
        except OSError:
            continue
        if any(tuple(line.split(None, 5)[3:5]) in wanted for line in maps.splitlines()):
            found.append(pid)
    return tuple(sorted(found))
