"""NVML's answers as people have met them, from a stand-in of the vendor's module: no device is needed to run these."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from harness.errors import HarnessError
from harness.telemetry import nvml
from harness.telemetry.nvml import GpuProcess, GpuReading, Nvml, attribute

MIB = 1 << 20


@dataclass
class Row:
    pid: int
    usedGpuMemory: int | None


@dataclass
class Info:
    total: int
    used: int


@dataclass
class Driver:
    """One device. The real module's error classes and constants, answers of our own."""

    name: bytes | str = "NVIDIA GB10"
    compute: Callable[[], list[Row]] = list
    info: Callable[[], Info] = lambda: Info(0, 0)
    init: Callable[[], None] = lambda: None
    devices: int = 1
    calls: list[str] = field(default_factory=list)
    NVMLError = pynvml.NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    NVML_ERROR_DRIVER_NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH

    def nvmlInit(self) -> None:
        self.init()

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:
        return self.name

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.10"

    def nvmlSystemGetNVMLVersion(self) -> str:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Row]:
        return self.compute()

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Info:
        return self.info()


def fails(number: int) -> Callable[[], Any]:
    def call() -> Any:
        raise pynvml.NVMLError(number)

    return call


def everybody(pid: int) -> bool:
    return True


def engine() -> list[Row]:
    return [Row(4101, 20000 * MIB), Row(4177, 512 * MIB)]


@pytest.mark.parametrize("info", [fails(pynvml.NVML_ERROR_NOT_SUPPORTED), lambda: Info(0, 0)], ids=["refused", "zeros"])
def test_device_memory_that_is_not_supported_is_unknown_and_the_axis_sums_processes(info: Callable[[], Info]) -> None:
    reading = Nvml(Driver(compute=engine, info=info)).read()
    assert (reading.device_total_mib, reading.device_used_mib) == (None, None)
    assert attribute(reading, [4101, 4177], everybody) == (20512, None)


def test_device_memory_that_is_supported_is_summed_over_devices() -> None:
    reading = Nvml(Driver(devices=2, info=lambda: Info(141 * 1024 * MIB, MIB))).read()
    assert (reading.device_total_mib, reading.device_used_mib) == (2 * 141 * 1024, 2)


def test_a_process_on_two_devices_counts_on_both() -> None:
    assert attribute(Nvml(Driver(devices=2, compute=engine)).read(), [4177], everybody) == (1024, None)


@pytest.mark.parametrize("mark", [None, (1 << 64) - 1])
def test_memory_not_available_is_unknown_and_not_zero(mark: int | None) -> None:
    reading = Nvml(Driver(compute=lambda: [Row(4101, mark), Row(4177, MIB)])).read()
    assert attribute(reading, [4101, 4177], everybody) == (None, "memory of a process not available")
    assert attribute(reading, [4177], everybody) == (1, None)


def test_a_list_that_cannot_be_read_is_unknown_with_its_reason() -> None:
    value, reason = attribute(Nvml(Driver(compute=fails(pynvml.NVML_ERROR_NO_PERMISSION))).read(), [1], everybody)
    assert value is None and reason is not None and reason.startswith("compute processes not readable")


def test_zero_is_an_answer_when_the_list_was_read_and_all_its_pids_are_known() -> None:
    assert attribute(GpuReading((), None, None, None), [42], everybody) == (0, None)
    assert attribute(GpuReading((GpuProcess("u", 7, MIB),), None, None, None), [42], everybody) == (0, None)


def test_a_pid_of_another_namespace_is_never_taken_for_zero() -> None:
    reading = GpuReading((GpuProcess("u", 546113, 60000 * MIB),), None, None, None)
    assert attribute(reading, [42], lambda pid: pid == 42) == (None, "pid not visible")
    assert attribute(reading, [42], lambda pid: pid == 42, {42: (546113, 42)}) == (60000, None)


@pytest.mark.parametrize(
    ("name", "shown"), [(b"NVIDIA GB10", "NVIDIA GB10"), ("NVIDIA GB10", "NVIDIA GB10"), (b"\xf8bad", "�bad")]
)
def test_a_device_name_is_text_whatever_the_binding_returns(name: bytes | str, shown: str) -> None:
    identity = Nvml(Driver(name=name)).identity()
    assert identity["devices"] == [["GPU-0", shown]]
    assert (identity["driver_version"], identity["library_version"]) == ("580.10", None)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no-nvml"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no-nvml"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "nvml-version-mismatch"),
        (pynvml.NVML_ERROR_UNKNOWN, "nvml-failed"),
    ],
)
def test_a_broken_driver_is_told_from_an_absent_one(number: int, code: str) -> None:
    with pytest.raises(HarnessError) as caught:
        Nvml(Driver(init=fails(number)))
    assert caught.value.code == code


def test_a_driver_without_a_device_is_no_nvml_and_is_shut_down() -> None:
    driver = Driver(devices=0)
    with pytest.raises(HarnessError) as caught:
        Nvml(driver)
    assert (caught.value.code, driver.calls) == ("no-nvml", ["shutdown"])


def test_a_forked_copy_refuses_instead_of_answering_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Nvml(Driver(compute=engine))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(HarnessError) as caught:
        opened.read()
    assert caught.value.code == "nvml-forked"


def test_a_reading_is_json_with_the_pids_as_nvml_gives_them() -> None:
    row = Nvml(Driver(compute=engine)).read().to_json()
    assert row["processes"] == [["GPU-0", 4101, 20000 * MIB], ["GPU-0", 4177, 512 * MIB]]
    assert nvml.METHOD == "per-process-sum"
