"""What one finished exchange says: events to a RequestRecord. Pure; runs after the leg.

Counts follow the vLLM bench client for completions: each event with a non-empty `choices` list is one chunk, empty
text included. Unlike it, a failed, cut, uncounted or empty stream is a failure, and tokens come from `usage` alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Any

from harness.client.exchange import Exchange
from harness.client.sse import SseEvent
from harness.errors import HarnessError
from harness.records import RequestRecord

__all__ = ["Completion", "read_completion"]

_MESSAGE_LIMIT = 300
_PATH = re.compile(r"(?<![\w/.:])(?:/[\w.@+-]+){2,}/?")


@dataclass(frozen=True)
class Completion:
    """A request's record, and what only some callers want: its text and, where the server sent them, token ids."""

    record: RequestRecord
    text: str
    token_ids: tuple[int, ...] | None


@dataclass
class _Content:
    """What the events of one stream have said so far."""

    chunk_ns: list[int] = field(default_factory=list)
    chunk_usage: list[int | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    chunks_with_ids: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None

    def take(self, stamp_ns: int, event: SseEvent) -> None:
        """Read one event. HarnessError `stream-error`, `bad-utf8` or `bad-event`."""
        text = event.text()
        if event.name == b"error":
            raise HarnessError("stream-error", error_message(_parsed(text)) or text)
        document = _parsed(text)
        if not isinstance(document, dict):
            raise HarnessError("bad-event", f"event data is not a JSON object: {text[:80]!r}")
        message = error_message(document)
        if message is not None:
            raise HarnessError("stream-error", message)
        usage = document.get("usage")
        running = self._usage(usage) if isinstance(usage, dict) else None
        choices = document.get("choices")
        if isinstance(choices, list) and choices:
            self._chunk(stamp_ns, running, choices[0])

    def _usage(self, usage: dict[str, Any]) -> int | None:
        # The last usage counts; running ones are totals so far and are never summed.
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self.output_tokens = _count(usage.get("completion_tokens"))
        return self.output_tokens

    def _chunk(self, stamp_ns: int, running: int | None, choice: Any) -> None:
        if not isinstance(choice, dict):
            raise HarnessError("bad-event", "an entry of choices is not a JSON object")
        self.chunk_ns.append(stamp_ns)
        self.chunk_usage.append(running)
        text = choice.get("text")
        self.texts.append(text if isinstance(text, str) else "")
        ids = choice.get("token_ids")
        if isinstance(ids, list) and all(_count(item) is not None for item in ids):
            self.token_ids.extend(ids)
            self.chunks_with_ids += 1
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason


def read_completion(exchange: Exchange) -> Completion:
    """The record of an ended exchange. Its `error` is the first thing that went wrong, as `code: sentence`."""
    content = _Content()
    error = None
    try:
        for stamp_ns, event in exchange.events:
            content.take(stamp_ns, event)
    except HarnessError as failure:
        error = f"{failure.code}: {_tidy(failure.message)}"
    error = error or _failure(exchange, content)
    text = _whole("".join(content.texts))
    # A stream whose chunks name their ids only now and then proves nothing about the sequence.
    has_ids = bool(content.chunk_ns) and content.chunks_with_ids == len(content.chunk_ns)
    record = _record(exchange, content, text, error)
    return Completion(record, text, tuple(content.token_ids) if has_ids else None)


def _record(exchange: Exchange, content: _Content, text: str, error: str | None) -> RequestRecord:
    start = exchange.start_ns
    chunk_ns = tuple(stamp - start for stamp in content.chunk_ns)
    _refuse_negative(chunk_ns, exchange.job.index)
    counts = [count for count in content.chunk_usage if count is not None]
    return RequestRecord(
        index=exchange.job.index,
        prompt_sha256=exchange.job.prompt_sha256,
        start_ns=start,
        chunk_ns=chunk_ns,
        chunk_tokens=tuple(counts) if counts and len(counts) == len(chunk_ns) else None,
        done_ns=None if exchange.done_ns is None else exchange.done_ns - start,
        prompt_tokens=content.prompt_tokens,
        output_tokens=content.output_tokens,
        text_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        finish_reason=content.finish_reason,
        status=exchange.response.status,
        error=error,
        retries=exchange.retries,
        shared_stamps=sum(a == b for a, b in itertools.pairwise(chunk_ns)),
    )


def _refuse_negative(offsets: tuple[int, ...], index: int) -> None:
    """Time that runs backwards is a fault of the client; clamping it to 0 would hide that."""
    for before, after in itertools.pairwise((0, *offsets)):
        if after < before:
            raise HarnessError(
                "negative-latency",
                f"request {index}: a chunk is stamped {before - after} ns before what precedes it; "
                "this is a fault in the client's clock, please report it with load.json",
            )


def _failure(exchange: Exchange, content: _Content) -> str | None:
    """Why a stream whose events were all readable is no completion; None when it is one."""
    status = exchange.response.status
    if exchange.error is not None:
        code, _, reason = exchange.error.partition(": ")
        return f"{code}: {_tidy(reason)}"
    if status != 200:
        return f"http-{status}: {_tidy(_body_message(exchange) or exchange.response.reason or 'no message')}"
    if not exchange.events:
        message = _body_message(exchange)
        if message is not None:
            return f"stream-error: {_tidy(message)}"
    if not content.chunk_ns or content.output_tokens == 0:
        return "no-token: the stream ended well but held no token"
    if exchange.done_ns is None:
        return "cut-stream: the response ended before [DONE]"
    if content.prompt_tokens is None or content.output_tokens is None:
        return "no-usage: no event gave prompt_tokens and completion_tokens; the server must honour include_usage"
    return None


def _body_message(exchange: Exchange) -> str | None:
    """The message of a body that was no event stream. A refusal without an error object is quoted, a 200 never is."""
    text = bytes(exchange.body).decode("utf-8", "replace").strip()
    parsed = _parsed(text)
    message = error_message(parsed) if isinstance(parsed, dict) else None
    return message or (text if exchange.response.status != 200 else "") or None


def error_message(document: Any) -> str | None:
    """The message of an error object, in the shapes servers use; None when the document is not an error."""
    if isinstance(document, str):
        return document
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        return message if isinstance(message, str) and message else json.dumps(error, ensure_ascii=False)
    named = document.get("message", document.get("detail"))
    is_error = document.get("object") == "error" or "choices" not in document
    return named if is_error and isinstance(named, str) else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _whole(text: str) -> str:
    """Surrogate pairs whose halves came in two chunks are one character again."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _tidy(message: str) -> str:
    """One line, of bounded length, without a path of the server's host."""
    line = _PATH.sub("<path>", " ".join(message.split()))
    return line if len(line) <= _MESSAGE_LIMIT else line[: _MESSAGE_LIMIT - 1] + "…"
