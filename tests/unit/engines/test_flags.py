from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gates.servers import same
from harness.engines import flags
from harness.errors import UsageError


def test_flags_become_words_with_dashes_truth_values_and_lists() -> None:
    given = {
        "max_num_seqs": 16,
        "async_scheduling": False,
        "enforce_eager": True,
        "cudagraph_sizes": [1, 2],
        "seed": None,
    }
    assert flags.command_line(given) == [
        *("--max-num-seqs", "16", "--no-async-scheduling", "--enforce-eager", "--cudagraph-sizes", "1", "2")
    ]
    assert flags.command_line({"max_batch_size": 4, "trust": False}, underscores=True, negative=None) == [
        *("--max_batch_size", "4")
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"port": 8000}, ("arm.flags.port=8000", "host.port")),
        ({"max-num-seqs": 1, "max_num_seqs": 2}, ("arm.flags.max_num_seqs", "twice")),
        ({"extra": {"a": 1}}, ("arm.flags.extra", "must be a number")),
    ],
)
def test_a_flag_that_cannot_be_meant_is_refused_with_the_mend(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        flags.checked("arm.flags", given, {"port": "host.port"})
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize(
    ("planned", "resolved", "good"),
    [
        ("16", "16", True),
        ("bfloat16", "torch.bfloat16", True),
        ("gate", '["gate"]', True),
        ("auto", "torch.float16", True),
        ("auto", None, False),
        ("16", "256", False),
        ("false", "true", False),
    ],
)
def test_spelling_is_no_difference_and_silence_is_no_agreement(planned: str, resolved: str | None, good: bool) -> None:
    assert same(planned, resolved) is good


def test_prompts_are_drawn_from_ids_that_are_no_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 151936}}))
    added = [{"id": number, "content": "x"} for number in (0, 2, 151643, 151644)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert flags.token_range(tmp_path) == (3, 151643)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UsageError, match="must be a folder with"):
        flags.token_range(tmp_path)
