"""The real vLLM bench client and ours against one scripted server: counts equal, latencies of the same kind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harness.client.load import LoadResult, Prompt, Target, run_load
from harness.client.metrics import LATENCY_AXES, timing_axes
from tests.oracle.vllm_bench_env import VARIABLE, VllmBench, find
from tests.servers.scripted import Request, ScriptedServer, Wire
from tests.servers.streams import DONE, chunk, usage

REQUESTS = 12
CONCURRENCY = 3
PACE_S = 0.02


@pytest.fixture(scope="module")
def bench() -> VllmBench:
    found = find()
    if found is None:
        pytest.skip(f"{VARIABLE} names no prepared vLLM bench client; `nox -s oracle` prepares one and sets it")
    return found


def answer(request: Request, wire: Wire) -> None:
    """A prompt "tokens-N bad|good": N tokens at a fixed pace, or a refusal."""
    if request.path == "/metrics":
        wire.raw(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    count, kind = str(request.body["prompt"]).removeprefix("tokens-").split()
    if kind == "bad":
        wire.raw(b"HTTP/1.1 500 Boom\r\nContent-Length: 0\r\n\r\n")
        return
    wire.head()
    for number in range(int(count)):
        time.sleep(PACE_S)  # the pace is what both clients measure
        wire.piece(chunk(f" t{number}"))
    wire.piece(usage(int(count), prompt_tokens=7) + DONE)
    wire.end()


def measure(bench: VllmBench, folder: Path, kinds: list[str]) -> tuple[dict[str, Any], LoadResult, ScriptedServer]:
    texts = [f"tokens-{1 + number % 5} {kind}" for number, kind in enumerate(kinds)]
    dataset = folder / "prompts.jsonl"
    dataset.write_text("".join(json.dumps({"prompt": text, "output_tokens": 5}) + "\n" for text in texts))
    limits = ["--num-prompts", str(len(texts)), "--max-concurrency", str(CONCURRENCY), "--num-warmups", "3"]
    with ScriptedServer(answer) as server:
        theirs = bench.run(server.port, dataset, folder / "result.json", limits)
        target = Target("127.0.0.1", server.port, "gate", CONCURRENCY, CONCURRENCY, 5)
        ours = run_load(target, [Prompt(index, "", text) for index, text in enumerate(texts)])
    return theirs, ours, server


def test_counts_and_lists_are_the_same(bench: VllmBench, tmp_path: Path) -> None:
    theirs, ours, _ = measure(bench, tmp_path, ["good"] * REQUESTS)
    good = [record for record in ours.records if record.error is None]
    assert theirs["completed"] == len(good) == REQUESTS
    assert theirs["failed"] == 0
    assert theirs["output_lens"] == [record.output_tokens for record in ours.records]
    assert theirs["input_lens"] == [record.prompt_tokens for record in ours.records]
    assert theirs["total_input_tokens"] == sum(record.prompt_tokens or 0 for record in good)
    assert theirs["total_output_tokens"] == sum(record.output_tokens or 0 for record in good)
    assert [len(gaps) for gaps in theirs["itls"]] == [len(record.chunk_ns) - 1 for record in ours.records]


def test_both_send_the_same_body_and_the_same_warm_ups(bench: VllmBench, tmp_path: Path) -> None:
    _, _, server = measure(bench, tmp_path, ["good"] * REQUESTS)
    sent = [request.body for request in server.requests if request.path == "/v1/completions"]
    half = len(sent) // 2
    assert half == REQUESTS + CONCURRENCY
    theirs, ours = sent[:half], sent[half:]
    prompts = [sorted(str(body.pop("prompt")) for body in side) for side in (theirs, ours)]
    assert prompts[0] == prompts[1]
    assert {body.pop("seed") for body in ours} == {0}
    assert {body.pop("logprobs", None) for body in theirs} == {None}
    # max_tokens comes from the data set's rows there and from the series here: 5 in both.
    assert all(body == ours[0] for body in theirs + ours)


def test_failures_are_counted_alike(bench: VllmBench, tmp_path: Path) -> None:
    kinds = ["good", "bad", "good", "bad"]
    theirs, ours, _ = measure(bench, tmp_path, kinds)
    failed = [record for record in ours.records if record.error is not None]
    assert theirs["failed"] == len(failed) == 2
    assert [bool(error) for error in theirs["errors"]] == [record.error is not None for record in ours.records]


def test_their_figures_come_out_of_their_lists_by_our_formulas(bench: VllmBench, tmp_path: Path) -> None:
    """Our axes over records rebuilt from the client's own detailed lists are the figures it prints."""
    theirs, ours, _ = measure(bench, tmp_path, ["good"] * REQUESTS)
    rebuilt = []
    for record, ttft, gaps in zip(ours.records, theirs["ttfts"], theirs["itls"], strict=True):
        stamps = [ttft]
        for gap in gaps:
            stamps.append(stamps[-1] + gap)
        offsets = tuple(round(stamp * 1e9) for stamp in stamps)
        rebuilt.append(type(record).from_json({**record.to_json(), "chunk_ns": offsets}))
    axes = timing_axes(rebuilt, round(theirs["duration"] * 1e9))
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        assert float(axes[name].value or 0) == pytest.approx(theirs[name], rel=1e-6)
    for name in LATENCY_AXES:
        # It reads its clock twice around the first token, so E2EL and TPOT may differ by that reading: 2 ms at most.
        slack = 2.0 if "e2el" in name or "tpot" in name else 1e-5
        assert float(axes[name].value or 0) == pytest.approx(theirs[name], abs=slack), name
