"""Our client and the real `vllm bench serve` on one real vLLM server. Opt-in: NVFP4_GATES_VLLM_CACHE names a cache
folder that holds its environment (`python -m harness prepare engine=vllm_cpu host.cache_dir=FOLDER`).
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from harness import corpus_text, ports, readiness
from harness.client.metrics import timing_axes
from harness.engines.vllm import Vllm
from harness.process import clean_environment
from harness.records import LoadReport, RequestRecord

VARIABLE = "NVFP4_GATES_VLLM_CACHE"
ARM: dict[str, Any] = {"flags": {"max_num_seqs": 16, "async_scheduling": False}, "env": {}}
TOKENS_IN, TOKENS_OUT, CONCURRENCY, REQUESTS, ROUNDS = 64, 64, 4, 24, 3
# Medians of three interleaved rounds each. TTFT has no bound in shares: the vLLM client stamps before it has sent.
WITHIN = 0.25
COMPARED = ("request_throughput", "output_throughput", "mean_tpot_ms", "mean_e2el_ms", "median_e2el_ms")


@pytest.fixture(scope="module")
def engine() -> Vllm:
    given = os.environ.get(VARIABLE)
    if given is None:
        pytest.skip(f"{VARIABLE} does not name a cache folder with vLLM's environment (see this module's first lines)")
    engine = Vllm({}, Path(given))
    if engine.venv.installed() is None:
        pytest.skip(f"{VARIABLE}={given} holds no finished environment for this Python (see this module's first lines)")
    engine.prepare()
    return engine


@pytest.fixture(scope="module")
def port(engine: Vllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log, number = tmp_path_factory.mktemp("server") / "log", ports.free_port()
    launch = engine.launch(ARM, number, None, True)
    env = clean_environment(launch.env)
    with log.open("wb") as file, subprocess.Popen(launch.argv, env=env, stdout=file, stderr=file) as process:
        try:
            deadline = time.monotonic() + 300
            while readiness.get(number, "/v1/models", 2).status != 200:
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.5)
            yield number
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def prompts(engine: Vllm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = engine.tokenizer()
    assert path is not None
    found = corpus_text.build(
        corpus_text.load(path),
        seed=0,
        tokens=TOKENS_IN,
        points={CONCURRENCY: REQUESTS},
        concurrencies=[CONCURRENCY],
        repetitions=1,
    )
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_bytes(found.files[f"c{CONCURRENCY}-r1"])
    return file


def series(engine: Vllm, port: int, prompts: Path, out: Path, *, bench: bool) -> dict[str, float]:
    """One series by one of the clients, with every count exact; its axes."""
    out.mkdir()
    spec = {"host": "127.0.0.1", "port": port, "path": "/v1/completions", "model": "gate", "out_dir": str(out)}
    spec |= {"prompts_file": str(prompts), "concurrency": CONCURRENCY, "warmups": CONCURRENCY, "max_tokens": TOKENS_OUT}
    (out / "spec.json").write_text(json.dumps(spec))
    words = ["-m", "harness.client", str(out / "spec.json")]
    if bench:
        program = {"argv": [str(engine.venv.python), str(engine.program())], "tokenizer": str(engine.model)}
        (out / "bench.json").write_text(json.dumps({**program, "env": clean_environment(engine.base_env())}))
        words = ["-m", "harness.client.vllm_bench_run", str(out / "spec.json"), str(out / "bench.json")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    report = LoadReport.from_json(json.loads((out / "load.json").read_bytes()))
    rows = gzip.decompress((out / "requests.jsonl.gz").read_bytes()).splitlines()
    records = [RequestRecord.from_json(json.loads(row)) for row in rows]
    assert [record.error for record in records] == [None] * REQUESTS
    assert {(record.prompt_tokens, record.output_tokens) for record in records} == {(TOKENS_IN, TOKENS_OUT)}
    assert report.peak_in_flight == CONCURRENCY
    axes = timing_axes(records, report.duration_ns)
    return {name: float(axis.value) for name, axis in axes.items() if axis.value is not None}


def test_both_clients_agree_on_one_server(engine: Vllm, port: int, prompts: Path, tmp_path: Path) -> None:
    rounds: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(ROUNDS):
        for bench in (False, True) if number % 2 else (True, False):
            out = tmp_path / f"{number}-{bench}"
            rounds[bench].append(series(engine, port, prompts, out, bench=bench))
    names = rounds[True][0].keys() & rounds[False][0].keys()
    ratios = {name: median(r[name] for r in rounds[True]) / median(r[name] for r in rounds[False]) for name in names}
    print("\nthe vLLM client over ours:", ", ".join(f"{name} {ratio:.3f}" for name, ratio in sorted(ratios.items())))
    assert len(names) == 20
    wrong = {name: ratios[name] for name in COMPARED if abs(ratios[name] - 1) > WITHIN}
    assert not wrong, wrong
