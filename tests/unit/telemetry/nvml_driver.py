"""A stand-in of the vendor's module, with its real error classes and constants and answers of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

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
