"""Heat and throttling from a stand-in of the vendor's module with its real constants and structures."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from harness import canonical
from harness.records import GpuState
from harness.telemetry import thermal

SW, HW, BRAKE = 269, 270, 271
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


class Board:
    """The real module, but for the calls that would ask a driver."""

    def __init__(self, counters: dict[int, int], *, refused: tuple[str, ...] = (), bits: int = 1) -> None:
        self.counters, self.refused, self.bits = counters, refused, bits

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDevice"):
            raise AttributeError(name)
        return getattr(pynvml, name)

    def _or_refuse(self, name: str, value: int) -> int:
        if name in self.refused:
            raise pynvml.NVMLError(UNSUPPORTED)
        return value

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return self._or_refuse("temperature", 61)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._or_refuse("power", 30_500)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return self._or_refuse("memory clock" if kind == pynvml.NVML_CLOCK_MEM else "clock", 2400)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._or_refuse("reasons", self.bits)

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> Any:
        self._or_refuse("fields", 0)
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, number in zip(values, fields, strict=True):
            value.fieldId = number
            value.nvmlReturn = 0 if number in self.counters else UNSUPPORTED
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = self.counters.get(number, 0)
        return values


def read(*words: Any, **more: Any) -> GpuState:
    return thermal.read(Board(*words, **more), 0, "GPU-0")


def test_a_board_tells_its_heat_its_clocks_and_its_counters() -> None:
    state = read({SW: 173_000_000_000, HW: 0, BRAKE: 7})
    assert (state.temperature_c, state.power_mw, state.sm_mhz, state.reasons) == (61, 30_500, 2400, ("gpu_idle",))
    known = {name: state.counters_ns[name] for name in ("sw_thermal", "hw_thermal", "hw_power_brake")}
    assert known == {"sw_thermal": 173_000_000_000, "hw_thermal": 0, "hw_power_brake": 7}


def test_what_a_board_does_not_answer_is_unknown_with_its_reason_and_never_zero() -> None:
    state = read({SW: 1}, refused=("memory clock", "power", "reasons"))
    assert (state.memory_mhz, state.power_mw, state.reasons, state.counters_ns["hw_thermal"]) == (None,) * 4
    assert {"memory_mhz", "power_mw", "reasons", "hw_thermal"} <= state.absent.keys()
    assert state.absent["hw_thermal"] == "Not Supported" and "sw_thermal" not in state.absent


def test_a_driver_without_field_values_leaves_every_counter_unknown() -> None:
    state = read({SW: 1}, refused=("fields",))
    assert set(state.counters_ns.values()) == {None} and state.counters_ns.keys() == thermal.COUNTERS.keys()
    assert set(thermal.COUNTERS) <= state.absent.keys()


def test_event_reasons_have_names_also_those_of_a_newer_driver() -> None:
    assert read({}, bits=0x20 | 0x40 | 0x80).reasons == ("sw_thermal", "hw_thermal", "hw_power_brake")
    assert read({}, bits=0x1000).reasons == ("unknown_0x1000",)


@pytest.mark.parametrize("name", thermal.COUNTERS)
def test_the_installed_binding_knows_every_counter(name: str) -> None:
    assert isinstance(getattr(pynvml, thermal.COUNTERS[name]), int)


def test_a_leg_is_told_by_what_was_added_and_unknown_stays_unknown() -> None:
    before, after = read({SW: 5, HW: 1}), read({SW: 9, HW: 1, BRAKE: 2})
    added = thermal.differences([before], [after])["GPU-0"]
    assert (added["sw_thermal"], added["hw_thermal"], added["hw_power_brake"]) == (4, 0, None)
    assert set(thermal.differences([], [after])["GPU-0"].values()) == {None}


def test_a_state_survives_its_json() -> None:
    state = read({SW: 1 << 60}, refused=("power",))
    assert GpuState.from_json(canonical.loads(canonical.dumps(state.to_json()))) == state
