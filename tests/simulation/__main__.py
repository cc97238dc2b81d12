"""`nox -s simulation`: what the strict rule and the labels do with identical arms, and what they find of a real effect.

Fixed seeds: the same table from any checkout and number of processes. `--write` puts it into docs/simulation.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.settings import compose_config
from harness.statistics import t_quantile
from harness.weighing import LABELS, Terms
from tests.simulation import legs as legs_module
from tests.simulation import trials
from tests.simulation.leave_one_out import FLOORS, leave_one_out
from tests.simulation.trials import AXES, TESTS, World

DOCS = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
SEED = 20261207
LIBRARY = 4000
CHUNK = 500
CAMPAIGNS = (14, 8)  # the verb's default, and the least that the rule takes
WORLDS = {
    "published": World(),
    "no campaign effect": World(campaign=0.0),
    "calm": World(campaign=0.0, drift=(0.0, 0.0), cold=(0.0, 0.0)),
}
TPOT = next(i for i, axis in enumerate(AXES) if (axis.concurrency, axis.name) == (16, "mean_tpot_ms"))
EFFECT = math.log1p(-0.01)
LOOKS = 30  # campaigns of a series that is looked at after each: what an axis asks for in the published world
MOST = 120  # campaigns drawn for one trial's power; a label that asks for more counts as not found
SAMPLE = 5  # trials a chunk that the screen excluded and the product judges all the same


@cache
def _terms() -> Terms:
    return Terms.from_json(asdict(compose_config([]).rule)["interpretation"])


@cache
def _library() -> dict[int, Any]:
    return trials.library(LIBRARY, SEED)


def _critical(df: float) -> float:
    return t_quantile(_terms().alpha / 2 / TESTS, df)


@dataclass
class Tally:
    """Counts over trials; `labels` is over the distinct axes of those trials that the product judged at random."""

    trials: int = 0
    strict: int = 0
    timing: int = 0
    false_real: int = 0
    omnibus: int = 0
    omnibus_trials: int = 0
    judged: int = 0
    sampled: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                self.labels.update(value)
            else:
                setattr(self, name, getattr(self, name) + value)


def null_chunk(world: World, campaigns: int, omnibus: int, number: int) -> Tally:
    """CHUNK trials of identical arms, each with a floor of its own."""
    rng = np.random.default_rng([SEED, 1, campaigns, number])
    drawn = trials.draw(_library(), world, (CHUNK, campaigns + 1), rng)
    floor = trials.Drawn(drawn.whole[:, :-1], drawn.pairs[:, :-1], None)
    run, pairs = drawn.whole[:, -1], drawn.pairs[:, -1]
    tally = Tally(trials=CHUNK, timing=int((run[:, _timing()] >= 0).all(axis=1).sum()))
    tally.strict = _strict(drawn.values[:, -1], run)
    near = trials.screen(floor, run, _critical)
    outside = np.flatnonzero(~near)[:SAMPLE]
    for i in (*np.flatnonzero(near), *outside):
        value = trials.floor_of(floor.whole[i], floor.pairs[i])
        rows = trials.product_rows(value, [run[i]], pairs[i], _terms())
        found = any(row["label"].startswith("REAL") for row in rows)
        assert near[i] or not found, "the screen excluded a trial in which the product calls an axis REAL"
        tally.false_real += found
        tally.judged += 1
        if i in outside:
            tally.sampled += 1
            tally.labels.update(row["label"] for row in rows if row["same_as"] is None)
    for i in range(omnibus):
        tally.omnibus += trials.product_omnibus(floor.whole[i], run[i]) <= _terms().alpha
        tally.omnibus_trials += 1
    return tally


def _timing() -> Any:
    return [i for i, axis in enumerate(AXES) if axis.kind == "timing"]


def _strict(values: Any, run: Any) -> int:
    """Trials that pass: the product judges those near it, and two others, which must fail."""
    near = np.flatnonzero((run > -1e-9).all(axis=1))
    far = np.flatnonzero((run < -1e-9).any(axis=1))[:2]
    assert not any(trials.product_strict(values[i]) for i in far)
    return sum(trials.product_strict(values[i]) for i in near)


@dataclass(frozen=True)
class Found:
    """One trial of a real effect: how often it was REAL after one campaign and after those that its label asks for."""

    asked: int | None
    after_one: bool
    after_asked: bool
    false_real: bool


def power_chunk(world: World, campaigns: int, effect: float, count: int, number: int) -> list[Found]:
    """`count` trials of arms that differ by `effect` on mean TPOT at c16 (and on mean ITL, which repeats it)."""
    rng = np.random.default_rng([SEED, 2, campaigns, number])
    found = []
    for _ in range(count):
        floor = trials.draw(_library(), world, (1, campaigns), rng)
        value = trials.floor_of(floor.whole[0], floor.pairs[0])
        asked = trials.campaigns_needed(value, (16, "mean_tpot_ms"), _terms())
        runs = trials.draw(_library(), world, (1, min(asked or 1, MOST)), rng)
        runs.whole[:, :, TPOT] += effect
        runs.pairs[:, :, :, TPOT] += effect
        one = trials.product_rows(value, [runs.whole[0, 0]], runs.pairs[0, 0], _terms())
        whole = trials.product_rows(value, list(runs.whole[0]), runs.pairs[0, 0], _terms())
        reached = asked is not None and asked <= MOST
        other = any(row["label"].startswith("REAL") for i, row in enumerate(whole) if i != TPOT and not row["same_as"])
        found.append(Found(asked, _hit(one), reached and _hit(whole), other or (effect == 0 and _hit(whole))))
    return found


def stopping_chunk(world: World, campaigns: int, count: int, number: int) -> tuple[int, int]:
    """Of `count` series of LOOKS campaigns of identical arms: how many have a false REAL at the end, and at any."""
    rng = np.random.default_rng([SEED, 3, campaigns, number])
    at_the_end = at_any = 0
    for _ in range(count):
        floor = trials.draw(_library(), world, (1, campaigns), rng)
        value = trials.floor_of(floor.whole[0], floor.pairs[0])
        series = trials.draw(_library(), world, (1, LOOKS), rng)
        looks = (list(series.whole[0][: last + 1]) for last in range(LOOKS))
        found = [
            any(
                row["label"].startswith("REAL")
                for row in trials.product_rows(value, look, series.pairs[0, 0], _terms())
            )
            for look in looks
        ]
        at_the_end += found[-1]
        at_any += any(found)
    return at_the_end, at_any


def _hit(rows: Sequence[dict[str, Any]]) -> bool:
    return str(rows[TPOT]["label"]) == "REAL" and rows[TPOT]["direction"] == "worse"


def _spread_over(pool: ProcessPoolExecutor, work: Callable[[int], Any], chunks: int) -> list[Any]:
    return list(pool.map(work, range(chunks)))


def nulls(pool: ProcessPoolExecutor, world: World, campaigns: int, count: int, omnibus: int) -> Tally:
    whole = Tally()
    work = partial(null_chunk, world, campaigns, omnibus * CHUNK // count)
    for tally in _spread_over(pool, work, count // CHUNK):
        whole.add(tally)
    return whole


def powers(pool: ProcessPoolExecutor, world: World, campaigns: int, effect: float, count: int) -> list[Found]:
    chunks = _spread_over(pool, partial(power_chunk, world, campaigns, effect, 50), count // 50)
    return [item for chunk in chunks for item in chunk]


def _percent(part: float, whole: float, digits: int = 2) -> str:
    return f"{100 * part / whole:.{digits}f} %"


def calibration() -> list[str]:
    """Simulated legs beside what was published."""
    lines = [
        "| leg | tok/s, published | simulated | TPOT ms, published | simulated | SD of a leg's mean TPOT |",
        "|---|---|---|---|---|---|",
    ]
    for c, published in legs_module.PUBLISHED.items():
        axes = _library()[c]
        total, tpot = axes[:, 3], axes[:, 8]
        lines.append(
            f"| c{c} | {published.total_throughput:g} | {total.mean():.1f} | {published.mean_tpot_ms:g} | "
            f"{tpot.mean():.1f} | {_percent(tpot.std(), tpot.mean())} |"
        )
    return lines


def table(pool: ProcessPoolExecutor, count: int) -> list[str]:
    lines = [
        "| identical arms | floor | trials | strict pass | timing alone | any false REAL | omnibus p ≤ 5 % |",
        "|---|---|---|---|---|---|---|",
    ]
    shares = []
    for name, world in WORLDS.items():
        for campaigns in CAMPAIGNS if name == "published" else CAMPAIGNS[:1]:
            trials_here = count if name == "published" else count // 5
            tally = nulls(pool, world, campaigns, trials_here, trials_here // 5)
            lines.append(
                f"| {name} | {campaigns} campaigns | {tally.trials:,} | {_percent(tally.strict, tally.trials, 3)} | "
                f"{_percent(tally.timing, tally.trials)} | {_percent(tally.false_real, tally.trials)} | "
                f"{_percent(tally.omnibus, tally.omnibus_trials, 1)} of {tally.omnibus_trials:,} |"
            )
            per = {label: tally.labels[label] / tally.sampled for label in LABELS[:4]}
            words = ", ".join(f"{value:.1f} {label}" for label, value in per.items())
            shares.append(f"* {name}, {campaigns} campaigns: of {TESTS} axes {words} ({tally.sampled:,} trials).")
    return [*lines, "", "Labels of identical arms, the mean over trials drawn at random:", "", *shares]


def power_table(pool: ProcessPoolExecutor, count: int) -> list[str]:
    lines = [
        "| −1 % on mean TPOT at c16 | floor | trials | campaigns asked for (median) | REAL after one | REAL after "
        "those asked for | any other axis REAL |",
        "|---|---|---|---|---|---|---|",
    ]
    worlds = {**WORLDS, "campaign effect of 0.2 %": replace(World(), campaign=0.002)}
    for name, world in worlds.items():
        for effect, words in ((EFFECT, name), (0.0, f"{name}, no effect")):
            found = powers(pool, world, CAMPAIGNS[0], effect, count)
            asked = sorted(item.asked or 10**9 for item in found)[len(found) // 2]
            lines.append(
                f"| {words} | {CAMPAIGNS[0]} campaigns | {len(found):,} | {asked} | "
                f"{_percent(sum(item.after_one for item in found), len(found), 1)} | "
                f"{_percent(sum(item.after_asked for item in found), len(found), 1)} | "
                f"{_percent(sum(item.false_real for item in found), len(found), 1)} |"
            )
    return lines


def stopping(pool: ProcessPoolExecutor, count: int) -> list[str]:
    lines = [
        f"| identical arms | floor | series | any false REAL after {LOOKS} campaigns | after any of {LOOKS} looks |",
        "|---|---|---|---|---|",
    ]
    for name in ("published", "calm"):
        found = _spread_over(pool, partial(stopping_chunk, WORLDS[name], CAMPAIGNS[0], 10), count // 10)
        ends, anywhere = (sum(item[side] for item in found) for side in (0, 1))
        lines.append(
            f"| {name} | {CAMPAIGNS[0]} campaigns | {count:,} | {_percent(ends, count, 1)} | "
            f"{_percent(anywhere, count, 1)} |"
        )
    return lines


def left_out() -> list[str]:
    lines = [
        "| real floor | campaigns | pairs each | any REAL | of axes: REAL | REAL-SMALL | NOISE | UNRESOLVED |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(FLOORS.glob("*.json")):
        found = leave_one_out(path, _terms())
        cells = " | ".join(str(found.labels[label]) for label in LABELS[:4])
        lines.append(
            f"| {path.stem} | {found.campaigns} | {found.pairs} | {found.any_real} of {found.campaigns} | {cells} |"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--powers", type=int, default=1000)
    parser.add_argument("--series", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/simulation.md")
    options = parser.parse_args(argv)
    begun = time.monotonic()
    _library()
    with ProcessPoolExecutor(options.processes) as pool:
        sections = {
            "calibration": calibration(),
            "null": table(pool, options.trials),
            "power": power_table(pool, options.powers),
            "stopping": stopping(pool, options.series),
            "left-out": left_out(),
        }
    for name, lines in sections.items():
        print(f"{name}\n" + "\n".join(lines) + "\n", flush=True)
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    if options.write:
        DOCS.write_text(_filled(DOCS.read_text(), sections))
    return 0


def _filled(text: str, sections: dict[str, list[str]]) -> str:
    """The page with what lies between `<!-- name -->` and `<!-- /name -->` replaced."""
    for name, lines in sections.items():
        head, rest = text.split(f"<!-- {name} -->\n", 1)
        tail = rest.split(f"<!-- /{name} -->", 1)[1]
        text = f"{head}<!-- {name} -->\n" + "\n".join(lines) + f"\n<!-- /{name} -->{tail}"
    return text


if __name__ == "__main__":
    sys.exit(main())
