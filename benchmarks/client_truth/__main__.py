"""`python -m benchmarks.client_truth`: both clients against the ground-truth server, in one run, results committed.

Server and client have a core each; on a shared machine, start this under `nice -n -15` as root. Each cell is measured
several times; the table shows the repetition during which other programs used least of the machine (chosen by that
alone, never by the result), the JSON file has all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.client_truth.clients import Client, OurClient, Series, VllmClient
from benchmarks.client_truth.truth import Cell, Errors, TruthServer, build, compare
from tests.oracle.vllm_bench_env import find, prepare

RESULTS = Path(__file__).resolve().parent.parent / "results"
WAVES = 2
QUIET_CORES = 0.1
# (streams, tokens/s, in step): targets in ms for the p99 of the TTFT and the gap error
TARGETS = {
    (16, 50, False): (0.25, 0.15),
    (64, 50, False): None,
    (256, 50, False): (1.0, 1.0),
    (256, 50, True): None,
}


@dataclass(frozen=True)
class Run:
    """One repetition of one cell by one client. `foreign_cpu` is how many cores other programs kept busy."""

    client: str
    cell: Cell
    errors: Errors
    cpu_s_per_1000_chunks: float
    foreign_cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=150, help="a stream's length")
    parser.add_argument("--patience", type=float, default=0, help="seconds in all to wait for a quiet machine")
    parser.add_argument("--vllm-env", type=Path, help="folder of the vLLM bench client; prepared there when it is not")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("server and client need a core each, and this process may use only one")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = find() or prepare(options.vllm_env or folder / "vllm-bench")
        clients: list[Client] = [OurClient(), VllmClient(bench)]
        program = build(folder)
        runs: list[Run] = []
        give_up = time.monotonic() + options.patience
        rounds: int = options.repeats
        for shape, client in [(shape, client) for shape in TARGETS for client in clients] * rounds:
            await_quiet(give_up)
            runs.append(measure(program, client, Cell(*shape, tokens=options.tokens), cores))
    write(runs, options)


def await_quiet(give_up: float) -> None:
    """Until the machine was idle for a second, or the patience is spent."""
    while time.monotonic() < give_up:
        busy = _busy_s()
        time.sleep(1)
        if _busy_s() - busy < QUIET_CORES:
            return


def measure(program: Path, client: Client, cell: Cell, cores: Sequence[int]) -> Run:
    requests = WAVES * cell.streams
    busy, own, began = _busy_s(), _own_s(), os.times().elapsed
    with TruthServer(program, cell, requests, cores[1]) as server:
        seen, cost = client.run(Series(server.port, requests, cell, program.parent, cores[0]))
    foreign = (_busy_s() - busy - (_own_s() - own)) / (os.times().elapsed - began)
    errors = compare(server.streams(), seen)
    chunks = (requests + cell.streams) * cell.tokens  # warm-ups cost the client as much as timed streams
    cpu = round(1000 * cost.cpu_s / chunks, 4)
    run = Run(client.name, cell, errors, cpu, round(max(0.0, foreign), 3))
    print(json.dumps(asdict(run)), flush=True)
    return run


def _busy_s() -> float:
    """CPU seconds that the whole machine has spent, stolen time included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def quietest(runs: Sequence[Run]) -> list[Run]:
    """Of each client and cell, the repetition during which other programs were least busy."""
    best: dict[tuple[Cell, str], Run] = {}
    for run in runs:
        key = (run.cell, run.client)
        if key not in best or run.foreign_cpu < best[key].foreign_cpu:
            best[key] = run
    return list(best.values())


def machine() -> dict[str, Any]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(": ")[2] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),  # inherited by server and clients alike
    }


def write(runs: Sequence[Run], options: argparse.Namespace) -> None:
    host = machine()
    document = {
        "machine": host,
        "repeats": options.repeats,
        "tokens": options.tokens,
        "waves": WAVES,
        "runs": [asdict(run) for run in runs],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "client_truth.json").write_text(json.dumps(document, indent=1) + "\n")
    (RESULTS / "client_truth.md").write_text(_markdown(runs, host, options))


def _markdown(runs: Sequence[Run], host: Mapping[str, Any], options: argparse.Namespace) -> str:
    lines = [
        "# Load clients against ground truth",
        "",
        f"{host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, Python {host['python']}. Server and client "
        f"pinned to a core each, both at nice {host['nice']}; {WAVES} waves of {options.tokens} tokens a stream after",
        "as many warm-ups as streams.",
        "Absolute errors in ms as p50 / p99 / max; `merged` are chunks within 20 µs of the one before in their stream;",
        f"`other programs` are the cores that they kept busy. Of {options.repeats} repetitions, the one during which",
        "those were fewest is shown; `client_truth.json` has all.",
        "",
        "| streams × tokens/s | client | TTFT error | gap error | merged | CPU s per 1,000 chunks | other programs "
        "| target (p99) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(run, runs) for run in quietest(runs)]
    return "\n".join(lines) + "\n"


def _row(run: Run, runs: Sequence[Run]) -> str:
    target = TARGETS[run.cell.streams, run.cell.rate, run.cell.lockstep]
    verdict = ""
    if target is not None and run.client == OurClient.name:
        same = [other for other in runs if (other.client, other.cell) == (run.client, run.cell)]
        met = [other.errors.ttft[1] <= target[0] and other.errors.gap[1] <= target[1] for other in same]
        verdict = f"{target[0]:g} / {target[1]:g}: met in {sum(met)} of {len(met)}"
    cells = [
        f"{run.cell.streams} × {run.cell.rate}{' in step' if run.cell.lockstep else ''}",
        run.client,
        " / ".join(f"{value:.3f}" for value in run.errors.ttft),
        " / ".join(f"{value:.3f}" for value in run.errors.gap),
        f"{100 * run.errors.merged_share:.2f} %",
        f"{run.cpu_s_per_1000_chunks:.3f}",
        f"{run.foreign_cpu:.2f}",
        verdict,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
