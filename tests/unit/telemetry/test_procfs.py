from __future__ import annotations

import os

import pytest

from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId

REST = b" S 7 41 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 30 0 98765 1000 200\n"


@pytest.mark.parametrize(
    "comm", ["python3", "VLLM::EngineCor", "a b", "x) R 1 1", "((", "))", "two\nlines", ") S 1 2 3 (", ""]
)
def test_a_command_name_cannot_shift_the_fields(comm: str) -> None:
    stat = procfs.parse_stat(b"4101 (" + comm.encode() + b")" + REST)
    assert (stat.pid, stat.comm, stat.state, stat.ppid, stat.pgid, stat.session) == (4101, comm, "S", 7, 41, 40)
    assert (stat.threads, stat.start_ticks) == (30, 98765)


def test_a_command_name_that_is_not_utf8_is_replaced() -> None:
    assert procfs.parse_stat(b"1 (\xf8bad)" + REST).comm == "�bad"


def test_a_stat_line_cut_off_is_an_error() -> None:
    with pytest.raises(ValueError, match="22 are needed"):
        procfs.parse_stat(b"1 (x) S 1 1 1")


@pytest.mark.parametrize(
    ("state", "threads", "alive"), [("S", 1, True), ("Z", 1, False), ("Z", 4, True), ("X", 1, False)]
)
def test_a_zombie_with_running_threads_is_alive(state: str, threads: int, alive: bool) -> None:
    assert procfs.Stat(1, "x", state, 0, 1, 1, threads, 5).alive is alive


def test_the_drop_of_available_memory_is_not_that_of_free_memory() -> None:
    before = procfs.parse_meminfo(
        "MemTotal: 125000000 kB\nMemFree: 40000000 kB\nMemAvailable: 112000000 kB\nCached: 70000000 kB\n"
    )
    lowest = procfs.parse_meminfo(
        "MemTotal: 125000000 kB\nMemFree: 1000000 kB\nMemAvailable: 86000000 kB\nCached: 70000000 kB\n"
    )
    assert before.available_kib is not None and lowest.available_kib is not None
    assert before.available_kib - lowest.available_kib == 26_000_000
    assert (before.available_kib - lowest.available_kib) * 1024 == 26_624_000_000
    assert (lowest.free_kib, lowest.cached_kib, lowest.reason) == (1_000_000, 70_000_000, None)


def test_a_missing_field_is_none_with_a_reason_and_not_zero() -> None:
    info = procfs.parse_meminfo("MemTotal: 10 kB\nMemFree: 5 kB\nCached: 0 kB\n")
    assert (info.available_kib, info.cached_kib) == (None, 0)
    assert info.reason == "/proc/meminfo lacks MemAvailable"


def test_a_value_without_its_unit_is_not_taken() -> None:
    assert procfs.parse_meminfo("MemAvailable: 5\nMemFree: five kB\n").available_kib is None


def test_smaps_rollup_gives_pss_and_rss_apart() -> None:
    text = "55-7f ---p 00000000 00:00 0 [rollup]\nRss:   1616 kB\nPss:    310 kB\nPss_Dirty: 112 kB\n"
    assert procfs.parse_smaps_rollup(text) == procfs.Footprint(310, 1616)


def test_smaps_rollup_without_pss_leaves_it_unknown() -> None:
    assert procfs.parse_smaps_rollup("Rss: 1616 kB\n") == procfs.Footprint(None, 1616)


def test_load_average_is_three_numbers() -> None:
    assert procfs.parse_loadavg("2.87 0.25 13.50 1/230 999\n") == (2.87, 0.25, 13.5)


def test_namespace_pids_run_from_outside_in() -> None:
    assert procfs.parse_namespace_pids("Name:\tx\nNSpid:\t546113\t42\n") == (546113, 42)
    assert procfs.parse_namespace_pids("Name:\tx\n") == ()


def test_this_process_reads_itself() -> None:
    me = procfs.identify(os.getpid())
    assert me is not None and procfs.is_alive(me)
    assert procfs.scan()[os.getpid()].ppid == os.getppid()
    sums = procfs.footprint([me])
    assert sums.pids == (me,) and sums.pss_kib and sums.rss_kib and 0 < sums.pss_kib <= sums.rss_kib


def test_a_pid_with_another_start_time_is_not_alive_and_adds_no_memory() -> None:
    assert not procfs.is_alive(ProcessId(os.getpid(), 1))


def test_no_process_at_all_has_an_unknown_footprint() -> None:
    assert procfs.footprint([]) == procfs.Footprint(None, None)


def test_a_start_time_is_in_the_past() -> None:
    me = procfs.identify(os.getpid())
    boot = procfs.identify(1)
    assert me is not None and boot is not None
    mine, first = procfs.started_at(me), procfs.started_at(boot)
    assert mine is not None and first is not None and first <= mine
