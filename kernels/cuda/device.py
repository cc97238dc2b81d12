"""The GPU of this process, asked through the driver alone: no CUDA runtime, no array library, no context is made."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from kernels.errors import DeviceError

__all__ = ["Device", "find_device"]

_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute


@dataclass(frozen=True)
class Device:
    """`capability` such as (12, 1)."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int


def find_device(ordinal: int = 0) -> Device:
    """DeviceError `no-gpu` where there is no driver, no device of this ordinal, or the driver refuses."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceError(
            "no-gpu", "this machine has no NVIDIA driver (libcuda.so.1): use the CPU backend, or a GPU machine"
        ) from None
    _call(driver.cuInit, 0)
    handle = ctypes.c_int()
    _call(driver.cuDeviceGet, ctypes.byref(handle), ordinal)
    name = ctypes.create_string_buffer(256)
    _call(driver.cuDeviceGetName, name, len(name), handle)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        _call(driver.cuDeviceGetAttribute, ctypes.byref(value), which, handle)
        return value.value

    capability = attribute(_MAJOR), attribute(_MINOR)
    return Device(ordinal, name.value.decode(errors="replace"), capability, attribute(_MULTIPROCESSORS))


def _call(function: Any, *arguments: Any) -> None:
    status = function(*arguments)
    if status:
        text = f"the NVIDIA driver answers {function.__name__} with error {status}; is a GPU visible (nvidia-smi)?"
        raise DeviceError("no-gpu", text)
