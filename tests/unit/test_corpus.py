"""Prompts: exact counts, disjoint, the same wherever they are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import corpus, corpus_text
from harness.corpus import Corpus
from harness.engines import tiny_hf
from harness.errors import HarnessError, UsageError

SEED_POINTS = {1: 6, 2: 6, 4: 12, 8: 24, 16: 96, 32: 192}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> corpus_text.Tokens:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_hf.write(folder, tiny_hf.Shape())
    return corpus_text.load(folder / "tokenizer.json")


def text(
    tokenizer: corpus_text.Tokens, tokens: int = 64, concurrencies: tuple[int, ...] = (2, 16), repetitions: int = 3
) -> Corpus:
    return corpus_text.build(
        tokenizer, seed=0, tokens=tokens, points=SEED_POINTS, concurrencies=concurrencies, repetitions=repetitions
    )


def prompts(found: Corpus) -> list[str]:
    return [json.loads(line)["prompt"] for data in found.files.values() for line in data.splitlines()]


def test_the_seeds_workload_has_exactly_1024_tokens_in_each_text(tokenizer: corpus_text.Tokens) -> None:
    found = prompts(text(tokenizer, tokens=1024, concurrencies=(1, 2, 4), repetitions=3))
    assert len(found) == 3 * (6 + 6 + 12)
    assert {len(tokenizer.encode(item)) for item in found} == {1024}


def test_prompts_are_distinct_and_share_at_most_a_block_of_leading_tokens(tokenizer: corpus_text.Tokens) -> None:
    found = prompts(text(tokenizer))
    assert len(set(found)) == len(found) == 3 * (6 + 96)
    ids = [list(tokenizer.encode(item)) for item in found]
    assert len({tuple(row[:33]) for row in ids}) == len(ids)
    with pytest.raises(HarnessError, match="more than 32 leading"):
        corpus.check_disjoint([[1] * 40, [1] * 33 + [2] * 7])
    corpus.check_disjoint([[1] * 32 + [3], [1] * 32 + [2]])


def test_five_repetitions_keep_the_first_three(tokenizer: corpus_text.Tokens) -> None:
    three, five = text(tokenizer), text(tokenizer, repetitions=5)
    assert len(five.files) == 10
    assert all(five.files[name] == data for name, data in three.files.items())
    assert all(five.digests[name] == digest for name, digest in three.digests.items())


def test_a_partition_is_the_same_whichever_others_are_asked_for(tokenizer: corpus_text.Tokens) -> None:
    alone, ladder = text(tokenizer, concurrencies=(16,)), text(tokenizer, concurrencies=tuple(SEED_POINTS))
    assert all(ladder.files[name] == data for name, data in alone.files.items())


def test_ids_too_keep_the_first_three_of_five_repetitions() -> None:
    def ids(repetitions: int) -> Corpus:
        return corpus.build(
            seed=0, tokens=1024, counts={2: 6, 16: 12}, repetitions=repetitions, first_token=256, vocabulary=4096
        )

    three, five = ids(3), ids(5)
    assert all(five.files[name] == data for name, data in three.files.items())
    rows = [json.loads(line)["prompt_token_ids"] for data in five.files.values() for line in data.splitlines()]
    assert {len(row) for row in rows} == {1024}
    assert len({tuple(row[:33]) for row in rows}) == len(rows)


def test_rows_carry_text_and_digest_and_differ_by_seed(tokenizer: corpus_text.Tokens) -> None:
    row = json.loads(next(iter(text(tokenizer).files.values())).splitlines()[0])
    assert sorted(row) == ["index", "prompt", "prompt_sha256", "prompt_tokens"]
    assert row["prompt"].startswith("request-")
    other = corpus_text.prompt(tokenizer, 1, 1, 64)[0]
    assert other != corpus_text.prompt(tokenizer, 0, 1, 64)[0]


class Doubling:
    """Gives two tokens a character, so that no text has an odd number of them."""

    def encode(self, text: str) -> list[int]:
        return [value for letter in text for value in (ord(letter), 0)]

    def decode(self, ids: object) -> str:
        return "".join(chr(value) for value in list(ids)[::2])  # type: ignore[call-overload]


def test_a_length_that_no_text_has_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="no text of exactly 65 tokens"):
        corpus_text.prompt(Doubling(), 0, 1, 65)
    assert len(corpus_text.prompt(Doubling(), 0, 1, 64)[1]) == 64


def test_a_file_that_is_no_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"is no readable tokenizer\.json"):
        corpus_text.load(tmp_path / "tokenizer.json")
