"""The finds of the fuzz campaigns, replayed; and proof that a campaign finds what there is to find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from tests.fuzz import targets
from tests.fuzz.campaign import CORPUS, LIMIT_S, fault_of, run
from tests.fuzz.targets import TARGETS, Target

KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_is_never_found_again(path: Path) -> None:
    _, fault = fault_of(TARGETS[path.parent.name], path.read_bytes())
    assert fault is None


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_short_campaign_accepts_some_and_refuses_some_and_finds_nothing(target: Target, tmp_path: Path) -> None:
    result = run(target, 7, 300, tmp_path)
    assert result.finds == {} and list(tmp_path.iterdir()) == []
    assert sum(result.outcomes.values()) == 300 and len(result.outcomes) > 1
    assert run(target, 7, 300, tmp_path).outcomes == result.outcomes
    assert all(target.check(seed) in ("accepted", "unexpected") for seed in target.seeds)


def test_a_parser_that_breaks_its_word_is_found_and_its_document_kept(tmp_path: Path) -> None:
    def naive(data: bytes) -> str:
        json.loads(data)  # refuses with an error that is not ours
        return "accepted"

    result = run(Target("naive", (b'{"a": 1}',), naive), 1, 200, tmp_path)
    assert any(fault.startswith("JSONDecodeError") for fault in result.finds.values())
    for path in result.finds:
        with pytest.raises(ValueError):
            naive(path.read_bytes())


def test_a_parser_that_passes_over_an_entry_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "claims_fp4", lambda key: True)
    foreign = b'{"_metadata": {"flashinfer_version": "0.6.13"}, "(\'other\', 1)": ["x", 1]}'
    assert fault_of(TARGETS["flashinfer"], foreign)[1] is not None


def test_a_parser_that_takes_too_long_is_found() -> None:
    ticks = iter((0.0, LIMIT_S + 1))
    assert "took" in str(fault_of(Target("slow", (), lambda _: "accepted"), b"", lambda: next(ticks))[1])


def test_an_unexpected_exception_is_found() -> None:
    def crash(_: bytes) -> NoReturn:
        raise RecursionError

    assert fault_of(Target("crash", (), crash), b"") == ("find", "RecursionError: ''")
