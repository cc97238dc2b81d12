"""Every kind of damage to a file of a bundle, drawn from a seed. A mutation is the new content of one or two files."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import bundle

__all__ = ["KINDS", "Mutation", "artefact", "files", "mutations"]


@dataclass(frozen=True)
class Mutation:
    """`changes` maps relative paths to new content; None takes the file away."""

    kind: str
    artefact: str
    changes: dict[str, bytes | None]


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def artefact(name: str) -> str:
    """The class of a file: the same for the like-named files of all legs."""
    return f"legs/*/{name.rpartition('/')[2]}" if name.startswith("legs/") else name


def mutations(root: Path, name: str, rng: random.Random) -> Iterator[Mutation]:
    """One mutation of each kind that the file allows: an empty one cannot lose a byte, one line has no order."""
    data = (root / name).read_bytes()
    for kind, make in KINDS.items():
        changed = make(data, rng)
        if changed is not None and changed != data:
            yield Mutation(kind, artefact(name), {name: changed})
    yield Mutation("drop", artefact(name), {name: None})
    yield Mutation("add", artefact(name), {f"{name}.more": data})
    if (other := _sibling(root, name, data, rng)) is not None:
        yield Mutation("swap", artefact(name), {name: (root / other).read_bytes(), other: data})


def _sibling(root: Path, name: str, data: bytes, rng: random.Random) -> str | None:
    """Another file of the same class and other content; where there is none, any other of the same stage.

    `verify` looks at the seal first, then at the sealed files, and at what is derived from them once they are whole.
    """
    others = [item for item in files(root) if _stage(item) == _stage(name) and (root / item).read_bytes() != data]
    alike = [item for item in others if artefact(item) == artefact(name)]
    return rng.choice(alike or others) if others else None


def _stage(name: str) -> int:
    return 0 if name in bundle.SEAL else 2 if name in (*bundle.DERIVED, bundle.SIGNATURES) else 1


def _flip(data: bytes, rng: random.Random) -> bytes | None:
    if not data:
        return None
    position = rng.randrange(len(data))
    return data[:position] + bytes([data[position] ^ (1 << rng.randrange(8))]) + data[position + 1 :]


def _truncate(data: bytes, rng: random.Random) -> bytes | None:
    return data[: rng.randrange(len(data))] if data else None


def _last_line(data: bytes, rng: random.Random) -> bytes | None:
    return _on_text(data, lambda text: b"".join(text.splitlines(keepends=True)[:-1]))


def _grow(data: bytes, rng: random.Random) -> bytes | None:
    return _on_text(data, lambda text: text + (text.splitlines(keepends=True) or [b"\n"])[-1])


def _digit(data: bytes, rng: random.Random) -> bytes | None:
    """One digit becomes another: what a person would do who wants another number."""

    def change(text: bytes) -> bytes:
        places = [place for place, byte in enumerate(text) if chr(byte).isdigit()]
        if not places:
            return text
        place = rng.choice(places)
        other = str((int(chr(text[place])) + rng.randrange(1, 10)) % 10).encode()
        return text[:place] + other + text[place + 1 :]

    return _on_text(data, change)


def _reorder(data: bytes, rng: random.Random) -> bytes | None:
    """Two lines change places; in a JSON document of one line, two keys or two items of a list."""

    def change(text: bytes) -> bytes:
        lines = text.splitlines(keepends=True)
        if len(lines) > 1:
            first, second = rng.sample(range(len(lines)), 2)
            lines[first], lines[second] = lines[second], lines[first]
            return b"".join(lines)
        return _keys(text)

    return _on_text(data, change)


def _keys(text: bytes) -> bytes:
    try:
        document = json.loads(text)
    except ValueError:
        return text
    if not isinstance(document, dict):
        return text
    turned = dict(reversed(document.items()))
    return json.dumps(turned, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _line_endings(data: bytes, rng: random.Random) -> bytes | None:
    return _on_text(data, lambda text: text.replace(b"\n", b"\r\n"))


def _on_text(data: bytes, change: Callable[[bytes], bytes]) -> bytes | None:
    """The change on what a compressed file holds, not on its coding."""
    if data[:2] != b"\x1f\x8b":
        return change(data)
    text = gzip.decompress(data)
    changed = change(text)
    return None if changed == text else gzip.compress(changed, mtime=0)


KINDS: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "flip": _flip,
    "truncate": _truncate,
    "last line": _last_line,
    "grow": _grow,
    "digit": _digit,
    "re-order": _reorder,
    "line endings": _line_endings,
}
