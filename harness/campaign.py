"""From a checked configuration to the frozen plan of a run. Pure; what it needs to know of the world is passed in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness import __version__
from harness.config import ArmConfig, Config
from harness.plan import Arm, LegPlan, NotApplicable, Plan, leg_order

__all__ = ["difference", "legs", "plan", "shown"]

SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)
NEEDS = {
    "fp4_plans": ("plan control", "the engine keeps no FP4 plans"),
    "arm_counters": ("arm activation proof", "the engine gives no counter that tells its arms apart"),
    "model_gate": ("model gate", "the engine has no correctness program of its own"),
    "sequential_proof": ("sequential same-shape proof", "completions of the arms cannot be compared token for token"),
}


ELSEWHERE = (
    ("memory axes", "null: the server is not this run's own, so there is no process to sample"),
    ("fresh server a leg, page-cache drops, memory return", "the server runs before the run and after it"),
)


def plan(
    config: Config,
    *,
    subject: Mapping[str, Any],
    capabilities: Sequence[str],
    host: Mapping[str, Any],
    gpu: bool,
    corpus: Mapping[str, str],
    frozen_plan_sha256: str | None,
    aa: Mapping[str, Any] | None = None,
    suites: Sequence[Sequence[str]] = (),
    not_tested: Mapping[str, str] | None = None,
    structure: Mapping[str, Any] | None = None,
    traces: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """The plan of one campaign. `gpu` says whether an NVML device exists; `corpus` maps partitions to digests.

    `aa` makes it a campaign of an A/A floor: its number, and the pairs (concurrency, repetition) to measure. `suites`
    are kind and name of the engine's own commands in G1 and G2, `not_tested` is what these leave out, with reasons.
    `structure` is what the engine's adapter says of it for G3, `traces` are those that were given, by arm.
    """
    missing = [NotApplicable(*item) for item in sorted((not_tested or {}).items())]
    demands = _structure(config, structure or {}, traces or {}) if config.gate.name == "g3" else None
    if config.gate.name == "g1":
        planned = [LegPlan(f"{number:02d}-{name}", kind, "B") for number, (kind, name) in enumerate(suites)]
        absent = missing
    else:
        planned = legs(config, capabilities, None if aa is None else aa["pairs"])
        own = [LegPlan(f"{len(planned) + number:02d}-{name}", kind, "A") for number, (kind, name) in enumerate(suites)]
        planned += own
        absent = [*_not_applicable(config, capabilities, gpu), *missing]
    if demands is not None:
        absent = _not_structural(capabilities, demands)
    return Plan(
        gate=config.gate.name,
        concurrencies=tuple(config.gate.concurrencies),
        repetitions=config.gate.repetitions,
        stacked=config.gate.stacked,
        workload=_text_keys(asdict(config.workload)),
        client=asdict(config.client),
        rule=asdict(config.rule),
        engine=config.engine.name,
        options=dict(config.engine.options),
        candidate=_arm(config.engine.candidate),
        baseline=_arm(config.engine.baseline),
        subject=dict(subject),
        capabilities=tuple(sorted(capabilities)),
        host={**host, "name": config.host.name, "canary_factor": config.host.canary_factor},
        gpu=gpu and "gpu" in capabilities,
        corpus=dict(corpus),
        frozen_plan_sha256=frozen_plan_sha256,
        difference=tuple(difference(config.engine.candidate, config.engine.baseline)),
        legs=tuple(planned),
        not_applicable=tuple(absent),
        harness=__version__,
        aa=aa,
        structure=demands,
        unprofiled=True if config.gate.name in ("g4", "g5") else None,
    )


def _structure(config: Config, told: Mapping[str, Any], traces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What G3 will demand: the adapter's word, the size of the load, the families to be counted, the traces."""
    return {
        "counters": {},
        **told,
        "families": [dict(family) for family in config.gate.families or told.get("families", ())],
        "requests": config.gate.sequential_requests,
        "traces": {arm: dict(named) for arm, named in sorted(traces.items())},
    }


def _text_keys(value: Any) -> Any:
    """Canonical JSON has text keys only: {2: 6} becomes {"2": 6}."""
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return value


def _arm(arm: ArmConfig) -> Arm:
    """An arm as recorded: values of variables whose name says that they are secret are never stored."""
    return Arm(dict(arm.flags), {name: shown(name, value) for name, value in arm.env.items()})


def shown(name: str, value: object) -> str:
    return "<secret>" if SECRET.search(name) else str(value)


def difference(candidate: ArmConfig, baseline: ArmConfig) -> list[str]:
    """What the arms differ in, one line a lever, computed from the configuration rather than believed."""
    lines = []
    for what, one, two in (("flag", candidate.flags, baseline.flags), ("env", candidate.env, baseline.env)):
        for name in sorted(one.keys() | two.keys()):
            first, second = one.get(name), two.get(name)
            if first != second:
                lines.append(f"{what} {name}: {_side(name, first)} against {_side(name, second)}")
    return lines


def _side(name: str, value: object) -> str:
    return "unset" if value is None else shown(name, value)


def legs(config: Config, capabilities: Sequence[str], pairs: Sequence[Sequence[int]] | None = None) -> list[LegPlan]:
    """Every server process of the run in order: seed, model gates, sequential proofs, then the timed series.

    `pairs` leaves all other (concurrency, repetition) of the series out.
    """
    found: list[tuple[str, str, str, int | None, int | None]] = []
    if "fp4_plans" in capabilities and config.engine.plan is None:
        found.append(("seed-plans", "seed", "B", None, None))
    if "model_gate" in capabilities and config.gate.model_gate:
        found += [(f"model-gate-{arm}", "model-gate", arm, None, None) for arm in "AB"]
    if "sequential_proof" in capabilities and config.gate.sequential_requests:
        found += [(f"sequential-{arm}", "sequential", arm, 1, 1) for arm in "AB"]
    if config.gate.name == "g2":
        if "sequential_proof" in capabilities and config.gate.sequential_requests:
            found += [(f"concurrent-{arm}", "concurrent", arm, config.gate.sequential_requests, 1) for arm in "AB"]
            if config.engine.second:
                found += [(f"second-model-{arm}", "inertness", arm, 1, 1) for arm in "AB"]
        count = config.gate.replays if "fp4_plans" in capabilities else 0
        found += [(f"replay-{number + 1}", "replay", "AB"[number % 2], None, None) for number in range(count)]
        return [LegPlan(f"{number:02d}-{leg[0]}", *leg[1:]) for number, leg in enumerate(found)]
    if config.gate.name == "g3":
        found = [leg for leg in found if leg[1] == "seed"]
        points = (1, config.gate.sequential_requests)
        found += [(f"structure-c{point}-{arm}", "structure", arm, point, 1) for point in points for arm in "AB"]
        return [LegPlan(f"{number:02d}-{leg[0]}", *leg[1:]) for number, leg in enumerate(found)]
    for concurrency, arm, repetition in _series(config):
        if pairs is None or [concurrency, repetition] in [list(pair) for pair in pairs]:
            found.append((f"c{concurrency}-{arm}-r{repetition}", "timed", arm, concurrency, repetition))
    return [LegPlan(f"{number:02d}-{leg[0]}", *leg[1:]) for number, leg in enumerate(found)]


def _series(config: Config) -> list[tuple[int, str, int]]:
    """(concurrency, arm, repetition) in running order: G4 ends one concurrency before the next, G5 one repetition."""
    order, points = leg_order(config.rule.order, config.gate.repetitions), config.gate.concurrencies
    if config.gate.name != "g5":
        return [(point, arm, repetition) for point in points for arm, repetition in order]
    pairs = [order[start : start + 2] for start in range(0, len(order), 2)]
    return [(point, arm, repetition) for pair in pairs for point in points for arm, repetition in pair]


def _not_structural(capabilities: Sequence[str], demands: Mapping[str, Any]) -> list[NotApplicable]:
    """What G3 leaves out: what the engine does not count, and a trace of its kernels where none was given."""
    found = [NotApplicable(*NEEDS[need]) for need in ("fp4_plans", "arm_counters") if need not in capabilities]
    counters = demands["counters"]
    if "gemms" not in counters:
        found.append(NotApplicable("GEMMs a forward, as counted", "the engine does not count its GEMMs and forwards"))
    if "parses" not in counters and "fp4_plans" in capabilities:
        found.append(NotApplicable("plan documents parsed", "the engine does not count them"))
    lacking = [arm for arm in "AB" if arm not in demands["traces"]]
    if "gpu" not in capabilities:
        reason = "the engine computes on the CPU, where no kernel is launched and so none can be traced"
        found += [NotApplicable("kernel trace", reason)] if lacking else []
    elif lacking:
        arms = " and ".join({"A": "candidate", "B": "baseline"}[arm] for arm in lacking)
        found.append(NotApplicable("kernel trace", f"none was given for the {arms} (gate.traces)"))
    return found


def _not_applicable(config: Config, capabilities: Sequence[str], gpu: bool) -> list[NotApplicable]:
    found = [NotApplicable(*text) for need, text in NEEDS.items() if need not in capabilities]
    if "model_gate" in capabilities and not config.gate.model_gate:
        found.append(NotApplicable("model gate", "switched off by gate.model_gate=false"))
    if "sequential_proof" in capabilities and not config.gate.sequential_requests:
        found.append(NotApplicable("sequential same-shape proof", "switched off by gate.sequential_requests=0"))
    if "external" in capabilities:
        found += [NotApplicable(*text) for text in ELSEWHERE]
    if config.client.name == "vllm_bench":
        found.append(NotApplicable("client lag", "the vLLM client does not measure how late its loop is"))
    if config.gate.name == "g2":
        return found
    if not gpu or "gpu" not in capabilities:
        reason = "the engine does not compute on the GPU" if gpu else "no NVML device on this host"
        found.append(NotApplicable("peak GPU memory", reason))
    return found
