"""Kernel receive stamps on the monotonic clock, safe against steps of the wall clock.

SO_TIMESTAMPNS stamps a packet with CLOCK_REALTIME when the kernel receives it, however late the loop wakes up. Both
clocks are slewed alike, so their difference changes only when the wall clock is set: one measurement converts every
stamp until a later one disagrees.
"""

from __future__ import annotations

import platform
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence

__all__ = ["ANCILLARY_BYTES", "StampClock", "ask_for_stamps", "kernel_stamp"]

# Python names neither constant; 35 is SO_TIMESTAMPNS on the architectures that take Linux's generic numbers.
_SO_TIMESTAMPNS = 35
_GENERIC_NUMBERS = ("x86_64", "AMD64", "aarch64", "arm64")
_TIMESPEC = struct.Struct("@qq")
ANCILLARY_BYTES = 64  # one control message of a timespec takes 32
_TOLERANCE_NS = 10_000  # far below any step that could move an axis, above the rounding of the two clocks
_MIXED = 0.05  # the first packets of a connection may lack a stamp; up to this share a series still counts as one kind


def ask_for_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what `sock` receives; False where that does not exist."""
    if sys.platform != "linux" or platform.machine() not in _GENERIC_NUMBERS or sys.maxsize < 2**32:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def kernel_stamp(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """CLOCK_REALTIME in ns out of `recvmsg`'s control messages: of the newest packet the read took from."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return None


class StampClock:
    """Turns a batch's kernel stamps into CLOCK_MONOTONIC ns.

    Call `settle` after a batch was read and before it is stamped: a step that happened up to then shows. That batch's
    packets may be from either side of it, so they get the monotonic stamp taken when the loop woke up (`fallback_ns`);
    the batches after it are converted with the difference as measured anew. `step_ns` is the last step.
    """

    def __init__(
        self, monotonic: Callable[[], int] = time.monotonic_ns, realtime: Callable[[], int] = time.time_ns
    ) -> None:
        self._monotonic = monotonic
        self._realtime = realtime
        self._anchor()
        self._between = False
        self.step_ns: int | None = None
        self.from_kernel = 0
        self.from_loop = 0

    def _anchor(self) -> None:
        """The tightest of 16 measurements."""
        self._low, self._high = min((self._measure() for _ in range(16)), key=lambda pair: pair[1] - pair[0])
        self._offset = (self._low + self._high) // 2

    def _measure(self) -> tuple[int, int]:
        """Bounds of realtime minus monotonic: the wall clock was read between two monotonic readings."""
        before = self._monotonic()
        wall = self._realtime()
        after = self._monotonic()
        return wall - after, wall - before

    def settle(self) -> None:
        low, high = self._measure()
        # Bounds, not midpoints: being descheduled between the readings widens them and is never taken for a step.
        self._between = low > self._high + _TOLERANCE_NS or high < self._low - _TOLERANCE_NS
        if self._between:
            self.step_ns = (low + high) // 2 - self._offset
            self._anchor()

    def stamp(self, kernel_ns: int | None, fallback_ns: int) -> int:
        if kernel_ns is None or self._between:
            self.from_loop += 1
            return fallback_ns
        self.from_kernel += 1
        return kernel_ns - self._offset

    @property
    def source(self) -> str:
        """`kernel`, `loop` (monotonic, when the loop woke up), or `kernel+loop` when both made up more than 5 %."""
        total = self.from_kernel + self.from_loop
        if self.from_loop <= _MIXED * total:
            return "kernel" if self.from_kernel else "loop"
        return "kernel+loop" if self.from_kernel > _MIXED * total else "loop"
