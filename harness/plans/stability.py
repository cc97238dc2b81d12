"""`plans stability`: tune several times, each in a fresh process; which keys come out differently, and at what cost.

A key's regret is what its chosen tactics lose to the fastest of them, by the times that the documents record (those of
winners and runners-up, the median over the tunings). Cold regret is what they lose to the fastest of all tactics, by
times measured apart, such as `benchmarks.gpu_check` leaves in gpu_cold.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import EXIT_FAIL, EXIT_PASS, UsageError
from harness.plans.loading import Shape, read_bytes
from harness.plans.rendering import aligned, emit, fields
from kernels.json_strict import loads_object

__all__ = ["Key", "Named", "Tuned", "compare", "read_cold", "read_tuned", "stability", "summary"]

Named = tuple[str, int]  # a runner and its own tactic id
Times = Mapping[Shape, Mapping[Named, float]]


@dataclass(frozen=True)
class Tuned:
    """One document: each key's tactic, and the microseconds it records by tactic."""

    plans: Mapping[Shape, Named]
    times: Times


@dataclass(frozen=True)
class Key:
    """One key over all tunings: the tactics in the order of the tunings. A regret is a fraction, None where unknown."""

    shape: Shape
    tactics: tuple[Named, ...]
    regret: float | None
    cold_regret: float | None

    @property
    def stable(self) -> bool:
        return len(set(self.tactics)) == 1


def stability(options: argparse.Namespace) -> int:
    """Exit 0 where every tuning chose the same tactics, 1 where a key differs."""
    cold = {} if options.cold is None else read_cold(options.cold)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) if options.keep is None else options.keep
        kept.mkdir(parents=True, exist_ok=True)
        paths = [kept / f"tuning-{number}.json" for number in range(1, options.tunings + 1)]
        runs = [_tune(options, path, number, len(paths)) for number, path in enumerate(paths, start=1)]
        keys = compare([read_tuned(path) for path in paths], cold)
    unstable = [key for key in keys if not key.stable]
    document = {
        "backend": options.backend,
        "cold_regret": summary([key.cold_regret for key in keys]),
        "device": runs[0]["device"],
        "keys": len(keys),
        "maps": [run["map_sha256"] for run in runs],
        "regret": summary([key.regret for key in keys]),
        "seconds": [run["seconds"] for run in runs],
        "tunings": len(runs),
        "unstable": [_row(key) for key in unstable],
    }
    emit(options, document, _lines(document, unstable))
    return EXIT_FAIL if unstable else EXIT_PASS


def compare(tunings: Sequence[Tuned], cold: Times) -> list[Key]:
    """Every key of the tunings, in (M, N, K) order. UsageError `other-keys` when they did not tune the same ones."""
    shapes = sorted(tunings[0].plans)
    if any(sorted(one.plans) != shapes for one in tunings):
        raise UsageError("other-keys", "the tunings have different keys; tune the same shapes each time")
    return [_key(shape, tunings, cold.get(shape, {})) for shape in shapes]


def _key(shape: Shape, tunings: Sequence[Tuned], cold: Mapping[Named, float]) -> Key:
    tactics = tuple(one.plans[shape] for one in tunings)
    recorded = defaultdict(list)
    for one in tunings:
        for tactic, time in one.times.get(shape, {}).items():
            recorded[tactic].append(time)
    chosen = {tactic: statistics.median(recorded[tactic]) for tactic in set(tactics) if recorded[tactic]}
    return Key(shape, tactics, _regret(set(tactics), chosen), _regret(set(tactics), cold))


def _regret(chosen: set[Named], times: Mapping[Named, float]) -> float | None:
    """How much the slowest of `chosen` loses to the fastest there is a time of; None when one of them has none."""
    if not chosen <= times.keys():
        return None
    return max(times[tactic] for tactic in chosen) / min(times.values()) - 1


def summary(regrets: Sequence[float | None]) -> dict[str, Any]:
    """Mean, 95th percentile (nearest rank) and maximum over the keys whose regret is known; None, with the reason,
    where it is of none."""
    known = sorted(regret for regret in regrets if regret is not None)
    if not known:
        return {"known": 0, "max": None, "mean": None, "p95": None, "reason": "no times are recorded"}
    rank = math.ceil(0.95 * len(known)) - 1
    return {"known": len(known), "max": known[-1], "mean": statistics.mean(known), "p95": known[rank], "reason": None}


def read_tuned(path: Path) -> Tuned:
    """A native document's plans and the times in its further fields. KernelError where it is no such document."""
    plans: dict[Shape, Named] = {}
    times: dict[Shape, dict[Named, float]] = {}
    for plan in loads_object(read_bytes(path), str(path))["plans"]:
        shape = (plan["m_bucket"], plan["n"], plan["k"])
        winner = plans[shape] = (plan["runner"], plan["tactic_id"])
        if "time_us" not in plan:
            continue
        times[shape] = {winner: plan["time_us"]}
        if "runner_up" in plan:
            second = plan["runner_up"], plan["runner_up_tactic_id"]
            times[shape][second] = plan["time_us"] * (1 + plan["runner_up_margin"])
    return Tuned(plans, times)


def read_cold(path: Path) -> Times:
    """Times by key out of a JSON object `"M N K runner tactic": microseconds`. UsageError `bad-times`."""
    found: dict[Shape, dict[Named, float]] = defaultdict(dict)
    try:
        for name, time in loads_object(read_bytes(path), str(path)).items():
            m, n, k, runner, tactic = name.split(" ")
            found[int(m), int(n), int(k)][runner, int(tactic)] = float(time)
    except (TypeError, ValueError) as error:
        wanted = '"M N K runner tactic": microseconds'
        raise UsageError("bad-times", f"{path}: {error}; entries must read {wanted}") from error
    return found


def _tune(options: argparse.Namespace, path: Path, number: int, count: int) -> dict[str, Any]:
    """One tuning in a fresh process, from nothing; what it says of itself."""
    path.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "kernels.tune", str(path), "--backend", options.backend]
    argv += ["--max-tokens", str(options.max_tokens)]
    for n, k in options.shape or ():
        argv += ["--shape", f"{n},{k}"]
    print(f"tuning {number} of {count}", file=sys.stderr, flush=True)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode or not path.is_file():
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError("tuning-failed", f"tuning {number} ended with {done.returncode}: {said}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _row(key: Key) -> dict[str, Any]:
    m, n, k = key.shape
    tactics = [{"runner": runner, "tactic": tactic} for runner, tactic in key.tactics]
    return {"cold_regret": key.cold_regret, "k": k, "m": m, "n": n, "regret": key.regret, "tactics": tactics}


def _lines(document: Mapping[str, Any], unstable: Sequence[Key]) -> list[str]:
    head = [
        ("device", document["device"]),
        ("tunings", document["tunings"]),
        ("keys", f"{document['keys']}, {len(unstable)} of them unstable"),
        ("regret", _sentence(document["regret"])),
        ("cold regret", _sentence(document["cold_regret"])),
    ]
    if not unstable:
        return fields(head)
    runners = {runner for key in unstable for runner, _ in key.tactics}
    rows = [
        (*key.shape, _named(key, len(runners) > 1), _percent(key.regret), _percent(key.cold_regret)) for key in unstable
    ]
    return [*fields(head), "", *aligned(("M", "N", "K", "tactics", "regret", "cold"), rows, left=(3,))]


def _named(key: Key, several: bool) -> str:
    return " ".join(f"{runner}:{tactic}" if several else str(tactic) for runner, tactic in key.tactics)


def _sentence(regret: Mapping[str, Any]) -> str:
    if not regret["known"]:
        return f"unknown: {regret['reason']}"
    mean, p95, most = (_percent(regret[name]) for name in ("mean", "p95", "max"))
    return f"mean {mean}, 95th percentile {p95}, largest {most} over {regret['known']} keys"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
