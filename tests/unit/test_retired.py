"""Predicates that voided good runs, and must not come back. Each meets the good run that it would void.

The run is of the vLLM client, which is where all four came from: its result goes through the reader and the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness import verdict
from harness.client.load import Prompt
from harness.client.vllm_bench import Series, read_result
from harness.plan import Plan, partition, prompts_digest
from harness.records import Check, Leg
from tests.builders import SHA, good_leg, small_plan

REQUESTS, TOKENS, PROMPT = 4, 128, 64
TTFT_S, GAP_S, PAUSE_S = 0.04, 0.001, 0.00015
SERIES = Series(REQUESTS, 1, 1, TOKENS)
ENDED = [Check("run-ended", "journal", "end", "end", True)]
Result = Mapping[str, Any]


def plan() -> Plan:
    made = small_plan(
        "gate.concurrencies=[1]",
        f"workload.points={{1: {REQUESTS}}}",
        f"workload.output_tokens={TOKENS}",
        f"workload.input_tokens={PROMPT}",
        "gate.sequential_requests=0",
        "client=vllm_bench",
    )
    corpus = {partition(1, number): prompts_digest([SHA] * REQUESTS) for number in (1, 2, 3)}
    return replace(made, corpus=corpus)


PLAN = plan()


def result(leg: str) -> Result:
    """One request after another, 0.15 ms apart; the second stream merged two tokens; the texts are the leg's own."""
    gaps = [[GAP_S] * (TOKENS - 1) for _ in range(REQUESTS)]
    gaps[1] = [GAP_S] * (TOKENS - 3) + [2 * GAP_S]
    e2el = TTFT_S + (TOKENS - 1) * GAP_S
    duration = REQUESTS * e2el + (REQUESTS - 1) * PAUSE_S
    pooled = sorted(gap for row in gaps for gap in row)
    itl = (sum(pooled) / len(pooled), GAP_S, GAP_S, GAP_S)
    latencies = {"ttft": (TTFT_S,) * 4, "tpot": (GAP_S,) * 4, "e2el": (e2el,) * 4, "itl": itl}
    names = ("mean", "median", "p90", "p99")
    return {
        "num_prompts": REQUESTS,
        "max_concurrency": 1,
        "completed": REQUESTS,
        "failed": 0,
        "duration": duration,
        "total_input_tokens": REQUESTS * PROMPT,
        "total_output_tokens": REQUESTS * TOKENS,
        "input_lens": [PROMPT] * REQUESTS,
        "output_lens": [TOKENS] * REQUESTS,
        "ttfts": [TTFT_S] * REQUESTS,
        "itls": gaps,
        "start_times": [50 + number * (e2el + PAUSE_S) for number in range(REQUESTS)],
        "generated_texts": [f"text {number} of {leg}" for number in range(REQUESTS)],
        "errors": [""] * REQUESTS,
        "max_concurrent_requests": 4,  # counted in whole seconds, in which all four were
        "request_throughput": REQUESTS / duration,
        "output_throughput": REQUESTS * TOKENS / duration,
        "total_token_throughput": REQUESTS * (PROMPT + TOKENS) / duration,
        **{f"{n}_{kind}_ms": 1000 * v for kind, row in latencies.items() for n, v in zip(names, row, strict=True)},
    }


def legs() -> list[Leg]:
    prompts = [Prompt(number, SHA, f"prompt {number}") for number in range(REQUESTS)]
    found = []
    for planned in PLAN.legs:
        leg = good_leg(planned, PLAN)
        if planned.kind == "timed":
            report, records = read_result(result(planned.name), SERIES, prompts)
            leg = replace(leg, requests=records, load=report)
        found.append(leg)
    return found


def checks() -> dict[str, list[Check]]:
    """Every check of the run by code."""
    found: dict[str, list[Check]] = {}
    for row in verdict.compute(PLAN, legs(), ENDED)["checks"]:
        found.setdefault(row["code"], []).append(Check(**row))
    return found


RETIRED: Mapping[str, Callable[[Result], bool]] = {
    "exactly 127 gaps": lambda it: all(len(gaps) == TOKENS - 1 for gaps in it["itls"]),
    "concurrency counted in whole seconds": lambda it: it["max_concurrent_requests"] == it["max_concurrency"],
    "errors == []": lambda it: it["errors"] == [],
    "equal texts across runs": lambda it: it["generated_texts"] == result("another leg")["generated_texts"],
}


@pytest.mark.parametrize("name", RETIRED)
def test_the_good_run_is_one_that_the_retired_predicate_voids(name: str) -> None:
    assert not RETIRED[name](result("05-c1-A-r1"))


def test_the_good_run_is_valid_and_every_axis_of_it_is_judged() -> None:
    found = verdict.compute(PLAN, legs(), ENDED)
    assert found["void"] == []
    assert [check for check in found["checks"] if not check["ok"]] == []
    assert found["outcome"] == "PASS"
    assert len(found["axes"]) == 23


def test_concurrency_is_what_overlaps_and_the_check_says_so() -> None:
    assert {check.seen for check in checks()["peak-concurrency"]} == {"1"}


def test_empty_error_texts_are_no_failures() -> None:
    assert {check.seen for check in checks()["failed-requests"]} == {"0 failed"}
    assert all(record.error is None for leg in legs() for record in leg.requests)


def test_different_texts_are_counted_and_never_checked() -> None:
    equal = verdict.compute(PLAN, legs(), ENDED)["diagnostics"]["equal_texts"]
    assert [(row["equal"], row["of"]) for row in equal] == [(0, REQUESTS)] * 3
    assert not [code for code in checks() if "text" in code]


def test_a_merged_chunk_leaves_the_tokens_and_the_time_a_token_as_they_are() -> None:
    found = checks()
    assert {check.seen for check in found["output-tokens"]} == {str(REQUESTS * TOKENS)}
    row = next(row for row in verdict.compute(PLAN, legs(), ENDED)["axes"] if row["name"] == "mean_tpot_ms")
    assert float(row["candidate"]) == pytest.approx(1000 * GAP_S)
