"""Drawing as text: axes, lines and dots that keep their size on any width. Pure; standard library only.

Horizontal places are percentages of the drawing's width and vertical ones pixels, so text is never scaled: a phone gets
a narrower drawing and not a smaller one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Scale", "decades", "dot", "line", "niced", "path", "rect", "svg", "text", "x_axis", "y_grid"]

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """From values to 0…100 (horizontal) or pixels; `low` lies at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(item) if self.log else item for item in (self.low, self.high, value))
        share = 0.5 if high == low else (at - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def _n(value: float) -> str:
    """Two decimals are below a hundredth of a pixel on a phone; fewer bytes, and the same on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def svg(name: str, height: int, body: Iterable[str]) -> str:
    """A drawing of the full width. `name` says in one sentence what is seen, for who does not see it."""
    return (
        f'<svg class="chart" role="img" aria-label="{escape(name)}" width="100%" height="{height}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{_n(x1)}%" y1="{_n(y1)}" x2="{_n(x2)}%" y2="{_n(y2)}"/>'


def rect(x1: float, x2: float, y: float, height: float, css: str) -> str:
    x1, x2 = sorted((x1, x2))
    return f'<rect class="{css}" x="{_n(x1)}%" y="{_n(y)}" width="{_n(x2 - x1)}%" height="{_n(height)}"/>'


def dot(x: float, y: float, css: str, shape: str = "circle", size: float = 4) -> str:
    """A circle, square or diamond of `size` pixels about its centre. Shapes tell arms apart without colour."""
    if shape == "circle":
        return f'<circle class="{css}" cx="{_n(x)}%" cy="{_n(y)}" r="{_n(size)}"/>'
    edge = "0,-1 1,0 0,1 -1,0" if shape == "diamond" else "-.9,-.9 .9,-.9 .9,.9 -.9,.9"
    points = " ".join(",".join(_n(size * float(part)) for part in pair.split(",")) for pair in edge.split())
    return f'<svg class="mark" x="{_n(x)}%" y="{_n(y)}"><polygon class="{css}" points="{points}"/></svg>'


def path(points: Sequence[Point], height: float, css: str) -> str:
    """A line through (percent, pixel) points; its width is not stretched with the drawing."""
    said = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    return (
        f'<svg x="0" y="0" width="100%" height="{_n(height)}" viewBox="0 0 100 {_n(height)}" '
        f'preserveAspectRatio="none"><polyline class="{css}" points="{said}"/></svg>'
    )


def text(x: float, y: float, said: str, css: str = "", anchor: str = "") -> str:
    """`anchor` is start, middle or end; left out, it keeps text at the edges inside the drawing."""
    anchor = anchor or ("start" if x < 6 else "end" if x > 94 else "middle")
    return f'<text class="{css}" x="{_n(x)}%" y="{_n(y)}" text-anchor="{anchor}">{escape(said)}</text>'


def niced(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def decades(scale: Scale, room: float) -> list[float]:
    """1, 2, 5 of each power of ten on a logarithmic scale, or fewer, so that neighbours are `room` percent apart."""
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    found: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [value for power in powers for factor in factors if scale.holds(value := factor * 10.0**power)]
        places = [scale(value) for value in found]
        if all(right - left >= room for left, right in itertools.pairwise(places)):
            return found
    return found[::2]


def x_axis(ticks: Iterable[tuple[float, str]], top: float, bottom: float) -> list[str]:
    """Vertical grid lines from `top` to `bottom` with their words below; places in percent."""
    marks = list(ticks)
    lines = [line(x, top, x, bottom, "grid") for x, _ in marks]
    return [*lines, *(text(x, bottom + 14, said, "tick") for x, said in marks)]


def y_grid(ticks: Iterable[tuple[float, str]]) -> list[str]:
    """Horizontal grid lines with their words above them at the left; places in pixels."""
    marks = list(ticks)
    lines = [line(0, y, 100, y, "grid") for y, _ in marks]
    return [*lines, *(text(0, y - 3, said, "tick", "start") for y, said in marks)]
