"""A leg of the closed-loop workload, simulated many at once: chunked prefill, a 2,048-token budget, an arrival lottery.

1,024 tokens in, 128 out. A step computes one token of each decoding request and gives the rest of its budget to prompts
in arrival order. Its time is DECODE + DECODE_EACH x decoding requests + PREFILL x prompt tokens, times noise. Nothing
else is put in: that TTFT at c2 has two modes, and that stalls come with other requests' prompts, follows from that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.client.metrics import TIMING_AXES

__all__ = ["OUTPUT", "POINTS", "PROMPT", "Published", "leg_times", "simulate"]

POINTS = {2: 6, 16: 96}  # requests per leg by concurrency
PROMPT, OUTPUT, BUDGET = 1024, 128, 2048
DECODE, DECODE_EACH, PREFILL = 0.1055, 0.0015, 0.00036  # seconds
STEP_NOISE = 0.01  # of a step's time, log-normal
LEG_NOISE = 0.0015  # of a leg's speed: published means of a repetition vary by 0.1 to 0.3 %
TURNAROUND_S = 0.002  # mean time of the client between an answer and its next request
WAKE_S = 0.003  # an idle engine looks at its queue at most so much later: requests that meet there share a step


@dataclass(frozen=True)
class Published:
    """What was published of the real host, against which the simulator is calibrated."""

    total_throughput: float  # tok/s
    mean_tpot_ms: float


PUBLISHED = {2: Published(151.0, 108.5), 16: Published(812.0, 158.8)}


def simulate(concurrency: int, legs: int, rng: np.random.Generator) -> Any:
    """The twenty timing axes of `legs` legs: an array (legs, 20) in the order of TIMING_AXES, units as there."""
    return _axes(*leg_times(concurrency, legs, rng))


def leg_times(slots: int, legs: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """TTFT (legs, requests), gaps (legs, requests, 127), durations (legs); seconds."""
    requests = POINTS[slots]
    rows = np.arange(legs)[:, None]
    speed = np.exp(rng.normal(0, LEG_NOISE, legs))
    arrival = rng.exponential(TURNAROUND_S, (legs, slots))
    start = arrival.min(axis=1)
    left = np.full((legs, slots), PROMPT)
    made = np.zeros((legs, slots), dtype=int)
    number = np.tile(np.arange(slots), (legs, 1))
    started = np.full(legs, slots)
    last = np.zeros((legs, slots))
    clock = np.zeros(legs)
    ttft, gaps = np.zeros((legs, requests)), np.zeros((legs, requests, OUTPUT - 1))
    while np.isfinite(arrival).any():
        first = arrival.min(axis=1)
        idle = first > clock
        clock = np.where(idle, np.where(np.isfinite(first), first + rng.uniform(0, WAKE_S, legs), clock), clock)
        here = arrival <= clock[:, None]
        decoding = here & (left == 0)
        count = decoding.sum(axis=1)
        taken = _prompt_tokens(np.where(here, left, 0), arrival, BUDGET - count)
        busy = here.any(axis=1)
        noise = np.exp(rng.normal(0, STEP_NOISE, legs)) * speed
        clock = clock + busy * noise * (DECODE + DECODE_EACH * count + PREFILL * taken.sum(axis=1))
        left -= taken
        begun = here & (left == 0) & (made == 0)
        ttft[np.broadcast_to(rows, begun.shape)[begun], number[begun]] = (clock[:, None] - arrival)[begun]
        where = np.broadcast_to(rows, decoding.shape)[decoding]
        gaps[where, number[decoding], made[decoding] - 1] = (clock[:, None] - last)[decoding]
        made += begun | decoding
        last = np.where(begun | decoding, clock[:, None], last)
        done = made == OUTPUT
        for slot in range(slots):
            ended = done[:, slot]
            more = ended & (started < requests)
            number[:, slot] = np.where(more, started, number[:, slot])
            started += more
            pause = rng.exponential(TURNAROUND_S, legs)
            arrival[:, slot] = np.where(more, clock + pause, np.where(ended, np.inf, arrival[:, slot]))
        left, made = np.where(done, PROMPT, left), np.where(done, 0, made)
    return ttft, gaps, clock - start


def _prompt_tokens(wanted: Any, arrival: Any, budget: Any) -> Any:
    """How many prompt tokens of each request fit into the step, in arrival order."""
    if not wanted.any():
        return wanted
    order = np.argsort(arrival, axis=1, kind="stable")
    queue = np.take_along_axis(wanted, order, axis=1)
    before = np.cumsum(queue, axis=1) - queue
    fit = np.clip(budget[:, None] - before, 0, queue)
    taken = np.zeros_like(wanted)
    np.put_along_axis(taken, order, fit, axis=1)
    return taken


def _axes(ttft: Any, gaps: Any, duration: Any) -> Any:
    requests = ttft.shape[1]
    decode = gaps.sum(axis=2)
    samples = {
        "ttft": ttft,
        "tpot": decode / (OUTPUT - 1),
        "itl": gaps.reshape(len(gaps), -1),
        "e2el": ttft + decode,
    }
    columns = [requests * amount / duration for amount in (1, PROMPT, OUTPUT, PROMPT + OUTPUT)]
    for values in samples.values():
        columns.append(values.mean(axis=1) * 1000)
        columns.extend(np.percentile(values, (50, 90, 99), axis=1) * 1000)
    found = np.stack(columns, axis=1)
    assert found.shape[1] == len(TIMING_AXES)
    return found
