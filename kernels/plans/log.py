"""The log lines of the plan cache, written and read in one place, so that a harness reads exactly what is written.

Prefixes `[VT_FP4_CACHE]` and `[VT_FP4_AUTOTUNE]`; vllm.cpp writes the same lines. An empty path prints as nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.plans.key import PlanKey

__all__ = [
    "LazyMiss",
    "PlanLog",
    "complete_line",
    "lazy_miss_line",
    "parse_log",
    "prepared_line",
    "process_local_line",
    "rejected_line",
    "tuned_line",
    "unpublished_line",
    "warmup_line",
]

_CACHE = "[VT_FP4_CACHE]"
_AUTOTUNE = "[VT_FP4_AUTOTUNE]"


def prepared_line(
    *,
    mode: str,
    native: Path | None,
    flashinfer: str | None,
    loaded: tuple[int, int],
    rejected: int,
    delay_us: int,
    metadata: str,
    selected: int,
) -> str:
    """`loaded` is (plans taken from FlashInfer, plans taken from the native document)."""
    return (
        f"{_CACHE} prepared mode={mode} native={native or ''} flashinfer={flashinfer or ''} loaded={sum(loaded)} "
        f"(flashinfer={loaded[0]} native={loaded[1]}) rejected={rejected} delay_us={delay_us} metadata={metadata} "
        f"selected={selected}"
    )


def complete_line(
    *, mode: str, loaded: int, tuned: int, rejected: int, saved: int, selected: int, metadata: str
) -> str:
    return (
        f"{_CACHE} complete mode={mode} loaded={loaded} tuned={tuned} rejected={rejected} saved={saved} "
        f"selected={selected} metadata={metadata}"
    )


def warmup_line(max_tokens: int, requested: int, tuned: int, cached: int) -> str:
    return (
        f"{_AUTOTUNE} pre-serve warmup complete max_tokens={max_tokens} profiles_requested={requested} "
        f"profiles_tuned={tuned} cached_plans={cached}"
    )


def lazy_miss_line(m: int, key: PlanKey) -> str:
    return (
        f"{_AUTOTUNE} lazy-miss after pre-serve warmup M={m}(bucket={key.m_bucket}) N={key.n} K={key.k} "
        f"device={key.device_ordinal} sm={key.architecture}; tuning eagerly"
    )


def tuned_line(key: PlanKey, tactic: int) -> str:
    """With VT_FP4_AUTOTUNE_VERBOSE=1, one for each tuned profile."""
    return f"{_AUTOTUNE} set=full M={key.m_bucket} N={key.n} K={key.k} tactic={tactic}"


def rejected_line(path: Path, error: str) -> str:
    mend = "nothing of it is used and nothing will be saved; move the file away to tune afresh"
    return f"{_CACHE} rejected native cache path={path} error={_one_line(error)}; {mend}"


def unpublished_line(path: Path, error: str) -> str:
    mend = "plans stay in this process"
    return f"{_CACHE} could not publish native cache path={path} error={_one_line(error)}; {mend}"


def process_local_line(reason: str) -> str:
    return f"{_CACHE} no native document, plans stay in this process: {_one_line(reason)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class LazyMiss:
    """A plan that was tuned while serving."""

    m: int
    bucket: int
    n: int
    k: int
    device: int
    sm: int


@dataclass(frozen=True)
class PlanLog:
    """What a process's log says of its plans. None: the line that would say it is absent.

    `mode` is the last one said (`not-prepared` without any), `metadata` the fingerprint. `native` and `flashinfer` are
    '' where no path was set. `selected` is in log order. `unexpected` holds every other line with one of the prefixes
    (rejections, failed publications, verbose tuning, anything unknown), each repeated or contradicting line, and
    what is inconsistent as a whole. A frozen process has none.
    """

    mode: str = "not-prepared"
    native: str | None = None
    flashinfer: str | None = None
    loaded: int | None = None
    loaded_flashinfer: int | None = None
    loaded_native: int | None = None
    rejected: int | None = None
    delay_us: int | None = None
    metadata: str | None = None
    selected: tuple[tuple[int, int, int, int], ...] = ()
    tuned: int | None = None
    saved: int | None = None
    profiles_requested: int | None = None
    profiles_tuned: int | None = None
    cached_plans: int | None = None
    max_tokens: int | None = None
    lazy: tuple[LazyMiss, ...] = ()
    unexpected: tuple[str, ...] = ()


_N = r"(\d{1,20})"
_HEX = r"([0-9a-f]{16})"
# Paths may hold blanks, so each runs to the last place where the rest of the line still fits.
_PREPARED = re.compile(
    rf"prepared mode=(\S+) native=(.*) flashinfer=(.*) loaded={_N} \(flashinfer={_N} native={_N}\) rejected={_N} "
    rf"delay_us={_N} metadata={_HEX} selected={_N}"
)
_COMPLETE = re.compile(
    rf"complete mode=(\S+) loaded={_N} tuned={_N} rejected={_N} saved={_N} selected={_N} metadata={_HEX}"
)
_SELECTED = re.compile(r"selected M=(\d{1,10}) N=(\d{1,10}) K=(\d{1,10}) tactic=(\d{1,10})")
_WARMUP = re.compile(
    rf"pre-serve warmup complete max_tokens={_N} profiles_requested={_N} profiles_tuned={_N} cached_plans={_N}"
)
_LAZY = re.compile(
    rf"lazy-miss after pre-serve warmup M={_N}\(bucket={_N}\) N={_N} K={_N} device={_N} sm={_N}; tuning eagerly"
)
# Other writers share the stream without taking turns: a line of ours may begin behind their text, and theirs behind
# ours. So a record runs from its prefix to the next prefix or line end, and is matched at its start only.
_RECORD = re.compile(r"\[VT_FP4_(?:CACHE|AUTOTUNE)\](?:(?!\[VT_FP4_(?:CACHE|AUTOTUNE)\])[^\r\n])*")


def parse_log(text: str) -> PlanLog:
    """Read the plan state out of one process's whole log, which may hold anything else."""
    reading = _Reading()
    for match in _RECORD.finditer(text):
        reading.take(match.group())
    return reading.result()


class _Reading:
    """Collects records; a record that says again, or otherwise, what was said before is unexpected."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._selected: dict[tuple[int, int, int], int] = {}
        self._selected_count: int | None = None
        self._lazy: list[LazyMiss] = []
        self._unexpected: list[str] = []

    def take(self, record: str) -> None:
        prefix, _, body = record.partition(" ")
        if prefix == _CACHE:
            known = self._take_selected(body) or self._take_prepared(body) or self._take_complete(body)
        else:
            known = self._take_warmup(body) or self._take_lazy(body)
        if not known:
            self._unexpected.append(record)

    def result(self) -> PlanLog:
        selected = tuple((*shape, tactic) for shape, tactic in self._selected.items())
        if self._selected_count is not None and self._selected_count != len(selected):
            said = f"complete says selected={self._selected_count}, the log lists {len(selected)} selected lines"
            self._unexpected.append(said)
        return PlanLog(selected=selected, lazy=tuple(self._lazy), unexpected=tuple(self._unexpected), **self._values)

    def _take_prepared(self, body: str) -> bool:
        match = _PREPARED.match(body)
        if match is None or "delay_us" in self._values:
            return False
        mode, native, flashinfer = match.group(1, 2, 3)
        loaded, from_flashinfer, from_native, rejected, delay = map(int, match.group(4, 5, 6, 7, 8))
        said = {"mode": mode, "loaded": loaded, "rejected": rejected, "metadata": match.group(9)}
        self._values.update(said, native=native, flashinfer=flashinfer, delay_us=delay)
        self._values.update(loaded_flashinfer=from_flashinfer, loaded_native=from_native)
        return loaded == from_flashinfer + from_native

    def _take_complete(self, body: str) -> bool:
        match = _COMPLETE.match(body)
        if match is None or "tuned" in self._values:
            return False
        loaded, tuned, rejected, saved, self._selected_count = map(int, match.group(2, 3, 4, 5, 6))
        self._values.update(mode=match.group(1), tuned=tuned, saved=saved)
        said = {"loaded": loaded, "rejected": rejected, "metadata": match.group(7)}
        return all(self._values.setdefault(name, value) == value for name, value in said.items())

    def _take_selected(self, body: str) -> bool:
        match = _SELECTED.match(body)
        if match is None:
            return False
        m, n, k, tactic = map(int, match.groups())
        if (m, n, k) in self._selected:
            return False
        self._selected[m, n, k] = tactic
        return True

    def _take_warmup(self, body: str) -> bool:
        match = _WARMUP.match(body)
        if match is None or "max_tokens" in self._values:
            return False
        names = ("max_tokens", "profiles_requested", "profiles_tuned", "cached_plans")
        self._values.update(zip(names, map(int, match.groups()), strict=True))
        return True

    def _take_lazy(self, body: str) -> bool:
        match = _LAZY.match(body)
        if match is None:
            return False
        self._lazy.append(LazyMiss(*map(int, match.groups())))
        return True
