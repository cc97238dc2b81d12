from __future__ import annotations

import itertools
import platform
import socket
import struct
import sys

import pytest

from harness.client.clock import ANCILLARY_BYTES, StampClock, ask_for_stamps, kernel_stamp

MS = 1_000_000
EPOCH = 1_800_000_000_000_000_000


class FakeClocks:
    """A monotonic clock that one moves, and a wall clock that one may set."""

    def __init__(self) -> None:
        self.now = 5_000 * MS
        self.offset = EPOCH

    def monotonic(self) -> int:
        self.now += 50
        return self.now

    def realtime(self) -> int:
        return self.now + self.offset

    def stamps(self) -> StampClock:
        return StampClock(self.monotonic, self.realtime)


def test_a_kernel_stamp_becomes_monotonic() -> None:
    fake = FakeClocks()
    clock = fake.stamps()
    clock.settle()
    assert abs(clock.stamp(EPOCH + 123 * MS, 999) - 123 * MS) <= 50
    assert clock.source == "kernel"


def test_a_wall_clock_step_between_tokens_moves_no_latency() -> None:
    """B17: the wall clock goes back 2 s between tokens 20 ms apart."""
    fake = FakeClocks()
    clock = fake.stamps()
    stamps = []
    for number in range(5):
        fake.now = (6_000 + 20 * number) * MS
        if number == 2:
            fake.offset -= 2_000 * MS
        arrived = fake.now
        kernel = fake.realtime()
        clock.settle()
        stamps.append(clock.stamp(kernel, arrived))
    gaps = [(after - before) / MS for before, after in itertools.pairwise(stamps)]
    assert gaps == pytest.approx([20] * 4, abs=0.001)
    assert clock.source == "kernel+loop"
    assert clock.step_ns == pytest.approx(-2_000 * MS, abs=1000)


@pytest.mark.parametrize("step", [-3_600_000 * MS, -MS, MS, 100_000])
def test_a_step_of_any_size_that_matters_is_seen(step: int) -> None:
    fake = FakeClocks()
    clock = fake.stamps()
    fake.offset += step
    clock.settle()
    assert clock.step_ns == pytest.approx(step, abs=1000)
    assert clock.stamp(fake.realtime(), 77) == 77


def test_after_a_step_the_kernel_stamps_of_later_batches_count_again() -> None:
    fake = FakeClocks()
    clock = fake.stamps()
    for number in range(100):
        fake.now = (6_000 + 20 * number) * MS
        if number == 50:
            fake.offset += 700 * MS
        arrived, kernel = fake.now, fake.realtime()
        clock.settle()
        assert abs(clock.stamp(kernel, arrived) - arrived) <= 100
    assert (clock.from_kernel, clock.from_loop) == (99, 1)
    assert clock.source == "kernel"


def test_a_few_packets_without_a_stamp_do_not_make_another_kind_of_series() -> None:
    for loops, source in ((1, "kernel"), (20, "kernel+loop"), (99, "loop"), (100, "loop")):
        clock = FakeClocks().stamps()
        for number in range(100):
            clock.stamp(None if number < loops else EPOCH, 1)
        assert clock.source == source


def test_being_descheduled_between_two_readings_is_not_a_step() -> None:
    fake = FakeClocks()
    clock = fake.stamps()

    def slow_realtime() -> int:
        fake.now += 40 * MS
        return fake.now + fake.offset

    clock._realtime = slow_realtime
    clock.settle()
    assert clock.step_ns is None


def test_without_a_kernel_stamp_the_loop_s_own_is_used_and_named() -> None:
    clock = FakeClocks().stamps()
    assert clock.stamp(None, 42) == 42
    assert clock.source == "loop"


def test_foreign_control_messages_are_no_stamp() -> None:
    rights = (socket.SOL_SOCKET, 1, struct.pack("@qq", 1, 2))
    assert kernel_stamp([]) is None
    assert kernel_stamp([rights]) is None
    assert kernel_stamp([rights, (socket.SOL_SOCKET, 35, struct.pack("@qq", 1, 2))]) == 1_000_000_002
    assert kernel_stamp([(socket.SOL_SOCKET, 35, b"short")]) is None


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}, reason="no SO_TIMESTAMPNS here"
)
def test_the_kernel_stamps_what_a_tcp_socket_receives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    with client, peer:
        assert ask_for_stamps(client)
        clock = StampClock()
        for _ in range(50):  # the kernel switches stamping on in the background: the first packets may lack one
            peer.sendall(b"x")
            data, ancillary, _, _ = client.recvmsg(10, ANCILLARY_BYTES)
            assert data == b"x"
            wall = kernel_stamp(ancillary)
            if wall is not None:
                break
        before = clock._monotonic()
        peer.sendall(b"y")
        wall = kernel_stamp(client.recvmsg(10, ANCILLARY_BYTES)[1])
        after = clock._monotonic()
        assert wall is not None
        assert before - 10_000 <= clock.stamp(wall, 0) <= after + 10_000
