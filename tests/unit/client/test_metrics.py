from __future__ import annotations

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.client.metrics import (
    LATENCY_AXES,
    THROUGHPUT_AXES,
    TIMING_AXES,
    itl_basis,
    itl_diagnostics,
    percentile,
    spread_gaps,
    timing_axes,
)
from harness.records import RequestRecord
from tests.servers.streams import DONE, MS, chunk, replay, spread, tokens, usage

S = 1000 * MS


def record(chunk_ms: tuple[int, ...], output: int | None, error: str | None = None) -> RequestRecord:
    return RequestRecord(
        index=0,
        prompt_sha256="",
        start_ns=0,
        chunk_ns=tuple(ms * MS for ms in chunk_ms),
        chunk_tokens=None,
        done_ns=None,
        prompt_tokens=10,
        output_tokens=output,
        text_sha256="",
        finish_reason=None,
        status=200,
        error=error,
        retries=0,
        shared_stamps=0,
    )


def test_there_are_twenty_axes_in_a_fixed_order() -> None:
    axes = timing_axes([record((10, 20), 2)], S)
    assert tuple(axes) == TIMING_AXES
    assert len(TIMING_AXES) == len(set(TIMING_AXES)) == 20
    assert {"request_throughput", "mean_ttft_ms", "p99_e2el_ms", "median_itl_ms", "p90_tpot_ms"} <= set(axes)


def test_failed_requests_enter_no_axis() -> None:
    """B02: two streams of 100 and 120 ms, three without a token."""
    silent = [chunk("", role="assistant"), chunk("", finish="stop"), usage(0), DONE]
    records = [replay(tokens(3, first, 10)).record for first in (100, 120)]
    records += [replay(spread(silent)).record] * 3
    assert [item.error is None for item in records] == [True, True, False, False, False]
    axes = timing_axes(records, S)
    assert axes["mean_ttft_ms"].value == axes["median_ttft_ms"].value == 110
    assert axes["request_throughput"].value == 2


def test_a_chunk_of_several_tokens_is_one_gap_and_its_spread_is_a_diagnostic() -> None:
    """B03: 1, 4, 7 tokens at 100, 130, 160 ms, with running usage and without."""
    running = replay([(100, chunk("a", 1)), (130, chunk("b", 4)), (160, chunk("c", 7)), (160, DONE)]).record
    final = replay([(100, chunk("a")), (130, chunk("b")), (160, chunk("c")), (160, usage(7) + DONE)]).record
    for item in (running, final):
        axes = timing_axes([item], S)
        assert (axes["mean_ttft_ms"].value, axes["mean_tpot_ms"].value, axes["mean_itl_ms"].value) == (100, 10, 30)
    assert spread_gaps(running) == [10 * MS] * 6
    assert spread_gaps(final) is None
    assert (itl_basis([running]), itl_basis([final]), itl_basis([running, final])) == ("usage", "chunk", "chunk")
    assert itl_diagnostics([running]).spread_ms["mean"].value == 10
    unknown = itl_diagnostics([running, final]).spread_ms["mean"]
    assert (unknown.value, unknown.reason) == (None, "no running usage")


def test_a_chunk_without_a_new_token_lends_its_gap_to_the_next() -> None:
    reads = [(10, chunk("a", 1)), (30, chunk("", 1)), (50, chunk("b", 2)), (60, chunk("", 2)), (60, DONE)]
    assert spread_gaps(replay(reads).record) == [40 * MS]


def test_one_token_a_chunk_is_the_token_basis() -> None:
    assert itl_basis([replay(tokens(4, 10, 10)).record]) == "token"
    assert itl_basis([record((1,), 1, error="no-token: x")]) == "none"


def test_a_single_token_has_no_tpot_and_no_gap() -> None:
    """B06: the list is [20] with n = 1, not with a 0 or an infinity in it."""
    long = record(tuple(range(50, 251, 20)), 11)
    axes = timing_axes([record((80,), 1), long], S)
    assert [axes[f"{name}_tpot_ms"].value for name in ("mean", "median", "p90", "p99")] == [20] * 4
    assert axes["mean_itl_ms"].value == 20
    assert axes["mean_e2el_ms"].value == 165


def test_a_leg_of_single_tokens_has_undefined_axes_with_a_reason_and_all_others() -> None:
    """B06."""
    axes = timing_axes([record((80,), 1)] * 3, S)
    undefined = {name for name, axis in axes.items() if axis.value is None}
    assert undefined == {name for name in LATENCY_AXES if "tpot" in name or "itl" in name}
    assert axes["mean_tpot_ms"].reason == "undefined: no request has more than one token"
    assert axes["p99_itl_ms"].reason == "undefined: no request has more than one chunk"
    assert axes["p99_ttft_ms"].value == 80


def test_nothing_succeeded_means_no_axis_at_all() -> None:
    axes = timing_axes([record((80,), 1, error="timeout: x")], S)
    assert {(axis.value, axis.reason) for axis in axes.values()} == {(None, "no request succeeded")}


@pytest.mark.parametrize("duration", [0, -5])
def test_a_series_without_duration_has_no_throughput(duration: int) -> None:
    axes = timing_axes([record((80,), 1)], duration)
    assert all(axes[name].value is None and axes[name].reason for name in THROUGHPUT_AXES)
    assert axes["mean_ttft_ms"].value == 80


def test_a_missing_count_leaves_only_the_request_throughput() -> None:
    axes = timing_axes([record((80, 90), None), record((80, 90), 2)], S)
    assert axes["request_throughput"].value == 2
    assert axes["input_throughput"].value == 20
    assert axes["output_throughput"].value is None
    assert axes["total_token_throughput"].value is None


def test_throughputs_are_exact_fractions() -> None:
    axes = timing_axes([record((10, 20), 3)] * 7, 3 * S)
    assert [axes[name].value for name in THROUGHPUT_AXES] == [
        Fraction(7, 3),
        Fraction(70, 3),
        Fraction(21, 3),
        Fraction(91, 3),
    ]


def test_a_stall_is_a_gap_of_400_ms_and_more() -> None:
    assert itl_diagnostics([record((10, 409, 809, 810), 4)]).stall_share == Fraction(1, 3)
    assert itl_diagnostics([record((10,), 1)]).stall_share is None


RECORDS = st.lists(
    st.tuples(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(1, 40)), min_size=1, max_size=12
)


@given(RECORDS, st.integers(1, 10**12))
def test_every_axis_agrees_with_numpy(drawn: list[tuple[list[int], int]], duration: int) -> None:
    records = [record(tuple(sorted(stamps)), output) for stamps, output in drawn]
    axes = timing_axes(records, duration)
    seconds = duration / 1e9
    lists = {
        "ttft": [item.chunk_ns[0] for item in records],
        "tpot": [
            (item.chunk_ns[-1] - item.chunk_ns[0]) / (item.output_tokens - 1)
            for item in records
            if item.output_tokens is not None and item.output_tokens > 1
        ],
        "itl": [gap for item in records for gap in np.diff(item.chunk_ns).tolist()],
        "e2el": [item.chunk_ns[-1] for item in records],
    }
    expected = {
        "request_throughput": len(records) / seconds,
        "input_throughput": 10 * len(records) / seconds,
        "output_throughput": sum(output for _, output in drawn) / seconds,
        "total_token_throughput": sum(10 + output for _, output in drawn) / seconds,
    }
    for name, values in lists.items():
        found = {"mean": np.mean, "median": np.median} if values else {}
        expected |= {f"{key}_{name}_ms": float(call(values)) / 1e6 for key, call in found.items()}
        expected |= {f"p{p}_{name}_ms": float(np.percentile(values, p)) / 1e6 for p in (90, 99) if values}
    known = {name: axis.value for name, axis in axes.items() if axis.value is not None}
    assert known.keys() == expected.keys()
    for name, value in known.items():
        assert float(value) == pytest.approx(expected[name], rel=1e-12, abs=1e-12), name


@given(st.lists(st.integers(0, 10**12), min_size=1), st.integers(0, 100))
def test_percentiles_agree_with_scipy(values: list[int], p: int) -> None:
    exact = percentile(values, p)
    assert exact is not None
    assert float(exact) == pytest.approx(float(stats.scoreatpercentile(values, p)), rel=1e-12)


@given(st.lists(st.integers(), min_size=1))
def test_the_median_is_exactly_the_library_s(values: list[int]) -> None:
    assert percentile(values, 50) == statistics.median([Fraction(value) for value in values])


def test_a_rare_merged_chunk_does_not_make_another_kind_of_leg() -> None:
    """12 of 96 streams had 126 gaps for 128 tokens: legal, and no reason to void a pair of legs."""
    whole, merged = record(tuple(range(1, 129)), 128), record(tuple(range(1, 128)), 128)
    assert itl_basis([whole] * 84 + [merged] * 12) == "token"
    assert itl_basis([merged] * 4 + [record((1, 2, 3), 128)]) == "chunk"
