"""Where a leg's memory peaks arose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.records import MemorySample
from harness.telemetry import record
from harness.telemetry.phases import Stamps, peak_phases
from tests.builders import MS, good_legs, small_plan, write_leg

STAMPS = Stamps(ready_ns=100, timed_ns=200, done_ns=300)


def row(t_ns: int, kib: int | None, available: int | None = None, gpu: int | None = None) -> MemorySample:
    return MemorySample(t_ns, True, ((1, 1),), kib, kib, available, gpu, None if gpu else "no-nvml")


def test_a_loader_that_needs_more_than_serving_does_sets_the_peak() -> None:
    rows = [row(50, 48_285_920), row(150, 24_000_000), row(250, 24_860_000)]
    assert peak_phases(rows, STAMPS)["peak_pss_kib"] == "load"


def test_each_axis_has_a_phase_of_its_own_and_the_lowest_memavailable_is_the_peak_of_its_drop() -> None:
    rows = [row(50, 9, 80, 5), row(150, 5, 90, 7), row(250, 5, 70, 6), row(350, 5, 85, 6)]
    assert peak_phases(rows, STAMPS) == {
        "peak_pss_kib": "load",
        "peak_rss_kib": "load",
        "peak_gpu_memory_mib": "warm-up",
        "peak_mem_available_drop_kib": "serve",
    }


def test_a_plateau_counts_where_it_began_and_what_was_never_known_has_no_phase() -> None:
    found = peak_phases([row(150, 5), row(250, 5), replace(row(260, 5), pss_kib=None)], STAMPS)
    assert (found["peak_pss_kib"], found["peak_gpu_memory_mib"]) == ("warm-up", None)


def test_phases_meet_without_a_gap() -> None:
    found = [STAMPS.phase(t_ns) for t_ns in (99, 100, 199, 200, 300, 301)]
    assert found == ["load", "warm-up", "warm-up", "serve", "serve", "stop"]


def test_a_leg_is_told_from_the_files_it_left(tmp_path: Path) -> None:
    """Four requests 20 ms apart of some 12 ms; samples at 0, 100 and 200 ms."""
    leg = good_legs(small_plan())[-1]
    write_leg(tmp_path, replace(leg, requests=tuple(replace(one, done_ns=40 * MS) for one in leg.requests)))
    found = record.peaks(tmp_path, ready_ns=0)
    assert found["phases"] == {"ready_ns": "0", "timed_ns": "0", "done_ns": str(100 * MS)}
    assert found["peak_phase"]["peak_pss_kib"] == "serve" and found["peak_phase"]["peak_gpu_memory_mib"] is None


def test_a_leg_without_a_request_has_no_phases(tmp_path: Path) -> None:
    write_leg(tmp_path, replace(good_legs(small_plan())[-1], requests=()))
    assert record.peaks(tmp_path, ready_ns=0) == {}
