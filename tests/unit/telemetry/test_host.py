from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.telemetry import host
from harness.telemetry.host import memory_returned, wait_returned

GIB = 1 << 20  # in KiB


FLOOR = 64 << 10  # KiB


@pytest.mark.parametrize(
    ("baseline", "final", "drop", "returned", "tolerance"),
    [
        (112_000_000, 111_000_000, 26_000_000, True, GIB),
        (112_000_000, 112_000_000 - GIB, 26_000_000, True, GIB),
        (112_000_000, 112_000_000 - GIB - 1, 26_000_000, False, GIB),
        (8_000_000, 7_900_000, 1_000_000, True, 100_000),
        (8_000_000, 7_899_999, 1_000_000, False, 100_000),
        (8_000_000, 8_000_000 - FLOOR, 150_000, True, FLOOR),
        (8_000_000, 8_000_000 - FLOOR - 1, 150_000, False, FLOOR),
        (8_000_000, 9_000_000, 150_000, True, FLOOR),
        (8_000_000, 7_999_999, -5, True, FLOOR),
    ],
)
def test_memory_is_back_within_a_tenth_of_the_drop_between_64_mib_and_a_gib(
    baseline: int, final: int, drop: int, returned: bool, tolerance: int
) -> None:
    check = memory_returned(baseline, final, drop)
    assert (check.returned, check.tolerance_kib) == (returned, tolerance)
    assert (check.reason is None, check.short_kib == 0) == (returned, returned)


def test_an_unknown_figure_is_not_a_return() -> None:
    check = memory_returned(8_000_000, None, None)
    assert (check.returned, check.short_kib, check.reason) == (False, None, "unknown: final, drop")


class Clock:
    """Time passes in pauses alone; memory comes back as `readings` say, the last one for ever."""

    def __init__(self, *readings: int | None) -> None:
        self.now = 0
        self.readings = list(readings)

    def read(self) -> int | None:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def pause(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def wait(self, timeout_s: float) -> host.ReturnCheck:
        return wait_returned(1_000_000, 1_000_000, timeout_s, read=self.read, clock=lambda: self.now, pause=self.pause)


def test_memory_that_is_late_is_waited_for_and_the_wait_is_told() -> None:
    check = Clock(800_000, 890_000, 901_000).wait(30)
    assert (check.returned, check.looks, check.waited_ns, check.final_kib) == (True, 3, 200_000_000, 901_000)


def test_the_wait_has_a_bound() -> None:
    check = Clock(800_000).wait(1)
    assert (check.returned, check.looks, check.waited_ns, check.short_kib) == (False, 11, 1_000_000_000, 100_000)


def test_what_cannot_be_read_is_not_waited_for() -> None:
    assert Clock(None).wait(30).looks == 1


def test_a_snapshot_tells_this_host_and_no_path(tmp_path: Path) -> None:
    taken = host.snapshot({"evidence": tmp_path})
    assert taken["cores"] == os.cpu_count() and taken["mem_total_kib"] > taken["mem_available_kib"] > 0
    assert taken["disk_free_bytes"]["evidence"] > 0 and len(taken["loadavg"]) == 3 and taken["boot_id"]
    assert str(tmp_path) not in json.dumps(taken)


def test_the_cpu_is_named_on_x86_and_numbered_on_arm() -> None:
    assert host.parse_cpu_model("processor\t: 0\nmodel name\t: EPYC\n\nmodel name\t: EPYC\n") == "EPYC"
    assert host.parse_cpu_model("processor: 0\nCPU part\t: 0xd85\n\nCPU part\t: 0xd87\n") == "CPU part 0xd85, 0xd87"
    assert host.parse_cpu_model("processor: 0\n") is None


def test_a_baseline_is_read_once_available_memory_has_stopped_rising() -> None:
    from harness.telemetry.host import settle

    rising = iter([*range(0, 50_000, 5_000), *([50_000] * 30)])
    now = [0]

    def pause(seconds: float) -> None:
        now[0] += int(seconds * 1e9)

    assert settle(read=lambda: next(rising), clock=lambda: now[0], pause=pause)
    assert 1.5e9 <= now[0] <= 2.5e9
    for_ever = iter(range(0, 10**9, 5_000))
    assert not settle(read=lambda: next(for_ever), clock=lambda: now[0], pause=pause)
    assert not settle(read=lambda: None, clock=lambda: now[0], pause=pause)
