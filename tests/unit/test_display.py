"""What a person sees while a run goes on."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from harness.display import Display, describe
from harness.report.summary import summary
from harness.verdict import compute
from tests.builders import good_legs, small_plan

LOAD: dict[str, Any] = {
    "leg": 6,
    "legs": 17,
    "name": "05-c2-A-r1",
    "phase": "load",
    "requests": 96,
    "done": 48,
    "tokens": 6000,
    "seconds": 3.0,
    "timed": True,
    "work_done": 70,
    "work_total": 708,
}


def test_the_line_names_leg_requests_speed_and_time_left() -> None:
    line = describe(LOAD, 60.0)
    assert line == "leg 6 of 17 05-c2-A-r1, 48 of 96 requests, 2000 tok/s, about 300 s left"


def test_nothing_is_guessed_before_there_is_something_to_go_by() -> None:
    assert describe({}, 1.0) == "starting"
    assert "left" not in describe(LOAD, None)
    assert "left" not in describe({**LOAD, "phase": "loading", "done": 0, "work_done": 0}, 5.0)


def test_without_a_terminal_there_is_one_plain_line_a_leg() -> None:
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=False, width=40)) as display:
        for done in range(5):
            display.show({**LOAD, "done": done})
        display.show({**LOAD, "leg": 7, "name": "06-c2-B-r1"})
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all("\x1b" not in line for line in lines)


def test_a_terminal_gets_a_live_line() -> None:
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=120)) as display:
        display.show(LOAD)
    assert "48 of 96 requests" in out.getvalue()
    assert "\x1b" in out.getvalue()


def test_the_end_names_outcome_counts_each_miss_and_what_a_newcomer_must_know() -> None:
    plan = small_plan()
    lines = summary(compute(plan, good_legs(plan, scale_a=1.1), []))
    assert lines[0].startswith("FAIL: ")
    assert "0/20 timing + 3/3 memory axes" in lines[1]
    assert sum(line.startswith("missed c2 ") for line in lines) == 20
    assert "ratio 0.90" in lines[3]
    assert "none of 200,000 simulated runs of identical arms passed every axis" in lines[-1]


def test_a_void_summary_quotes_no_number_of_the_run() -> None:
    plan = small_plan()
    lines = summary(compute(plan, good_legs(plan)[:-1], []))
    assert lines[0] == "VOID: not a valid measurement: no number of it may be quoted"
    assert not [line for line in lines if "ratio" in line]
