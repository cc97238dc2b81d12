"""The HTTP face: a plain ASGI application over one engine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from uuid import uuid4

from kernels.serve.engine import Engine, Ticket
from kernels.serve.protocol import Chunks, CompletionRequest, RequestError, completion, parse_completion

__all__ = ["Application"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON = b"application/json"
_MAX_BODY = 1 << 20  # a prompt of 2,048 ids is 12 KB


class Application:
    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model
        self._created = int(time.time())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope["method"], scope["path"], receive, send)
        except RequestError as error:
            await _respond(send, error.status, _JSON, error.body())

    async def _route(self, method: str, path: str, receive: Receive, send: Send) -> None:
        pages = ("/health", "/metrics", "/server_info", "/v1/models")
        routes = {**dict.fromkeys(pages, "GET"), "/v1/completions": "POST"}
        if path not in routes:
            raise RequestError(404, None, f"{path} does not exist; there are {', '.join(routes)}")
        if method != routes[path]:
            raise RequestError(405, None, f"{path} answers {routes[path]}, not {method}")
        if path == "/health":
            ready = self._engine.ready
            status = b'{"status":"ok"}' if ready else b'{"status":"loading"}'
            await _respond(send, 200 if ready else 503, _JSON, status)
        elif path == "/metrics":
            await _respond(send, 200, b"text/plain; version=0.0.4", self._engine.metrics().encode())
        elif path == "/server_info":
            await _respond(send, 200, _JSON, json.dumps(self._engine.arguments()).encode())
        elif path == "/v1/models":
            limit = self._engine.limits.max_model_len
            entry = {"id": self._model, "object": "model", "created": self._created, "max_model_len": limit}
            entry["owned_by"] = "nvfp4-gates"
            await _respond(send, 200, _JSON, json.dumps({"object": "list", "data": [entry]}).encode())
        else:
            await self._complete(receive, send)

    async def _complete(self, receive: Receive, send: Send) -> None:
        request = parse_completion(await _read(receive), self._model, self._engine.limits.max_model_len)
        if not self._engine.ready:
            raise RequestError(503, None, "the engine is loading; wait until /health answers 200")
        ticket = self._engine.submit(request.prompt, request.max_tokens, request.ignore_eos)
        # The next message of an answered request is its disconnection: a client that goes away frees its slot.
        gone = asyncio.ensure_future(receive())
        gone.add_done_callback(lambda _: self._leave(ticket))
        identity = f"cmpl-{uuid4().hex}"
        try:
            if request.stream:
                await self._stream(request, identity, ticket, send)
            else:
                await self._answer(request, identity, ticket, send)
        finally:
            gone.cancel()

    def _leave(self, ticket: Ticket) -> None:
        self._engine.abort(ticket)
        ticket.events.put_nowait(None)

    async def _stream(self, request: CompletionRequest, identity: str, ticket: Ticket, send: Send) -> None:
        """One event a token. A stream that the engine had to drop ends without `[DONE]`."""
        chunks = Chunks(request, identity, int(time.time()), self._model)
        started = False
        while (event := await ticket.events.get()) is not None:
            if not started:
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                started = True
            body = chunks.token(*event)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if event[1] is not None:
                await send({"type": "http.response.body", "body": chunks.end(), "more_body": False})
                return
        if not started:
            raise RequestError(503, None, "the engine is stopping; send the request again later")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, request: CompletionRequest, identity: str, ticket: Ticket, send: Send) -> None:
        tokens: list[int] = []
        while (event := await ticket.events.get()) is not None:
            tokens.append(event[0])
            if event[1] is not None:
                body = completion(
                    request,
                    identity=identity,
                    created=int(time.time()),
                    model=self._model,
                    tokens=tokens,
                    finish_reason=event[1],
                )
                await _respond(send, 200, _JSON, body)
                return
        raise RequestError(503, None, "the engine is stopping; send the request again later")


async def _read(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > _MAX_BODY:
            raise RequestError(413, None, f"the request body is larger than {_MAX_BODY} bytes; shorten the prompt")
        if not message.get("more_body", False):
            return body


async def _respond(send: Send, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
