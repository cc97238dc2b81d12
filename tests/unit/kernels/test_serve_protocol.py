from __future__ import annotations

import json
from typing import Any

import pytest

from kernels.serve import tokenizer
from kernels.serve.protocol import Chunks, RequestError, completion, parse_completion


def parse(**fields: Any) -> Any:
    return parse_completion(json.dumps({"model": "gate", "prompt": [1, 2], **fields}).encode(), "gate", 100)


def test_a_load_clients_request_is_read_whole() -> None:
    request = parse(
        max_tokens=9, temperature=0.0, seed=0, ignore_eos=True, stream=True, repetition_penalty=1.0, top_p=1.0,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert (request.prompt, request.max_tokens) == ((1, 2), 9)
    assert (request.ignore_eos, request.stream, request.include_usage, request.continuous_usage) == (
        True, True, True, False,
    )  # fmt: skip


def test_a_text_prompt_is_encoded() -> None:
    assert parse(prompt="hello").prompt == tuple(tokenizer.encode("hello"))


@pytest.mark.parametrize(
    ("fields", "status", "parameter"),
    [
        ({"model": "other"}, 404, "model"),
        ({"temperature": 0.7}, 400, "temperature"),
        ({"repetition_penalty": 1.1}, 400, "repetition_penalty"),
        ({"n": 2}, 400, "n"),
        ({"stop": ["x"]}, 400, "stop"),
        ({"logprobs": 3}, 400, "logprobs"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": [1, True]}, 400, "prompt"),
        ({"prompt": [[1], [2]]}, 400, "prompt"),
        ({"prompt": [1024]}, 400, "prompt"),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": "€"}, 400, "prompt"),
        ({"prompt": [1] * 90, "max_tokens": 11}, 400, "prompt"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 1.5}, 400, "max_tokens"),
        ({"max_tokens": True}, 400, "max_tokens"),
        ({"seed": "x"}, 400, "seed"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stream_options": 3}, 400, "stream_options"),
        ({"ignore_eos": 1}, 400, "ignore_eos"),
    ],
)
def test_a_bad_field_is_refused_by_name(fields: dict[str, Any], status: int, parameter: str) -> None:
    with pytest.raises(RequestError) as error:
        parse(**fields)
    assert (error.value.status, error.value.parameter) == (status, parameter)
    body = json.loads(error.value.body())["error"]
    assert (body["code"], body["param"]) == (status, parameter)
    assert len(body["message"]) > 20


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model":"gate","model":"gate"}', b"[" * 5000])
def test_a_body_that_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(RequestError) as error:
        parse_completion(body, "gate", 100)
    assert error.value.status == 400


def test_a_prompt_that_just_fits_is_taken() -> None:
    assert len(parse(prompt=[1] * 90, max_tokens=10).prompt) == 90


@pytest.mark.parametrize("continuous", [False, True])
def test_the_events_of_a_stream_are_one_token_each_then_usage_then_done(continuous: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    chunks = Chunks(parse(stream_options=options), "cmpl-1", 5, "gate")
    data = chunks.token(65, None) + chunks.token(0, "length") + chunks.end()
    *events, done, rest = data.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    first, second, usage = (json.loads(event.removeprefix("data: ")) for event in events)
    assert first["choices"] == [{"index": 0, "text": "A", "logprobs": None, "finish_reason": None}]
    assert second["choices"][0]["finish_reason"] == "length"
    assert second["choices"][0]["text"] == "\0"
    assert (usage["choices"], usage["usage"]) == (
        [], {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
    )  # fmt: skip
    running = [event["usage"] and event["usage"]["completion_tokens"] for event in (first, second)]
    assert running == ([1, 2] if continuous else [None, None])


def test_without_include_usage_a_stream_ends_with_done_alone() -> None:
    assert Chunks(parse(), "cmpl-1", 5, "gate").end() == b"data: [DONE]\n\n"


@pytest.mark.parametrize("token", range(tokenizer.VOCABULARY))
def test_every_token_is_a_chunk_on_lines_of_its_own(token: int) -> None:
    event = Chunks(parse(), "cmpl-1", 5, "gate").token(token, None)
    assert event.count(b"\n") == 2
    assert b"\r" not in event
    assert json.loads(event[6:])["choices"][0]["text"] == tokenizer.piece(token)


def test_an_answer_in_one_piece_has_text_reason_and_usage() -> None:
    body = json.loads(
        completion(parse(), identity="c", created=1, model="gate", tokens=[72, 105], finish_reason="stop")
    )
    assert body["choices"][0]["text"] == "Hi"
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
