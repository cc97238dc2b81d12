"""A built kernel library, loaded by ctypes for the GPU of this machine. Whatever does not fit is refused before a
kernel of it is called: CUTLASS would print on standard output and answer with a bare number."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from ctypes import c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from kernels.cuda.compile import library_name
from kernels.cuda.device import Device, find_device
from kernels.cuda.toolchain import cache_root
from kernels.cuda.units import ARCHITECTURES, source_digest
from kernels.errors import DeviceError, KernelError

__all__ = ["FOLDER", "GEMM", "Library", "load", "open_library"]

FOLDER = "NVFP4_GATES_LIBRARIES"
GEMM = (*(c_void_p,) * 6, *(c_int,) * 3, c_void_p, c_size_t, c_int, c_void_p)
_SUPPORT: Mapping[str, tuple[Any, ...]] = {
    "quantise": (*(c_void_p,) * 4, c_int, c_int, c_float, c_int, c_int, c_int, c_void_p),
    "swizzle": (c_void_p, c_void_p, c_int, c_int, c_void_p),
    "expand": (c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p),
    "widen": (c_void_p, c_void_p, c_size_t, c_void_p),
    "delay": (c_int, c_void_p),
    "versions": (c_void_p, c_void_p),
}
_REFUSALS = ((4000, "could not be launched"), (3000, "could not be set up"), (2000, "needs more workspace"))


class Library:
    """One loaded library. `facts` is what it says of its build. Calls enqueue; they answer 0 or a status."""

    def __init__(self, path: Path, device: Device, library: ctypes.CDLL, facts: Mapping[str, str]) -> None:
        self.path = path
        self.device = device
        self.facts = facts
        self._library = library
        self.quantise, self.swizzle, self.expand, self.widen, self.delay, self._versions = (
            self.function(f"nvfp4_{name}", *types) for name, types in _SUPPORT.items()
        )
        library.nvfp4_error_text.restype = c_char_p

    def function(self, name: str, *types: Any, result: Any = c_int) -> Callable[..., int]:
        """An entry point by name; DeviceError `stale-library` when the library has none."""
        try:
            found = getattr(self._library, name)
        except AttributeError:
            raise DeviceError("stale-library", f"{self.path} has no {name}; build it again") from None
        found.argtypes = types
        found.restype = result
        call: Callable[..., int] = found
        return call

    def gemm(self, tactic: int) -> Callable[..., int]:
        """`run(d, a, b, sfa, sfb, alpha, m, n, k, ws, ws_bytes, sms, stream)` of a CUTLASS tactic."""
        return self.function(f"nvfp4_run_{tactic}", *GEMM)

    def workspace(self, tactic: int) -> Callable[..., int]:
        """`bytes(m, n, k, sms)` of a CUTLASS tactic. Only asked with the right device current."""
        return self.function(f"nvfp4_workspace_{tactic}", c_int, c_int, c_int, c_int, result=c_int64)

    def versions(self) -> tuple[str, str]:
        """CUDA (driver, runtime), such as ('13.0', '13.0')."""
        driver, runtime = c_int(), c_int()
        self.check(self._versions(ctypes.byref(driver), ctypes.byref(runtime)), "the versions")
        return _version(driver.value), _version(runtime.value)

    def check(self, status: int, what: str) -> None:
        """KernelError `kernel-failed` for a status other than 0."""
        if status:
            raise KernelError("kernel-failed", f"{what}: {self._said(status)}")

    def _said(self, status: int) -> str:
        for base, text in _REFUSALS:
            if status >= base:
                return f"the kernel {text} (status {status - base})"
        if status >= 1000:
            return f"the kernel cannot take these operands (status {status - 1000}); is N divisible by 64, K too?"
        text = self._library.nvfp4_error_text(status)
        return f"CUDA error {status}, {text.decode() if text else 'unknown'}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def load(ordinal: int = 0, env: Mapping[str, str] = os.environ) -> Library:
    """The library for GPU `ordinal`, out of the folder NVFP4_GATES_LIBRARIES or where `kernels.build` puts it.

    DeviceError: `no-gpu`, `unsupported-gpu`, `no-library`, `stale-library`.
    """
    device = find_device(ordinal)
    architecture = ARCHITECTURES.get(device.capability)
    if architecture is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in ARCHITECTURES)
        seen = f"{device.name} has compute capability {device.capability[0]}.{device.capability[1]}"
        raise DeviceError("unsupported-gpu", f"{seen}; there are kernels for {known}")
    folder = Path(env[FOLDER]) if env.get(FOLDER) else cache_root(env) / "lib"
    path = folder / library_name(architecture)
    if not path.is_file():
        raise DeviceError("no-library", f"{path} does not exist; run: python -m kernels.build --arch {architecture}")
    return open_library(path, device)


def open_library(path: Path, device: Device) -> Library:
    """Load `path` if it was built for `device` out of the sources beside this module; DeviceError as `load` says, or
    `wrong-gpu`."""
    try:
        library = ctypes.CDLL(str(path))
        library.nvfp4_build.restype = c_char_p
        facts: dict[str, str] = json.loads(library.nvfp4_build())
    except (OSError, AttributeError, ValueError) as error:
        raise DeviceError("no-library", f"{path} is no kernel library: {error}; build it again") from error
    architecture = facts["architecture"]
    if ARCHITECTURES.get(device.capability) != architecture:
        seen = f"{device.name} has compute capability {device.capability[0]}.{device.capability[1]}"
        raise DeviceError("wrong-gpu", f"{path} was built for sm_{architecture}, and {seen}: it would not run")
    if facts["sources"] != source_digest(architecture):
        mend = f"python -m kernels.build --arch {architecture}"
        raise DeviceError(
            "stale-library", f"{path} was built from other sources than those installed here; run: {mend}"
        )
    return Library(path, device, library, facts)
