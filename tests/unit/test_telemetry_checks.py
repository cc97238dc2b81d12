"""What the host must show around a timed leg, as predicates; the same through a sealed bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gates import telemetry
from harness import bundle, verdict
from harness.plan import Arm, Plan
from harness.records import Canary, GpuLook, GpuState, Leg
from tests.builders import good_legs, gpu_state, small_plan, write_bundle

PLAN = small_plan(gpu=True)
OTHER = {"driver_version": "580.20"}


def failed(plan: Plan, legs: list[Leg]) -> set[str]:
    found = [*telemetry.checks(plan, legs), *(check for leg in legs for check in telemetry.leg_checks(plan, leg))]
    return {check.code for check in found if not check.ok}


def last(change: Callable[[Leg], Leg], plan: Plan = PLAN) -> list[Leg]:
    """Good legs of which the last one, a timed leg, is changed."""
    legs = good_legs(plan)
    return [*legs[:-1], change(legs[-1])]


def heated(before: GpuState, after: GpuState) -> Callable[[Leg], Leg]:
    def change(leg: Leg) -> Leg:
        assert leg.gpu_before is not None
        looks = [replace(leg.gpu_before, states=(state,)) for state in (before, after)]
        return replace(leg, gpu_before=looks[0], gpu_after=looks[1])

    return change


def sung(**best: int) -> Callable[[Leg], Leg]:
    def change(leg: Leg) -> Leg:
        assert leg.canary_after is not None
        return replace(leg, canary_after=Canary({**leg.canary_after.best_ns, **best}, {}))

    return change


def test_a_run_on_a_cool_quiet_gpu_is_valid() -> None:
    result = verdict.compute(PLAN, good_legs(PLAN), [])
    assert (result["outcome"], len(result["axes"])) == ("PASS", 24)


@pytest.mark.parametrize("counter", ["sw_thermal", "hw_thermal", "hw_power_brake"])
def test_time_added_to_a_throttle_counter_voids(counter: str) -> None:
    assert failed(PLAN, last(heated(gpu_state(), gpu_state(**{counter: 6_000_000})))) == {"throttle"}


def test_a_counter_that_stands_still_and_a_power_cap_do_not_void() -> None:
    hot = gpu_state(sw_thermal=173_000_000_000, sw_power_cap=1)
    assert failed(PLAN, last(heated(hot, replace(hot, counters_ns={**hot.counters_ns, "sw_power_cap": 9})))) == set()


def test_an_active_reason_voids_although_no_counter_is_known() -> None:
    blind = replace(gpu_state(), counters_ns={}, reasons=())
    assert failed(PLAN, last(heated(blind, blind))) == set()
    assert failed(PLAN, last(heated(blind, replace(blind, reasons=("hw_thermal",))))) == {"throttle"}


def test_what_cannot_be_known_has_not_been_shown() -> None:
    dark = replace(gpu_state(), counters_ns={}, reasons=None)
    assert failed(PLAN, last(heated(dark, dark))) == {"throttle"}
    assert failed(PLAN, last(heated(gpu_state(), gpu_state(sw_thermal=None)))) == {"throttle"}


def test_the_older_thermal_counter_stands_in_for_the_newer_ones() -> None:
    old = replace(gpu_state(), counters_ns={"thermal_policy": 3})
    assert failed(PLAN, last(heated(old, old))) == set()
    assert failed(PLAN, last(heated(old, replace(old, counters_ns={"thermal_policy": 4})))) == {"throttle"}


def test_another_board_after_the_leg_voids() -> None:
    assert failed(PLAN, last(heated(gpu_state(), gpu_state("GPU-1")))) == {"throttle"}


@pytest.mark.parametrize("side", ["gpu_before", "gpu_after"])
def test_a_driver_that_changed_during_the_series_voids(side: str) -> None:
    """C10."""
    look = GpuLook(OTHER, (gpu_state(),), None)
    assert failed(PLAN, last(lambda leg: replace(leg, **{side: look}))) == {"nvml-identity"}


def test_the_driver_must_be_the_one_of_the_plan_from_the_first_leg_on() -> None:
    plan = replace(PLAN, host={**PLAN.host, "gpu": OTHER})
    legs = good_legs(plan)
    assert failed(plan, legs) == {"nvml-identity"}


def test_arms_measured_by_different_methods_void() -> None:
    """C01."""

    def change(leg: Leg) -> Leg:
        assert leg.sampler is not None
        return replace(leg, sampler=replace(leg.sampler, gpu_method="device-total"))

    assert failed(PLAN, last(change)) == {"gpu-method"}
    assert failed(PLAN, last(lambda leg: replace(leg, sampler=None))) == {"gpu-method"}


def test_a_leg_whose_gpu_figures_ended_in_the_middle_voids() -> None:
    def change(leg: Leg) -> Leg:
        rows = [leg.memory[0], replace(leg.memory[1], gpu_mib=None, gpu_reason="nvml-hangs"), leg.memory[2]]
        return replace(leg, memory=tuple(rows))

    legs = last(change)
    assert failed(PLAN, legs) == {"gpu-samples"}
    found = [check for check in telemetry.leg_checks(PLAN, legs[-1]) if check.code == "gpu-samples"]
    assert "nvml-hangs" in found[0].seen


def test_one_figure_in_twenty_may_be_missing() -> None:
    def change(leg: Leg) -> Leg:
        rows = [leg.memory[0]] * 19 + [replace(leg.memory[0], gpu_mib=None, gpu_reason="late"), leg.memory[-1]]
        return replace(leg, memory=tuple(rows))

    assert failed(PLAN, last(change)) == set()


def test_a_slow_canary_voids_its_leg_beyond_the_factor_alone() -> None:
    assert failed(PLAN, last(sung(cpu_gemv=37_500))) == set()
    assert failed(PLAN, last(sung(cpu_gemv=37_501))) == {"canary-slow"}
    wider = small_plan("host.canary_factor=4", gpu=True)
    assert failed(wider, last(sung(cpu_gemv=37_501), wider)) == set()


def test_the_slow_state_of_a_gb10_is_seen_on_the_gpu_alone() -> None:
    """Products 3.3 times slower, copies as ever."""
    legs = [sung(gpu_copy=1000, gpu_gemv=100)(leg) if leg.kind == "timed" else leg for leg in good_legs(PLAN)]
    legs = [replace(leg, canary_before=leg.canary_after) if leg.kind == "timed" else leg for leg in legs]
    assert failed(PLAN, legs) == set()
    slow = [*legs[:-1], sung(gpu_copy=1000, gpu_gemv=330)(legs[-1])]
    assert failed(PLAN, slow) == {"canary-slow"}


def test_a_canary_that_was_not_measured_voids() -> None:
    gone = Canary({}, {"cpu_copy": "the canary failed: no answer within 30 s"})
    assert {"canary", "canary-slow"} == failed(PLAN, last(lambda leg: replace(leg, canary_after=gone)))
    assert failed(PLAN, last(lambda leg: replace(leg, canary_before=None))) == {"canary"}


def sliced(first: str, second: str) -> Plan:
    devices = [["MIG-1", "H200 MIG 1g.18gb"], ["MIG-2", "H200 MIG 1g.18gb"], ["MIG-3", "H200 MIG 3g.71gb"]]
    arms = [Arm({}, {"CUDA_VISIBLE_DEVICES": value}) for value in (first, second)]
    return replace(PLAN, host={**PLAN.host, "gpu": {"devices": devices}}, candidate=arms[0], baseline=arms[1])


@pytest.mark.parametrize(
    ("first", "second", "good"),
    [
        ("MIG-1", "MIG-1", True),
        ("MIG-1", "MIG-2", True),
        ("MIG-1", "MIG-3", False),
        ("MIG-1", "", False),
        ("MIG-9", "MIG-9", False),
        ("0", "0", True),
    ],
)
def test_arms_on_slices_of_different_profiles_are_refused_with_the_first_leg(
    first: str, second: str, good: bool
) -> None:
    """C09."""
    plan = sliced(first, second)
    found = [check for check in telemetry.leg_checks(plan, good_legs(plan)[0]) if not check.ok]
    assert [check.code for check in found] == ([] if good else ["gpu-slice"])


def test_a_plan_from_before_these_records_is_not_asked_for_them() -> None:
    plan = replace(PLAN, host={"name": "old"})
    bare: dict[str, Any] = dict.fromkeys(("gpu_before", "gpu_after", "canary_before", "canary_after", "sampler"))
    assert not list(telemetry.checks(plan, [replace(leg, **bare) for leg in good_legs(plan)]))
    assert not list(telemetry.leg_checks(plan, replace(good_legs(plan)[-1], **bare)))


def test_a_bundle_gives_the_same_records_back(tmp_path: Path) -> None:
    legs = good_legs(PLAN)
    root = write_bundle(tmp_path / "run", PLAN, legs)
    found = bundle.read_legs(root, PLAN)
    assert [leg.gpu_after for leg in found] == [leg.gpu_after for leg in legs]
    assert [leg.canary_before for leg in found] == [leg.canary_before for leg in legs]
    assert [leg.sampler for leg in found] == [leg.sampler for leg in legs]
