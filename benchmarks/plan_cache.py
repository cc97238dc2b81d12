"""The plan cache against the real FlashInfer 0.6.13 autotuner, in one process: hits, and loading a document.

`NVFP4_GATES_FLASHINFER=FOLDER python -m benchmarks.plan_cache` (the folder: `python -m tests.oracle.flashinfer_env`)
writes results/plan_cache.{json,md}. Without the variable only our side is measured. The loop's own cost is subtracted
from each hit; calls and their arguments are made beforehand; contenders take turns; medians of the rounds are given.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.buckets import hybrid_m_bucket, tuning_buckets
from kernels.plans import document, flashinfer, oracle
from kernels.plans.cache import PlanCache
from kernels.plans.flashinfer import GB10_ORACLE, OPERATION, export_flashinfer
from kernels.plans.metadata import Metadata
from kernels.plans.settings import Settings
from kernels.tactics import CUTLASS_TACTICS
from kernels.warmup import PlanRuntime

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
VARIABLE = "NVFP4_GATES_FLASHINFER"
SIZES = (64, 100_000)
CALLS, ROUNDS = 20_000, 9
METADATA = Metadata(
    architecture=121,
    build_id="b" * 64,
    cuda_driver="13000",
    cuda_runtime="13000",
    cutlass_version="4.5.0",
    delay_microseconds=5000,
    device_ordinal=0,
    gpu="NVIDIA GB10",
    tactic_descriptor_digest=CUTLASS_TACTICS.digest,
    tactic_set_version=2,
)
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """Plans of every bucket up to 2,048 rows for `plans` / 16 columns, and the calls that ask for them."""

    plans: dict[Shape, int]
    calls: dict[str, list[Shape]]


def case(size: int) -> Case:
    buckets = tuning_buckets(2048)
    columns = [(128 * (1 + index % 79), 16 * (1 + index // 79)) for index in range(size // len(buckets))]
    if size == 64:
        columns = sorted({(n, k) for _, n, k in oracle.plans()})
    plans = {(m, n, k): (i + j) % 32 for i, m in enumerate(buckets) for j, (n, k) in enumerate(columns)}
    draw = random.Random(1)
    mixed = [(draw.randint(1, 2048), *draw.choice(columns)) for _ in range(CALLS)]
    return Case(plans, {"one key": [mixed[0]] * CALLS, "random keys": mixed})


def hit_us(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
    """Microseconds a call; `arguments` are unpacked in the loop, which the empty loop does, too."""
    clock = time.perf_counter
    begin = clock()
    for a, b, c, d in arguments:  # noqa: B007
        pass
    middle = clock()
    for a, b, c, d in arguments:
        call(a, b, c, d)
    return (clock() - middle - (middle - begin)) / len(arguments) * 1e6


class Ours:
    def __init__(self, plans: dict[Shape, int]) -> None:
        settings = Settings(persistent_cache=False)
        self.runtime = PlanRuntime(settings, METADATA, CUTLASS_TACTICS, lambda key: 0, print, env={})
        self.runtime.cache.install({self.runtime.key(*shape): tactic for shape, tactic in plans.items()})

    def arguments(self, calls: list[Shape]) -> list[tuple[Any, ...]]:
        return [(0, *shape) for shape in calls]


class Theirs:
    """The real autotuner. `memory` has the plans as tunings of its own process, its faster case; `file` as loaded."""

    def __init__(self, upstream: Any, plans: dict[Shape, int]) -> None:
        self._upstream = upstream
        self._runner = upstream.runner()
        self.memory = upstream.fresh(GB10_ORACLE.stated())
        self._sizes = {shape: tuple(self.memory._get_input_sizes(upstream.inputs(*shape))) for shape in plans}
        for shape, tactic in plans.items():
            key = self.memory._get_cache_key(OPERATION, self._runner, self._sizes[shape], upstream.config)
            self.memory.profiling_cache[key] = (0, tactic, None)
        self.file = upstream.fresh(GB10_ORACLE.stated())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plans.json"
            path.write_bytes(flashinfer_document(plans))
            self.load_s = seconds(lambda: self.file.load_configs(str(path)))

    def arguments(self, calls: list[Shape]) -> list[tuple[Any, ...]]:
        """Sizes of the bucket's own rows: FlashInfer's cheapest question, since it has seen exactly these before."""
        runners = [self._runner]
        sizes = [self._sizes[hybrid_m_bucket(m), n, k] for m, n, k in calls]
        return [(OPERATION, runners, item, self._upstream.config) for item in sizes]

    def check(self, tuner: Any, arguments: tuple[Any, ...], tactic: int) -> None:
        found = tuner.search_cache(*arguments)
        if found[0] is not True or found[2] != tactic:
            raise SystemExit(f"FlashInfer did not find tactic {tactic}: {found}")


def flashinfer_document(plans: dict[Shape, int]) -> bytes:
    return export_flashinfer(plans, GB10_ORACLE, GB10_ORACLE.flashinfer_version)


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def hits(data: Case, theirs: Theirs | None) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    ours = Ours(data.plans)
    for kind, calls in data.calls.items():
        own = ours.arguments(calls)
        contenders = {"lookup": (ours.runtime.lookup, own)}
        if theirs:
            asked = theirs.arguments(calls)
            tactic = data.plans[hybrid_m_bucket(calls[0][0]), calls[0][1], calls[0][2]]
            for name, tuner in (("FlashInfer memory", theirs.memory), ("FlashInfer file", theirs.file)):
                theirs.check(tuner, asked[0], tactic)
                contenders[name] = (tuner.search_cache, asked)
        rounds = [{name: hit_us(*contender) for name, contender in contenders.items()} for _ in range(ROUNDS)]
        found[kind] = {name: statistics.median(item[name] for item in rounds) for name in contenders}
    return found


def loads(plans: dict[Shape, int]) -> dict[str, float]:
    native = document.serialise(
        METADATA, CUTLASS_TACTICS, {document.key_for(METADATA, *shape): tactic for shape, tactic in plans.items()}
    )
    foreign = flashinfer_document(plans)
    works: dict[str, Callable[[], Any]] = {
        "json.loads, native": lambda: json.loads(native),
        "native": lambda: PlanCache().install(document.parse(native, METADATA, CUTLASS_TACTICS, "native")),
        "json.loads, FlashInfer's": lambda: json.loads(foreign),
        "FlashInfer's": lambda: flashinfer.parse(foreign, GB10_ORACLE, "foreign"),
    }
    rounds = 200 if len(plans) == 64 else 3
    return {name: statistics.median(seconds(work) for _ in range(rounds)) for name, work in works.items()}


def upstream() -> Any:
    """The real autotuner, loaded into this process; None where its sources are not prepared."""
    if not os.environ.get(VARIABLE):
        return None
    sys.path.insert(0, str(ROOT / "tests" / "oracle"))
    from tests.oracle import flashinfer_env, real_flashinfer

    sources = flashinfer_env.find()
    return None if sources is None else real_flashinfer.load(sources.flashinfer(flashinfer_env.FIRST), real_torch=False)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return f"{model[0] if model else platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def table(found: dict[str, Any]) -> str:
    lines = ["# The plan cache", "", f"{found['machine']}. Load average before: {found['load_average']:.2f}.", ""]
    lines += ["A hit from four integers (device, M, N, K), microseconds, the loop subtracted, median of 9 rounds of"]
    lines += ["20,000 calls. FlashInfer is asked with sizes made beforehand.", ""]
    lines += ["| plans | keys | ours | FlashInfer, own tunings | FlashInfer, loaded file | ratio (own tunings) |"]
    lines += ["|---|---|---|---|---|---|"]
    for size, kinds in found["hit_us"].items():
        for kind, item in kinds.items():
            memory, file = item.get("FlashInfer memory"), item.get("FlashInfer file")
            ratio = f"{memory / item['lookup']:.1f}" if memory else ""
            lines += [f"| {size} | {kind} | {item['lookup']:.3f} | {shown(memory)} | {shown(file)} | {ratio} |"]
    lines += ["", "Loading and validating, milliseconds; the budget is twice `json.loads` and 10 us an entry.", ""]
    lines += ["| plans | document | ours | json.loads | budget | FlashInfer 0.6.13 |", "|---|---|---|---|---|---|"]
    for size, item in found["load_s"].items():
        for name in ("native", "FlashInfer's"):
            plain, theirs = item[f"json.loads, {name}"], item.get(f"{name}, by FlashInfer")
            budget = 2 * plain + int(size) * 10e-6
            cells = (f"{1e3 * value:.2f}" for value in (item[name], plain, budget))
            lines += [f"| {size} | {name} | {' | '.join(cells)} | {shown(theirs and 1e3 * theirs)} |"]
    return "\n".join([*lines, ""])


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> int:
    load = os.getloadavg()[0]
    real = upstream()
    found: dict[str, Any] = {"machine": machine(), "load_average": load, "hit_us": {}, "load_s": {}}
    for size in SIZES:
        data = case(size)
        # Loads first: the collector walks FlashInfer's million objects at every turn.
        loaded = loads(data.plans)
        theirs = Theirs(real, data.plans) if real else None
        if theirs:
            loaded["FlashInfer's, by FlashInfer"] = theirs.load_s
        found["load_s"][str(size)] = loaded
        found["hit_us"][str(size)] = hits(data, theirs)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "plan_cache.json").write_text(json.dumps(found, indent=2) + "\n")
    (RESULTS / "plan_cache.md").write_text(table(found))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
