from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from harness.client.completion import read_completion
from harness.client.exchange import Exchange, Job
from harness.errors import HarnessError
from tests.servers.streams import DONE, END, HEAD, MS, chunk, event, framed, replay, spread, tokens, usage

THREE = [chunk("a"), chunk("b"), chunk("c")]


def test_a_clean_stream_is_stamped_from_its_start_and_counted_by_its_usage() -> None:
    record = replay(tokens(3, first_ms=100, gap_ms=10)).record
    assert record.error is None
    assert record.chunk_ns == (100 * MS, 110 * MS, 120 * MS)
    assert (record.start_ns, record.done_ns) == (1000 * MS, 120 * MS)
    assert (record.prompt_tokens, record.output_tokens, record.status) == (5, 3, 200)
    assert record.text_sha256 == hashlib.sha256(b" t0 t1 t2").hexdigest()


def test_a_role_and_a_stop_without_a_token_is_a_failure() -> None:
    """B02: no zero may enter a list."""
    reads = [chunk("", role="assistant"), chunk("", finish="stop"), usage(0), DONE]
    record = replay(spread(reads)).record
    assert record.error is not None
    assert record.error.startswith("no-token: ")


def test_an_empty_stream_is_a_failure() -> None:
    record = replay(spread([DONE])).record
    assert record.error is not None
    assert record.error.startswith("no-token: ")


def test_running_usage_is_kept_beside_the_chunks() -> None:
    """B03: several tokens a chunk."""
    reads = [(100, chunk("a", 1)), (130, chunk("bcd", 4)), (160, chunk("efg", 7)), (160, DONE)]
    record = replay(reads).record
    assert (record.chunk_tokens, record.output_tokens, record.error) == ((1, 4, 7), 7, None)
    assert replay([(100, chunk("a")), (130, chunk("b")), (160, usage(7) + DONE)]).record.chunk_tokens is None


SEVEN = [chunk(f"t{i}") for i in range(7)]


@pytest.mark.parametrize(
    "reads",
    [
        [*SEVEN, usage(7), DONE],
        [*SEVEN[:6], chunk("t6", 7, "length"), DONE],
        [*(chunk(f"t{i}", i + 1) for i in range(7)), DONE],
        [event({"choices": []}), *SEVEN, usage(7), DONE],
        [*SEVEN, event({"choices": [], "usage": None}), usage(7), DONE],
    ],
    ids=["own event", "on the last chunk", "running", "leading empty choices", "null first"],
)
def test_usage_counts_wherever_it_comes(reads: list[bytes]) -> None:
    """B05: seven tokens, six gaps, no crash on empty choices, running usage not summed."""
    record = replay(spread(reads)).record
    assert (record.error, record.output_tokens, len(record.chunk_ns)) == (None, 7, 7)


@pytest.mark.parametrize(
    "last", [b"", event({"choices": [], "usage": {"prompt_tokens": 5}}), event({"choices": [], "usage": {}})]
)
def test_without_a_count_there_is_none_and_the_request_fails(last: bytes) -> None:
    """B05 (4): neither re-tokenised nor counted by chunks."""
    record = replay(spread([*SEVEN, last + DONE])).record
    assert record.output_tokens is None
    assert record.error is not None
    assert record.error.startswith("no-usage: ")


@pytest.mark.parametrize(
    "failure",
    [
        event({"error": {"message": "engine died", "code": 500}}),
        event({"error": "engine died"}),
        event({"object": "error", "message": "engine died", "code": 500}),
        b"event: error\n" + event({"message": "engine died"}),
        b"event: error\ndata: engine died\n\n",
    ],
    ids=["object", "string", "old shape", "event line", "event line, plain text"],
)
@pytest.mark.parametrize("before", [[], THREE], ids=["first", "after three tokens"])
def test_an_error_inside_the_stream_fails_the_request_with_its_message(failure: bytes, before: list[bytes]) -> None:
    """B08: also with good tokens before it and [DONE] after it."""
    record = replay(spread([*before, failure, usage(3), DONE])).record
    assert record.error == "stream-error: engine died"


def answered(head: bytes, body: bytes) -> str | None:
    exchange = Exchange(Job(0, "digest", b""))
    exchange.begin(1)
    exchange.take(head + b"Content-Length: %d\r\n\r\n" % len(body) + body, 2)
    return read_completion(exchange).record.error


def test_a_200_with_one_json_error_and_no_stream_is_a_failure() -> None:
    """B08."""
    error = answered(b"HTTP/1.1 200 OK\r\n", b'{"error":{"message":"engine died"}}')
    assert error == "stream-error: engine died"


def test_a_200_that_is_no_stream_is_not_quoted() -> None:
    error = answered(b"HTTP/1.1 200 OK\r\n", b'{"choices":[{"text":"secret"}],"usage":{"completion_tokens":1}}')
    assert error is not None
    assert error.startswith("no-token: ")
    assert "secret" not in error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too long","code":400}}', "too long"),
        (b'{"detail":"too long"}', "too long"),
        (b'{"message":"too long"}', "too long"),
        (b"too\nlong", "too long"),
        (b"", "Bad Request"),
    ],
)
def test_a_refusal_keeps_its_status_and_message(body: bytes, message: str) -> None:
    assert answered(b"HTTP/1.1 400 Bad Request\r\n", body) == f"http-400: {message}"


def test_a_message_names_no_path_of_the_host_and_is_of_bounded_length() -> None:
    error = answered(b"HTTP/1.1 500 Boom\r\n", b"cannot open /root/models/w.bin " + b"x" * 1000)
    assert error is not None
    assert error.startswith("http-500: cannot open <path> x")
    assert len(error) < 320


LINE_END_TEXTS = ["人\u2028民", "a\u0085b", "end"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_line_endings_change_neither_text_nor_count(ending: str, size: int) -> None:
    """B10: raw U+2028 and U+0085 stay in the text; a CRLF may be cut anywhere."""
    body = b"".join([*(chunk(text) for text in LINE_END_TEXTS), usage(3), DONE])
    body = body.replace(b"\n", ending.encode())
    completion = replay(spread([body[at : at + size] for at in range(0, len(body), size)]))
    assert completion.record.error is None
    assert completion.text == "".join(LINE_END_TEXTS)
    assert len(completion.record.chunk_ns) == 3


def test_one_byte_a_read_two_events_a_read_and_a_huge_event_are_exact() -> None:
    """B11: the stamp is that of the read which completed the event."""
    first = chunk("中文🚀") + b'data: {"choices":[{"text":"\\ud83d\\ude80"}]}\n\n'
    huge = chunk("x" * 300_000)
    reads = [*(first[at : at + 1] for at in range(len(first))), chunk("a") + chunk("b")]
    reads += [huge[at : at + 65_536] for at in range(0, len(huge), 65_536)]
    completion = replay(spread([*reads, usage(5), DONE]))
    assert completion.record.error is None
    assert completion.text == "中文🚀🚀ab" + "x" * 300_000
    ends = [len(chunk("中文🚀")), len(first), len(first) + 1, len(first) + 1, len(reads)]
    assert completion.record.chunk_ns == tuple(end * MS for end in ends)
    assert completion.record.shared_stamps == 1


def test_a_surrogate_pair_cut_into_two_events_is_one_character() -> None:
    reads = [b'data: {"choices":[{"text":"\\ud83d"}]}\n\n', b'data: {"choices":[{"text":"\\ude80"}]}\n\n']
    completion = replay(spread([*reads, usage(2), DONE]))
    assert completion.text == "🚀"
    assert completion.record.text_sha256 == hashlib.sha256("🚀".encode()).hexdigest()


def test_a_lone_surrogate_is_hashed_not_refused() -> None:
    completion = replay(spread([b'data: {"choices":[{"text":"\\ud83d"}]}\n\n', usage(1), DONE]))
    assert completion.record.error is None
    assert completion.text == "\ud83d"


def test_invalid_utf8_is_a_failure_with_its_place() -> None:
    """B11."""
    record = replay(spread([b'data: {"choices":[{"text":"\xff"}]}\n\n', usage(1), DONE])).record
    assert record.error is not None
    assert record.error.startswith("bad-utf8: event data is not UTF-8 at byte 21")


@pytest.mark.parametrize("data", [b"{", b"[1]", b"null", b"7"])
def test_an_event_that_is_no_json_object_is_a_failure(data: bytes) -> None:
    record = replay(spread([b"data: " + data + b"\n\n", usage(1), DONE])).record
    assert record.error is not None
    assert record.error.startswith("bad-event: ")


@pytest.mark.parametrize("close", [False, True])
def test_a_stream_without_done_is_cut(close: bool) -> None:
    record = replay(spread([*THREE, usage(3)]), close=close).record
    assert record.error is not None
    assert record.error.startswith("cut-stream: ")


def test_an_event_cut_in_half_is_a_cut_stream() -> None:
    record = replay(spread([*THREE, chunk("d")[:-10]])).record
    assert record.error == "cut-stream: the response ended inside an event"


def test_done_needs_no_blank_line_at_the_very_end() -> None:
    assert replay(spread([*THREE, usage(3), b"data: [DONE]"])).record.error is None


def test_a_connection_that_breaks_after_done_failed_nothing() -> None:
    exchange = Exchange(Job(0, "digest", b""))
    exchange.begin(1)
    exchange.take(HEAD + framed(b"".join([*THREE, usage(3), DONE])), 5)
    exchange.close(9, "the connection broke: Connection reset by peer")
    record = read_completion(exchange).record
    assert (record.error, record.done_ns, exchange.ended_ns) == (None, 4, 9)


def test_what_follows_done_is_no_token() -> None:
    record = replay(spread([*THREE, usage(3) + DONE + chunk("x")])).record
    assert (record.error, len(record.chunk_ns)) == (None, 3)


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([chunk("a", token_ids=[7]), chunk("b", token_ids=[8, 9])], (7, 8, 9)),
        ([chunk("a", token_ids=[7]), chunk("b")], None),
        ([chunk("a"), chunk("b")], None),
    ],
    ids=["all", "some", "none"],
)
def test_token_ids_are_given_only_when_every_chunk_names_them(
    reads: Sequence[bytes], expected: tuple[int, ...] | None
) -> None:
    assert replay(spread([*reads, usage(3), DONE])).token_ids == expected


def test_time_that_runs_backwards_is_a_fault_and_is_not_clamped() -> None:
    """B17."""
    with pytest.raises(HarnessError, match="10000000 ns before") as caught:
        replay([(100, chunk("a")), (90, chunk("b")), (91, usage(2) + DONE)])
    assert caught.value.code == "negative-latency"


def test_a_retry_starts_from_nothing() -> None:
    exchange = Exchange(Job(0, "digest", b""))
    exchange.begin(1)
    exchange.take(HEAD + framed(chunk("old")), 2)
    exchange.begin(10)
    exchange.take(HEAD + framed(chunk("new") + usage(1) + DONE) + END, 15)
    completion = read_completion(exchange)
    assert (completion.text, completion.record.chunk_ns, completion.record.start_ns) == ("new", (5,), 10)
