"""A made series: a closed loop of plausible stamps, drawn from the leg's name, in the files of the client's process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from harness import canonical
from harness.client import vllm_bench_run
from harness.client.__main__ import write
from harness.client.completion import Completion
from harness.client.load import LoadResult, Prompt, peak_in_flight
from harness.client.metrics import itl_basis, timing_axes
from harness.client.spec import Spec, read_prompts, read_spec
from harness.client.vllm_bench import NUMBERS, Series
from harness.plan import Plan
from harness.records import LoadReport, RequestRecord

__all__ = ["play"]

MS = 1_000_000
TTFT_NS, GAP_NS = 50 * MS, 10 * MS
SPREAD = 0.02  # of every time, so that statistics of a leg differ from one another
PERIOD = 97  # distinct gaps of a leg; drawn once, since a grid has a quarter of a million of them
LAG_NS = MS // 10


def play(spec_file: Path, plan: Plan, draw: Random, start_ns: int) -> int:
    """Write what the series of `spec_file` would leave in its folder; returns the stamp of its end.

    HarnessError where the specification or the prompts are not what the client takes.
    """
    spec = read_spec(spec_file)
    prompts = read_prompts(spec.prompts_file)
    records = _records(spec, prompts, plan, draw, start_ns)
    if (spec_file.parent / "bench.json").is_file():
        _bench(spec, prompts, records)
    else:
        texts = [_text(record) for record in records] if spec.target.keep_text else []
        completions = tuple(Completion(record, text, None) for record, text in zip(records, texts, strict=False))
        write(spec.out_dir, LoadResult(_report(spec, records), tuple(records), completions))
    return max(end for _, end in _spans(records))


def _records(spec: Spec, prompts: Sequence[Prompt], plan: Plan, draw: Random, start_ns: int) -> list[RequestRecord]:
    tokens, speed = spec.target.max_tokens, 1 + draw.uniform(-SPREAD, SPREAD)
    drawn = [round(GAP_NS * speed * (1 + draw.uniform(-SPREAD, SPREAD))) for _ in range(PERIOD)]
    free = [start_ns + slot for slot in range(spec.target.concurrency)]
    found = []
    for prompt in prompts:
        start = min(free)
        offsets = [round(TTFT_NS * speed * (1 + draw.uniform(-SPREAD, SPREAD)))]
        first = draw.randrange(PERIOD)
        for step in range(tokens - 1):
            offsets.append(offsets[-1] + drawn[(first + step) % PERIOD])
        free[free.index(start)] = start + offsets[-1] + MS
        found.append(
            RequestRecord(
                index=prompt.index,
                prompt_sha256=prompt.sha256,
                start_ns=start,
                chunk_ns=tuple(offsets),
                chunk_tokens=tuple(range(1, tokens + 1)) if spec.target.running_usage else None,
                done_ns=offsets[-1],
                prompt_tokens=plan.input_tokens,
                output_tokens=tokens,
                text_sha256=hashlib.sha256(_said(prompt.sha256, tokens).encode()).hexdigest(),
                finish_reason="length",
                status=200,
                error=None,
                retries=0,
                shared_stamps=0,
            )
        )
    return found


def _said(prompt_sha256: str, tokens: int) -> str:
    """The same prompt has the same completion in every leg and arm."""
    return (prompt_sha256 * (1 + tokens // len(prompt_sha256)))[:tokens]


def _text(record: RequestRecord) -> str:
    return _said(record.prompt_sha256, record.output_tokens or 0)


def _spans(records: Sequence[RequestRecord]) -> list[tuple[int, int]]:
    return [(record.start_ns, record.start_ns + (record.done_ns or 0)) for record in records]


def _report(spec: Spec, records: Sequence[RequestRecord]) -> LoadReport:
    spans = _spans(records)
    return LoadReport(
        concurrency=spec.target.concurrency,
        requests=len(records),
        warmups=spec.target.warmups,
        duration_ns=max(end for _, end in spans) - min(start for start, _ in spans),
        peak_in_flight=peak_in_flight(spans),
        loop_lag_p99_ns=LAG_NS,
        stamp_source="kernel",
        itl_basis=itl_basis(records),
        warnings=(),
    )


def _bench(spec: Spec, prompts: Sequence[Prompt], records: Sequence[RequestRecord]) -> None:
    """As the vLLM client saves it, in seconds; then read back by the code that reads the real one."""
    target, report = spec.target, _report(spec, records)
    axes = {name: float(axis.value or 0) for name, axis in timing_axes(records, report.duration_ns).items()}
    gaps = [[two - one for one, two in zip(record.chunk_ns, record.chunk_ns[1:], strict=False)] for record in records]
    document: dict[str, Any] = {
        **{name: axes[name] for name in NUMBERS if name in axes},
        "duration": report.duration_ns / 1e9,
        "num_prompts": len(records),
        "max_concurrency": target.concurrency,
        "max_concurrent_requests": report.peak_in_flight,
        "completed": len(records),
        "failed": 0,
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "total_input_tokens": sum(record.prompt_tokens or 0 for record in records),
        "total_output_tokens": sum(record.output_tokens or 0 for record in records),
        "ttfts": [record.chunk_ns[0] / 1e9 for record in records],
        "itls": [[gap / 1e9 for gap in row] for row in gaps],
        "start_times": [record.start_ns / 1e9 for record in records],
        "generated_texts": [_text(record) for record in records],
        "errors": [""] * len(records),
    }
    (spec.out_dir / vllm_bench_run.RESULT).write_text(json.dumps(document))
    series = Series(len(prompts), target.concurrency, target.warmups, target.max_tokens)
    vllm_bench_run.keep(spec, series, prompts)
    assert canonical.loads((spec.out_dir / "load.json").read_bytes())["requests"] == len(records)
