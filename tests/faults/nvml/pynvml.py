"""An NVML that fails, hangs or lies as FAULTS_NVML says; met by the probe process of the fault matrix alone."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

KIND = os.environ.get("FAULTS_NVML", "nvml-idle")
INIT = 1  # a pid that lives and is nobody's engine


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def nvmlInit() -> None:
    if KIND == "nvml-hanging":
        time.sleep(3600)
    if KIND == "nvml-dying":
        os.abort()
    if KIND == "nvml-failing":
        raise NVMLError(999)


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    return 0 if KIND == "nvml-gone" else 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetUUID(handle: int) -> str:
    return "GPU-00000000-0000-0000-0000-000000000000"


def nvmlDeviceGetName(handle: int) -> str:
    return "a GPU that is not there"


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:
    if KIND == "nvml-blind":
        raise NVMLError(4)
    return [SimpleNamespace(pid=INIT, usedGpuMemory=1 << 30)] if KIND == "nvml-lying" else []


def __getattr__(name: str) -> Any:
    """Every other query is not supported; every other constant is a number of its own."""
    if name.startswith("NVML_"):
        return 10_000 + sum(map(ord, name))
    if name.startswith("nvml"):

        def unsupported(*_: object) -> None:
            raise NVMLError(3)

        return unsupported
    raise AttributeError(name)
