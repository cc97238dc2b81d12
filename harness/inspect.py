"""`harness inspect FILE …`: read-only evidence inspection. Matching lines, SHA-256 and size against expected values.

Nothing is executed, written or locked. A file is read once, in order, so its digest, its size and its matches belong
together; one that changed meanwhile is a fault.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from harness.errors import EXIT_FAIL, EXIT_PASS, UsageError

__all__ = ["Expectation", "Finding", "Match", "expectations", "inspect", "lines_of", "look", "tell"]

MAX_MATCHES = 200  # shown for one file; all are counted
MAX_LINE = 1 << 20  # a longer line is looked at in pieces of so many bytes
SHOWN = 400  # characters of a line
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Expectation:
    """One file and what it should be. None: not asked."""

    path: str
    sha256: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Match:
    """A line, counted from 1, in which the pattern was found."""

    number: int
    text: str


@dataclass(frozen=True)
class Finding:
    """What one file is. `sha256` and `size` are None where it could not be read; `faults` is empty when all is well."""

    path: str
    size: int | None
    sha256: str | None
    lines: int
    matched: int
    matches: tuple[Match, ...]
    faults: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        matches = tuple(Match(**one) for one in data["matches"])
        return cls(**{**data, "matches": matches, "faults": tuple(data["faults"])})


def expectations(files: Sequence[str], sha256: Sequence[str], sizes: Sequence[int]) -> list[Expectation]:
    """Files with their expected values, given in the files' order. UsageError when their numbers differ."""
    for name, given in (("--expect-sha256", sha256), ("--expect-size", sizes)):
        if given and len(given) != len(files):
            raise UsageError("usage", f"{name} was given {len(given)} times for {len(files)} files; once for each file")
    wanted = [text.lower() for text in sha256]
    for text in wanted:
        if not SHA256.fullmatch(text):
            raise UsageError("usage", f"--expect-sha256 {text!r} is not a SHA-256: 64 hexadecimal digits are")
    if any(size < 0 for size in sizes):
        raise UsageError("usage", "--expect-size is a number of bytes, 0 or more")
    digests: Sequence[str | None] = wanted or [None] * len(files)
    lengths: Sequence[int | None] = sizes or [None] * len(files)
    return [Expectation(*one) for one in zip(files, digests, lengths, strict=True)]


def pattern_of(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError("usage", f"--match {text!r} is not a regular expression: {error}")


def inspect(wanted: Expectation, pattern: re.Pattern[str] | None) -> Finding:
    """Read one file. Never raises for what is wrong with it: that is a fault of the finding."""
    try:
        # O_NONBLOCK: opening a FIFO must not wait for its writer.
        descriptor = os.open(wanted.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return _unread(wanted, error.strerror or "unreadable")
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        os.close(descriptor)
        return _unread(wanted, "not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            found = _read(wanted, file, pattern)
        except OSError as error:
            return _unread(wanted, error.strerror or "unreadable")
        after = os.fstat(descriptor)
    changed = (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)
    return found if not changed else _with(found, "it changed while it was read; look again when its writer is done")


def _unread(wanted: Expectation, reason: str) -> Finding:
    return Finding(wanted.path, None, None, 0, 0, (), (reason,))


def _with(found: Finding, fault: str) -> Finding:
    return Finding(**{**vars(found), "faults": (*found.faults, fault)})


def _read(wanted: Expectation, file: BinaryIO, pattern: re.Pattern[str] | None) -> Finding:
    digest, size, number, matched = hashlib.sha256(), 0, 0, 0
    matches: list[Match] = []
    fresh = True
    while piece := file.readline(MAX_LINE):
        digest.update(piece)
        size += len(piece)
        number += fresh
        fresh = piece.endswith(b"\n")
        text = piece.decode("utf-8", "replace").rstrip("\r\n")
        if pattern is not None and pattern.search(text):
            matched += 1
            if len(matches) < MAX_MATCHES:
                matches.append(Match(number, text[:SHOWN]))
    sha256 = digest.hexdigest()
    faults = []
    if wanted.sha256 is not None and wanted.sha256 != sha256:
        faults.append(f"SHA-256 is {sha256}, expected {wanted.sha256}")
    if wanted.size is not None and wanted.size != size:
        faults.append(f"{size} bytes, expected {wanted.size}")
    if pattern is not None and not matched:
        faults.append(f"no line matches {pattern.pattern!r}")
    return Finding(wanted.path, size, sha256, number, matched, tuple(matches), tuple(faults))


def lines_of(found: Finding) -> list[str]:
    """The finding as a person reads it."""
    if found.sha256 is None:
        return [f"{found.path}: {found.faults[0]}"]
    lines = [f"{found.path}: {found.size} bytes, {found.lines} lines, SHA-256 {found.sha256}"]
    lines += [f"{found.path}:{match.number}: {match.text}" for match in found.matches]
    hidden = found.matched - len(found.matches)
    lines += [f"{found.path}: {hidden} more lines match"] if hidden else []
    return lines + [f"{found.path}: FAULT: {fault}" for fault in found.faults]


def look(wanted: Sequence[Expectation], match: str | None) -> list[Finding]:
    """One finding a file of this machine. UsageError for a pattern that is none."""
    pattern = pattern_of(match)
    return [inspect(one, pattern) for one in wanted]


def tell(found: Sequence[Finding], as_json: bool) -> int:
    """Print what was found. Exit code 1 when a file has a fault."""
    import json

    if as_json:
        print(json.dumps({"files": [one.to_json() for one in found]}, sort_keys=True))
    else:
        print("\n".join(line for one in found for line in lines_of(one)))
    return EXIT_FAIL if any(one.faults for one in found) else EXIT_PASS
