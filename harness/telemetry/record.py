"""What a timed leg records of the host around itself: GPUs, canary, throttling, and the phase of each memory peak."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from harness import canonical
from harness.records import Canary, GpuLook, MemorySample, RequestRecord
from harness.telemetry import thermal
from harness.telemetry.phases import Stamps, peak_phases
from harness.telemetry.probe import GpuAnswer

__all__ = ["after", "before", "peaks"]


class Senses(Protocol):
    """What looks at GPUs and times the canary: `harness.machine.Machine`."""

    def gpus(self) -> GpuAnswer: ...

    def sing(self, gpu: bool) -> Canary: ...


def before(senses: Senses) -> dict[str, Any]:
    """For host-before.json. HarnessError `nvml-…` when the driver is broken now: the leg must not begin."""
    look = senses.gpus().look()
    return {"gpu": look.to_json(), "canary": senses.sing(look.identity is not None).to_json()}


def after(host_before: Path, senses: Senses) -> dict[str, Any]:
    """For host-after.json: the same, and by board and counter the nanoseconds throttled since `host_before`."""
    look = senses.gpus().look()
    earlier = GpuLook.from_json(canonical.loads(host_before.read_bytes(), host_before.name)["gpu"])
    return {
        "gpu": look.to_json(),
        "throttled_ns": {
            board: {name: None if added is None else str(added) for name, added in counters.items()}
            for board, counters in thermal.differences(earlier.states, look.states).items()
        },
        "canary": senses.sing(look.identity is not None).to_json(),
    }


def peaks(folder: Path, ready_ns: int) -> dict[str, Any]:
    """For leg.json: when the leg's phases began, and in which of them each memory axis had its peak."""
    requests = [RequestRecord.from_json(row) for row in _rows(folder / "requests.jsonl.gz")]
    if not requests:
        return {}
    stamps = Stamps(
        ready_ns=ready_ns,
        timed_ns=min(one.start_ns for one in requests),
        done_ns=max(one.start_ns + (one.done_ns or 0) for one in requests),
    )
    samples = [MemorySample.from_json(row) for row in _rows(folder / "memory.jsonl")]
    return {"phases": stamps.to_json(), "peak_phase": peak_phases(samples, stamps)}


def _rows(path: Path) -> Iterable[Any]:
    data = path.read_bytes()
    return canonical.loads_lines(gzip.decompress(data) if path.suffix == ".gz" else data, path.name)
