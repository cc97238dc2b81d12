"""The drawings of `report.html`, each a function of the evidence. Pure; standard library only.

Arm A is blue, solid and round, arm B is orange, dashed and square: hue, stroke and shape each tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from harness.axes import leg_values
from harness.records import GpuLook, Leg
from harness.report import chart
from harness.report.chart import Scale
from harness.report.evidence import Evidence, Row
from harness.report.words import number, percent, row_words
from harness.telemetry.phases import Stamps

__all__ = ["ecdfs", "forest", "forest_axis", "memory", "order", "plan_map"]

MS = 1_000_000
SHAPES = {"A": "circle", "B": "square"}
CHANGES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 75, 90, 100, 200, 400, 900)  # percent
ROOM = 17  # percent of a drawing's width that two words below an axis need
WIDEST = 1000  # of a time axis: two chunks read at once have no gap, and lie at its left edge
STEPS = 200  # points of a distribution's line, so that a long run gives no larger page


# ------------------------------------------------------------------------------------------------ forest plot


def forest_scale(rows: Sequence[Row]) -> Scale:
    """One scale for all axes, the same to both sides: wide enough for estimates and floor bands.

    It ends at the 95th percentile of what is drawn, at least, so that one wild interval does not flatten all others;
    what goes beyond is cut at the edge and its figures are in the text.
    """
    points = [abs(row.log_ratio) for row in rows if row.log_ratio is not None]
    widths = sorted(abs(bound) for row in rows for bound in row.interval or ())
    usual = widths[int(0.9 * (len(widths) - 1))] if widths else 0.0
    reach = 1.1 * max([*points, usual, 0.005])
    return Scale(-reach, reach, 1, 99)


def _ratio_ticks(scale: Scale) -> list[tuple[float, str]]:
    """Round changes in percent, the outermost first, none nearer than a phone's width can hold."""
    logs = [math.log1p(sign * change / 100) for change in CHANGES for sign in (1, -1) if sign * change > -100]
    chosen = [0.0]
    for value in sorted((value for value in logs if scale.holds(value)), key=abs, reverse=True):
        if all(abs(scale(value) - scale(other)) >= ROOM for other in chosen):
            chosen.append(value)
    return [(scale(value), f"{100 * math.expm1(value):+.3g} %".replace("-", "−") if value else "0") for value in chosen]


def forest_axis(scale: Scale) -> str:
    return chart.svg("Scale: change of A against B", 20, chart.x_axis(_ratio_ticks(scale), 0, 4))


def forest(row: Row, scale: Scale, rings: str = "pairs") -> str:
    """Estimate (diamond), interval (line), what identical arms do (band), margin (short lines), and the row's pairs
    (rings), which are called `rings`."""
    height, middle = 30, 15.0
    body = [chart.rect(scale(-row.noise), scale(row.noise), 3, height - 6, "band")] if row.noise is not None else []
    body.append(chart.line(scale(0), 0, scale(0), height, "zero"))
    for side in (-1, 1) if row.margin is not None else ():
        body.append(
            chart.line(scale(side * (row.margin or 0)), 3, scale(side * (row.margin or 0)), height - 3, "margin")
        )
    if row.floor_mean is not None:
        body.append(chart.line(scale(row.floor_mean), 3, scale(row.floor_mean), height - 3, "floor-mean"))
    if row.interval is not None:
        body.append(chart.line(scale(row.interval[0]), middle, scale(row.interval[1]), middle, "interval"))
    body += [chart.dot(scale(pair), middle, "pair", size=4) for pair in row.pairs if pair is not None]
    if row.log_ratio is not None:
        css = "estimate better" if row.passed else "estimate worse"
        body.append(chart.dot(scale(row.log_ratio), middle, css, "diamond", 6))
    return chart.svg(_forest_words(row, rings), height, body)


def _forest_words(row: Row, rings: str) -> str:
    said = f"{row_words(row)}: {percent(row.log_ratio)}"
    if row.interval is not None:
        said += f", interval {percent(row.interval[0])} to {percent(row.interval[1])}"
    return f"{said}; {rings} {', '.join(percent(pair) for pair in row.pairs)}"


# ------------------------------------------------------------------------------------------------ latency


def ecdfs(evidence: Evidence, concurrency: int) -> list[tuple[str, str]]:
    """(title, drawing) of time to first token, gaps between chunks and whole requests, by arm, over all repetitions."""
    return [
        (f"c{concurrency} {name}", drawing)
        for name, pick in (("time to first token", _ttft), ("gaps between tokens", _gaps), ("whole request", _whole))
        if (drawing := _ecdf(evidence, concurrency, name, pick)) is not None
    ]


def _ttft(leg: Leg) -> Iterable[int]:
    return (record.chunk_ns[0] for record in leg.requests if record.error is None and record.chunk_ns)


def _gaps(leg: Leg) -> Iterable[int]:
    for record in leg.requests:
        if record.error is None:
            yield from (after - before for before, after in zip(record.chunk_ns, record.chunk_ns[1:], strict=False))


def _whole(leg: Leg) -> Iterable[int]:
    return (record.chunk_ns[-1] for record in leg.requests if record.error is None and record.chunk_ns)


def _ecdf(evidence: Evidence, concurrency: int, name: str, pick: Any) -> str | None:
    arms = {
        arm: sorted(
            max(value, 1) / MS
            for leg in evidence.timed
            if leg.arm == arm and leg.concurrency == concurrency
            for value in pick(leg)
        )
        for arm in "AB"
    }
    if not all(arms.values()):
        return None
    high = max(values[-1] for values in arms.values())
    low = max(high / WIDEST, min(values[0] for values in arms.values()))
    x, y = Scale(low, max(high, low * 1.01), 1, 99, log=True), Scale(0, 1, 160, 14)
    marks = chart.decades(x, ROOM)
    body = chart.x_axis([(x(value), f"{value:g} ms") for value in marks], 14, 160)
    body += chart.y_grid([(y(share), f"{share:.0%}") for share in (0.1, 0.5, 0.9)])
    body += [chart.path(_steps(values, x, y), 180, f"trace arm-{arm}") for arm, values in arms.items()]
    medians = " and ".join(f"{arm} {values[len(values) // 2]:.4g} ms" for arm, values in arms.items())
    return chart.svg(f"Distribution of {name} at concurrency {concurrency}; middle values: {medians}", 180, body)


def _steps(values: Sequence[float], x: Scale, y: Scale) -> list[chart.Point]:
    """The distribution as steps, thinned to equal shares of the requests where they are many."""
    count = len(values)
    chosen = (
        range(count) if count <= STEPS else sorted({round(index * (count - 1) / STEPS) for index in range(STEPS + 1)})
    )
    points: list[chart.Point] = [(x(values[0]), y(0))]
    for index in chosen:
        points += [(x(values[index]), points[-1][1]), (x(values[index]), y((index + 1) / count))]
    return points


# ------------------------------------------------------------------------------------------------ memory


def memory(evidence: Evidence) -> list[tuple[str, str]]:
    """(title, drawing) of each timed leg's memory in the order run. Vertical scales are shared by one concurrency."""
    legs = [leg for leg in evidence.timed if any(sample.pss_kib is not None for sample in leg.memory)]
    tops: dict[int | None, float] = {}
    for leg in legs:
        tops[leg.concurrency] = max(tops.get(leg.concurrency, 0.0), *(value for _, _, value in _series(leg)))
    return [(leg.name, _memory(leg, tops[leg.concurrency], evidence.phases.get(leg.name))) for leg in legs]


def _series(leg: Leg) -> list[tuple[str, int, float]]:
    """(what, t_ns, MiB): proportional set size of the tree, drop of MemAvailable, and the GPU's where it is known."""
    found = []
    for sample in leg.memory:
        if sample.pss_kib is not None:
            found.append(("pss", sample.t_ns, sample.pss_kib / 1024))
        if sample.mem_available_kib is not None and leg.mem_baseline_kib is not None:
            found.append(("drop", sample.t_ns, max(0, leg.mem_baseline_kib - sample.mem_available_kib) / 1024))
        if sample.gpu_mib is not None:
            found.append(("gpu", sample.t_ns, float(sample.gpu_mib)))
    return found


def _memory(leg: Leg, top: float, stamps: Stamps | None) -> str:
    begin, end = leg.memory[0].t_ns, leg.memory[-1].t_ns
    x, y = Scale(begin, end, 0, 100), Scale(0, top, 120, 30)
    body = _phases(x, stamps, begin, end)
    body += chart.y_grid([(y(value), f"{value:g} MiB") for value in chart.niced(0, top, 3) if value])
    seconds = chart.niced(0, (end - begin) / 1e9, 3)
    body += chart.x_axis([(x(begin + round(value * 1e9)), f"{value:g} s") for value in seconds], 120, 124)
    series = _series(leg)
    for what in ("pss", "drop", "gpu"):
        points = [(x(t_ns), y(value)) for name, t_ns, value in series if name == what]
        if points:
            body.append(chart.path(points, 140, f"trace {what}"))
    peak = max(value for what, _, value in series if what == "pss")
    return chart.svg(f"Memory of leg {leg.name} over time; highest proportional set size {number(peak)} MiB", 140, body)


def _phases(x: Scale, stamps: Stamps | None, begin: int, end: int) -> list[str]:
    if stamps is None:
        return [chart.text(0, 12, "phases unknown", "tick", "start")]
    edges = [begin, stamps.ready_ns, stamps.timed_ns, stamps.done_ns, end]
    body = []
    for name, left, right in zip(("load", "warm-up", "serve", "stop"), edges, edges[1:], strict=False):
        body.append(chart.rect(x(left), x(right), 16, 104, f"phase {name}"))
        if x(right) - x(left) > 14:
            body.append(chart.text((x(left) + x(right)) / 2, 12, name, "tick"))
    return body


# ------------------------------------------------------------------------------------------------ order of the legs


def order(evidence: Evidence) -> list[tuple[str, str]]:
    """(title, drawing) by leg in the order run: throughput, and what may explain a drift of it."""
    legs = evidence.timed
    throughput = _relative(legs)
    found = [("Throughput against the mean at its concurrency", _by_leg(legs, throughput, "%", "throughput"))]
    for title, unit, pick in (
        ("GPU temperature before and after", "°C", "temperature_c"),
        ("GPU clock (SM) before and after", "MHz", "sm_mhz"),
    ):
        values = [[getattr(s, pick) for look in (leg.gpu_before, leg.gpu_after) for s in _states(look)] for leg in legs]
        known = [[float(value) for value in row if value is not None] for row in values]
        found.append((title, _by_leg(legs, known, unit, title) if any(known) else _unknown(legs)))
    canary = [
        [
            look.best_ns["cpu_copy"] / 1000
            for look in (leg.canary_before, leg.canary_after)
            if look and "cpu_copy" in look.best_ns
        ]
        for leg in legs
    ]
    if any(canary):
        found.append(("CPU canary (the same copy, timed) before and after", _by_leg(legs, canary, "µs", "CPU canary")))
    return found


def _states(look: GpuLook | None) -> Sequence[Any]:
    return () if look is None else look.states


def _unknown(legs: Sequence[Leg]) -> str:
    reasons = sorted({look.reason for leg in legs for look in (leg.gpu_before, leg.gpu_after) if look and look.reason})
    return f"<p>Unknown: {escape('; '.join(reasons) or 'the bundle has no readings of a GPU')}.</p>"


def _relative(legs: Sequence[Leg]) -> list[list[float]]:
    """Percent above or below the mean request throughput of all legs at the same concurrency."""
    values = [leg_values(leg)["request_throughput"].value for leg in legs]
    means: dict[int | None, list[float]] = {}
    for leg, value in zip(legs, values, strict=True):
        if value is not None:
            means.setdefault(leg.concurrency, []).append(float(value))
    return [
        []
        if value is None
        else [100 * (float(value) / (sum(means[leg.concurrency]) / len(means[leg.concurrency])) - 1)]
        for leg, value in zip(legs, values, strict=True)
    ]


def _by_leg(legs: Sequence[Leg], values: Sequence[Sequence[float]], unit: str, name: str) -> str:
    """Marks above each leg's place; two values of one leg are joined, before at the left."""
    known = [value for row in values for value in row]
    low, high = min(known), max(known)
    pad = 0.15 * (high - low) or max(abs(high) * 0.05, 1)
    y = Scale(low - pad, high + pad, 120, 14)
    width = 92 / max(1, len(legs))
    body = chart.y_grid([(y(value), f"{value:g} {unit}") for value in chart.niced(y.low, y.high, 5)])
    for position, (leg, row) in enumerate(zip(legs, values, strict=True)):
        centre = 8 + width * (position + 0.5)
        places = (
            [centre]
            if len(row) == 1
            else [centre + width * (0.4 * i / max(1, len(row) - 1) - 0.2) for i in range(len(row))]
        )
        if len(row) > 1:
            body.append(chart.line(places[0], y(row[0]), places[-1], y(row[-1]), f"join arm-{leg.arm}"))
        body += [
            chart.dot(x, y(value), f"mark-{leg.arm}", SHAPES[leg.arm]) for x, value in zip(places, row, strict=True)
        ]
        body.append(chart.text(centre, 136, leg.arm, "tick", "middle"))
        if position == 0 or legs[position - 1].concurrency != leg.concurrency:
            body.append(chart.text(centre, 150, f"c{leg.concurrency}", "tick", "middle"))
    said = ", ".join(
        f"{leg.name} {'/'.join(number(v) for v in row) or 'unknown'}" for leg, row in zip(legs, values, strict=True)
    )
    return chart.svg(f"{name} in {unit}: {said}", 154, body)


# ------------------------------------------------------------------------------------------------ FP4 plan map


def plan_map(selected: Iterable[tuple[int, int, int, int]]) -> str:
    """A table: GEMM shapes down, buckets of M across, each cell its tactic's number on the tactic's colour."""
    cells: Mapping[tuple[int, int, int], int] = {(m, n, k): tactic for m, n, k, tactic in selected}
    buckets = sorted({m for m, _, _ in cells})
    shapes = sorted({(n, k) for _, n, k in cells})
    tactics = sorted(set(cells.values()))
    colours = {tactic: index * 7 // max(1, len(tactics)) for index, tactic in enumerate(tactics)}
    head = "".join(f'<th scope="col">{m}</th>' for m in buckets)
    rows = "".join(
        f'<tr><th scope="row">{n} × {k}</th>' + "".join(_cell(cells.get((m, n, k)), colours) for m in buckets) + "</tr>"
        for n, k in shapes
    )
    top = f'<thead><tr><th scope="col">N × K, M bucket →</th>{head}</tr></thead>'
    return f'<table class="heat">{top}<tbody>{rows}</tbody></table>'


def _cell(tactic: int | None, colours: Mapping[int, int]) -> str:
    return '<td class="none">–</td>' if tactic is None else f'<td class="heat-{colours[tactic]}">{tactic}</td>'
