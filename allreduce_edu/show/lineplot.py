"""Draws line charts: scales, grid, lines with dashes and marks, and what is written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.show.axes import Scale, drawable, scale
from allreduce_edu.show.charts import Line, LineChart
from allreduce_edu.show.draw import Keys, say, tag
from allreduce_edu.show.paint import DASHES

CHAR = 6.3  # the width of a character of 12 px, generously
Run = list[tuple[float, float]]
PAD = 14
_BAND = 26  # below a log axis, for zeros
TEXT: Keys = {"look": "text", "font_size": 12}
SOFT: Keys = {"look": "soft", "font_size": 12}
_MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8l4.6 8h-9.2z",
    "M0-5l5 5l-5 5l-5-5z",
    "M-4-4l8 8m0-8l-8 8",
    "M0-5v10m-5-5h10",
    "M0 4.8l4.6-8h-9.2z",
    "M-5 0h10",
)
_SHOWN_MARKS = 6  # on a line, at most
_APART = 35  # pixels between two marks, at least


def lines(chart: LineChart, _ident: str) -> tuple[str, float, float]:
    """Return what is inside the picture, its width and its height."""
    width, height = chart.size
    x, y = _scales(chart)
    zeros = chart.y.log and any(v == 0 for line in chart.lines for v in line.y)
    names = [chart.y.name(t) for t in y.ticks()] + ["exactly 0"] * zeros
    left = PAD + 10 + max(len(n) for n in names) * CHAR
    key, top = _key([(line.name, _style(chart, i)) for i, line in enumerate(chart.lines)], width)
    top += 26  # the label of the y axis
    bottom = height - 46 - _BAND * zeros
    box = left, width - PAD - 6, top, bottom

    where = _Place(x, y, box)
    parts = [key, say(left, top - 9, chart.y.label, **SOFT), _grid(chart, x, y, box, zeros=zeros)]
    parts += [_guide(where.x(g.at), g.text, box) for g in chart.guides]
    runs = [where.runs(line) for line in chart.lines]
    parts += [_line(each, _style(chart, i)) for i, each in enumerate(runs)]
    drawn = [point for each in runs for run in each for point in run]
    parts += [_ring((where.x(p.x), where.y(p.y)), p.text, box, drawn) for p in chart.points]
    return "".join(parts), width, height


def _scales(chart: LineChart) -> tuple[Scale, Scale]:
    xs = [v for line in chart.lines for v in line.x] + [g.at for g in chart.guides]
    ys = [v for line in chart.lines for v in line.y]
    return (
        scale(chart.x, xs + [p.x for p in chart.points]),
        scale(chart.y, ys + [p.y for p in chart.points]),
    )


def _style(chart: LineChart, i: int) -> int:
    style = chart.lines[i].style
    return (i if style is None else style) % len(DASHES)


def _key(entries: Iterable[tuple[str, int]], width: float) -> tuple[str, float]:
    """Draw the names of the lines in rows above the data; return also where they end."""
    parts, x, y = [], float(PAD), 44.0
    for name, style in entries:
        wide = 42 + len(name) * CHAR
        if x > PAD and x + wide > width - PAD:
            x, y = float(PAD), y + 18
        parts.append(tag("path", look=f"s{style}", d=f"M{x:g} {y - 4:g}h28"))
        parts.append(_mark(x + 14, y - 4, style))
        parts.append(say(x + 34, y, name, **TEXT))
        x += wide + 14
    return "".join(parts), y


def _grid(chart: LineChart, x: Scale, y: Scale, box: tuple[float, ...], *, zeros: bool) -> str:
    left, right, top, bottom = box
    parts, lines, last = [], [], -math.inf
    for tick in y.ticks():
        at = bottom - y(tick) * (bottom - top)
        lines.append(f"M{left:g} {at:.1f}H{right:g}")
        parts.append(say(left - 8, round(at + 4, 1), chart.y.name(tick), text_anchor="end"))
    for tick in x.ticks():
        at, name = left + x(tick) * (right - left), chart.x.name(tick)
        lines.append(f"M{at:.1f} {bottom:g}v4")
        if at - len(name) * CHAR / 2 < last + 6:
            continue
        last = at + len(name) * CHAR / 2
        below = bottom + 18 + _BAND * zeros
        parts.append(say(round(at, 1), below, name, text_anchor="middle"))
    below = bottom + 38 + _BAND * zeros
    parts.append(say((left + right) / 2, below, chart.x.label, text_anchor="middle"))
    band = ""
    if zeros:
        keys: Keys = {"x": left, "y": bottom + 7, "width": right - left, "height": _BAND - 5}
        band = tag("rect", look="void", opacity=0.55, rx=3, **keys)
        parts.append(say(left - 8, bottom + _BAND - 4, "exactly 0", text_anchor="end"))
    grid = tag("path", look="grid", d="".join(lines))
    axis = tag("path", look="axis", d=f"M{left:g} {top:g}V{bottom:g}H{right:g}")
    return grid + axis + band + tag("g", "".join(parts), **SOFT)


class _Place(NamedTuple):
    """Where numbers stand in the picture."""

    across: Scale
    up: Scale
    box: tuple[float, float, float, float]

    def x(self, value: Any) -> Any:
        left, right, *_ = self.box
        return left + self.across(value) * (right - left)

    def y(self, value: Any) -> Any:
        *_, top, bottom = self.box
        return bottom - self.up(value) * (bottom - top)

    def runs(self, line: Line) -> list[Run]:
        """Return a line's strokes: first what has a place, then each unbroken run of zeros."""
        x, y = np.asarray(line.x, float), np.asarray(line.y, float)
        shown = drawable(self.across.axis, x) & drawable(self.up.axis, y)
        strokes = [[*zip(self.x(x[shown]).tolist(), self.y(y[shown]).tolist(), strict=True)]]
        if self.up.axis.log:
            zero = drawable(self.across.axis, x) & (y == 0)
            band = self.box[3] + _BAND - 8
            ends = np.flatnonzero(np.diff(zero, prepend=False, append=False))
            for a, b in ends.reshape(-1, 2):
                strokes.append([(px, band) for px in self.x(x[a:b]).tolist()])
        return [stroke for stroke in strokes if stroke]


def _line(runs: list[Run], style: int) -> str:
    marks = "".join(_mark(*run[i], style) for run in runs for i in _spread(run, style))
    d = "".join(_path(_thinned(run)) for run in runs if len(run) > 1)
    return (tag("path", look=f"s{style}", d=d) if d else "") + marks


def _path(run: Run) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)


def _thinned(run: Run) -> Run:
    """Leave out points without which the line is nowhere off by more than a third of a pixel."""
    kept, low, high = run[:1], -math.inf, math.inf
    for before, (x, y) in pairwise(run):
        wide = x - kept[-1][0]
        slope = (y - kept[-1][1]) / wide if wide > 0 else math.nan
        if not low <= slope <= high:
            if before != kept[-1]:
                kept.append(before)
            low, high, wide = -math.inf, math.inf, x - before[0]
        if wide > 0:
            rise = y - kept[-1][1]
            low, high = max(low, (rise - 0.3) / wide), min(high, (rise + 0.3) / wide)
    return kept + run[-1:]


def _spread(run: Run, style: int) -> list[int]:
    """Return which points of a stroke get a mark: a few, not the same ones on every line."""
    wide = abs(run[-1][0] - run[0][0])
    marks = min(_SHOWN_MARKS, max(1, int(wide / _APART)))
    if len(run) <= marks:
        return list(range(len(run)))
    step = len(run) / marks
    return [int(step * (k + (0.25 + 0.5 * (style % 2)))) for k in range(marks)]


def _mark(x: float, y: float, style: int) -> str:
    return tag("path", look=f"m{style}", d=_MARKS[style], transform=f"translate({x:.1f} {y:.1f})")


def _ring(at: tuple[float, float], text: str, box: tuple[float, ...], drawn: Run) -> str:
    """Ring a point, its text in the corner where it covers the least of the lines."""
    (x, y), wide, (left, right, top, bottom) = at, len(text) * CHAR, box

    def covered(corner: tuple[int, int]) -> tuple[bool, int]:
        a = x + 10 if corner[0] > 0 else x - 10 - wide
        b = y + 10 if corner[1] > 0 else y - 24
        out = a < left or a + wide > right or b < top or b + 14 > bottom
        return out, sum(a - 4 < px < a + wide + 4 and b - 2 < py < b + 16 for px, py in drawn)

    side, below = min(product((1, -1), (1, -1)), key=covered)
    keys: Keys = {"look": "label", "font_size": 12, "text_anchor": "start" if side > 0 else "end"}
    ring = tag("circle", look="ring", cx=round(x, 1), cy=round(y, 1), r=6)
    return ring + say(
        round(x + 10 * side, 1), round(y + (21 if below > 0 else -12), 1), text, **keys
    )


def _guide(x: float, text: str, box: tuple[float, ...]) -> str:
    _, right, top, bottom = box
    fits = x + 5 + len(text) * CHAR < right
    keys: Keys = {"text_anchor": "start" if fits else "end"}
    line = tag("path", look="guide", d=f"M{x:.1f} {top:g}V{bottom:g}")
    return line + say(
        round(x + (5 if fits else -5), 1), top + 11, text, look="label", font_size=12, **keys
    )
