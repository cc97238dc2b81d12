"""The clients under comparison, each run as a process of its own on one core."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.client_truth.truth import Cell, Seen, pinned
from harness.canonical import loads_lines
from harness.records import RequestRecord
from tests.oracle.vllm_bench_env import VERSION, VllmBench

__all__ = ["Client", "Cost", "OurClient", "Series", "VllmClient"]


@dataclass(frozen=True)
class Series:
    """What a client is asked for: prompts "stream-K" for K below `requests`, the cell's streams of them at once."""

    port: int
    requests: int
    cell: Cell
    folder: Path
    core: int

    def prompts(self) -> list[str]:
        return [f"stream-{number} says" for number in range(self.requests)]


@dataclass(frozen=True)
class Cost:
    """CPU seconds of the client's whole process, start-up included."""

    cpu_s: float


class Client(Protocol):
    name: str

    def run(self, series: Series) -> tuple[Mapping[int, Seen], Cost]: ...


class OurClient:
    name = "this project"

    def run(self, series: Series) -> tuple[Mapping[int, Seen], Cost]:
        prompts = series.folder / "ours.jsonl"
        rows = [{"index": k, "prompt_sha256": "", "prompt": text} for k, text in enumerate(series.prompts())]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = {
            "host": "127.0.0.1",
            "port": series.port,
            "path": "/v1/completions",
            "model": "gate",
            "prompts_file": str(prompts),
            "concurrency": series.cell.streams,
            "warmups": series.cell.streams,
            "max_tokens": series.cell.tokens,
            "out_dir": str(series.folder / "ours"),
        }
        path = series.folder / "spec.json"
        path.write_text(json.dumps(spec))
        cost = _run([sys.executable, "-m", "harness.client", str(path)], series.core)
        data = gzip.decompress((series.folder / "ours" / "requests.jsonl.gz").read_bytes())
        records = [RequestRecord.from_json(row) for row in loads_lines(data, "requests")]
        return {record.index: _seen(record) for record in records if record.error is None}, cost


def _seen(record: RequestRecord) -> Seen:
    gaps = [after - before for before, after in zip(record.chunk_ns, record.chunk_ns[1:], strict=False)]
    return Seen(record.chunk_ns[0], gaps)


class VllmClient:
    name = f"vLLM bench {VERSION}"

    def __init__(self, bench: VllmBench) -> None:
        self._bench = bench

    def run(self, series: Series) -> tuple[Mapping[int, Seen], Cost]:
        dataset = series.folder / "theirs.jsonl"
        rows = [{"prompt": text, "output_tokens": series.cell.tokens} for text in series.prompts()]
        dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = series.folder / "theirs.json"
        options = ["--num-prompts", str(series.requests), "--max-concurrency", str(series.cell.streams)]
        options += ["--num-warmups", str(series.cell.streams)]
        cost = _run(self._bench.command(series.port, dataset, result, options), series.core)
        document = json.loads(result.read_text())
        rows_seen = zip(document["ttfts"], document["itls"], document["errors"], strict=True)
        return {
            number: Seen(ttft * 1e9, [gap * 1e9 for gap in gaps])
            for number, (ttft, gaps, error) in enumerate(rows_seen)
            if not error
        }, cost


def _run(command: Sequence[str], core: int) -> Cost:
    """To its end, pinned before its first instruction."""
    with pinned(core):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    before = os.times()
    _, stderr = process.communicate(timeout=600)
    after = os.times()
    if process.returncode != 0:
        raise RuntimeError(f"{command[1]} failed: {stderr.decode()[-2000:]}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(round(used, 3))
