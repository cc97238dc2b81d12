"""NVML's answers as people have met them, from a stand-in of the vendor's module: no device is needed to run these."""

from __future__ import annotations

import os
from collections.abc import Callable

import pynvml
import pytest

from harness.errors import HarnessError
from harness.telemetry import nvml
from harness.telemetry.nvml import GpuProcess, GpuReading, Nvml, attribute
from tests.unit.telemetry.nvml_driver import MIB, Driver, Info, Row, fails


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


class Sliced(Driver):
    """A board of 141 GiB in MIG mode that refuses as a whole; handle 10 is a slice of 16 GiB, place 1 is empty."""

    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    slices = 1

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:
        return (1, 1)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:
        if index >= self.slices:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 10 + index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"MIG-{handle}" if handle >= 10 else "GPU-0"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Row]:
        return engine() if handle >= 10 else fails(pynvml.NVML_ERROR_NO_PERMISSION)()

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Info:
        return Info((16 if handle >= 10 else 141) * 1024 * MIB, MIB)


def test_a_board_in_mig_mode_is_asked_by_its_slices_and_never_as_a_whole() -> None:
    """C09."""
    opened = Nvml(Sliced(name="NVIDIA H200 MIG 1g.18gb"))
    assert opened.identity()["devices"] == [["MIG-10", "NVIDIA H200 MIG 1g.18gb"]]
    reading = opened.read()
    assert (reading.device_total_mib, attribute(reading, [4101], everybody)) == (16 * 1024, (20000, None))


def test_mig_mode_without_a_slice_is_a_failure_and_not_an_idle_gpu() -> None:
    driver = Sliced()
    driver.slices = 0
    with pytest.raises(HarnessError) as caught:
        Nvml(driver)
    assert caught.value.code == "mig-empty"


def test_two_distributions_with_one_module_are_refused_by_name() -> None:
    """C05."""
    with pytest.raises(HarnessError) as caught:
        nvml.owner({"pynvml": ["nvidia-ml-py", "pynvml", "nvidia-ml-py"]})
    assert caught.value.code == "nvml-conflict" and "nvidia-ml-py, pynvml" in caught.value.message
    assert nvml.owner({"pynvml": ["nvidia-ml-py"]}) == "nvidia-ml-py"
    assert nvml.owner() == "nvidia-ml-py"


def test_a_name_that_is_not_text_is_a_warning() -> None:
    assert Nvml(Driver(name=b"\xf8bad")).warnings() == ["the name of GPU-0 is not UTF-8"]
    assert Nvml(Driver()).warnings() == []
