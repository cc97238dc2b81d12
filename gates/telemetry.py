"""What the host and the memory sampler must show around a timed leg, for every gate that times an engine.

Nothing here looks at an axis. Plans made before these records existed carry no `canary_factor` and are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from harness.plan import Plan
from harness.records import Canary, Check, GpuLook, GpuState, Leg

__all__ = ["checks", "leg_checks"]

RECORDED = "canary_factor"  # of plan.host: the canary's bound, and the sign that legs carry these records
HOT = ("sw_thermal", "hw_thermal", "hw_power_brake")  # never allowed; a power cap is how some hosts are set up
OLDER = "thermal_policy"  # the one thermal counter of drivers without the first two
ALWAYS = ("cpu_copy", "cpu_gemv")
UNKNOWN_ROWS = 20  # one live sample of so many may lack its GPU figure: a process is listed before its memory is known


def checks(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """What only the whole run can show."""
    if RECORDED not in plan.host:
        return
    timed = [leg for leg in legs if leg.kind == "timed"]
    yield from _canaries(float(plan.host[RECORDED]), timed)
    if plan.gpu:
        methods = sorted({str(leg.sampler.gpu_method) if leg.sampler else "no report" for leg in timed})
        good = len(methods) == 1 and methods[0] not in ("None", "no report")
        yield Check("gpu-method", "run", ", ".join(methods) or "none", "one method in every leg of both arms", good)


def leg_checks(plan: Plan, leg: Leg) -> Iterator[Check]:
    """What one leg must show by itself."""
    if RECORDED not in plan.host:
        return
    if plan.gpu:
        yield from _slices(plan)
    if leg.kind != "timed":
        return
    yield _canary_sang(leg)
    if plan.gpu:
        yield _identity(plan, leg)
        yield _throttle(leg)
        yield _gpu_samples(leg)


def _canary_sang(leg: Leg) -> Check:
    faults = []
    for when, canary in (("before", leg.canary_before), ("after", leg.canary_after)):
        missing = [name for name in ALWAYS if canary is None or name not in canary.best_ns]
        if missing:
            reason = "no record" if canary is None else canary.absent.get(missing[0], "no reason")
            faults.append(f"{when}: no {', '.join(missing)} ({reason})")
    return Check("canary", leg.name, "; ".join(faults) or "measured", "measured before and after", not faults)


def _canaries(factor: float, legs: Sequence[Leg]) -> Iterator[Check]:
    """No leg on a host that was slower than in the middle of the run by more than the factor."""
    sung = [canary for leg in legs for canary in (leg.canary_before, leg.canary_after) if canary is not None]
    names = sorted({name for canary in sung for name in canary.best_ns})
    medians = {name: median(canary.best_ns[name] for canary in sung if name in canary.best_ns) for name in names}
    for leg in legs:
        faults = [
            f"{fault} {when}"
            for when, canary in (("before", leg.canary_before), ("after", leg.canary_after))
            if canary is not None
            for fault in _slow(canary, medians, factor)
        ]
        need = f"every canary at most {factor:g} x the run's median"
        yield Check("canary-slow", leg.name, ", ".join(faults) or "as ever", need, not faults)


def _slow(canary: Canary, medians: Mapping[str, float], factor: float) -> Iterator[str]:
    for name, middle in medians.items():
        if name not in canary.best_ns:
            yield f"no {name}, which other legs have,"
        elif canary.best_ns[name] > factor * middle:
            yield f"{name} {canary.best_ns[name] / middle:.2f} x"


def _identity(plan: Plan, leg: Leg) -> Check:
    """The driver, its library and the devices are those of the plan before and after the leg."""
    looks = [None if look is None else look.identity for look in (leg.gpu_before, leg.gpu_after)]
    planned = plan.host.get("gpu") or looks[0]
    seen = " / ".join(dict.fromkeys(_shown(look) for look in looks))
    good = planned is not None and all(look == planned for look in looks)
    return Check("nvml-identity", leg.name, seen, _shown(planned), good)


def _shown(identity: Mapping[str, Any] | None) -> str:
    if identity is None:
        return "no NVML device"
    devices = ", ".join(f"{name} {uuid[:12]}" for uuid, name in identity.get("devices", ()))
    return f"driver {identity.get('driver_version')}, library {identity.get('library_version')}, {devices}"


def _throttle(leg: Leg) -> Check:
    need = f"{', '.join(HOT)}: not active, no time added"
    if leg.gpu_before is None or leg.gpu_after is None:
        return Check("throttle", leg.name, "no record", need, False)
    faults = list(_hot(leg.gpu_before, leg.gpu_after))
    return Check("throttle", leg.name, "; ".join(faults) or "none", need, not faults)


def _hot(before: GpuLook, after: GpuLook) -> Iterator[str]:
    earlier = {state.uuid: state for state in before.states}
    for state in after.states:
        first = earlier.get(state.uuid)
        if first is None:
            yield f"{state.uuid} was not there before"
            continue
        yield from (f"{state.uuid} {fault}" for fault in _board(first, state))
    if not after.states:
        yield "no board answers"


def _board(before: GpuState, after: GpuState) -> Iterator[str]:
    known = [name for name in HOT if before.counters_ns.get(name) is not None]
    if not any(name in known for name in HOT[:2]) and before.counters_ns.get(OLDER) is not None:
        known.append(OLDER)
    for name in known:
        first, last = before.counters_ns[name], after.counters_ns.get(name)
        assert first is not None
        if last is None:
            yield f"{name} is unknown after: {after.absent.get(name)}"
        elif last != first:  # a counter that fell belongs to a driver that was loaded anew
            yield f"{name} changed by {(last - first) / 1e6:.3f} ms"
    reasons = (before.reasons, after.reasons)
    yield from (f"{name} active" for name in HOT if any(name in found for found in reasons if found is not None))
    if not known and None in reasons:
        yield "neither counters nor reasons are known"


def _gpu_samples(leg: Leg) -> Check:
    alive = [sample for sample in leg.memory if sample.alive]
    unknown = [sample for sample in alive if sample.gpu_mib is None]
    first = f", first: {unknown[0].gpu_reason}" if unknown else ""
    seen = f"{len(unknown)} of {len(alive)} without a figure{first}"
    need = f"at most 1 of {UNKNOWN_ROWS} live samples without one"
    return Check("gpu-samples", leg.name, seen, need, len(unknown) * UNKNOWN_ROWS <= len(alive))


def _slices(plan: Plan) -> Iterator[Check]:
    """Arms that are given MIG slices get the same profiles, or one arm has more of the GPU than the other."""
    asked = [arm.env.get("CUDA_VISIBLE_DEVICES", "") for arm in (plan.candidate, plan.baseline)]
    if not any("MIG-" in text for text in asked):
        return
    known: dict[str, str] = dict((plan.host.get("gpu") or {}).get("devices", ()))
    profiles = [[known.get(item.strip(), f"unknown {item.strip()}") for item in text.split(",")] for text in asked]
    good = profiles[0] == profiles[1] and not any("unknown" in name for name in profiles[0])
    seen = " / ".join(", ".join(names) for names in profiles)
    yield Check("gpu-slice", "plan", seen, "known slices of one profile in both arms", good)
