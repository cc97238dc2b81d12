"""The result of `vllm bench serve --save-result --save-detailed`, validated and turned into our records. Pure.

What the client does not say stays unknown: [DONE], finish reasons, how late its loop was. A gap is one between chunks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.client.load import Prompt, peak_in_flight
from harness.client.metrics import timing_axes
from harness.errors import HarnessError
from harness.records import LoadReport, RequestRecord

__all__ = ["Series", "arguments", "faults", "read_result"]

_NS_PER_S = 1_000_000_000
PERCENTILES = (50, 90, 99)
LATENCIES = ("ttft", "tpot", "itl", "e2el")
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")
# 20 figures that the client aggregates itself.
NUMBERS = (
    *("duration", "request_throughput", "output_throughput", "total_token_throughput"),
    *(f"{name}_{latency}_ms" for latency in LATENCIES for name in ("mean", "median", "p90", "p99")),
)
# The client reads its clock twice around the first chunk and once after the last, so its latency is not TTFT plus gaps.
SKEW_MS = 2.0


@dataclass(frozen=True)
class Series:
    """What one series was asked to do."""

    requests: int
    concurrency: int
    warmups: int
    output_tokens: int


def arguments(series: Series, *, port: int, model: str, tokenizer: Path, prompts: Path, result: Path) -> list[str]:
    """What follows `vllm bench serve`: the seed's own command line, for prompts of known token counts."""
    return [
        *("--backend", "openai", "--base-url", f"http://127.0.0.1:{port}", "--endpoint", "/v1/completions"),
        *("--model", model, "--tokenizer", str(tokenizer), "--dataset-name", "custom", "--dataset-path", str(prompts)),
        *("--custom-output-len", str(series.output_tokens), "--skip-chat-template", "--disable-shuffle"),
        *("--num-prompts", str(series.requests), "--max-concurrency", str(series.concurrency)),
        *("--request-rate", "inf", "--num-warmups", str(series.warmups), "--ready-check-timeout-sec", "0"),
        *("--seed", "0", "--ignore-eos", "--temperature", "0"),
        *("--percentile-metrics", ",".join(LATENCIES), "--metric-percentiles", ",".join(map(str, PERCENTILES))),
        *("--save-result", "--save-detailed", "--result-dir", str(result.parent), "--result-filename", result.name),
        "--disable-tqdm",
    ]


def read_result(
    document: Mapping[str, Any], series: Series, prompts: Sequence[Prompt]
) -> tuple[LoadReport, tuple[RequestRecord, ...]]:
    """The report and the records, in the order of `prompts`. HarnessError `bench-result` names every fault.

    A failed request is data, not a fault: its record has `error` set.
    """
    found = faults(document, series)
    if found:
        raise HarnessError("bench-result", f"the vLLM client's result is not valid: {'; '.join(found)}")
    records = tuple(_record(document, index, prompts[index]) for index in range(series.requests))
    report = LoadReport(
        concurrency=series.concurrency,
        requests=series.requests,
        warmups=series.warmups,
        duration_ns=_ns(document["duration"]),
        peak_in_flight=peak_in_flight(_spans(document)),
        loop_lag_p99_ns=None,
        stamp_source="loop",
        itl_basis="chunk",
        warnings=(),
    )
    wrong = _disagreements(document, records, report, series)
    if wrong:
        raise HarnessError("bench-result", f"the vLLM client's own figures do not follow from its lists: {wrong[0]}")
    return report, records


def faults(document: Mapping[str, Any], series: Series) -> list[str]:
    """What is wrong with the document's shape and counts, a sentence each; empty when it can be read."""
    lacks = [name for name in (*LISTS, *NUMBERS) if name not in document]
    if lacks:
        return [f"it lacks {', '.join(lacks)} (--save-detailed gives the lists)"]
    return [*_count_faults(document, series), *_number_faults(document, series)]


def _count_faults(document: Mapping[str, Any], series: Series) -> list[str]:
    wanted = {"num_prompts": series.requests, "max_concurrency": series.concurrency}
    found = [
        f"{name} is {document.get(name)!r}, not {value}"
        for name, value in wanted.items()
        if not _whole(document.get(name)) or document[name] != value
    ]
    ended = (document.get("completed"), document.get("failed"))
    if not all(map(_whole, ended)) or sum(ended) != series.requests:  # type: ignore[arg-type]
        found.append(f"completed and failed are {ended[0]!r} and {ended[1]!r}, together not {series.requests}")
    lists = [
        f"{name} is no list of {series.requests}" for name in LISTS if not _list_of(document[name], series.requests)
    ]
    if lists:
        return [*found, *lists]
    if not all(isinstance(error, str) for error in document["errors"]):
        found.append("errors holds something that is no text (an empty text means no error)")
    if not all(isinstance(text, str) for text in document["generated_texts"]):
        found.append("generated_texts holds something that is no text")
    failed = sum(1 for error in document["errors"] if error)
    if not found and failed != document["failed"]:
        found.append(f"failed is {document['failed']}, but {failed} errors are not empty")
    for name, own in (("total_input_tokens", "input_lens"), ("total_output_tokens", "output_lens")):
        good = [n for n, error in zip(document[own], document["errors"], strict=True) if not error]
        if not all(_whole(value) for value in document[own]):
            found.append(f"{own} holds something that is no whole number")
        elif document.get(name) != sum(good):
            found.append(f"{name} is {document.get(name)!r}, but {own} add up to {sum(good)}")
    return found


def _number_faults(document: Mapping[str, Any], series: Series) -> list[str]:
    found = [f"{name} is {document[name]!r}" for name in NUMBERS if not _number(document[name])]
    if not found and document["duration"] <= 0:
        found.append("duration is not above 0")
    times = [*_listed(document["ttfts"]), *_listed(document["start_times"])]
    if not all(map(_number, times)):
        found.append("ttfts or start_times hold something that is no finite number from 0")
    most = series.output_tokens - 1  # fewer are legal: a chunk may carry several tokens
    for index, gaps in enumerate(_listed(document["itls"])):
        if not isinstance(gaps, list) or not all(map(_number, gaps)):
            found.append(f"itls[{index}] is no list of finite numbers from 0")
        elif len(gaps) > most:
            found.append(f"itls[{index}] has {len(gaps)} gaps, more than the {most} of {most + 1} tokens")
    if found:
        return found
    bucketed, peak = document.get("max_concurrent_requests"), peak_in_flight(_spans(document))
    if not _number(bucketed) or float(bucketed or 0) < peak:
        found.append(f"max_concurrent_requests is {bucketed!r}, but {peak} requests overlap")
    return found


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _list_of(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _ns(seconds: float) -> int:
    return round(seconds * _NS_PER_S)


def _spans(document: Mapping[str, Any]) -> list[tuple[int, int]]:
    """[start, end) of each request; the end is the last chunk's."""
    rows = zip(document["start_times"], document["ttfts"], document["itls"], strict=True)
    return [(_ns(start), _ns(start) + _ns(ttft) + sum(map(_ns, gaps))) for start, ttft, gaps in rows]


def _record(document: Mapping[str, Any], index: int, prompt: Prompt) -> RequestRecord:
    error = document["errors"][index]
    tokens = document["output_lens"][index]
    if not error and tokens == 0:
        error = "no token came"
    offsets = [_ns(document["ttfts"][index])]
    for gap in document["itls"][index]:
        offsets.append(offsets[-1] + _ns(gap))
    return RequestRecord(
        index=prompt.index,
        prompt_sha256=prompt.sha256,
        start_ns=_ns(document["start_times"][index]),
        chunk_ns=tuple(offsets) if not error else (),
        chunk_tokens=None,
        done_ns=offsets[-1] if not error else None,
        prompt_tokens=document["input_lens"][index],
        output_tokens=tokens,
        text_sha256=hashlib.sha256(document["generated_texts"][index].encode("utf-8", "surrogatepass")).hexdigest(),
        finish_reason=None,
        status=None,
        error=f"vllm-bench: {error.strip().splitlines()[-1][:300]}" if error else None,
        retries=0,
        shared_stamps=sum(gap == 0 for gap in document["itls"][index]),
    )


def _disagreements(
    document: Mapping[str, Any], records: Sequence[RequestRecord], report: LoadReport, series: Series
) -> list[str]:
    """Our axes from its lists beside its own figures: only its second look at the clock may tell them apart."""
    skew = {"e2el": SKEW_MS, "tpot": SKEW_MS / max(1, series.output_tokens - 1)}
    found = []
    for name, axis in timing_axes(records, report.duration_ns).items():
        theirs = document.get(name)
        if axis.value is None or not _number(theirs):
            continue  # it has 0 where nothing is defined, and no input throughput at all
        allowed = skew.get(name.split("_")[1], 0.0) + 1e-6 * max(1.0, abs(float(axis.value)))
        if abs(float(axis.value) - float(theirs or 0)) > allowed:
            found.append(f"{name} is {theirs!r}, but its lists give {float(axis.value):.6f}")
    return found
