"""Mutations against `verify`: what is caught, whether the right file is named, and what only a signature can tell."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import bundle, origin
from harness.ed25519 import PublicKey
from harness.errors import HarnessError
from harness.verify import verify
from tests.mutations import forgery
from tests.mutations.damage import Mutation, artefact, files, mutations

__all__ = ["Row", "run", "table"]

ANEW = (*bundle.SEAL, *bundle.DERIVED, "verdict.json")  # a forger writes these anew, so changing them is nothing
HEAD = (
    "file",
    "mutations",
    "caught",
    "file named",
    "resealed: named / caught otherwise / accepted",
    "rewritten: caught / void / accepted",
    "rewritten, asked with the key: caught",
)


@dataclass
class Row:
    """Counts of one class of files. `plain`: made, caught, right file named. The forgeries: how each was answered."""

    made: int = 0
    caught: int = 0
    named: int = 0
    missed: list[str] = field(default_factory=list)
    resealed: Counter[str] = field(default_factory=Counter)
    rewritten: Counter[str] = field(default_factory=Counter)
    with_key: Counter[str] = field(default_factory=Counter)


def run(
    root: Path, key: PublicKey | None, *, rounds: int, seed: int, most_files: int, share: float = 1.0
) -> dict[str, Row]:
    """Mutate the bundle at `root`, in place and back again.

    `most_files` of a class are taken, by chance, and that `share` of their mutations.
    """
    rng = random.Random(seed)
    rows: dict[str, Row] = {}
    honest = verify(root).outcome
    for name in _chosen(root, rng, most_files):
        for _ in range(rounds):
            for mutation in mutations(root, name, rng):
                if rng.random() >= share:
                    continue
                _one(root, mutation, key, honest, rows.setdefault(mutation.artefact, Row()))
    assert verify(root).outcome == honest, "the bundle was not put back as it was"
    return rows


def _chosen(root: Path, rng: random.Random, most: int) -> list[str]:
    classes: dict[str, list[str]] = {}
    for name in files(root):
        classes.setdefault(artefact(name), []).append(name)
    return [name for names in classes.values() for name in (names if len(names) <= most else rng.sample(names, most))]


def _one(root: Path, mutation: Mutation, key: PublicKey | None, honest: str, row: Row) -> None:
    before = {name: (root / name).read_bytes() for name in files(root)}
    try:
        _apply(root, mutation.changes)
        _plain(root, mutation, key, row)
        if not set(mutation.changes) & {*ANEW, bundle.SIGNATURES}:
            row.resealed[_forged(root, forgery.resealed, mutation, honest)] += 1
            _apply(root, {**before, **mutation.changes})
            row.rewritten[_forged(root, forgery.rewritten, mutation, honest)] += 1
            if key is not None:
                row.with_key[_with_key(root, key)] += 1
    finally:
        for path in set(files(root)) - before.keys():
            (root / path).unlink()
        _apply(root, {name: data for name, data in before.items() if not _same(root / name, data)})


def _same(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _apply(root: Path, changes: Mapping[str, bytes | None]) -> None:
    for name, data in changes.items():
        if data is None:
            (root / name).unlink(missing_ok=True)
        else:
            (root / name).write_bytes(data)


def _plain(root: Path, mutation: Mutation, key: PublicKey | None, row: Row) -> None:
    """No digest is made anew. A signature that is gone or bent is seen by who has the key."""
    row.made += 1
    outcome, faults = _answer(root)
    if outcome != "TAMPERED" and key is not None and bundle.SIGNATURES in mutation.changes:
        outcome, faults = _asked(root, key)
    caught = outcome in ("TAMPERED", "refused")
    named = caught and all(any(name in fault for fault in faults) for name in mutation.changes)
    row.caught += caught
    row.named += named
    if not named:
        row.missed.append(f"{mutation.kind} of {', '.join(mutation.changes)}: {outcome}; {'; '.join(faults)}")


def _answer(root: Path) -> tuple[str, tuple[str, ...]]:
    try:
        found = verify(root)
    except HarnessError as error:  # without its seal a folder is no bundle
        return "refused", (error.message,)
    return found.outcome, found.faults


def _asked(root: Path, key: PublicKey) -> tuple[str, tuple[str, ...]]:
    """As `verify --key` answers."""
    found = verify(root)
    path = root / bundle.SIGNATURES
    if found.outcome == "TAMPERED":
        return found.outcome, found.faults
    why = origin.doubt(path.read_bytes() if path.is_file() else None, found.statements, key)
    return (found.outcome, ()) if why is None else ("TAMPERED", (why,))


def _forged(root: Path, forge: Callable[[Path], None], mutation: Mutation, honest: str) -> str:
    """named, caught, void, or accepted: nothing in the bundle tells it from an honest one."""
    signatures = root / bundle.SIGNATURES
    signatures.unlink(missing_ok=True)  # a forger takes away what he cannot make
    with contextlib.suppress(*forgery.FAILURES):
        forge(root)
    outcome, faults = _answer(root)
    if outcome not in ("TAMPERED", "refused"):
        return "void" if outcome == "VOID" != honest else "accepted"
    return "named" if any(name in fault for fault in faults for name in mutation.changes) else "caught"


def _with_key(root: Path, key: PublicKey) -> str:
    return "caught" if _asked(root, key)[0] == "TAMPERED" else "accepted"


def table(rows: Mapping[str, Row], title: str) -> Iterator[str]:
    """Markdown."""
    yield f"**{title}**"
    yield ""
    yield "| " + " | ".join(HEAD) + " |"
    yield "|" + "---|" * len(HEAD)
    yield from (_line(name, row) for name, row in [*rows.items(), ("all", _sum(list(rows.values())))])


def _line(name: str, row: Row) -> str:
    again, anew = row.resealed, row.rewritten
    forged = sum(anew.values())
    parts = [
        f"`{name}`" if name != "all" else "all",
        row.made,
        row.caught,
        row.named,
        f"{again['named']} / {again['caught'] + again['void']} / {again['accepted']}" if forged else "–",
        f"{anew['named'] + anew['caught']} / {anew['void']} / {anew['accepted']}" if forged else "–",
        f"{row.with_key['caught']} of {sum(row.with_key.values())}" if row.with_key else "–",
    ]
    return "| " + " | ".join(map(str, parts)) + " |"


def _sum(rows: Sequence[Row]) -> Row:
    total = Row()
    for row in rows:
        total.made, total.caught, total.named = (
            total.made + row.made,
            total.caught + row.caught,
            total.named + row.named,
        )
        total.resealed += row.resealed
        total.rewritten += row.rewritten
        total.with_key += row.with_key
    return total
