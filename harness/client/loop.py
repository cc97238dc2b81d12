"""The event loop under a closed-loop series: one thread, one selector, C connections, never more than C in flight.

Every ready socket is read before anything is parsed, so a stamp never waits for another stream's parsing. The
request's clock starts right before `send`, on a connection opened beforehand.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.client.clock import ANCILLARY_BYTES, StampClock, ask_for_stamps, kernel_stamp
from harness.client.exchange import Exchange, Job
from harness.errors import UsageError

__all__ = ["Limits", "Loop", "Progress"]

_READ_BYTES = 65_536
_CONNECT_NS = 10_000_000_000
_DRAIN_NS = (
    250_000_000  # what a server may take from [DONE] to the end of its response before its connection is dropped
)
_PROGRESS_NS = 200_000_000
_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


@dataclass(frozen=True)
class Progress:
    """How far a series is: requests ended, of how many, and chunks received so far."""

    done: int
    total: int
    tokens: int


@dataclass(frozen=True)
class Limits:
    """`request_ns` for one request from its start; `deadline_ns` is a CLOCK_MONOTONIC instant for the whole leg."""

    request_ns: int
    deadline_ns: int


class _Slot:
    """One place in flight: a connection, and the exchange on it."""

    __slots__ = ("connected", "exchange", "outgoing", "refused", "sock", "used", "waiting_since")

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.connected = False
        self.refused = 0  # errno of a connect that failed at once: SO_ERROR no longer tells
        self.used = False  # has carried a response: it may be stale, so a silent close earns one retry
        self.exchange: Exchange | None = None
        self.outgoing = memoryview(b"")
        self.waiting_since = 0


@dataclass(frozen=True)
class _Read:
    slot: _Slot
    data: bytes
    kernel_ns: int | None
    reset: str | None


class Loop:
    """Runs jobs against one server. Failures are data in the exchanges; only a host without an address raises."""

    def __init__(self, host: str, port: int, concurrency: int, clock: StampClock, limits: Limits) -> None:
        self._server = f"{host}:{port}"
        self._addresses = _resolve(host, port)
        self.clock = clock
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._slots = [_Slot() for _ in range(concurrency)]
        self._queue: deque[Exchange] = deque()
        self._busy: dict[_Slot, None] = {}  # in order of `waiting_since`, so that the first is the next to time out
        self._draining: dict[_Slot, int] = {}
        self._ended = 0
        self._chunks = 0
        self.lags: list[int] = []

    def close(self) -> None:
        for slot in self._slots:
            self._drop(slot)
        self._selector.close()

    def connect(self) -> None:
        """Open all connections, so that no request pays for one. What fails to open is tried again when needed."""
        give_up = time.monotonic_ns() + _CONNECT_NS
        for _ in range(len(self._addresses)):
            for slot in self._slots:
                if not slot.connected or self._stale(slot):
                    self._open(slot)
            while time.monotonic_ns() < give_up and any(slot.sock and not slot.connected for slot in self._slots):
                for key, _ in self._selector.select(0.1):
                    if not key.data.connected:
                        self._connected(key.data)
            if all(slot.connected for slot in self._slots):
                return

    def run(self, jobs: Sequence[Job], progress: Callable[[Progress], None] | None = None) -> list[Exchange]:
        """All jobs to their end, in order, each slot taking the next when its last is done."""
        exchanges = [Exchange(job) for job in jobs]
        self._queue.extend(exchanges)
        self._ended = self._chunks = 0
        self.lags = []
        said_ns = 0
        for slot in self._slots:
            self._next(slot)
        while self._busy:
            self._turn()
            now = time.monotonic_ns()
            self._expire(now)
            if progress is not None and now - said_ns >= _PROGRESS_NS:
                said_ns = now
                progress(Progress(self._ended, len(exchanges), self._chunks))
        if progress is not None:
            progress(Progress(self._ended, len(exchanges), self._chunks))
        return exchanges

    def _turn(self) -> None:
        """Wait, read every ready socket, agree on the clock, and only then look at what came."""
        ready = self._selector.select(self._patience())
        woke_ns = time.monotonic_ns()
        reads: list[_Read] = []
        for key, mask in ready:
            slot: _Slot = key.data
            if mask & selectors.EVENT_WRITE:
                self._writable(slot)
            # A failed write may just have replaced the connection; then this readiness is the old one's.
            if mask & selectors.EVENT_READ and key.fileobj is slot.sock:
                read = _receive(slot)
                if read is not None:
                    reads.append(read)
        if not reads:
            return
        self.clock.settle()
        read_ns = time.monotonic_ns()
        for read in reads:
            stamp_ns = self.clock.stamp(read.kernel_ns, woke_ns)
            self.lags.append(read_ns - stamp_ns)
            self._deliver(read, stamp_ns)

    def _patience(self) -> float:
        """Seconds until the next deadline, at most one progress period."""
        now = time.monotonic_ns()
        due = now + _PROGRESS_NS
        oldest = next(iter(self._busy))
        due = min(due, oldest.waiting_since + self._limits.request_ns, self._limits.deadline_ns)
        if self._draining:
            due = min(due, next(iter(self._draining.values())))
        return max(0, due - now) / 1e9

    # One slot's life: next -> (open -> connected) -> start -> deliver -> finish -> next.

    def _next(self, slot: _Slot) -> None:
        if not self._queue:
            return
        slot.exchange = self._queue.popleft()
        self._launch(slot)

    def _launch(self, slot: _Slot) -> None:
        """Start the slot's exchange on its connection, or on a new one where that is gone."""
        self._busy.pop(slot, None)
        self._busy[slot] = None
        slot.waiting_since = time.monotonic_ns()
        if slot.sock is not None and slot.used and self._stale(slot):
            self._drop(slot)
        if slot.sock is None:
            self._open(slot)
        elif slot.connected:
            self._start(slot)

    def _stale(self, slot: _Slot) -> bool:
        """Whether the peer has closed an idle connection, or sent what nobody asked for."""
        if slot.sock is None or not slot.connected:
            return False
        try:
            slot.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _open(self, slot: _Slot) -> None:
        self._drop(slot)
        family, address = self._addresses[0]
        slot.sock = sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(sock)
        self._selector.register(sock, selectors.EVENT_WRITE, slot)
        code = sock.connect_ex(address)
        slot.refused = 0 if code in _UNDER_WAY else code

    def _connected(self, slot: _Slot) -> None:
        assert slot.sock is not None
        code = slot.refused or slot.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            slot.connected = True
            self._selector.modify(slot.sock, selectors.EVENT_READ, slot)
            if slot.exchange is not None:
                self._start(slot)
            return
        self._drop(slot)
        self._addresses.rotate(-1)
        if slot.exchange is not None:
            self._give_up(slot, "connect-failed", f"cannot connect to {self._server}: {os.strerror(code)}")

    def _start(self, slot: _Slot) -> None:
        exchange = slot.exchange
        assert exchange is not None
        slot.outgoing = memoryview(exchange.job.request)
        self._busy.pop(slot, None)
        self._busy[slot] = None
        now = time.monotonic_ns()
        slot.waiting_since = now
        exchange.begin(now)
        self._send(slot)

    def _writable(self, slot: _Slot) -> None:
        if slot.connected:
            self._send(slot)
        else:
            self._connected(slot)

    def _send(self, slot: _Slot) -> None:
        assert slot.sock is not None
        try:
            sent = slot.sock.send(slot.outgoing)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken(slot, f"sending failed: {error.strerror}", time.monotonic_ns())
            return
        slot.outgoing = slot.outgoing[sent:]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.outgoing else 0)
        if self._selector.get_key(slot.sock).events != wanted:
            self._selector.modify(slot.sock, wanted, slot)

    def _deliver(self, read: _Read, stamp_ns: int) -> None:
        slot, exchange = read.slot, read.slot.exchange
        if exchange is None:  # an idle connection closed, or spoke out of turn
            self._drop(slot)
        elif not read.data:
            self._broken(slot, read.reset, stamp_ns)
        else:
            before = len(exchange.events)
            exchange.take(read.data, stamp_ns)
            self._chunks += len(exchange.events) - before
            if exchange.ended_ns is not None:
                self._finish(slot)
            elif exchange.done_ns is not None and slot not in self._draining:
                self._draining[slot] = stamp_ns + _DRAIN_NS

    def _broken(self, slot: _Slot, reset: str | None, stamp_ns: int) -> None:
        """The connection ended under an exchange. Only silence on a reused connection is retried, and only once."""
        exchange = slot.exchange
        assert exchange is not None
        stale = slot.used and exchange.received == 0 and exchange.retries == 0
        self._drop(slot)
        if stale:
            exchange.retries = 1
            self._launch(slot)
            return
        exchange.close(stamp_ns, reset)
        self._finish(slot)

    def _give_up(self, slot: _Slot, code: str, reason: str) -> None:
        exchange = slot.exchange
        assert exchange is not None
        now = time.monotonic_ns()
        exchange.start_ns = exchange.start_ns or now
        exchange.fail(code, reason, now)
        self._finish(slot)

    def _finish(self, slot: _Slot) -> None:
        exchange = slot.exchange
        assert exchange is not None
        slot.exchange = None
        slot.used = True
        self._busy.pop(slot, None)
        self._draining.pop(slot, None)
        self._ended += 1
        if not (exchange.response.complete and exchange.response.reusable) or slot.outgoing:
            self._drop(slot)
        self._next(slot)

    def _drop(self, slot: _Slot) -> None:
        if slot.sock is not None:
            self._selector.unregister(slot.sock)
            slot.sock.close()
        slot.sock = None
        slot.connected = slot.used = False
        slot.outgoing = memoryview(b"")

    def _expire(self, now: int) -> None:
        if now >= self._limits.deadline_ns:
            self._abandon()
            return
        limit = self._limits.request_ns
        while self._busy and now - (slot := next(iter(self._busy))).waiting_since >= limit:
            self._drop(slot)
            self._give_up(slot, "timeout", f"the request had not ended after {limit / 1e9:g} s")
        while self._draining and now >= next(iter(self._draining.values())):
            slot = next(iter(self._draining))
            assert slot.exchange is not None
            slot.exchange.fail("timeout", "the response did not end after [DONE]", now)
            self._finish(slot)

    def _abandon(self) -> None:
        """The leg's deadline: what runs is cut off, what waits is never sent."""
        waiting = list(self._queue)
        self._queue.clear()
        for slot in list(self._busy):
            self._drop(slot)
            self._give_up(slot, "timeout", "the leg's deadline passed before the request ended")
        now = time.monotonic_ns()
        for exchange in waiting:
            exchange.start_ns = now
            exchange.fail("timeout", "the leg's deadline passed before the request was sent", now)
            self._ended += 1


def _receive(slot: _Slot) -> _Read | None:
    """One read. Empty data means the connection ended; `reset` then says how, None for an orderly close."""
    assert slot.sock is not None
    try:
        data, ancillary, _, _ = slot.sock.recvmsg(_READ_BYTES, ANCILLARY_BYTES)
    except BlockingIOError:
        return None
    except OSError as error:
        return _Read(slot, b"", None, f"the connection broke: {error.strerror}")
    return _Read(slot, data, kernel_stamp(ancillary), None)


def _resolve(host: str, port: int) -> deque[tuple[socket.AddressFamily, Any]]:
    """Every address of the server, looked up once: a name service has no place in a timed loop."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            "unknown-host", f"host {host!r} has no address: {error.strerror}; give an IP address"
        ) from error
    return deque((family, address) for family, _, _, _, address in found)
