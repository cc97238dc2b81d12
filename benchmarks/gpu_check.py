"""The whole GPU check: `python -m benchmarks.gpu_check [--steps …] [--out DIR]`, with libraries built beforehand.

Steps: correct (fresh inputs), edges (compute-sanitizer), engine (the small model's tokens against the CPU's), plans
(tune, then six fresh frozen processes), table (every tactic L2-cold, regret of the tuned plans, cuBLAS where PyTorch
is), stability (`plans stability`, three tunings), host (cost of a dispatched GEMM), g4 (the reference engine on the GPU
at the seed's workload). A step that fails is named and the others go on; exit 1 then. Writes gpu_check.json and
gpu_check.md into DIR after every step, with what earlier calls on the same GPU left there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_correct import SHAPES, check_all
from benchmarks.gpu_table import cold_times, cublas_times, floor_us
from kernels.backends.cpu import random_operand
from kernels.backends.cuda import CudaBackend
from kernels.buckets import tuning_buckets
from kernels.cuda.device import find_device
from kernels.tune import open_runtime

STEPS = ("correct", "edges", "engine", "plans", "table", "stability", "host", "g4")
RESULTS = Path(__file__).resolve().parent / "results"
ROWS = tuning_buckets(2048)
REPLAYS, TUNINGS = 6, 3
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_HOST_CALLS = 2000


class Check:
    """The steps over one output folder; each answers what goes into the result."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._cold = out / "gpu_cold.json"  # "M N K runner tactic" to microseconds

    def correct(self) -> dict[str, Any]:
        seed = time.time_ns() % 2**32
        report = check_all(CudaBackend(), seed)
        _require(not report.failed, f"{len(report.failed)} checks failed, such as {report.failed[:5]}")
        return {"checked": report.checked, "seed": seed, "worst_relative_error": report.worst_error}

    def edges(self) -> dict[str, Any]:
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        found = {}
        for name in TOOLS:
            argv = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, "-m", "benchmarks.gpu_edges"]
            done = subprocess.run([*argv, "--some"], capture_output=True, text=True, check=False, timeout=300)
            _progress(f"{name}: status {done.returncode}")
            lines = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
            found[name] = f"status {done.returncode}: {' '.join(lines) or (done.stdout + done.stderr)[-300:]}"
        bad = {name: said for name, said in found.items() if not said.startswith("status 0")}
        _require(not bad, f"compute-sanitizer: {bad}")
        return found

    def engine(self) -> dict[str, Any]:
        argv = [sys.executable, "-m", "benchmarks.gpu_engine"]
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # the CPU backend demands it before NumPy is imported
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        _require(done.returncode == 0, done.stderr[-1500:])
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        _require(found["equal"] == found["prompts"], f"tokens differ from the CPU's: {found}")
        _require(found["graph_launches"] > 0, f"no decode step was a graph: {found}")
        return found

    def plans(self) -> dict[str, Any]:
        document = self.out / "gpu_plans.json"
        document.unlink(missing_ok=True)
        tuned = _process(document)
        _progress(f"tuned: {tuned}")
        replays = [_process(document, "--replay") for _ in range(REPLAYS)]
        maps = {replay["map_sha256"] for replay in replays}
        _require(maps == {tuned["map_sha256"]}, f"fresh processes have {len(maps)} maps")
        _require(not any(replay["tuned"] for replay in replays), "a frozen process tuned")
        return {"tuning": tuned, "replays": replays}

    def table(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        cold: dict[str, float] = {}
        backend = CudaBackend()
        chosen = _selected(self.out / "gpu_plans.json", backend)
        for n, k in SHAPES:
            peers = cublas_times(n, k, ROWS)
            times: dict[int, dict[int, float]] = {m: {} for m in ROWS}
            for m, tactic, microseconds in cold_times(backend, n, k, ROWS):
                if microseconds is not None:
                    times[m][tactic] = microseconds
                    runner, own = backend.tactics.named(tactic)
                    cold[f"{m} {n} {k} {runner} {own}"] = round(microseconds, 3)
            rows += [_row((m, n, k), times[m], chosen.get((m, n, k)), peers) for m in ROWS]
            self._cold.write_text(json.dumps(cold, indent=0, sort_keys=True) + "\n")
            _progress(f"{n}x{k} timed")
        regrets = [row["regret"] for row in rows if row["regret"] is not None]
        summary = (
            {"mean": statistics.mean(regrets), "p95": sorted(regrets)[int(len(regrets) * 0.95)]} if regrets else None
        )
        return {"regret_of_l2_warm_tuning": summary, "rows": rows}

    def stability(self) -> dict[str, Any]:
        argv = [sys.executable, "-m", "harness", "plans", "stability", "--json", "--backend", "cuda"]
        argv += ["--tunings", str(TUNINGS)]
        if self._cold.is_file():
            argv += ["--cold", str(self._cold)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
        _require(done.returncode in (0, 1), f"plans stability ended with {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def host(self) -> dict[str, Any]:
        runtime, backend = open_runtime("cuda", self.out / "gpu_plans.json", read_only=True)
        assert isinstance(backend, CudaBackend)
        found = {}
        for n, k in SHAPES:
            weight, a = backend.prepare(random_operand(1, n, k)), backend.activation(random_operand(2, 1, k))
            out = backend.xp.empty((1, n), dtype="uint16")
            alpha, address = backend.alpha(a, weight), out.data.ptr
            best = []
            backend.launch(runtime.tactic(1, n, k), a, weight, address, alpha)  # reserves its workspace
            for _ in range(5):
                backend.stream.synchronize()
                # few enough that the queue of launches never fills, which would time the GPU
                begun = time.perf_counter()
                for _ in range(_HOST_CALLS // 10):
                    backend.launch(runtime.tactic(1, n, k), a, weight, address, alpha)
                best.append((time.perf_counter() - begun) / (_HOST_CALLS // 10) * 1e6)
                backend.stream.synchronize()
            found[f"{n}x{k}"] = {"us": statistics.median(best), "tactic": runtime.tactic(1, n, k)}
        return found

    def g4(self) -> dict[str, Any]:
        root = self.out / "evidence"
        overrides = ["gate=g4", "engine=reference", "engine.options.backend=cuda", f"evidence.root={root}"]
        begun = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "harness", "run", *overrides], check=False)
        bundle = max(root.glob("g4-*"), key=lambda path: path.stat().st_mtime)
        verified = subprocess.run([sys.executable, "-m", "harness", "verify", str(bundle)], check=False)
        _require(done.returncode in (0, 1), f"the run ended with {done.returncode}")
        _require(
            verified.returncode == done.returncode, f"verify says {verified.returncode}, the run {done.returncode}"
        )
        return {"bundle": bundle.name, "seconds": round(time.monotonic() - begun), "status": done.returncode}


def _progress(text: str) -> None:
    print(f"  {text}", flush=True)


def _require(fact: bool, otherwise: str) -> None:
    if not fact:
        raise RuntimeError(otherwise)


def _process(document: Path, *options: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "kernels.tune", str(document), "--backend", "cuda", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    _require(done.returncode == 0, f"{' '.join(argv[2:])}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _selected(document: Path, backend: CudaBackend) -> dict[tuple[int, int, int], int]:
    """The plans of a document, by (M, N, K), as ids of the backend's tactic set."""
    if not document.is_file():
        return {}
    plans = json.loads(document.read_text())["plans"]
    found = {}
    for plan in plans:
        tactic = backend.tactics.find(plan["runner"], plan["tactic_id"])
        if tactic is not None:
            found[plan["m_bucket"], plan["n"], plan["k"]] = tactic
    return found


def _row(
    shape: tuple[int, int, int], times: dict[int, float], chosen: int | None, peers: dict[int, float] | None
) -> dict[str, Any]:
    m, n, k = shape
    best = min(times, key=lambda tactic: times[tactic])
    floor = floor_us(m, n, k)
    return {
        "best_tactic": best,
        "best_us": times[best],
        "cublas_bf16_us": None if peers is None else peers[m],
        "floor_us": floor,
        "k": k,
        "m": m,
        "n": n,
        "over_floor": times[best] / floor,
        "plan": chosen,
        "regret": times[chosen] / times[best] - 1 if chosen in times else None,
        "worst_us": max(times.values()),
    }


def _markdown(gpu: str, result: dict[str, Any]) -> str:
    lines = [f"# {gpu}: GPU check", "", "| step | outcome |", "|---|---|"]
    lines += [f"| {name} | {entry.get('failed') or 'passed'}, {entry['seconds']} s |" for name, entry in result.items()]
    rows = result.get("table", {}).get("result", {}).get("rows", [])
    if rows:
        lines += ["", "Microseconds, L2-cold, median of nine graph replays.", ""]
        lines += [
            "| N x K | M | floor | best (tactic) | / floor | cuBLAS bf16 | plan | regret |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for row in rows:
        peer = "-" if row["cublas_bf16_us"] is None else f"{row['cublas_bf16_us']:.1f}"
        regret = "-" if row["regret"] is None else f"{100 * row['regret']:.2f} %"
        best = f"{row['best_us']:.1f} ({row['best_tactic']})"
        cells = (f"{row['n']}x{row['k']}", row["m"], f"{row['floor_us']:.1f}", best, f"{row['over_floor']:.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} | {peer} | {row['plan']} | {regret} |")
    return "\n".join(lines) + "\n"


def _step(check: Check, name: str) -> dict[str, Any]:
    begun = time.monotonic()
    step: Callable[[], dict[str, Any]] = getattr(check, name)
    entry: dict[str, Any]
    try:
        entry = {"result": step()}
    except Exception as error:  # the other steps still tell something
        traceback.print_exc()
        entry = {"failed": f"{type(error).__name__}: {error}"[:2000]}
    return {**entry, "seconds": round(time.monotonic() - begun, 1)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"of {', '.join(STEPS)}")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # one step, in this process
    options = parser.parse_args(argv)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.here:
        (out / f"step_{options.steps}.json").write_text(json.dumps(_step(Check(out), options.steps)))
        return 0
    gpu = find_device().name
    result = _earlier(out / "gpu_check.json", gpu)
    asked = options.steps.split(",")
    for name in asked:
        # A process a step: none of them finds another's memory, and G4 wants an idle GPU.
        subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_check", "--here", "--steps", name, "--out", str(out)], check=False
        )
        written = out / f"step_{name}.json"
        missing = {"failed": "its process died", "seconds": 0}
        result[name] = json.loads(written.read_text()) if written.is_file() else missing
        written.unlink(missing_ok=True)
        print(f"{name}: {result[name].get('failed', 'passed')} in {result[name]['seconds']} s", flush=True)
        whole = {"gpu": gpu, "steps": result}
        (out / "gpu_check.json").write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
        (out / "gpu_check.md").write_text(_markdown(gpu, result))
    return 1 if any("failed" in result[name] for name in asked) else 0


def _earlier(path: Path, gpu: str) -> dict[str, Any]:
    """The steps that an earlier call left, if it was on this kind of GPU."""
    if not path.is_file():
        return {}
    whole = json.loads(path.read_text())
    steps: dict[str, Any] = whole["steps"] if whole["gpu"] == gpu else {}
    return steps


if __name__ == "__main__":
    sys.exit(main())
