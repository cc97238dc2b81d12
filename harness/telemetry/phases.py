"""In which phase of a leg each memory peak arose: load, warm-up, serve or stop. Pure; standard library only.

On a machine with unified memory the peak is often the loader's, and no change of serving can move such a peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.records import MemorySample

__all__ = ["Stamps", "peak_phases"]

AXES = {
    "peak_pss_kib": "pss_kib",
    "peak_rss_kib": "rss_kib",
    "peak_gpu_memory_mib": "gpu_mib",
    "peak_mem_available_drop_kib": "mem_available_kib",
}


@dataclass(frozen=True)
class Stamps:
    """CLOCK_MONOTONIC ns: the engine's first completion, the first timed request, the end of the last one."""

    ready_ns: int
    timed_ns: int
    done_ns: int

    def phase(self, t_ns: int) -> str:
        if t_ns < self.ready_ns:
            return "load"
        if t_ns < self.timed_ns:
            return "warm-up"
        return "serve" if t_ns <= self.done_ns else "stop"

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) for name, value in asdict(self).items()}


def peak_phases(samples: Sequence[MemorySample], stamps: Stamps) -> dict[str, str | None]:
    """By memory axis the phase of its first highest sample (lowest for MemAvailable); None where nothing was known."""
    found: dict[str, str | None] = {}
    for axis, name in AXES.items():
        sign = -1 if name == "mem_available_kib" else 1
        rows = [(sign * value, row.t_ns) for row in samples if (value := getattr(row, name)) is not None]
        found[axis] = stamps.phase(max(rows, key=lambda item: (item[0], -item[1]))[1]) if rows else None
    return found
