"""`plans stability`: regret out of recorded and of cold times, and real tunings of the CPU backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.errors import UsageError
from harness.plans.stability import Key, Tuned, compare, read_cold, read_tuned, summary

SMALL, WIDE = (1, 64, 32), (8, 128, 32)
A, B, C = (("r", number) for number in range(3))


def plan(shape: tuple[int, int, int], tactic: int, **said: Any) -> dict[str, Any]:
    m, n, k = shape
    return {"k": k, "m_bucket": m, "n": n, "runner": "r", "tactic_id": tactic, **said}


def written(path: Path, *plans: dict[str, Any]) -> Tuned:
    path.write_text(json.dumps({"_metadata": {}, "plans": plans}))
    return read_tuned(path)


def test_the_regret_is_the_loss_of_the_slowest_choice_by_the_median_of_what_was_recorded(tmp_path: Path) -> None:
    second = {"runner_up": "r", "runner_up_tactic_id": 1, "runner_up_margin": 0.5}
    tunings = [
        written(tmp_path / "1", plan(SMALL, 0, time_us=10.0, **second), plan(WIDE, 2, time_us=1.0)),
        written(tmp_path / "2", plan(SMALL, 0, time_us=12.0), plan(WIDE, 2, time_us=3.0)),
        written(tmp_path / "3", plan(SMALL, 1, time_us=11.0), plan(WIDE, 2, time_us=2.0)),
    ]
    small, wide = compare(tunings, {})
    assert (small.tactics, small.stable) == ((A, A, B), False)
    assert small.regret == pytest.approx(13 / 11 - 1)  # A 11 of 10 and 12, B 13 of 15 and 11
    assert wide == Key(WIDE, (C, C, C), 0.0, None)


def test_the_cold_regret_is_against_the_best_of_all_tactics() -> None:
    tunings = [Tuned({SMALL: A}, {}), Tuned({SMALL: B}, {})]
    [key] = compare(tunings, {SMALL: {A: 10.0, B: 12.0, C: 8.0}})
    assert key == Key(SMALL, (A, B), None, pytest.approx(0.5))
    [partly] = compare(tunings, {SMALL: {A: 10.0}})
    assert partly.cold_regret is None


def test_tunings_of_other_keys_cannot_be_compared() -> None:
    with pytest.raises(UsageError) as caught:
        compare([Tuned({SMALL: A}, {}), Tuned({WIDE: A}, {})], {})
    assert caught.value.code == "other-keys"


def test_the_summary_counts_what_is_known_and_says_why_nothing_is() -> None:
    found = summary([0.0] * 19 + [0.4, None])
    assert (found["known"], found["p95"], found["max"]) == (20, 0.0, 0.4)
    assert found["mean"] == pytest.approx(0.02)
    assert summary([None]) == {"known": 0, "max": None, "mean": None, "p95": None, "reason": "no times are recorded"}


def test_cold_times_are_read_by_runner_and_refused_with_their_form(tmp_path: Path) -> None:
    path = tmp_path / "cold.json"
    path.write_text('{"1 64 32 r 0": 1.5, "1 64 32 r 1": 2}')
    assert read_cold(path) == {SMALL: {A: 1.5, B: 2.0}}
    path.write_text('{"1 64 32 0": 1.5}')
    with pytest.raises(UsageError, match="M N K runner tactic") as caught:
        read_cold(path)
    assert caught.value.code == "bad-times"


def test_real_tunings_agree_with_the_documents_that_they_leave(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--shape", "128,64", "--shape", "64,32", "--max-tokens", "4", "--tunings", "3", "--json"]
    code = main(["plans", "stability", *words, "--keep", str(tmp_path)])
    out, error = capfd.readouterr()
    found = json.loads(out)
    documents = [read_tuned(tmp_path / f"tuning-{number}.json") for number in (1, 2, 3)]
    assert error == "tuning 1 of 3\ntuning 2 of 3\ntuning 3 of 3\n"
    assert (found["keys"], found["tunings"], found["regret"]["known"]) == (6, 3, 6)
    unstable = [key for key in compare(documents, {}) if not key.stable]
    assert code == (1 if unstable else 0) == (0 if len(set(found["maps"])) == 1 else 1)
    assert [(row["m"], row["n"], row["k"]) for row in found["unstable"]] == [key.shape for key in unstable]
    assert [row["regret"] for row in found["unstable"]] == [key.regret for key in unstable]


def test_a_tuning_that_fails_is_named_with_its_own_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plans", "stability", "--backend", "cuda", "--shape", "64,32", "--tunings", "2"]) == 64
    error = capfd.readouterr().err
    assert "tuning-failed: tuning 1 ended with 1: kernels.tune:" in error


@pytest.mark.parametrize("words", [("--tunings", "1"), ("--shape", "64,30"), ("--shape", "64"), ("--max-tokens", "x")])
def test_arguments_that_make_no_sense_are_refused_before_anything_runs(
    words: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["plans", "stability", *words]) == 64
    out, error = capfd.readouterr()
    assert (out, error.count("\n")) == ("", 1)
