"""`harness floor`: pairs that are there are not measured again, the stopping rule holds, foreign runs are refused."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness import floor, floor_making
from harness.config import Config
from harness.errors import UsageError
from harness.floor_store import choose, read
from harness.plan import Plan
from tests.builders import good_leg, good_legs, small_config, small_plan, write_bundle

SIZE = ("floor.campaigns=8", "floor.attempts=20")


class Bench:
    """Measures nothing: writes sealed bundles of synthetic legs, and remembers what it was asked for."""

    def __init__(self, cut: int | None = None, void: tuple[str, ...] = ()) -> None:
        self.asked: list[list[list[int]]] = []
        self._cut, self._void, self._random = cut, void, random.Random(1)

    def __call__(self, config: Config, campaign: Mapping[str, Any]) -> tuple[str, ...]:
        self.asked.append(campaign["pairs"])
        plan = self._plan(campaign)
        legs = [good_leg(leg, plan, scale=self._random.gauss(1, 0.002)) for leg in plan.legs]
        cut, self._cut = self._cut, None
        root = Path(config.evidence.root) / f"g4-{len(self.asked):03d}"
        write_bundle(root, plan, legs if cut is None else legs[:cut])
        return self._void if cut is not None else ()

    def _plan(self, campaign: Mapping[str, Any]) -> Plan:
        base = small_plan()
        legs = [leg for leg in base.legs if leg.kind != "timed" or [2, leg.repetition] in campaign["pairs"]]
        return replace(base, candidate=base.baseline, difference=(), aa=dict(campaign), legs=tuple(legs))


def make(folder: Path, bench: Bench, *overrides: str) -> Path:
    config = small_config(*SIZE, f"evidence.root={folder}", *overrides)
    return floor_making.make(config, folder, Console(file=StringIO()), bench)


def test_a_floor_is_sealed_after_its_campaigns_and_fits_the_runs_of_its_baseline(tmp_path: Path) -> None:
    bench = Bench()
    found = read(make(tmp_path, bench))[1]
    assert (len(bench.asked), len(found.campaigns), found.source) == (8, 8, floor.CAMPAIGNS)
    plan = small_plan()
    assert floor.mismatch(found, plan) is None
    assert [document["digest"] for document in choose(small_config().floor, tmp_path, tmp_path, plan)] == [found.digest]
    assert choose(small_config().floor, tmp_path, tmp_path, replace(plan, engine="other")) == []
    make(tmp_path, bench)
    assert len(bench.asked) == 8


def test_a_campaign_that_was_cut_goes_on_with_the_pairs_it_lacks(tmp_path: Path) -> None:
    """Seed leg, two gates, two proofs, then one whole pair and one leg of the second."""
    bench = Bench(cut=8)
    assert len(read(make(tmp_path, bench))[1].campaigns) == 8
    assert bench.asked[:2] == [[[2, 1], [2, 2], [2, 3]], [[2, 2], [2, 3]]]
    assert len(bench.asked) == 9


def test_a_stop_that_was_asked_for_ends_the_verb_and_the_same_command_goes_on(tmp_path: Path) -> None:
    bench = Bench(cut=8, void=("interrupted",))
    with pytest.raises(UsageError, match="goes on with what is missing"):
        make(tmp_path, bench)
    make(tmp_path, bench)
    assert bench.asked[1] == [[2, 2], [2, 3]]


def test_the_stopping_rule_cannot_be_changed_under_way(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        make(tmp_path, Bench(cut=8, void=("interrupted",)))
    with pytest.raises(UsageError, match="cannot be changed once it runs"):
        make(tmp_path, Bench(), "floor.campaigns=9")


def test_archived_bundles_give_a_floor_of_residuals_unless_one_is_void(tmp_path: Path) -> None:
    plan = small_plan()
    roots = [write_bundle(tmp_path / f"run{n}", plan, good_legs(plan, scale_a=1 + n / 100)) for n in range(3)]
    found = read(floor_making.from_bundles(roots, tmp_path))[1]
    assert (found.source, len(found.campaigns)) == (floor.ARCHIVED, 3)
    void = write_bundle(tmp_path / "void", plan, good_legs(plan)[:-1])
    with pytest.raises(UsageError, match="is VOID"):
        floor_making.from_bundles([*roots, void], tmp_path)


def test_a_file_that_is_no_floor_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match=r"x\.json is no floor"):
        read(tmp_path / "x.json")
