"""Temperature, power, clocks and throttling of one board through NVML, and what of it rose during a leg.

The counters of clock event reasons are nanoseconds since the driver was loaded, so only their difference over a leg
means something. What a board does not answer is None with its reason: an absent counter that reads 0 would prove that
nothing throttled. Used inside the probe's own process alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.records import GpuState

__all__ = ["COUNTERS", "REASONS", "differences", "read"]

# Names of nvidia-ml-py's field ids. The thermal policy counter is what drivers before the first three had.
COUNTERS = {
    "sw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "hw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "hw_power_brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    "sw_power_cap": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP",
    "thermal_policy": "NVML_FI_DEV_PERF_POLICY_THERMAL",
}
# Bits of the current clock event reasons (nvml.h).
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


def read(nvml: Any, handle: Any, uuid: str) -> GpuState:
    """One look at a board (never a MIG slice: heat is the board's). Never raises for a query that is not answered."""
    absent: dict[str, str] = {}

    def one(name: str, query: str, *words: Any) -> Any:
        try:
            return getattr(nvml, query)(handle, *words)
        except (nvml.NVMLError, AttributeError) as error:
            absent[name] = str(error)
            return None

    bits = one("reasons", "nvmlDeviceGetCurrentClocksEventReasons")
    return GpuState(
        uuid=uuid,
        temperature_c=one("temperature_c", "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_mw=one("power_mw", "nvmlDeviceGetPowerUsage"),
        sm_mhz=one("sm_mhz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_mhz=one("memory_mhz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        reasons=None if bits is None else _names(bits),
        counters_ns=_counters(nvml, one, absent),
        absent=absent,
    )


def _names(bits: int) -> tuple[str, ...]:
    known = tuple(name for bit, name in REASONS.items() if bits & bit)
    foreign = bits & ~sum(REASONS)
    return (*known, f"unknown_{foreign:#x}") if foreign else known


def _counters(nvml: Any, one: Callable[..., Any], absent: dict[str, str]) -> dict[str, int | None]:
    ids = {name: getattr(nvml, field, None) for name, field in COUNTERS.items()}
    asked = {name: number for name, number in ids.items() if number is not None}
    absent.update(dict.fromkeys(ids.keys() - asked.keys(), "this nvidia-ml-py does not know it"))
    values = one("counters", "nvmlDeviceGetFieldValues", list(asked.values()))
    if values is None:
        absent.update(dict.fromkeys(asked, absent.pop("counters")))
        return dict.fromkeys(ids)
    found: dict[str, int | None] = dict.fromkeys(ids)
    for name, value in zip(asked, values, strict=True):
        if value.nvmlReturn == nvml.NVML_SUCCESS:
            found[name] = int(getattr(value.value, VALUE[value.valueType]))
        else:
            absent[name] = str(nvml.NVMLError(value.nvmlReturn))
    return found


def differences(before: Iterable[GpuState], after: Iterable[GpuState]) -> dict[str, dict[str, int | None]]:
    """By board and counter, how many ns were added between two looks; None where either look has no figure."""
    first = {state.uuid: state.counters_ns for state in before}
    found = {}
    for state in after:
        earlier = first.get(state.uuid, {})
        found[state.uuid] = {name: _minus(value, earlier.get(name)) for name, value in state.counters_ns.items()}
    return found


def _minus(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
