"""The axes of a gate and their values for one leg. Standard library only; every value is an exact fraction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.client.metrics import LATENCY_AXES, THROUGHPUT_AXES, AxisValue, timing_axes
from harness.records import Leg, MemorySample

__all__ = ["LADDER", "MEMORY", "Axis", "axes_of", "ladder_peaks", "leg_values", "memory_axes", "place"]

LADDER = 0  # in the place of a concurrency: a value over all concurrencies of a repetition; documents say null

MEMORY = ("peak_pss_kib", "peak_rss_kib", "peak_gpu_memory_mib", "peak_mem_available_drop_kib")
UNITS = {"request_throughput": "req/s", "peak_gpu_memory_mib": "MiB"}


@dataclass(frozen=True)
class Axis:
    """One number on which the arms are compared. `direction` is higher or lower: which way is better.

    `concurrency` is LADDER for what spans all of them.
    """

    name: str
    concurrency: int
    kind: str  # timing or memory
    direction: str
    unit: str


def place(concurrency: int | None) -> str:
    """Where an axis belongs, for people: its concurrency, or the whole ladder of them (LADDER, null in documents)."""
    return f"c{concurrency}" if concurrency else "ladder"


def axes_of(concurrencies: Sequence[int], gpu: bool, memory: bool = True, ladder: bool = False) -> list[Axis]:
    """20 timing and 4 memory axes per concurrency; 3 memory axes where no NVML device exists.

    Without `memory` there are none: the servers are not the run's own. With `ladder` the memory axes are those of all
    concurrencies together, after the timing axes: 124 for six concurrencies on a GPU.
    """
    found: list[Axis] = []
    for concurrency in concurrencies:
        found += _timing_at(concurrency)
        found += _memory_at(concurrency, gpu) if memory and not ladder else ()
    return [*found, *_memory_at(LADDER, gpu)] if memory and ladder else found


def _timing_at(concurrency: int) -> Iterable[Axis]:
    for name in THROUGHPUT_AXES:
        yield Axis(name, concurrency, "timing", "higher", UNITS.get(name, "tok/s"))
    for name in LATENCY_AXES:
        yield Axis(name, concurrency, "timing", "lower", "ms")


def _memory_at(concurrency: int, gpu: bool) -> Iterable[Axis]:
    for name in MEMORY:
        if gpu or name != "peak_gpu_memory_mib":
            yield Axis(name, concurrency, "memory", "lower", UNITS.get(name, "KiB"))


def leg_values(leg: Leg) -> dict[str, AxisValue]:
    """Every axis of one timed leg by name; a value that cannot be had is None with its reason."""
    duration = leg.load.duration_ns if leg.load is not None else 0
    return {**timing_axes(leg.requests, duration), **memory_axes(leg.memory, leg.mem_baseline_kib)}


def memory_axes(samples: Sequence[MemorySample], baseline_kib: int | None) -> dict[str, AxisValue]:
    """Peaks over the samples. The MemAvailable drop is counted from `baseline_kib`, read before the engine started."""
    available = [sample.mem_available_kib for sample in samples if sample.mem_available_kib is not None]
    if baseline_kib is None or not available:
        drop = AxisValue(None, "MemAvailable was not readable")
    else:
        drop = AxisValue(Fraction(max(0, baseline_kib - min(available))), None)
    reasons = [sample.gpu_reason for sample in samples if sample.gpu_reason]
    return {
        "peak_pss_kib": _peak([sample.pss_kib for sample in samples], "PSS was not readable"),
        "peak_rss_kib": _peak([sample.rss_kib for sample in samples], "RSS was not readable"),
        "peak_gpu_memory_mib": _peak([sample.gpu_mib for sample in samples], reasons[0] if reasons else "no samples"),
        "peak_mem_available_drop_kib": drop,
    }


def ladder_peaks(values: Sequence[Mapping[str, AxisValue]]) -> dict[str, AxisValue]:
    """The memory axes of one arm's repetition: the highest peak of its legs. One leg without a value leaves none."""
    found = {}
    for name in MEMORY:
        unknown = next((value[name] for value in values if value[name].value is None), None)
        peaks = [value[name].value for value in values]
        found[name] = unknown or AxisValue(max(peak for peak in peaks if peak is not None), None)
    return found


def _peak(values: Iterable[int | None], reason: str) -> AxisValue:
    known = [value for value in values if value is not None]
    return AxisValue(Fraction(max(known)), None) if known else AxisValue(None, reason)
