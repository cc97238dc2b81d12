"""Bytes of completion streams, and their replay through the client's pure parts with stamps of one's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from harness.client.completion import Completion, read_completion
from harness.client.exchange import Exchange, Job

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
MS = 1_000_000


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def chunk(text: str, usage: int | None = None, finish: str | None = None, **choice: Any) -> bytes:
    """One event with a choice; `usage` adds the running completion count to it."""
    document: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish, **choice}]}
    if usage is not None:
        document["usage"] = {"prompt_tokens": 5, "completion_tokens": usage}
    return event(document)


def usage(tokens: int, prompt_tokens: int = 5) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}})


def framed(body: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(body), body)


def replay(timed: Iterable[tuple[int, bytes]], close: bool = False) -> Completion:
    """The completion out of (milliseconds after the start, body bytes) reads, ending the message after the last."""
    exchange = Exchange(Job(0, "digest", b""))
    exchange.begin(1000 * MS)
    exchange.take(HEAD, 1000 * MS + 1)
    stamp = 1000 * MS
    for milliseconds, body in timed:
        stamp = (1000 + milliseconds) * MS
        exchange.take(framed(body), stamp)
    if close:
        exchange.close(stamp)
    else:
        exchange.take(END, stamp)
    return read_completion(exchange)


def tokens(count: int, first_ms: int, gap_ms: int) -> list[tuple[int, bytes]]:
    """A whole well-formed stream of one-token chunks, usage at its end."""
    reads = [(first_ms + gap_ms * i, chunk(f" t{i}")) for i in range(count)]
    return [*reads, (reads[-1][0], usage(count) + DONE)]


def spread(reads: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Reads 1 ms apart."""
    return list(enumerate(reads, 1))
