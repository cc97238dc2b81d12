"""The vLLM client's result, as version 0.32.0 writes it, validated and turned into axes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.client.load import Prompt
from harness.client.metrics import timing_axes
from harness.client.vllm_bench import Series, arguments, faults, read_result
from harness.errors import HarnessError

SERIES = Series(requests=4, concurrency=2, warmups=2, output_tokens=4)
PROMPTS = [Prompt(number, f"{number:064x}", f"text {number}") for number in range(4)]


def result(**changes: Any) -> dict[str, Any]:
    """Four requests, two at a time: 100 ms to the first token, then gaps of 10 ms; one stream merged two tokens."""
    gaps = [[0.01, 0.01, 0.01], [0.01, 0.01, 0.01], [0.01, 0.02], [0.01, 0.01, 0.01]]
    latency = {"ttft": (100.0,) * 4, "tpot": (10.0,) * 4, "e2el": (130.0,) * 4, "itl": (120 / 11, 10.0, 10.0, 19.0)}
    names = ("mean", "median", "p90", "p99")
    document: dict[str, Any] = {
        "num_prompts": 4,
        "max_concurrency": 2,
        "completed": 4,
        "failed": 0,
        "duration": 0.27,
        "total_input_tokens": 256,
        "total_output_tokens": 16,
        "input_lens": [64] * 4,
        "output_lens": [4] * 4,
        "ttfts": [0.1] * 4,
        "itls": gaps,
        "start_times": [50.0, 50.0, 50.13, 50.131],
        "generated_texts": ["a", "b", "c", "d"],
        "errors": ["", "", "", ""],
        "max_concurrent_requests": 4,  # whole-second buckets: may exceed the limit
        "request_throughput": 4 / 0.27,
        "output_throughput": 16 / 0.27,
        "total_token_throughput": 272 / 0.27,
        **{f"{name}_{kind}_ms": value for kind, row in latency.items() for name, value in zip(names, row, strict=True)},
    }
    return {**document, **changes}


def test_a_good_result_becomes_the_same_axes() -> None:
    report, records = read_result(result(), SERIES, PROMPTS)
    axes = timing_axes(records, report.duration_ns)
    assert float(axes["mean_ttft_ms"].value or 0) == pytest.approx(100)
    assert float(axes["median_e2el_ms"].value or 0) == pytest.approx(130)
    assert float(axes["input_throughput"].value or 0) == pytest.approx(256 / 0.27)
    assert [record.prompt_sha256 for record in records] == [prompt.sha256 for prompt in PROMPTS]
    assert (report.itl_basis, report.stamp_source, report.loop_lag_p99_ns) == ("chunk", "loop", None)


def test_concurrency_is_swept_half_open_and_not_read_from_whole_seconds() -> None:
    report, _ = read_result(result(), SERIES, PROMPTS)
    assert report.peak_in_flight == 2  # two end at 50.13, and one starts at that instant
    overlapping = result(start_times=[50.0, 50.0, 50.129, 50.131])
    assert read_result(overlapping, SERIES, PROMPTS)[0].peak_in_flight == 3  # the gate then voids the leg


def test_fewer_gaps_than_tokens_are_legal_and_more_are_not() -> None:
    """Merged chunks: an exact count of gaps once voided 29 good series."""
    assert faults(result(), SERIES) == []
    more = result()
    more["itls"][0] = [0.01] * 4
    assert any("itls[0] has 4 gaps, more than the 3 of 4 tokens" in fault for fault in faults(more, SERIES))


def test_a_list_of_empty_errors_is_success_and_an_empty_list_is_a_fault() -> None:
    assert faults(result(), SERIES) == []
    assert faults(result(errors=[]), SERIES) == ["errors is no list of 4"]


def test_a_failed_request_is_data_with_the_clients_own_reason() -> None:
    failed = result(errors=["", "", "", "Traceback\nServerDisconnected"], completed=3, failed=1)
    failed |= {"total_input_tokens": 192, "total_output_tokens": 12, "output_lens": [4, 4, 4, 0]}
    failed |= {"ttfts": [0.1, 0.1, 0.1, 0.0], "itls": [*result()["itls"][:3], []]}
    failed |= {"request_throughput": 3 / 0.27, "output_throughput": 12 / 0.27, "total_token_throughput": 204 / 0.27}
    failed |= {"mean_itl_ms": 90 / 8, "p90_itl_ms": 13.0, "p99_itl_ms": 19.3}
    _, records = read_result(failed, SERIES, PROMPTS)
    assert [record.error for record in records] == [None, None, None, "vllm-bench: ServerDisconnected"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda it: it.pop("ttfts"), "lacks ttfts (--save-detailed"),
        (lambda it: it.update(num_prompts=3), "num_prompts is 3, not 4"),
        (lambda it: it.update(max_concurrency=True), "max_concurrency is True, not 2"),
        (lambda it: it.update(completed=3), "together not 4"),
        (lambda it: it.update(failed=1, completed=3), "failed is 1, but 0 errors"),
        (lambda it: it.update(total_output_tokens=15), "total_output_tokens is 15, but output_lens add up to 16"),
        (lambda it: it.update(duration=0), "duration is not above 0"),
        (lambda it: it.update(mean_ttft_ms=float("nan")), "mean_ttft_ms is nan"),
        (lambda it: it.update(ttfts=[0.1, 0.1, 0.1, -0.1]), "no finite number from 0"),
        (lambda it: it.update(max_concurrent_requests=1), "but 2 requests overlap"),
        (lambda it: it.update(generated_texts=["a", "b", "c", None]), "no text"),
        (lambda it: it.update(p99_ttft_ms=101.0), "p99_ttft_ms is 101.0, but its lists give 100"),
        (lambda it: it.update(mean_e2el_ms=133.0), "mean_e2el_ms is 133.0"),
    ],
)
def test_what_does_not_add_up_is_refused_by_name(change: Callable[[dict[str, Any]], object], words: str) -> None:
    document = copy.deepcopy(result())
    change(document)
    with pytest.raises(HarnessError) as caught:
        read_result(document, SERIES, PROMPTS)
    assert caught.value.code == "bench-result"
    assert words in caught.value.message, caught.value.message


def test_the_clients_second_look_at_the_clock_is_no_fault() -> None:
    read_result(result(mean_e2el_ms=131.5, mean_tpot_ms=10.5), SERIES, PROMPTS)


def test_the_command_is_the_seeds_own() -> None:
    words = arguments(
        SERIES, port=8001, model="gate", tokenizer=Path("/m"), prompts=Path("/p.jsonl"), result=Path("/out/r.json")
    )
    line = " ".join(words)
    for said in ("--request-rate inf", "--num-warmups 2", "--temperature 0", "--ignore-eos", "--custom-output-len 4"):
        assert said in line
    assert "--disable-shuffle" in words
