"""Campaigns out of simulated legs, floors out of campaigns, and both judged by the product's own functions.

Two stages, since 100,000 trials with a floor each would need 18 million legs: a library of legs is simulated once; a
campaign draws its twelve from it and stretches each in time by what is common to a leg: the campaign's effect on arm A,
drift, a cold first leg. Stretching is exact, as every axis is a time or a rate. Drawn arrays are screened with numpy.
What the screen cannot exclude, and a sample of what it excludes, goes to the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from harness import omnibus
from harness.axes import axes_of
from harness.client.metrics import TIMING_AXES
from harness.floor import CAMPAIGNS, Floor
from harness.interpretation import Comparison, rows
from harness.logratios import AxisKey, AxisLogs, same_as
from harness.rule import Rule, judge
from harness.weighing import Family, Terms, weigh
from tests.simulation.legs import POINTS, simulate

__all__ = ["Drawn", "World", "library", "product_omnibus", "product_rows", "product_strict", "screen"]

PAIRS = 3
POSITION = {"A": (0, 3, 4), "B": (1, 2, 5)}  # AB/BA/AB
LEGS = 12
AXES = axes_of(tuple(POINTS), gpu=True)
PER = len(AXES) // len(POINTS)
SIGN = np.array([1.0 if axis.direction == "higher" else -1.0 for axis in AXES[:PER]])
TWINS: dict[AxisKey, str | None] = {(axis.concurrency, axis.name): same_as(axis.name, True) for axis in AXES}
OWN = np.array([TWINS[axis.concurrency, axis.name] is None for axis in AXES])
TESTS = int(OWN.sum())
MEAN = Rule("strict-mean", 2, "mean", Fraction(1))


@dataclass(frozen=True)
class World:
    """What campaigns differ in, in logs of a leg's time; the defaults follow what was published of the real host.

    Deltas of one pair of arms in four campaigns were -0.83, +0.35, 0, -0.65 % at c16, each steady within its campaign:
    an SD of 0.55 %. Both arms drifted by 0.5 to 2 % over a session. The first leg was 6 % slow.
    """

    campaign: float = 0.0055
    drift: tuple[float, float] = (0.005, 0.02)  # over a campaign, uniform
    cold: tuple[float, float] = (0.06, 0.01)  # mean and SD, first leg of a campaign


PSS_KIB, DROP_KIB = 24_879_201, 68_346_844
PSS_SD, RSS_SD, DROP_SD = 1e-4, 5e-5, 0.005  # published: within 0.02 %, 0.02 %, 0.95 %
GPU_MIB = (39_566, 39_918, 40_211, 40_244)  # the peaks that one binary jumped among


def library(legs: int, seed: int) -> dict[int, Any]:
    """Timing axes of simulated legs by concurrency."""
    return {c: simulate(c, legs, np.random.default_rng([seed, c])) for c in POINTS}


@dataclass(frozen=True)
class Drawn:
    """Campaigns of identical arms. `whole`: (trials, campaigns, axes) log ratios of means; `pairs`: one more before the
    last for the pairs; `values`: (trials, campaigns, 2 arms, pairs, axes)."""

    whole: Any
    pairs: Any
    values: Any


def draw(legs: Mapping[int, Any], world: World, size: tuple[int, int], rng: np.random.Generator) -> Drawn:
    """`size` is (trials, campaigns)."""
    slope = rng.uniform(*world.drift, size) / LEGS
    parts = []
    for number, c in enumerate(POINTS):
        timing = legs[c][rng.integers(0, len(legs[c]), (*size, 2, PAIRS))]
        stretch = np.zeros((*size, 2, PAIRS))
        for arm, letter in enumerate("AB"):
            for pair, position in enumerate(POSITION[letter]):
                stretch[..., arm, pair] = slope * (position + number * 2 * PAIRS)
        stretch[..., 0, :] += rng.normal(0, world.campaign, size)[..., None]
        if number == 0:
            stretch[..., 0, 0] += rng.normal(*world.cold, size)
        timing = timing * np.exp(-stretch[..., None] * SIGN[: len(TIMING_AXES)])
        parts.append(np.concatenate([timing, _memory(size, rng)], axis=-1))
    values = np.concatenate(parts, axis=-1)
    signs = np.tile(SIGN, len(POINTS))
    means, logs = values.mean(axis=-2), np.log(values)
    whole = signs * (np.log(means[..., 0, :]) - np.log(means[..., 1, :]))
    return Drawn(whole, signs * (logs[..., 0, :, :] - logs[..., 1, :, :]), values)


def _memory(size: tuple[int, int], rng: np.random.Generator) -> Any:
    shape = (*size, 2, PAIRS)
    pss = np.rint(PSS_KIB * (1 + rng.normal(0, PSS_SD, shape)))
    rss = np.rint(pss * (1 + rng.normal(0, RSS_SD, shape)) + 2_600)
    gpu = rng.choice(np.array(GPU_MIB, dtype=float), shape)
    drop = np.rint(DROP_KIB * (1 + rng.normal(0, DROP_SD, shape)))
    return np.stack([pss, rss, gpu, drop], axis=-1)


def screen(floor: Drawn, run: Any, quantile: Any) -> Any:
    """Trials in which an axis comes within 2 % of Holm's first step: no other can have any REAL or REAL-SMALL.

    `run` is (trials, axes), `quantile(df)` the critical t. Holm rejects nothing unless its smallest p is below
    alpha / tests, which is one threshold on |t|.
    """
    campaigns = floor.whole.shape[1]
    total = (floor.whole**2).mean(axis=1)
    centred = floor.pairs - floor.pairs.mean(axis=2, keepdims=True)
    within = (centred**2).sum(axis=(1, 2)) / (campaigns * (PAIRS - 1)) / PAIRS
    alone = total <= within
    variance, df = np.where(alone, within, total), np.where(alone, campaigns * (PAIRS - 1), campaigns)
    critical = np.where(alone, quantile(campaigns * (PAIRS - 1)), quantile(campaigns))
    assert df.min() > 0
    return ((np.abs(run) / np.sqrt(variance) > 0.98 * critical) & OWN).any(axis=-1)


def floor_of(whole: Any, pairs: Any) -> Floor:
    """One trial's floor as the product's value: `whole` (campaigns, axes), `pairs` (campaigns, pairs, axes)."""
    axes = {
        (axis.concurrency, axis.name): {"log_ratios": whole[:, i].tolist(), "pairs": pairs[:, :, i].tolist()}
        for i, axis in enumerate(AXES)
    }
    one_token = dict.fromkeys(POINTS, True)
    return Floor(CAMPAIGNS, {}, None, "", "", PAIRS, one_token, [{}] * len(whole), axes, "")


def product_rows(floor: Floor, campaigns: Sequence[Any], pairs: Any, terms: Terms) -> list[dict[str, Any]]:
    """The product's rows for a run: `campaigns` has one array of log ratios each, `pairs` (pairs, axes) the first's."""
    logs = [
        {
            (axis.concurrency, axis.name): AxisLogs(float(whole[i]), tuple(pairs[:, i].tolist()))
            for i, axis in enumerate(AXES)
        }
        for whole in campaigns
    ]
    return rows(Comparison(AXES, logs, TWINS, [floor], terms, PAIRS))


def product_omnibus(floor: Any, run: Any) -> float:
    """The product's omnibus p of one trial: `floor` (campaigns, axes), `run` (axes)."""
    null, misses, axes = {}, {}, {}
    for number, c in enumerate(POINTS):
        part = np.flatnonzero(OWN[number * PER : (number + 1) * PER]) + number * PER
        null[c] = omnibus.counts(floor[:, part].tolist())
        misses[c], axes[c] = int((run[part] < 0).sum()), len(part)
    return float(omnibus.omnibus(misses, axes, null)["p"])


def product_strict(values: Any) -> bool:
    """The product's strict rule on one run: `values` (2 arms, pairs, axes)."""
    return all(
        judge(axis, _fractions(values[0, :, i]), _fractions(values[1, :, i]), MEAN).passed
        for i, axis in enumerate(AXES)
    )


def _fractions(values: Any) -> list[Fraction | None]:
    return [Fraction(value) for value in values.tolist()]


def campaigns_needed(floor: Floor, key: AxisKey, terms: Terms) -> int | None:
    """What the label of `key` asks for after one campaign."""
    spread = Comparison(AXES, [], TWINS, [floor], terms, PAIRS).spreads[key]
    return weigh(0.0, spread, terms, Family(key[1], PAIRS, 1, TESTS)).campaigns_needed
