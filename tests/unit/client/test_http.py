from __future__ import annotations

import pytest

from harness.client.http import ResponseParser, post_bytes
from harness.errors import HarnessError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=1\r\n world\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 500 Boom\r\nContent-Length: 5\r\n\r\nhello"


def fed(data: bytes, size: int) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    return parser, b"".join(parser.feed(data[at : at + size]) for at in range(0, len(data), size))


def test_a_request_carries_its_length_and_host() -> None:
    head, _, body = post_bytes("127.0.0.1", 80, "/v1/completions", b"{}").partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/completions HTTP/1.1"
    assert {b"Host: 127.0.0.1:80", b"Content-Length: 2"} <= set(lines)
    assert body == b"{}"


def test_an_ipv6_host_is_bracketed() -> None:
    assert b"Host: [::1]:8000\r\n" in post_bytes("::1", 8000, "/", b"")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_chunked_body_is_joined_at_every_read_size(size: int) -> None:
    parser, body = fed(CHUNKED, size)
    assert (body, parser.complete, parser.reusable, parser.status) == (b"hello world", True, True, 200)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_sized_body_ends_with_its_last_byte(size: int) -> None:
    parser, body = fed(SIZED, size)
    assert (body, parser.complete, parser.status, parser.reason) == (b"hello", True, 500, "Boom")


def test_a_body_without_length_ends_when_the_connection_closes() -> None:
    parser, body = fed(b"HTTP/1.1 200 OK\r\n\r\nhello", 4)
    assert (body, parser.complete) == (b"hello", False)
    parser.eof()
    assert parser.complete
    assert not parser.reusable


def test_connection_close_is_not_reusable() -> None:
    parser, _ = fed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", 1000)
    assert parser.complete
    assert not parser.reusable


def test_interim_answers_are_passed_over() -> None:
    parser, body = fed(b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED, 1000)
    assert (body, parser.status, parser.reason, parser.complete) == (b"hello", 500, "Boom", True)


@pytest.mark.parametrize("cut", [0, 10, len(CHUNKED) - 3])
def test_an_end_inside_a_response_is_a_cut_stream(cut: int) -> None:
    parser, _ = fed(CHUNKED[:cut], 1000)
    with pytest.raises(HarnessError) as caught:
        parser.eof()
    assert caught.value.code == "cut-stream"


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH\r\n", CHUNKED.replace(b"5\r\nhello", b"zz\r\nhello")])
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(HarnessError) as caught:
        fed(data, 1000)
    assert caught.value.code == "bad-http"


def test_bytes_after_the_end_only_spoil_the_connection() -> None:
    parser, body = fed(CHUNKED + SIZED, 1000)
    assert (body, parser.complete, parser.reusable, parser.status) == (b"hello world", True, False, 200)
