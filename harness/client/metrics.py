"""Twenty timing axes out of request records, exactly. Standard library only: `verify` recomputes with this module.

Formulas are the vLLM bench client's for completions: TTFT to the first chunk, ITL the gaps between chunks pooled over
requests, E2EL to the last chunk, TPOT = (E2EL - TTFT) / (tokens - 1) for requests of more than one token, percentiles
linear by rank (n - 1) p / 100. Unlike it, what is undefined is None with a reason, never 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.records import RequestRecord

__all__ = [
    "LATENCY_AXES",
    "STALL_NS",
    "THROUGHPUT_AXES",
    "TIMING_AXES",
    "AxisValue",
    "ItlDiagnostics",
    "itl_basis",
    "itl_diagnostics",
    "percentile",
    "spread_gaps",
    "timing_axes",
]

THROUGHPUT_AXES = ("request_throughput", "input_throughput", "output_throughput", "total_token_throughput")
_STATISTICS = ("mean", "median", "p90", "p99")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
LATENCY_AXES = tuple(f"{statistic}_{latency}_ms" for latency in _LATENCIES for statistic in _STATISTICS)
TIMING_AXES = THROUGHPUT_AXES + LATENCY_AXES
STALL_NS = 400_000_000
MERGED = Fraction(1, 100)  # 12 of 12,288 tokens of a healthy vLLM series came two in a chunk
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000

Number = int | Fraction


@dataclass(frozen=True)
class AxisValue:
    """An exact value (per second, or ms), or None with the reason why there is none."""

    value: Fraction | None
    reason: str | None


@dataclass(frozen=True)
class ItlDiagnostics:
    """Beside the binding ITL axes: `spread_ms` has their four statistics with each gap spread over its chunk's tokens.

    `stall_share` is the share of chunk gaps of 400 ms and more. Both are None where they are undefined.
    """

    basis: str
    gaps: int
    stall_share: Fraction | None
    spread_ms: dict[str, AxisValue]


def timing_axes(records: Sequence[RequestRecord], duration_ns: int) -> dict[str, AxisValue]:
    """The twenty axes, in the order of TIMING_AXES, over the records without `error`. Durations in ns."""
    good = [record for record in records if record.error is None and record.chunk_ns]
    axes = _throughputs(good, duration_ns)
    samples: dict[str, list[Number]] = {
        "ttft": [record.chunk_ns[0] for record in good],
        "tpot": [tpot for tpot in map(_tpot_ns, good) if tpot is not None],
        "itl": [gap for record in good for gap in _gaps(record)],
        "e2el": [record.chunk_ns[-1] for record in good],
    }
    nothing = "no request succeeded" if not good else "undefined: no request has more than one "
    for latency, values in samples.items():
        reason = nothing + ("" if not good else "token" if latency == "tpot" else "chunk")
        axes.update({f"{name}_{latency}_ms": value for name, value in _statistics(values, reason).items()})
    return axes


def _throughputs(good: Sequence[RequestRecord], duration_ns: int) -> dict[str, AxisValue]:
    if not good or duration_ns <= 0:
        reason = "no request succeeded" if not good else f"undefined: the series lasted {duration_ns} ns"
        return dict.fromkeys(THROUGHPUT_AXES, AxisValue(None, reason))
    tokens_in = _total([record.prompt_tokens for record in good])
    tokens_out = _total([record.output_tokens for record in good])
    total = None if tokens_in is None or tokens_out is None else tokens_in + tokens_out
    amounts = (len(good), tokens_in, tokens_out, total)
    return {
        name: AxisValue(None, "a request has no token count")
        if amount is None
        else AxisValue(Fraction(amount * _NS_PER_S, duration_ns), None)
        for name, amount in zip(THROUGHPUT_AXES, amounts, strict=True)
    }


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _tpot_ns(record: RequestRecord) -> Fraction | None:
    if record.output_tokens is None or record.output_tokens <= 1:
        return None
    return Fraction(record.chunk_ns[-1] - record.chunk_ns[0], record.output_tokens - 1)


def _gaps(record: RequestRecord) -> list[int]:
    return [after - before for before, after in itertools.pairwise(record.chunk_ns)]


def _statistics(values: Sequence[Number], reason: str) -> dict[str, AxisValue]:
    """The four statistics in ms of values in ns; `reason` says why there are none."""
    if not values:
        return dict.fromkeys(_STATISTICS, AxisValue(None, reason))
    ordered = sorted(values)
    found = [Fraction(sum(ordered), len(ordered)), *(_ranked(ordered, p) for p in (50, 90, 99))]
    return {name: AxisValue(value / _NS_PER_MS, None) for name, value in zip(_STATISTICS, found, strict=True)}


def percentile(values: Sequence[Number], p: int) -> Fraction | None:
    """The p-th percentile, linear between ranks as NumPy's default is, but exact; None for no values."""
    return _ranked(sorted(values), p) if values else None


def _ranked(ordered: Sequence[Number], p: int) -> Fraction:
    low, rest = divmod((len(ordered) - 1) * p, 100)
    value = Fraction(ordered[low])
    return value + (ordered[low + 1] - value) * Fraction(rest, 100) if rest else value


def itl_basis(records: Sequence[RequestRecord]) -> str:
    """What a gap between chunks spans in the successful requests; arms of different basis have no comparable ITL.

    `usage`: running usage tells how many tokens each chunk holds. `token`: without that, each chunk is one token, but
    for one in a hundred at most, which a busy server may merge. `chunk`: unknown. `none`: no request succeeded.
    """
    good = [record for record in records if record.error is None]
    if not good:
        return "none"
    if all(record.chunk_tokens is not None for record in good):
        return "usage"
    tokens, chunks = sum(record.output_tokens or 0 for record in good), sum(len(record.chunk_ns) for record in good)
    return "token" if 0 <= tokens - chunks <= MERGED * tokens else "chunk"


def spread_gaps(record: RequestRecord) -> list[Fraction] | None:
    """Gaps in ns, one a token after the first chunk, each chunk's gap spread evenly over the tokens it brought.

    A chunk without a new token lends its gap to the next that has one. None without running usage.
    """
    if record.chunk_tokens is None:
        return None
    gaps: list[Fraction] = []
    since, counted = record.chunk_ns[0], record.chunk_tokens[0]
    for stamp, running in zip(record.chunk_ns[1:], record.chunk_tokens[1:], strict=True):
        new = running - counted
        if new > 0:
            gaps.extend([Fraction(stamp - since, new)] * new)
            since, counted = stamp, running
    return gaps


def itl_diagnostics(records: Sequence[RequestRecord]) -> ItlDiagnostics:
    """Stall share and spread ITL over the records without `error`; never binding."""
    good = [record for record in records if record.error is None and record.chunk_ns]
    gaps = [gap for record in good for gap in _gaps(record)]
    stalls = sum(gap >= STALL_NS for gap in gaps)
    spread = [spread_gaps(record) for record in good]
    known = [values for values in spread if values is not None]
    reason = "no running usage" if len(known) < len(good) else "undefined: no request has more than one token"
    pooled = [gap for values in known for gap in values] if len(known) == len(good) else []
    return ItlDiagnostics(
        basis=itl_basis(records),
        gaps=len(gaps),
        stall_share=Fraction(stalls, len(gaps)) if gaps else None,
        spread_ms=_statistics(pooled, reason),
    )
