"""Student's t, Holm, two one-sided tests, Satterthwaite. Standard library only; tests hold it against scipy.

Tail probabilities come from the regularised incomplete beta function, so that they keep their digits far out in the
tail, where Holm looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["holm", "rounded", "satterthwaite", "t_quantile", "t_two_sided", "t_upper", "tost"]

DIGITS = 9
TINY = 1e-300
STEPS = 100_000
PRECISION = 1e-16


def rounded(value: float | None) -> float | None:
    """`value` to nine significant digits, so that platforms whose `log` differs in the last bit agree; -0.0 is 0.0."""
    return None if value is None else float(f"{value:.{DIGITS}g}") + 0.0


def t_two_sided(t: float, df: float) -> float:
    """P(|T| >= |t|) for Student's t with `df` > 0 degrees of freedom, which need not be whole."""
    if t == 0:
        return 1.0
    if math.isinf(t):
        return 0.0
    square = t * t
    return _beta_tail(df / (df + square), square / (df + square), df / 2, 0.5)


def t_upper(t: float, df: float) -> float:
    """P(T >= t)."""
    half = t_two_sided(t, df) / 2
    return half if t >= 0 else 1 - half


@lru_cache(maxsize=4096)
def t_quantile(upper: float, df: float) -> float:
    """The t with P(T >= t) = `upper`, for 0 < `upper` <= 0.5: Newton on the log of the tail, in a bracket."""
    if upper == 0.5:
        return 0.0
    low, high = 0.0, 1.0
    while t_upper(high, df) > upper:
        low, high = high, high * 2
    t = (low + high) / 2
    for _ in range(200):
        tail = t_upper(t, df)
        low, high = (t, high) if tail > upper else (low, t)
        step = t + math.log(tail / upper) * tail / _t_density(t, df)
        following = step if low < step < high else (low + high) / 2
        if abs(following - t) <= 1e-15 * following:
            return following
        t = following
    return t


def _t_density(t: float, df: float) -> float:
    scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(scale - (df + 1) / 2 * math.log1p(t * t / df))


def _beta_tail(x: float, rest: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b); `rest` is 1 - x, given apart to keep its digits."""
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(x, a, b) / a
    return 1 - front * _beta_fraction(rest, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of I_x(a, b), evaluated forwards by Lentz's method."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away(1 + term * d)
            c = _away(1 + term / c)
            found *= d * c
        if abs(d * c - 1) <= PRECISION:
            break
    return found


def _away(value: float) -> float:
    return value if abs(value) > TINY else TINY


def holm(p_values: Sequence[float], tests: int) -> list[float]:
    """Holm's adjusted p-values, in the given order, as members of a family of `tests` >= len(p_values) hypotheses.

    `tests` is fixed before the run: a hypothesis without a p-value still counts.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (tests - rank)))
        adjusted[index] = highest
    return adjusted


def tost(estimate: float, se: float, df: float, margin: float) -> float:
    """The larger p-value of the two one-sided tests that the effect lies inside ±`margin`."""
    if se == 0:
        return 0.0 if abs(estimate) < margin else 1.0
    return max(t_upper((estimate + margin) / se, df), t_upper((margin - estimate) / se, df))


def satterthwaite(terms: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of independent variance estimates, given as (term, its degrees of freedom)."""
    spread = sum(term * term / df for term, df in terms)
    total = sum(term for term, _ in terms)
    return total * total / spread if spread > 0 else min(df for _, df in terms)
