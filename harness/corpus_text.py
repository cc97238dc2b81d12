"""Text prompts of an exact token count under a given tokenizer, for clients that send text: the seed's own recipe.

Prompt `i` is drawn from a generator of its own, so it depends on nothing but the seed, `i` and the tokenizer. Places
are numbered repetition by repetition and, inside one, concurrency by concurrency, with room for the longest partition
in each: more repetitions, fewer concurrencies or another gate leave every prompt where it was. Place 0 is a warm-up's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness import canonical
from harness.corpus import MIX, Corpus, check_disjoint
from harness.errors import UsageError
from harness.plan import partition, prompts_digest

__all__ = ["Tokens", "build", "load"]

# Plain words of several lengths, so that tokenizers cut them differently.
WORDS = (
    *("anchor", "basin", "cobalt", "delta", "ember", "fjord", "garnet", "harbor", "inlet", "jasper", "kelp", "lagoon"),
    *("meadow", "nickel", "orchard", "pebble", "quartz", "ridge", "saffron", "tundra", "umber", "valley", "willow"),
    *("xenon", "yarrow", "zephyr", "arch"),
)
ENLARGEMENTS = 8  # of the text, while it has too few tokens
NEARBY = 64  # widths tried around the wanted one: decoding and encoding again may join or split a token at the cut


class Tokens(Protocol):
    """A tokenizer without special tokens: what prompts are counted with."""

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of `text`."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`."""


class _File:
    """A tokenizer.json under the `tokenizers` package."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UsageError(
                "no-tokenizers",
                "text prompts need the package `tokenizers`; install this project with its extra `corpus` "
                "(pip install 'nvfp4-gates[corpus]'), or leave workload.tokenizer null for prompts of token ids",
            ) from error
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise UsageError(
                "bad-tokenizer", f"workload.tokenizer={path} is no readable tokenizer.json: {error}"
            ) from error

    def encode(self, text: str) -> Sequence[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def load(path: Path) -> Tokens:
    """The tokenizer in `path`. UsageError `no-tokenizers` without the package, `bad-tokenizer` for another file."""
    return _File(path)


def build(
    tokenizer: Tokens,
    *,
    seed: int,
    tokens: int,
    points: Mapping[int, int],
    concurrencies: Sequence[int],
    repetitions: int,
) -> Corpus:
    """Prompts of exactly `tokens` tokens for every partition of `concurrencies` and `repetitions`.

    `points` maps every concurrency of the workload to its requests; all of them count for a prompt's place.
    HarnessError `corpus` where two prompts share more than one KV block of leading ids, or are equal; UsageError
    `token-exact` where this tokenizer gives no text of that length.
    """
    ladder, room = sorted(points), max(points.values())
    files: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    everything: list[list[int]] = []
    for repetition in range(1, repetitions + 1):
        for concurrency in sorted(concurrencies):
            first = 1 + ((repetition - 1) * len(ladder) + ladder.index(concurrency)) * room
            made = [prompt(tokenizer, seed, first + offset, tokens) for offset in range(points[concurrency])]
            name = partition(concurrency, repetition)
            files[name] = b"".join(_row(index, text, tokens) for index, (text, _) in enumerate(made))
            digests[name] = prompts_digest([_digest(text) for text, _ in made])
            everything += [ids for _, ids in made]
    check_disjoint(everything)
    return Corpus(files, digests)


def prompt(tokenizer: Tokens, seed: int, place: int, tokens: int) -> tuple[str, list[int]]:
    """The prompt at `place` and its ids: exactly `tokens` of them when it is encoded again."""
    source = random.Random((seed << 32) ^ place ^ MIX)
    words = [f"request-{place:08x}-{source.getrandbits(64):016x}"]
    for _ in range(ENLARGEMENTS):
        words += [_word(source, len(words) + offset) for offset in range(tokens)]
        ids = tokenizer.encode(" ".join(words))
        if len(ids) > tokens + NEARBY:
            break
    for step in range(2 * NEARBY + 1):  # tokens, then one more, one fewer, two more, …
        width = tokens + (step + 1) // 2 * (1 if step % 2 else -1)
        if 0 < width <= len(ids):
            text = tokenizer.decode(ids[:width])
            again = list(tokenizer.encode(text))
            if len(again) == tokens:
                return text, again
    raise UsageError(
        "token-exact",
        f"no text of exactly {tokens} tokens was found for prompt {place} under this tokenizer; choose another "
        "workload.input_tokens, or workload.tokenizer=null for prompts of token ids",
    )


def _word(source: random.Random, position: int) -> str:
    return f"{source.choice(WORDS)}-{position % 97:02d}-{source.getrandbits(64):016x}"


def _row(index: int, text: str, tokens: int) -> bytes:
    return canonical.dumps({"index": index, "prompt": text, "prompt_sha256": _digest(text), "prompt_tokens": tokens})


def _digest(text: str) -> str:
    return canonical.sha256_bytes(text.encode("utf-8"))
