"""What travels between controller and agent, as values. Standard library only; the version is checked at both ends."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import PurePosixPath
from typing import Any, Self

from harness.errors import HarnessError, UsageError

__all__ = [
    "BUG",
    "PROTOCOL",
    "FileRow",
    "Packed",
    "Prepared",
    "RunLine",
    "Seen",
    "pack_document",
    "reply",
    "unpack_document",
]

PROTOCOL = 3
BUG = "agent-bug"


class _Value:
    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """HarnessError `agent-answer` where a field is missing or unknown."""
        names = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        if names != document.keys():
            odd = ", ".join(sorted(names ^ document.keys()))
            raise HarnessError("agent-answer", f"the agent's answer has other fields than {cls.__name__}: {odd}")
        return cls(**document)


@dataclass(frozen=True)
class Prepared(_Value):
    """What the host knows of the subject and of itself. `prompts` names the folder of the prompts in its cache.

    G1 and G2: `suites` are kind and name of each command of the engine's own, `not_tested` what is left out, and why.
    G3: `structure` is what the adapter says of the engine's counters, GEMMs and oracle.
    """

    subject: Mapping[str, Any]
    capabilities: Sequence[str]
    host: Mapping[str, Any]
    gpu: bool
    corpus: Mapping[str, str]
    prompts: str
    suites: Sequence[Sequence[str]] = ()
    not_tested: Mapping[str, str] = field(default_factory=dict)
    structure: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen(_Value):
    """A run at one moment. `stamp` changes with whatever a person would want to see; `phase` is the keeper's.

    `refused` is (code, message) where the lease was never held: nothing was started then.
    """

    stamp: str
    alive: bool
    phase: str
    waiting: str | None
    progress: Mapping[str, Any] | None
    refused: Sequence[str] | None


@dataclass(frozen=True)
class FileRow(_Value):
    """A file of a bundle: POSIX path relative to its folder, bytes, SHA-256."""

    path: str
    size: int
    sha256: str

    def checked(self) -> FileRow:
        """Itself, if its path stays inside the folder. HarnessError `agent-answer`."""
        path = PurePosixPath(self.path)
        if path.is_absolute() or not path.parts or ".." in path.parts:
            raise HarnessError("agent-answer", f"the agent lists a file outside the bundle: {self.path!r}")
        return self


@dataclass(frozen=True)
class Packed(_Value):
    """The raw files of an ended run, for a journal that has no end, too: `said` is the end of the supervisor's log,
    `boot_id` the host's present boot, None where it does not tell."""

    folder: str
    files: Sequence[FileRow]
    keeper: Mapping[str, Any]
    said: str
    boot_id: str | None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Packed:
        found = super().from_json(document)
        rows = [FileRow.from_json(row).checked() for row in document["files"]]
        return replace(found, files=rows)


@dataclass(frozen=True)
class RunLine(_Value):
    """One run in the host's state folder. `phase` is the keeper's: waiting, held, draining, released, failed; where it
    no longer lives and did not say so, `rebooted` on another boot than its own, else `lost`."""

    run: str
    phase: str
    since: str
    alive: bool
    progress: Mapping[str, Any] | None


def reply(document: Any) -> dict[str, Any]:
    """The answer inside a reply. An error of the agent is raised here as it was there; a bug of it stays a bug."""
    spoken = document.get("protocol") if isinstance(document, dict) else None
    if spoken != PROTOCOL:
        raise UsageError(
            "agent-protocol",
            f"the agent speaks protocol {spoken}, this harness {PROTOCOL}; run `python -m harness host prepare` for it",
        )
    error = document.get("error")
    if error is None:
        return dict(document["answer"])
    if error["code"] == BUG:
        raise RuntimeError(error["message"])
    raise (UsageError if error["usage"] else HarnessError)(error["code"], error["message"])


def pack_document(data: bytes) -> str:
    """A plan document as text for a request: 100,000 plans are 30 MB, and a thirtieth of that packed."""
    return base64.b64encode(zlib.compress(data)).decode("ascii")


def unpack_document(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))
