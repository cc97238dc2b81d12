from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.plans import log, oracle
from kernels.plans.key import PlanKey
from kernels.plans.log import LazyMiss, PlanLog, parse_log
from kernels.plans.selected import map_sha256, selected, selected_lines

MAP = selected(oracle.plans())
KEY = PlanKey(8, 5120, 6144, 0, 121, 0, 2)
PREPARED = (
    "[VT_FP4_CACHE] prepared mode=read-only native=/n flashinfer=/f loaded=64 (flashinfer=64 native=0) rejected=0 "
    "delay_us=5000 metadata=330e0b811014741f selected=64"
)
COMPLETE = (
    "[VT_FP4_CACHE] complete mode=read-only loaded=64 tuned=0 rejected=0 saved=0 selected=64 metadata=330e0b811014741f"
)
WARMUP = (
    "[VT_FP4_AUTOTUNE] pre-serve warmup complete max_tokens=2048 profiles_requested=0 profiles_tuned=0 cached_plans=64"
)
FROZEN = f"{PREPARED}\nINFO loading\n{COMPLETE}\n{selected_lines(MAP)}{WARMUP}\nready\n"


def test_a_frozen_process_reads_as_64_loaded_and_nothing_else() -> None:
    found = parse_log(FROZEN)
    assert (found.mode, found.native, found.flashinfer) == ("read-only", "/n", "/f")
    assert (found.loaded, found.loaded_flashinfer, found.loaded_native, found.rejected) == (64, 64, 0, 0)
    assert (found.delay_us, found.metadata) == (5000, "330e0b811014741f")
    assert (found.tuned, found.saved, found.max_tokens) == (0, 0, 2048)
    assert (found.profiles_requested, found.profiles_tuned, found.cached_plans) == (0, 0, 64)
    assert found.selected == MAP
    assert map_sha256(found.selected) == oracle.manifest()["selected_map_sha256"]
    assert found.lazy == found.unexpected == ()


def test_lines_are_written_exactly_as_they_are_read() -> None:
    prepared = log.prepared_line(
        mode="read-only",
        native=Path("/n"),
        flashinfer="/f",
        loaded=(64, 0),
        rejected=0,
        delay_us=5000,
        metadata="330e0b811014741f",
        selected=64,
    )
    complete = log.complete_line(
        mode="read-only", loaded=64, tuned=0, rejected=0, saved=0, selected=64, metadata="330e0b811014741f"
    )
    assert (prepared, complete, log.warmup_line(2048, 0, 0, 64)) == (PREPARED, COMPLETE, WARMUP)


def test_a_log_without_a_plan_line_knows_nothing_and_says_so() -> None:
    assert parse_log("INFO ready\n") == PlanLog()
    assert parse_log("") == PlanLog(mode="not-prepared", loaded=None)


PATHS = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85"), max_size=30
).filter(lambda text: "=" not in text and "[VT_FP4_" not in text)  # a prefix inside a line begins a glued one


@given(PATHS, PATHS)
def test_paths_with_blanks_and_empty_paths_survive(native: str, flashinfer: str) -> None:
    line = PREPARED.replace("native=/n flashinfer=/f", f"native={native} flashinfer={flashinfer}")
    found = parse_log(f"{line}\n")
    assert (found.native, found.flashinfer, found.unexpected) == (native, flashinfer, ())


def test_text_of_other_writers_glued_to_either_end_does_no_harm() -> None:
    glued = "".join(f"\rloading 3%{line}INFO: x\n" for line in FROZEN.splitlines() if line.startswith("["))
    assert parse_log(glued) == parse_log(FROZEN)


def test_two_of_our_lines_without_a_line_feed_between_them_are_two() -> None:
    found = parse_log(FROZEN.replace("\n[VT", "[VT"))
    assert found == parse_log(FROZEN)


def test_lazy_misses_are_counted_one_by_one() -> None:
    line = log.lazy_miss_line(7, KEY)
    assert line == (
        "[VT_FP4_AUTOTUNE] lazy-miss after pre-serve warmup M=7(bucket=8) N=5120 K=6144 device=0 sm=121; tuning eagerly"
    )
    found = parse_log(FROZEN + line + "\n" + line + "\n")
    assert found.lazy == (LazyMiss(7, 8, 5120, 6144, 0, 121),) * 2
    assert found.unexpected == ()


@pytest.mark.parametrize(
    "line",
    [
        log.rejected_line(Path("/n"), "bad\nfile"),
        log.unpublished_line(Path("/n"), "disk full"),
        log.process_local_line("no root"),
        log.tuned_line(KEY, 4),
        "[VT_FP4_AUTOTUNE] something new",
        "[VT_FP4_CACHE]",
        "[VT_FP4_CACHE] selected M=1 N=2",
        "[VT_FP4_CACHE] selected M=1 N=5120 K=6144 tactic=5",
        PREPARED,
        PREPARED.replace("mode=read-only", "mode=read-write"),
        COMPLETE,
        WARMUP,
    ],
)
def test_any_other_or_repeated_line_is_reported(line: str) -> None:
    assert parse_log(f"{FROZEN}{line}\n").unexpected == (line,)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("complete mode=read-only loaded=64", "complete mode=read-only loaded=63"),
        ("saved=0 selected=64 metadata=330e0b811014741f", "saved=0 selected=64 metadata=2e429d4cd3977f0f"),
        ("loaded=64 (flashinfer=64 native=0)", "loaded=64 (flashinfer=63 native=0)"),
        ("saved=0 selected=64", "saved=0 selected=63"),
        ("[VT_FP4_CACHE] selected M=16 N=5120 K=6144 tactic=0\n", ""),
    ],
)
def test_lines_that_contradict_each_other_are_reported(old: str, new: str) -> None:
    assert old in FROZEN
    assert len(parse_log(FROZEN.replace(old, new)).unexpected) == 1


def test_the_last_mode_counts() -> None:
    text = FROZEN.replace("complete mode=read-only", "complete mode=read-write-save-failed")
    assert parse_log(text).mode == "read-write-save-failed"
