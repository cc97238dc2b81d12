"""OpenAI completions as values: what a request body may say, and the bytes of each answer. No sockets here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.errors import KernelError, shown
from kernels.json_strict import loads_object
from kernels.serve import tokenizer

__all__ = ["Chunks", "CompletionRequest", "RequestError", "completion", "parse_completion"]

# What else clients send, with the only values that mean what this engine does. Unknown fields are ignored, as OpenAI's
# server ignores them; a known one with another value would silently give another answer, so it is refused.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "stop": ([],),
    "suffix": ("",),
    "logprobs": (),
}


class RequestError(Exception):
    """A request that cannot be served: HTTP status, the field at fault and a sentence for its sender."""

    def __init__(self, status: int, parameter: str | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter
        self.message = message

    def body(self) -> bytes:
        kind = {404: "NotFoundError", 503: "ServiceUnavailableError"}.get(self.status, "BadRequestError")
        error = {"message": self.message, "type": kind, "param": self.parameter, "code": self.status}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True)
class CompletionRequest:
    prompt: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


def parse_completion(body: bytes, model: str, max_model_len: int) -> CompletionRequest:
    """Read one request body. RequestError 404 for another model, else 400 naming the field and the mend."""
    try:
        data = loads_object(body, "the request body")
    except KernelError as error:
        raise RequestError(400, None, error.message) from error
    if data.get("model") != model:
        raise RequestError(
            404, "model", f"The model {shown(data.get('model'))} does not exist; this server has {model!r}"
        )
    for name, values in _NEUTRAL.items():
        if data.get(name) is not None and data[name] not in values:
            accepted = f"only {values[0]!r} or leave it out" if values else "leave it out"
            raise RequestError(
                400, name, f"{name}={shown(data[name])} is not supported by this greedy engine: {accepted}"
            )
    prompt = _prompt(data.get("prompt"))
    max_tokens = _integer(data, "max_tokens", 16)
    _integer(data, "seed", 0, lowest=-(2**63))
    if len(prompt) + max_tokens > max_model_len:
        raise RequestError(
            400,
            "prompt",
            f"This model's maximum context length is {max_model_len} tokens, but {len(prompt)} in the prompt and "
            f"{max_tokens} in the completion are {len(prompt) + max_tokens}; shorten the prompt or lower max_tokens",
        )
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError(400, "stream_options", f"stream_options={shown(options)} must be an object")
    return CompletionRequest(
        prompt,
        max_tokens,
        ignore_eos=_switch(data, "ignore_eos"),
        stream=_switch(data, "stream"),
        include_usage=_switch(options, "include_usage"),
        continuous_usage=_switch(options, "continuous_usage_stats"),
    )


def _prompt(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        try:
            tokens = tuple(tokenizer.encode(value))
        except KernelError as error:
            raise RequestError(400, "prompt", error.message) from error
    elif isinstance(value, list) and all(type(token) is int for token in value):
        tokens = tuple(value)
        if tokens and not (min(tokens) >= 0 and max(tokens) < tokenizer.VOCABULARY):
            raise RequestError(
                400, "prompt", f"token ids must lie in 0..{tokenizer.VOCABULARY - 1}; correct the prompt"
            )
    else:
        raise RequestError(400, "prompt", "prompt must be one text or one list of token ids")
    if not tokens:
        raise RequestError(400, "prompt", "prompt is empty: give at least one token")
    return tokens


def _integer(data: Mapping[str, Any], name: str, default: int, lowest: int = 1) -> int:
    value = data.get(name)
    if value is None:
        return default
    if type(value) is not int or value < lowest:
        raise RequestError(400, name, f"{name}={shown(value)} must be an integer of at least {lowest}")
    return value


def _switch(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(400, name, f"{name}={shown(value)} must be true or false")
    return bool(value)


def _usage(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}


class Chunks:
    """The server-sent events of one stream. The unchanging part is encoded once: a chunk costs 4 us, not 15."""

    def __init__(self, request: CompletionRequest, identity: str, created: int, model: str) -> None:
        self._request = request
        self._head = f'data: {{"id":{json.dumps(identity)},"object":"text_completion","created":{created},'
        self._head += f'"model":{json.dumps(model)},"choices":['
        self._generated = 0

    def token(self, token: int, finish_reason: str | None) -> bytes:
        """One event with one token's text; the last one carries the finish reason."""
        self._generated += 1
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        text = json.dumps(tokenizer.piece(token))
        usage = self._usage() if self._request.continuous_usage else "null"
        choice = f'{{"index":0,"text":{text},"logprobs":null,"finish_reason":{reason}}}'
        return f'{self._head}{choice}],"usage":{usage}}}\n\n'.encode()

    def end(self) -> bytes:
        """The usage event, if it was asked for, and `[DONE]`."""
        usage = f'{self._head}],"usage":{self._usage()}}}\n\n' if self._request.include_usage else ""
        return f"{usage}data: [DONE]\n\n".encode()

    def _usage(self) -> str:
        return json.dumps(_usage(len(self._request.prompt), self._generated))


def completion(
    request: CompletionRequest, *, identity: str, created: int, model: str, tokens: list[int], finish_reason: str
) -> bytes:
    """The whole answer of a request that did not stream."""
    choice = {"index": 0, "text": tokenizer.decode(tokens), "logprobs": None, "finish_reason": finish_reason}
    answer = {
        "id": identity,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": _usage(len(request.prompt), len(tokens)),
    }
    return json.dumps(answer).encode()
