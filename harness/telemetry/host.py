"""What the host looks like around a leg, and whether a leg's memory came back."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.telemetry import procfs

__all__ = ["ReturnCheck", "memory_returned", "settle", "snapshot", "wait_returned"]

GIB_KIB = 1 << 20
MIB_KIB = 1 << 10
FLOOR_KIB = 64 * MIB_KIB
SETTLED_LOOKS = 10  # a second of them


def snapshot(paths: Mapping[str, Path] | None = None) -> dict[str, Any]:
    """host-before.json and host-after.json. `paths` names folders whose free space is taken; paths stay out of it."""
    memory = procfs.meminfo()
    load = procfs.loadavg()
    return {
        "boot_id": procfs.boot_id(),
        "hostname": socket.gethostname(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "mem_total_kib": memory.total_kib,
        "mem_available_kib": memory.available_kib,
        "mem_free_kib": memory.free_kib,
        "mem_cached_kib": memory.cached_kib,
        "mem_reason": memory.reason,
        "loadavg": None if load is None else list(load),
        "disk_free_bytes": {name: shutil.disk_usage(path).free for name, path in sorted((paths or {}).items())},
        "python": platform.python_version(),
    }


def _cpu_model() -> str | None:
    """`model name` on x86, part numbers on aarch64, whose /proc/cpuinfo has no name."""
    return parse_cpu_model(Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None


def parse_cpu_model(text: str) -> str | None:
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), set()).add(value.strip())
    if "model name" in found:
        return ", ".join(sorted(found["model name"]))
    parts = found.get("CPU part")
    return f"CPU part {', '.join(sorted(parts))}" if parts else None


@dataclass(frozen=True)
class ReturnCheck:
    """Whether MemAvailable is back. `short_kib` is what is missing to the tolerance, 0 when returned.

    `waited_ns` and `looks` tell how long was waited for it. `reason` says why it cannot be told or did not return.
    """

    returned: bool
    baseline_kib: int | None
    final_kib: int | None
    drop_kib: int | None
    tolerance_kib: int | None
    short_kib: int | None
    reason: str | None
    waited_ns: int = 0
    looks: int = 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "waited_ns": str(self.waited_ns)}


def memory_returned(baseline_kib: int | None, final_kib: int | None, drop_kib: int | None) -> ReturnCheck:
    """Returned iff final + tolerance >= baseline, all in KiB; tolerance = a tenth of the leg's own drop, within 64 MiB
    and 1 GiB.

    A fixed 1 GiB would never see a small engine leak; under 64 MiB the host's own wobble decides (30 MB within seconds
    on an idle 2-core VM, and a process's pages reach MemAvailable up to 15 s late). What is unknown did not return.
    """
    if baseline_kib is None or final_kib is None or drop_kib is None:
        known = {"baseline": baseline_kib, "final": final_kib, "drop": drop_kib}
        reason = f"unknown: {', '.join(name for name, value in known.items() if value is None)}"
        return ReturnCheck(False, baseline_kib, final_kib, drop_kib, None, None, reason)
    tolerance = min(GIB_KIB, max(FLOOR_KIB, drop_kib // 10))
    short = max(0, baseline_kib - final_kib - tolerance)
    missing = f"{short} KiB short of {baseline_kib} KiB - {tolerance} KiB" if short else None
    return ReturnCheck(short == 0, baseline_kib, final_kib, drop_kib, tolerance, short, missing)


def settle(
    limit_s: float = 10.0,
    *,
    read: Callable[[], int | None] = lambda: procfs.meminfo().available_kib,
    clock: Callable[[], int] = time.monotonic_ns,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Wait until MemAvailable has not risen by 1 MiB within the last second; False after `limit_s` or if unreadable."""
    begun, seen = clock(), [read()]
    while clock() - begun < limit_s * 1e9:
        pause(0.1)
        seen = [*seen, read()][-SETTLED_LOOKS:]
        known = [value for value in seen if value is not None]
        if len(known) < len(seen):
            return False
        if len(known) == SETTLED_LOOKS and max(known) - known[0] < MIB_KIB:
            return True
    return False


def wait_returned(
    baseline_kib: int | None,
    drop_kib: int | None,
    timeout_s: float,
    *,
    read: Callable[[], int | None] = lambda: procfs.meminfo().available_kib,
    clock: Callable[[], int] = time.monotonic_ns,
    pause: Callable[[float], object] = time.sleep,
) -> ReturnCheck:
    """Look until memory is back or `timeout_s` is over, and say how long that took.

    A small engine's tolerance (15 MB for one of 150 MB) is within what a host's free memory wobbles by, so one look
    would be a lottery; memory freed by the driver after the last process is late as well.
    """
    begun, looks = clock(), 0
    while True:
        looks += 1
        check = memory_returned(baseline_kib, read(), drop_kib)
        waited = clock() - begun
        if check.returned or check.short_kib is None or waited >= timeout_s * 1e9:
            return replace(check, waited_ns=waited, looks=looks)
        pause(0.1)
