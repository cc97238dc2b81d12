"""A link that can be delayed, black-holed and cut: a TCP proxy in user space, where the kernel has no netem."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from types import TracebackType

__all__ = ["TcpProxy"]

RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close sends RST, as a router does that lost its table


class TcpProxy:
    """Listens on 127.0.0.1 and passes bytes on to `upstream`. Delay is latency: it does not narrow the link."""

    def __init__(self, upstream: int) -> None:
        self.passed = 0  # bytes, both ways
        self._upstream = upstream
        self._delay_s = 0.0
        self._limit: int | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._start(self._accept)

    def delay(self, seconds: float) -> None:
        """Let every byte from now on arrive this much later, in each direction."""
        self._delay_s = seconds

    def black_hole(self, *, after_bytes: int | None = None) -> None:
        """Pass nothing on, at once or after so many more bytes. Sockets stay open, as on a link gone half-open."""
        if after_bytes is None:
            self._flowing.clear()
        else:
            self._limit = self.passed + after_bytes

    def heal(self) -> None:
        """Let everything flow again, what was held back first."""
        self._limit = None
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection that stands. New ones are taken."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        self.heal()
        for thread in self._threads:
            thread.join(30)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._upstream))
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    held: queue.Queue[tuple[float, bytes]] = queue.Queue(64)
                    self._start(self._read, source, held)
                    self._start(self._write, sink, held)

    def _read(self, source: socket.socket, held: queue.Queue[tuple[float, bytes]]) -> None:
        block = b"?"
        while block:
            try:
                block = source.recv(1 << 15)
            except OSError:
                block = b""
            held.put((time.monotonic() + self._delay_s, block))

    def _write(self, sink: socket.socket, held: queue.Queue[tuple[float, bytes]]) -> None:
        block = b"?"
        while block:
            due, block = held.get()
            time.sleep(max(0.0, due - time.monotonic()))
            self._flowing.wait()
            with contextlib.suppress(OSError):
                if block:
                    sink.sendall(block)
                else:
                    sink.shutdown(socket.SHUT_WR)
            self.passed += len(block)
            if self._limit is not None and self.passed >= self._limit:
                self._flowing.clear()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
