"""The timing contract, on a candidate that only writes down what is asked of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernels.backends.tuning import Counts, choose, measure


class Recorder:
    """A candidate whose launches take 2 units of a clock that the events read."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.clock = 0.0

    def launch(self) -> None:
        self.calls.append("launch")
        self.clock += 2

    def synchronise(self) -> None:
        self.calls.append("synchronise")

    def delay(self, microseconds: int) -> None:
        self.calls.append(f"delay {microseconds}")
        self.clock += 5000

    def record(self) -> Any:
        self.calls.append("record")
        return self.clock

    def elapsed(self, start: Any, end: Any) -> float:
        return float(end - start)

    def finite(self) -> bool:
        return True


def test_three_warmups_one_synchronisation_one_delay_and_ten_timed_launches_in_this_order() -> None:
    recorder, counts = Recorder(), Counts()
    assert measure(recorder, 5000, counts) == 2
    timed = ["record", *["launch"] * 10, "record"]
    assert recorder.calls == [*["launch"] * 3, "synchronise", "delay 5000", *timed]
    assert counts == Counts(candidates=1, warmups=3, synchronisations=1, delays=1, timed=10)


def test_no_delay_kernel_is_launched_for_a_delay_of_zero() -> None:
    recorder, counts = Recorder(), Counts()
    measure(recorder, 0, counts)
    assert counts.delays == 0
    assert not [call for call in recorder.calls if call.startswith("delay")]


def test_equal_times_keep_the_lowest_id_and_the_other_is_the_runner_up() -> None:
    choice = choose((7, 3, 5), {3: 2.0, 5: 1.0, 7: 1.0}.__getitem__)
    assert choice is not None
    assert (choice.tactic, choice.runner_up, choice.margin) == (5, 7, 0.0)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_candidate_without_a_finite_time_is_reported_and_never_wins(bad: float) -> None:
    choice = choose((0, 1), {0: bad, 1: 3.0}.__getitem__)
    assert choice is not None
    assert (choice.tactic, choice.runner_up, choice.margin) == (1, None, None)
    assert choice.failed == {0: "its time is not finite"}
    assert choice.seconds_of[0] == math.inf


def test_a_candidate_that_fails_is_infinite_and_its_reason_is_kept() -> None:
    def timed(tactic: int) -> float:
        if tactic == 0:
            raise ArithmeticError("its result is not finite")
        return 1.0

    choice = choose((0, 1), timed)
    assert choice is not None
    assert (choice.tactic, choice.failed) == (1, {0: "its result is not finite"})


def test_nothing_is_chosen_when_all_fail() -> None:
    assert choose((0, 1), lambda _: math.inf) is None
