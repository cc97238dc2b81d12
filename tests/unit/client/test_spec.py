from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.client.load import Prompt
from harness.client.spec import read_prompts, read_spec
from harness.errors import EXIT_USAGE, UsageError

GOOD: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8000,
    "path": "/v1/completions",
    "model": "gate",
    "prompts_file": "prompts.jsonl",
    "concurrency": 2,
    "warmups": 2,
    "max_tokens": 128,
    "out_dir": "out",
}


def read(tmp_path: Path, **changes: Any) -> Any:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**GOOD, **changes}))
    return read_spec(path)


def test_a_spec_names_its_target_and_files(tmp_path: Path) -> None:
    spec = read(tmp_path, keep_text=True, deadline_s=5)
    assert (spec.prompts_file, spec.out_dir) == (Path("prompts.jsonl"), Path("out"))
    assert (spec.target.port, spec.target.keep_text, spec.target.deadline_s) == (8000, True, 5)


def test_the_request_is_greedy_streamed_and_counted(tmp_path: Path) -> None:
    body = json.loads(read(tmp_path).target.body(Prompt(0, "", (1, 2, 3))))
    assert body == {
        "model": "gate",
        "prompt": [1, 2, 3],
        "max_tokens": 128,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_extra_body_adds_replaces_and_drops_keys(tmp_path: Path) -> None:
    spec = read(tmp_path, extra_body={"seed": 7, "repetition_penalty": None, "return_token_ids": True})
    body = json.loads(spec.target.body(Prompt(0, "", "text")))
    assert (body["seed"], body["return_token_ids"], body["prompt"]) == (7, True, "text")
    assert "repetition_penalty" not in body


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"port": "8000"}, "port = '8000'"),
        ({"port": 0}, "port = 0"),
        ({"port": 70_000}, "port = 70000"),
        ({"concurrency": 0}, "concurrency = 0"),
        ({"concurrency": True}, "concurrency = True"),
        ({"warmups": -1}, "warmups = -1"),
        ({"request_timeout_s": 0}, "request_timeout_s = 0"),
        ({"deadline_s": "soon"}, "deadline_s = 'soon'"),
        ({"path": "v1"}, "path = 'v1'"),
        ({"path": "/v1\r\nX: y"}, "path = "),
        ({"extra_body": {"stream": False}}, "may not set stream"),
        ({"concurency": 2}, "unknown concurency"),
    ],
)
def test_a_bad_value_is_named_with_its_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")) as caught:
        read(tmp_path, **changes)
    assert (caught.value.code, caught.value.exit_code) == ("bad-spec", EXIT_USAGE)


def test_every_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text('{"host": "127.0.0.1"}')
    with pytest.raises(UsageError, match="lacks concurrency, max_tokens, model, out_dir, path, port, prompts_file"):
        read_spec(path)


@pytest.mark.parametrize("text", ["", "[]", "{", None])
def test_what_is_no_spec_is_a_sentence(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "spec.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match="the client's spec") as caught:
        read_spec(path)
    assert str(tmp_path) not in caught.value.message


def test_prompts_are_token_ids_or_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"index": 3, "prompt_sha256": "a", "prompt_token_ids": [1, 2]}\n\n'
        '{"index": 4, "prompt_sha256": "b", "prompt": "text\u2028x"}\n'
    )
    assert read_prompts(path) == [Prompt(3, "a", (1, 2)), Prompt(4, "b", "text\u2028x")]


@pytest.mark.parametrize(
    "line",
    [
        "7",
        "{",
        '{"index": 1, "prompt_sha256": "a"}',
        '{"index": 1, "prompt": "x"}',
        '{"index": 1, "prompt_sha256": "a", "prompt_token_ids": [1, "x"]}',
        '{"index": "1", "prompt_sha256": "a", "prompt": "x"}',
    ],
)
def test_a_bad_prompt_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"index": 0, "prompt_sha256": "a", "prompt": "x"}\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2 of the prompts file"):
        read_prompts(path)


def test_an_empty_prompts_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n")
    with pytest.raises(UsageError, match="holds no prompt"):
        read_prompts(path)
