"""GPU memory by process through NVML. Used inside the sampler's own exec'd process alone (NVML does not survive fork).

Only compute processes count, summed over devices: on unified memory (GB10) the device's own memory is not supported or
answers zeros, and an idle desktop's graphics memory is nobody's arm. A board in MIG mode is asked slice by slice: it
refuses as a whole, or answers with what belongs to others. `module` is `pynvml` of nvidia-ml-py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from harness.errors import HarnessError
from harness.records import GpuState
from harness.telemetry import thermal

__all__ = ["METHOD", "Device", "GpuProcess", "GpuReading", "Nvml", "attribute", "owner", "same_release", "text"]

METHOD = "per-process-sum"
MIB = 1 << 20
UPGRADED = "the driver was upgraded under a running kernel module; reboot or reload it"


def text(value: bytes | str) -> str:
    """Names are bytes or text by the binding's version; what is not UTF-8 is replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@dataclass(frozen=True)
class Device:
    uuid: str
    name: str


@dataclass(frozen=True)
class GpuProcess:
    """One compute process on one device, with the pid as NVML gives it. `used_bytes` None: not available."""

    uuid: str
    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class GpuReading:
    """All compute processes, or None with `reason` where the list could not be read. Device memory is a diagnostic."""

    processes: tuple[GpuProcess, ...] | None
    device_total_mib: int | None
    device_used_mib: int | None
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        rows = None if self.processes is None else [[one.uuid, one.pid, one.used_bytes] for one in self.processes]
        return {
            "processes": rows,
            "device_total_mib": self.device_total_mib,
            "device_used_mib": self.device_used_mib,
            "reason": self.reason,
        }


def attribute(
    reading: GpuReading,
    pids: Collection[int],
    visible: Callable[[int], bool],
    aliases: Mapping[int, Iterable[int]] | None = None,
) -> tuple[int | None, str | None]:
    """MiB of the engine with these `pids`, rounded down, or None with the reason.

    0 is an answer only if the list was readable and every pid in it is one that this machine knows: inside a container
    NVML gives the host's pids, nothing matches, and 0 would be a lie. `aliases` maps an engine's pid to its pids in
    other namespaces (`NSpid`).
    """
    if reading.processes is None:
        return None, reading.reason
    wanted = set(pids).union(*(aliases or {}).values())
    mine = [one for one in reading.processes if one.pid in wanted]
    if any(one.used_bytes is None for one in mine):
        return None, "memory of a process not available"
    if not mine and any(not visible(one.pid) for one in reading.processes):
        return None, "pid not visible"
    return sum(one.used_bytes or 0 for one in mine) // MIB, None


class Nvml:
    """An initialised NVML. Raises HarnessError `no-nvml` (no library, driver or device) or `nvml-version-mismatch`."""

    def __init__(self, module: Any = None) -> None:
        self._nvml = _load() if module is None else module
        self._pid = os.getpid()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise _init_error(self._nvml, error)
        try:
            count = self._nvml.nvmlDeviceGetCount()
            self._boards = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            self._handles = [unit for board in self._boards for unit in self._units(board)]
            self.devices = tuple(self._device(handle) for handle in self._handles)
        except self._nvml.NVMLError as error:
            self.close()
            raise HarnessError("nvml-failed", f"NVML lists no devices: {error}; check the driver with nvidia-smi")
        if not self.devices:
            self.close()
            if self._boards:
                raise HarnessError("mig-empty", "MIG mode is on and no slice is visible; create one or switch MIG off")
            raise HarnessError("no-nvml", "NVML works but this machine has no NVIDIA device")
        self.driver_version = self._version("nvmlSystemGetDriverVersion")
        self.library_version = self._version("nvmlSystemGetNVMLVersion")

    def _units(self, board: Any) -> list[Any]:
        """The board itself, or its slices where MIG mode is on: the whole is never asked then."""
        try:
            on, _ = self._nvml.nvmlDeviceGetMigMode(board)
        except (self._nvml.NVMLError, AttributeError):
            return [board]
        if on != self._nvml.NVML_DEVICE_MIG_ENABLE:
            return [board]
        slices = []
        for index in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
            try:
                slices.append(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index))
            except self._nvml.NVMLError:  # an empty place, or somebody else's
                continue
        return slices

    def _device(self, handle: Any) -> Device:
        return Device(text(self._nvml.nvmlDeviceGetUUID(handle)), text(self._nvml.nvmlDeviceGetName(handle)))

    def _version(self, query: str) -> str | None:
        try:
            return text(getattr(self._nvml, query)())
        except self._nvml.NVMLError:
            return None

    def read(self) -> GpuReading:
        """One look at all devices. HarnessError `nvml-forked` in a process that did not initialise it itself."""
        if os.getpid() != self._pid:
            raise HarnessError(
                "nvml-forked", "NVML was initialised before a fork; start the sampler as its own program"
            )
        total, used = self._device_memory()
        try:
            processes = tuple(
                GpuProcess(device.uuid, int(one.pid), self._bytes(one.usedGpuMemory))
                for device, handle in zip(self.devices, self._handles, strict=True)
                for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            )
        except self._nvml.NVMLError as error:
            return GpuReading(None, total, used, f"compute processes not readable: {error}")
        return GpuReading(processes, total, used, None)

    def boards(self) -> tuple[GpuState, ...]:
        """Heat, clocks and throttling of every board, MIG or not."""
        found = []
        for board in self._boards:
            uuid = text(self._nvml.nvmlDeviceGetUUID(board))
            found.append(thermal.read(self._nvml, board, uuid))
        return tuple(found)

    def warnings(self) -> list[str]:
        return [
            f"the name of {one.uuid} is not UTF-8" for one in self.devices if "\N{REPLACEMENT CHARACTER}" in one.name
        ]

    def _bytes(self, value: int | None) -> int | None:
        """The binding maps NVML's not-available mark to None; older ones hand the mark itself out."""
        return None if value is None or value >= (1 << 64) - 1 else int(value)

    def _device_memory(self) -> tuple[int | None, int | None]:
        """Sums in MiB, or None twice: not supported, or a total of 0, which no device has."""
        total = used = 0
        for handle in self._handles:
            try:
                info = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._nvml.NVMLError:
                return None, None
            if not info.total:
                return None, None
            total += int(info.total)
            used += int(info.used)
        return total // MIB, used // MIB

    def identity(self) -> dict[str, Any]:
        """What must be equal at the start and the end of a series."""
        return {
            "driver_version": self.driver_version,
            "library_version": self.library_version,
            "devices": [[device.uuid, device.name] for device in self.devices],
            "method": METHOD,
        }

    def require_one_release(self) -> None:
        """HarnessError `nvml-version-mismatch` where library and kernel module tell different releases."""
        module, library = self.driver_version, self.library_version
        if module and library and not same_release(module, library):
            seen = f"kernel module {module} under NVML {library}"
            raise HarnessError("nvml-version-mismatch", f"{seen}: {UPGRADED}")

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def same_release(module: str, library: str) -> bool:
    """The library's version is the kernel module's, or that with the CUDA major number in front (13.580.159.04)."""
    return library == module or library.partition(".")[2] == module


def owner(owners: Mapping[str, Iterable[str]] | None = None) -> str:
    """The distribution that gives the module `pynvml`. HarnessError `nvml-conflict` where two do.

    `owners` is `importlib.metadata.packages_distributions()`. Which of two is imported depends on the order of their
    installation, and an old one lacks queries that the other has.
    """
    found = sorted(set((metadata.packages_distributions() if owners is None else owners).get("pynvml", ())))
    if len(found) > 1:
        mend = "uninstall all of them, then install nvidia-ml-py"
        raise HarnessError("nvml-conflict", f"{', '.join(found)} all install the module pynvml; {mend}")
    return found[0] if found else "unknown"


def _load() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise HarnessError("no-nvml", f"the module pynvml is missing ({error}); install nvidia-ml-py")
    return pynvml


def _init_error(module: Any, error: Exception) -> HarnessError:
    absent = ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED")
    number = getattr(error, "value", None)
    if number is not None and number in {getattr(module, name, None) for name in absent}:
        return HarnessError("no-nvml", f"no NVIDIA driver here: {error}")
    if number is not None and number == getattr(module, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", None):
        return HarnessError("nvml-version-mismatch", f"{error}: {UPGRADED}")
    return HarnessError("nvml-failed", f"NVML does not start: {error}; check the driver with nvidia-smi")
