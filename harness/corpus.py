"""Token-exact prompts, disjoint across the whole run, drawn from a seed.

Each partition is one (concurrency, repetition); both arms of a pair get the same prompts, no other leg does, so that a
prefix cache has nothing to find.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import canonical
from harness.errors import HarnessError
from harness.plan import partition, prompts_digest

__all__ = ["MIX", "Corpus", "build", "check_disjoint", "write"]

MIX = 0x5EED5EED  # keeps prompt seeds apart from the workload's own seed
MAX_SHARED_PREFIX = 32  # one KV block


@dataclass(frozen=True)
class Corpus:
    """JSON lines by partition name; `digests` identify each partition's prompts and go into the plan."""

    files: Mapping[str, bytes]
    digests: Mapping[str, str]


def build(
    *, seed: int, tokens: int, counts: Mapping[int, int], repetitions: int, first_token: int, vocabulary: int
) -> Corpus:
    """Prompts of exactly `tokens` ids in [first_token, vocabulary) for every partition.

    `counts` maps concurrency to requests. HarnessError `corpus` if two prompts share more than a KV block of leading
    ids, which a prefix cache could use.
    """
    files: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    prompts: list[list[int]] = []
    for repetition in range(1, repetitions + 1):
        for concurrency, count in counts.items():
            rows = [_prompt(seed, len(prompts) + offset, tokens, first_token, vocabulary) for offset in range(count)]
            name = partition(concurrency, repetition)
            files[name] = b"".join(_row(index, ids) for index, ids in enumerate(rows))
            digests[name] = prompts_digest([_digest(ids) for ids in rows])
            prompts += rows
    check_disjoint(prompts)
    return Corpus(files, digests)


def _prompt(seed: int, index: int, tokens: int, first_token: int, vocabulary: int) -> list[int]:
    return random.Random((seed << 32) ^ index ^ MIX).choices(range(first_token, vocabulary), k=tokens)


def _row(index: int, ids: Sequence[int]) -> bytes:
    return canonical.dumps({"index": index, "prompt_sha256": _digest(ids), "prompt_token_ids": list(ids)})


def _digest(ids: Sequence[int]) -> str:
    return canonical.sha256_bytes(canonical.dumps(list(ids)))


def check_disjoint(prompts: Sequence[list[int]]) -> None:
    """HarnessError `corpus` if two prompts share more than a KV block of leading ids, which a prefix cache could use.

    Neighbours in sorted order share the longest prefixes, so only they need to be compared.
    """
    ordered = sorted(prompts)
    for one, two in itertools.pairwise(ordered):
        if one[: MAX_SHARED_PREFIX + 1] == two[: MAX_SHARED_PREFIX + 1]:
            raise HarnessError("corpus", f"two prompts share more than {MAX_SHARED_PREFIX} leading tokens")


def write(corpus: Corpus, folder: Path) -> None:
    """Put the partitions under `folder`, which is theirs alone; files that are there already must be equal."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in corpus.files.items():
        path = folder / f"{name}.jsonl"
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)
