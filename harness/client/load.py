"""A closed-loop series against one completions server: warm-ups, then N prompts with C in flight.

Mirrors `vllm bench serve` with an infinite rate and a concurrency limit: the same body, prompt 0 re-sent as warm-up,
the next request when one ends. Unlike it, stamps are the kernel's and nothing is parsed until the leg is over.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.client.clock import StampClock
from harness.client.completion import Completion, read_completion
from harness.client.exchange import Exchange, Job
from harness.client.http import post_bytes
from harness.client.loop import Limits, Loop, Progress
from harness.client.metrics import itl_basis, percentile
from harness.records import LoadReport, RequestRecord

__all__ = ["LoadResult", "Prompt", "Target", "run_load"]


@dataclass(frozen=True)
class Prompt:
    """One row of the corpus: token ids or text, with its index and digest."""

    index: int
    sha256: str
    value: str | tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """Where and how a series is sent. `extra_body` is merged over the request body; a null there drops the key.

    `running_usage` asks for usage in every chunk, where a server is known to take that.
    `request_timeout_s` runs from each request's start, `deadline_s` from the series' start, warm-ups included.
    """

    host: str
    port: int
    model: str
    concurrency: int
    warmups: int
    max_tokens: int
    path: str = "/v1/completions"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    request_timeout_s: float = 600.0
    deadline_s: float = 3600.0
    keep_text: bool = False
    running_usage: bool = False

    def body(self, prompt: Prompt) -> bytes:
        """The JSON request body: greedy, of fixed length, streamed, with usage."""
        running = {"continuous_usage_stats": True} if self.running_usage else {}
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt.value,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "repetition_penalty": 1.0,
            "seed": 0,
            "stream": True,
            "stream_options": {"include_usage": True, **running},
            "ignore_eos": True,
            **self.extra_body,
        }
        kept = {key: value for key, value in body.items() if value is not None}
        return json.dumps(kept, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True)
class LoadResult:
    """The series as recorded. `completions` is empty unless the target asked to keep texts."""

    report: LoadReport
    records: tuple[RequestRecord, ...]
    completions: tuple[Completion, ...]


def run_load(
    target: Target,
    prompts: Sequence[Prompt],
    progress: Callable[[Progress], None] | None = None,
    clock: StampClock | None = None,
) -> LoadResult:
    """Carry out one series; failed requests are records with `error` set, in the order of `prompts`.

    Progress covers the timed requests only. Raises UsageError `unknown-host`, and HarnessError `negative-latency` for
    a fault of this client.
    """
    clock = clock or StampClock()
    deadline_ns = time.monotonic_ns() + int(target.deadline_s * 1e9)
    limits = Limits(int(target.request_timeout_s * 1e9), deadline_ns)
    jobs = [_job(target, prompt) for prompt in prompts]
    slots = min(target.concurrency, max(len(jobs), target.warmups))
    loop = Loop(target.host, target.port, slots, clock, limits)
    try:
        with _no_garbage_collection():
            loop.connect()
            warmed = loop.run([jobs[0]] * target.warmups) if jobs else []
            loop.connect()
            exchanges = loop.run(jobs, progress)
    finally:
        loop.close()
    completions = tuple(read_completion(exchange) for exchange in exchanges)
    records = tuple(completion.record for completion in completions)
    report = _report(target, warmed, exchanges, records, loop)
    return LoadResult(report, records, completions if target.keep_text else ())


def _job(target: Target, prompt: Prompt) -> Job:
    return Job(prompt.index, prompt.sha256, post_bytes(target.host, target.port, target.path, target.body(prompt)))


def _report(
    target: Target,
    warmed: Sequence[Exchange],
    exchanges: Sequence[Exchange],
    records: Sequence[RequestRecord],
    loop: Loop,
) -> LoadReport:
    spans = [(item.start_ns, item.done_ns or item.ended_ns or item.start_ns) for item in exchanges]
    lag = percentile(loop.lags, 99)
    return LoadReport(
        concurrency=target.concurrency,
        requests=len(exchanges),
        warmups=target.warmups,
        duration_ns=max((end for _, end in spans), default=0) - min((start for start, _ in spans), default=0),
        peak_in_flight=peak_in_flight(spans),
        loop_lag_p99_ns=0 if lag is None else round(lag),
        stamp_source=loop.clock.source,
        itl_basis=itl_basis(records),
        warnings=(*_warmup_warnings(target, warmed), *_clock_warnings(loop.clock)),
    )


def peak_in_flight(spans: Sequence[tuple[int, int]]) -> int:
    """The most intervals [start, end) that overlap: an end at the instant of a start comes first."""
    peak = running = 0
    for _, step in sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans]):
        running += step
        peak = max(peak, running)
    return peak


def _warmup_warnings(target: Target, warmed: Sequence[Exchange]) -> Iterator[str]:
    if target.warmups < target.concurrency:
        yield (
            f"warm-up below concurrency: {target.warmups} warm-ups for {target.concurrency} in flight; "
            f"cold slots inflate p99 TTFT, so set warmups to {target.concurrency}"
        )
    errors = [error for error in (read_completion(item).record.error for item in warmed) if error is not None]
    if errors:
        yield f"{len(errors)} of {len(warmed)} warm-ups failed, the first with {errors[0]}"


def _clock_warnings(clock: StampClock) -> Iterator[str]:
    if clock.step_ns is not None:
        yield (
            f"the wall clock was stepped by {clock.step_ns / 1e9:+.6f} s during the series; "
            f"{clock.from_loop} of {clock.from_kernel + clock.from_loop} reads have the loop's monotonic stamp"
        )
    elif clock.from_kernel and clock.from_loop:
        yield f"{clock.from_loop} of {clock.from_kernel + clock.from_loop} reads carried no kernel stamp"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collections during a leg were seen to add 38 to 64 ms to a gap; without them the worst was 2 to 4 ms."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
