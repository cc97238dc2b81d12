"""One per cent on one axis, which one run cannot settle, through the commands: simulated legs, sealed and joined.

The legs are those of `nox -s simulation`, at the full size of the gate; a campaign's effect has an SD of 0.1 %.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli import main
from harness.plan import Plan
from harness.records import Leg
from harness.verify import verify
from tests.builders import STARTED
from tests.simulation import runs
from tests.simulation.trials import PAIRS, World

WORLD = World(campaign=0.001)
SLOWER = -math.log1p(-0.01)  # of arm A's time a token, at c16 alone: ratios of 0.99
AXIS = (16, "mean_tpot_ms")


@dataclass(frozen=True)
class Bench:
    floor: Any
    plan: Plan

    def campaign(self, seed: int, tpot: float) -> list[Leg]:
        return runs.simulated(self.plan, WORLD, np.random.default_rng([7, seed]), tpot)

    def sealed(self, root: Path, number: int, legs: Sequence[Leg]) -> Path:
        started = STARTED + timedelta(hours=number + 1)
        return runs.write_run(root / f"g4-{number}", self.plan, legs, self.floor, started)


@pytest.fixture(scope="module")
def bench() -> Bench:
    floor = runs.floor_of(WORLD, 14, np.random.default_rng(7))
    return Bench(floor, runs.plan_of(floor))


def row_of(found: Any) -> dict[str, Any]:
    return next(row for row in found["axes"] if (row["concurrency"], row["name"]) == AXIS)


def verdict_row(root: Path) -> dict[str, Any]:
    found = verify(root)
    assert found.verdict is not None, found.faults
    assert found.outcome == "FAIL"
    return row_of(found.verdict["interpretation"])


def joined(roots: Sequence[Path], out: Path) -> Any:
    assert main(["report", "--join", *map(str, roots), "--json", str(out)]) == 0
    return json.loads(out.read_text())


@pytest.mark.slow
def test_an_effect_of_one_per_cent_is_real_after_the_campaigns_that_the_label_asks_for(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bench.sealed(tmp_path, 0, bench.campaign(0, SLOWER))
    alone = verdict_row(first)
    assert alone["label"] == "UNRESOLVED"
    asked = alone["pairs_needed"] // PAIRS
    assert 2 <= asked <= 12, alone
    roots = [first, *(bench.sealed(tmp_path, n, bench.campaign(n, SLOWER)) for n in range(1, asked))]
    found = joined(roots, tmp_path / "joint.json")
    assert (row_of(found)["label"], row_of(found)["direction"]) == ("REAL", "worse")
    assert math.expm1(row_of(found)["log_ratio"]) == pytest.approx(-0.01, abs=0.003)
    assert (
        f"{asked} of the {asked} valid runs of this plan that are known; none is left out." in capsys.readouterr().out
    )
    assert [verify(root).outcome for root in roots] == ["FAIL"] * asked


@pytest.mark.slow
def test_identical_arms_in_as_many_campaigns_are_real_nowhere(bench: Bench, tmp_path: Path) -> None:
    first = bench.sealed(tmp_path, 0, bench.campaign(100, 0.0))
    asked = verdict_row(first)["pairs_needed"] // PAIRS
    roots = [first, *(bench.sealed(tmp_path, n, bench.campaign(100 + n, 0.0)) for n in range(1, asked))]
    found = joined(roots, tmp_path / "joint.json")
    assert found["counts"]["REAL"] == found["counts"]["REAL-SMALL"] == 0
    assert row_of(found)["label"] in ("NOISE", "UNRESOLVED")
