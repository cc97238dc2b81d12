"""Facts in, rows out: every trouble of a host gets its verdict and its mend."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from harness.doctor.facts import parse_kernel_module
from harness.doctor.table import Limits, Row, rows
from harness.telemetry.nvml import same_release

LIMITS = Limits(min_mem_available_mib=1024, min_disk_free_mib=1024, max_load_average=4.0, gpu=True)
BOARD = {
    "uuid": "GPU-0",
    "temperature_c": 49,
    "reasons": ["gpu_idle"],
    "counters_ns": {"sw_thermal": "173000000000", "hw_thermal": "0", "hw_power_brake": "0"},
    "absent": {"memory_mhz": "Not Supported"},
}
GB10: dict[str, Any] = {
    "host": {
        "disk_free_bytes": {"state": 90 << 30},
        "mem_available_kib": 110_000_000,
        "mem_total_kib": 127_600_748,
        "mem_reason": None,
        "loadavg": [0.2, 0.1, 0.1],
        "usable_cores": 20,
        "cores": 20,
    },
    "clocksource": "arch_sys_counter",
    "python": {"executable": "/usr/bin/python3", "version": "3.12.3", "packages": {"numpy": "2.4.6"}},
    "tools": {"nvcc": "/usr/local/cuda-13.0/bin/nvcc"},
    "gpu": {
        "kernel_module": "580.142",
        "binding": {"owner": "nvidia-ml-py"},
        "nvml": {
            "identity": {
                "driver_version": "580.142",
                "library_version": "13.580.142",
                "devices": [["GPU-0", "NVIDIA GB10"]],
            },
            "processes": [],
            "reason": None,
            "device_total_mib": None,
            "boards": [BOARD],
            "warnings": [],
        },
    },
    "lease": {"held": False, "sentence": "lease /tmp/gpu is free", "survivors": []},
    "port": {"port": 8001, "owner": None},
    "state_dir": "/home/u/.local/state",
    "cgroup": {"memory_max_bytes": None, "cpu_max_cores": None, "reason": None},
    "weights": [{"path": "/w", "files": 49, "told": True, "mapped_by": [], "reason": None}],
}


def judged(change: Callable[[dict[str, Any]], object] = lambda facts: None) -> list[Row]:
    facts = copy.deepcopy(GB10)
    change(facts)
    return rows(facts, LIMITS)


def test_a_healthy_gb10_has_no_bad_row_although_its_device_memory_is_not_supported() -> None:
    found = judged()
    assert {row.verdict for row in found} == {"ok"}
    seen = {row.what: row.seen for row in found}
    assert seen["NVML memory by process"] == "answered" and seen["NVML memory of the device"] == "not supported"
    assert "sw_thermal 173.0 s" in seen["throttling since boot"]


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(facts: dict[str, Any]) -> None:
        for step in path[:-1]:
            facts = facts[step]
        facts[path[-1]] = value

    return change


NVML = ("gpu", "nvml")
FAILED = {"code": "nvml-hangs", "message": "no answer within 30 s"}


@pytest.mark.parametrize(
    ("what", "verdict", "change", "word"),
    [
        ("Python", "bad", put("python", "version", value="3.10.1"), "3.11"),
        ("packages", "bad", put("python", "packages", "numpy", value=None), "numpy"),
        ("nvcc", "warn", put("tools", "nvcc", value=None), "CUDA"),
        ("module pynvml", "bad", put("gpu", "binding", value={"owner": None, "reason": "two of them"}), "two"),
        ("driver", "bad", put(*NVML, value=FAILED), "mend the driver"),
        ("driver", "bad", put(*NVML, value={"code": "no-nvml", "message": "none"}), "not applicable"),
        ("driver and library", "bad", put("gpu", "kernel_module", value="580.10"), "reboot"),
        ("driver and library", "warn", put(*NVML, "identity", "library_version", value=None), "by hand"),
        ("GPU", "warn", put(*NVML, "warnings", value=["the name of GPU-0 is not UTF-8"]), "harmless"),
        ("NVML memory by process", "bad", put(*NVML, "processes", value=None), "cannot be measured"),
        ("throttling since boot", "bad", put(*NVML, "boards", 0, "reasons", value=["hw_thermal"]), "cool"),
        ("uses the GPU", "bad", put(*NVML, "processes", value=[[7, 1 << 30, "vllm serve"]]), "end it"),
        ("uses the GPU", "bad", put(*NVML, "processes", value=[[7, None, None]]), "end it"),
        ("lease", "bad", put("lease", "held", value=None), "host.lease_path"),
        ("lease", "warn", put("lease", "held", value=True), "waits"),
        ("port 8001", "bad", put("port", "owner", value="pid 9 (nginx, user www)"), "host.port"),
        ("free disk", "bad", put("host", "disk_free_bytes", "state", value=1 << 20), "free 1023 MiB"),
        ("MemAvailable", "bad", put("host", "mem_available_kib", value=1000), "end something"),
        ("MemAvailable", "bad", put("host", "mem_available_kib", value=None), "no memory axis"),
        ("load", "bad", put("host", "loadavg", value=[4.5, 1, 1]), "wait"),
        ("load", "warn", put("host", "loadavg", value=None), "cannot be told"),
        ("cgroup", "warn", put("cgroup", "memory_max_bytes", value=1 << 30), "killed"),
        ("cgroup", "warn", put("cgroup", "cpu_max_cores", value=1.5), "quota"),
        ("page cache", "bad", put("weights", 0, "told", value=False), "owner"),
        ("page cache", "bad", put("weights", 0, "mapped_by", value=[12]), "end these"),
        ("clock source", "warn", put("clocksource", value="hpet"), "system call"),
    ],
)
def test_a_trouble_has_its_verdict_and_what_to_do(
    what: str, verdict: str, change: Callable[[dict[str, Any]], None], word: str
) -> None:
    found = [row for row in judged(change) if row.what == what and row.verdict != "ok"]
    assert [row.verdict for row in found] == [verdict]
    assert word in found[0].do


def test_weights_that_are_not_made_yet_are_no_trouble() -> None:
    gone = {"path": "/w", "files": 0, "told": None, "mapped_by": [], "reason": "not there yet"}
    assert {row.verdict for row in judged(put("weights", value=[gone]))} == {"ok"}


def test_a_machine_without_a_gpu_is_fit_for_an_engine_on_the_cpu() -> None:
    facts = copy.deepcopy(GB10)
    facts["gpu"]["nvml"] = {"code": "no-nvml", "message": "no driver"}
    facts["tools"]["nvcc"] = None
    found = rows(facts, Limits(1024, 1024, None, gpu=False))
    assert [row.what for row in found if row.verdict != "ok"] == ["driver"]
    assert {row.verdict for row in found} == {"ok", "warn"}


@pytest.mark.parametrize(
    ("module", "library", "same"),
    [
        ("580.142", "13.580.142", True),
        ("535.54.03", "12.535.54.03", True),
        ("580.142", "580.142", True),
        ("580.10", "13.580.20", False),
    ],
)
def test_a_library_belongs_to_the_kernel_module_of_its_release(module: str, library: str, same: bool) -> None:
    """C10: module 580.10 under library 580.20."""
    assert same_release(module, library) is same


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6", "535.54.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build", "580.142"),
        ("GCC version: gcc version 13.2.0", None),
    ],
)
def test_the_kernel_module_tells_its_version(line: str, version: str | None) -> None:
    assert parse_kernel_module(line + "\n") == version
