"""A real HTTP server on a loopback socket whose every byte a test decides: one thread a connection, one script.

The script is called once a request with the request and the wire, and writes whatever it likes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tests.servers.streams import DONE, END, HEAD, chunk, framed, usage

__all__ = ["Request", "Script", "ScriptedServer", "Wire", "complete"]


@dataclass(frozen=True)
class Request:
    """One request as received. `number` counts all requests, `on_connection` those of its connection, from 0."""

    number: int
    connection: int
    on_connection: int
    path: str
    body: dict[str, Any]


class Wire:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.open = True

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self) -> None:
        self.raw(HEAD)

    def piece(self, body: bytes) -> None:
        self.raw(framed(body))

    def end(self) -> None:
        self.raw(END)

    def close(self) -> None:
        """An orderly close, in both directions."""
        self.open = False
        self.sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """A close that the peer sees as a reset."""
        self.open = False
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def wait_for_close(self) -> None:
        """Block until the client hangs up."""
        self.open = False
        while self.sock.recv(65_536):
            pass


Script = Callable[[Request, Wire], None]


def complete(wire: Wire, tokens: int = 3, prompt_tokens: int = 5) -> None:
    """A whole good answer, each event its own write."""
    wire.head()
    for number in range(tokens):
        wire.piece(chunk(f" t{number}"))
    wire.piece(usage(tokens, prompt_tokens) + DONE)
    wire.end()


class ScriptedServer:
    """`with ScriptedServer(script) as server:` listens on `server.port`; `requests` holds all that was received.

    `peak` is the most requests that were ever answered at once. A script's exception is raised on leaving.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []
        self._running = 0
        self._failures: list[BaseException] = []
        self.requests: list[Request] = []
        self.peak = 0

    def __enter__(self) -> ScriptedServer:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):  # closed already, by the script or by its peer
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        if self._failures and kind is None:
            raise self._failures[0]

    def _spawn(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socks.append(sock)
            self._spawn(self._serve, sock, len(self._socks) - 1)

    def _serve(self, sock: socket.socket, connection: int) -> None:
        wire = Wire(sock)
        count = 0
        try:
            with sock, sock.makefile("rb") as stream:
                while wire.open and (received := _read_request(stream)) is not None:
                    path, body = received
                    with self._lock:
                        request = Request(len(self.requests), connection, count, path, body)
                        self.requests.append(request)
                        self._running += 1
                        self.peak = max(self.peak, self._running)
                    count += 1
                    try:
                        self._script(request, wire)
                    finally:
                        with self._lock:
                            self._running -= 1
        except OSError:
            pass  # the client hung up, or the test is over
        except BaseException as error:
            self._failures.append(error)


def _read_request(stream: Any) -> tuple[str, dict[str, Any]] | None:
    first = stream.readline()
    if not first:
        return None
    length = 0
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return first.split()[1].decode(), json.loads(stream.read(length)) if length else {}
