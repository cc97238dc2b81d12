"""How often a sampler may walk an engine's page tables, and that the short look in between is honest."""

from __future__ import annotations

import os

import pytest

from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId
from harness.telemetry.sampler import SmapsDuty

MS = 1_000_000


def reads(cost_ms: int, rows: int = 150, period_ms: int = 100) -> int:
    duty = SmapsDuty()
    for step in range(rows):
        now = step * period_ms * MS
        if duty.due(now):
            duty.spent(now, cost_ms * MS)
    return duty.reads


@pytest.mark.parametrize(("cost_ms", "expected"), [(2, 150), (10, 150), (11, 75), (150, 10)])
def test_page_tables_are_walked_for_a_tenth_of_the_time_at_most(cost_ms: int, expected: int) -> None:
    assert reads(cost_ms) == expected


def test_the_short_look_has_the_same_processes_and_no_pss() -> None:
    me = procfs.identify(os.getpid())
    assert me is not None
    found = procfs.resident([me, ProcessId(me.pid, me.start_ticks - 1)][:1])
    whole = procfs.footprint([me])
    assert (found.pids, found.pss_kib) == (whole.pids, None)
    assert found.rss_kib is not None and whole.rss_kib is not None
    assert abs(found.rss_kib - whole.rss_kib) < 8192  # statm may lag by 64 pages a core


def test_the_short_look_leaves_out_what_is_gone() -> None:
    assert procfs.resident([ProcessId(4_194_304, 1)]) == procfs.Footprint(None, None)
