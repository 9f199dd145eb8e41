"""Draws charts as SVG text, in a millisecond or two, for the page and for its static twin."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from allreduce_edu.show.additions import Additions, Lamps, draw_lamps
from allreduce_edu.show.additions import draw as additions
from allreduce_edu.show.axes import scale
from allreduce_edu.show.charts import BarChart, Chart, HeatMap, LineChart
from allreduce_edu.show.draw import Keys, clip, say, tag
from allreduce_edu.show.gantt import Gantt
from allreduce_edu.show.gantt import draw as gantt
from allreduce_edu.show.lineplot import CHAR, PAD, SOFT, TEXT, lines
from allreduce_edu.show.paint import SANS, dark_style

_WHITE = 0.93  # from this depth on white is easier to read on a cell than black, in the light theme
_PAINT = "fill|stroke|stroke-width|stroke-dasharray|stroke-linejoin|paint-order|font-family"
_PAINTED = re.compile(rf'(class="ar-[\w-]+")(?: (?:{_PAINT}|font-weight)="[^"]*")+')


def draw(chart: Chart, *, live: bool = False) -> str:
    """Return a chart as SVG text."""
    makers: dict[type[Chart], Callable[[Any, str], tuple[str, float, float]]] = {
        LineChart: lines,
        BarChart: _bars,
        HeatMap: _heat,
        Gantt: gantt,
        Additions: additions,
        Lamps: draw_lamps,
    }
    ident = "ac" + hashlib.sha256(f"{chart.alt}{chart.title}".encode()).hexdigest()[:8]
    body, width, height = makers[type(chart)](chart, ident)
    text = _document(chart, body, ident, (width, height), live=live)
    return _PAINTED.sub(r"\1", text) if live else text


def _document(chart: Chart, body: str, ident: str, size: tuple[float, float], *, live: bool) -> str:
    width, height = size
    # In a page the picture has a label, and no <title>: that would pop up over the data.
    head, keys = "", {"aria_label": chart.alt}
    if not live:
        head = tag("title", escape(chart.title), id=f"{ident}-title")
        head += tag("desc", escape(chart.alt), id=f"{ident}-desc")
        head += tag("style", dark_style(chart=True))
        head += tag("rect", look="back", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8)
        keys = {"aria_labelledby": f"{ident}-title {ident}-desc"}
    frame: Keys = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": width,
        "height": height,
        "style": "max-width:100%;height:auto",
        "role": "img",
        "font_family": SANS,
        **keys,
    }
    title: Keys = {"look": "text", "font_size": 14, "font_weight": 600}
    return tag("svg", head + say(PAD, 23, chart.title, **title) + body, **frame)


# ------------------------------------------------------------------------------------ bars


def _bars(chart: BarChart, ident: str) -> tuple[str, float, float]:
    along = scale(chart.x, [*chart.totals, *(g.at for g in chart.guides)])
    left = min(PAD + 8 + max(len(n) for n in chart.names) * CHAR, chart.width / 2)
    ends = [chart.x.name(total) for total in chart.totals]
    right = chart.width - PAD - 8 - max(len(e) for e in ends) * CHAR
    several = len(chart.parts) > 1
    key, top = _part_key(list(chart.parts), ident, chart.width) if several else ("", 28.0)
    top += 12 + 16 * bool(chart.guides)
    high, gap = 20, 10
    bottom = top + len(chart.names) * (high + gap)
    parts = [_hatches(ident) if several else "", key]
    for i, name in enumerate(chart.names):
        x, y = left, top + i * (high + gap) + gap / 2
        parts.append(say(left - 8, y + 14, clip(name, int(left / CHAR)), **TEXT, text_anchor="end"))
        for k, values in enumerate(chart.parts.values()):
            wide = along(values[i]) * (right - left)
            parts.append(_part(k, ident, x=round(x, 1), y=y, width=round(wide, 1), height=high))
            x += wide
        parts.append(say(round(x + 6, 1), y + 14, ends[i], **TEXT))
    parts.append(tag("path", look="axis", d=f"M{left:g} {top:g}V{bottom:g}"))
    for g in chart.guides:
        at = left + along(g.at) * (right - left)
        parts.append(tag("path", look="guide", d=f"M{at:.1f} {top - 4:g}V{bottom:g}"))
        end = "start" if at + len(g.text) * CHAR < chart.width - PAD else "end"
        parts.append(say(round(at, 1), top - 8, g.text, **SOFT, text_anchor=end))
    parts.append(say(left, bottom + 18, chart.x.label, **SOFT))
    return "".join(parts), chart.width, bottom + 30


def _part(k: int, ident: str, **place: Any) -> str:
    """Draw one part of a bar; all but the first have a pattern over their colour."""
    plain = tag("rect", look=f"r{k % 8}", **place)
    if not k:
        return plain
    return plain + tag("rect", fill=f"url(#{ident}-p{min(k, 3)})", **place)


def _hatches(ident: str) -> str:
    """Return the patterns of the parts: white lines, so that they read on any colour."""
    ways = {1: "M0 6L6 0", 2: "M0 3h6", 3: "M3 0v6"}
    size: Keys = {"patternUnits": "userSpaceOnUse", "width": 6, "height": 6}
    stroke: Keys = {"stroke": "#ffffff", "stroke_width": 1.4, "opacity": 0.75}
    each = (
        tag("pattern", tag("path", d=d, **stroke), id=f"{ident}-p{k}", **size)
        for k, d in ways.items()
    )
    return tag("defs", "".join(each))


def _part_key(names: Sequence[str], ident: str, width: float) -> tuple[str, float]:
    parts, x, y = [], float(PAD), 44.0
    for k, name in enumerate(names):
        wide = 24 + len(name) * CHAR
        if x > PAD and x + wide > width - PAD:
            x, y = float(PAD), y + 18
        parts.append(_part(k, ident, x=x, y=y - 10, width=16, height=11))
        parts.append(say(x + 22, y, name, **TEXT))
        x += wide + 16
    return "".join(parts), y


# --------------------------------------------------------------------------------- heat map


def _heat(chart: HeatMap, _ident: str) -> tuple[str, float, float]:
    left = PAD + 8 + max(len(n) for n in chart.rows) * CHAR
    top, high = 66.0, 28
    wide = (chart.width - PAD - left) / len(chart.columns)
    bottom = top + high * len(chart.rows)
    cells: list[str] = []
    back: list[str] = []
    numbers: dict[str, list[str]] = {"digit": [], "number": []}
    for r, values in enumerate(chart.values):
        y = top + r * high
        for c, value in enumerate(values):
            x, depth = left + c * wide, chart.depth(value)
            place: Keys = {"x": round(x + 1, 1), "y": y + 1, "width": round(wide - 2, 1)}
            place |= {"height": high - 2, "rx": 3}
            if depth:
                cells.append(tag("rect", **place, opacity=depth))
            else:
                back.append(tag("rect", **place))
            look = "digit" if depth > _WHITE else "number"
            numbers[look].append(say(round(x + wide / 2, 1), y + 18, chart.written(value)))
    names = [
        say(round(left + (c + 0.5) * wide, 1), top - 7, name, text_anchor="middle")
        for c, name in enumerate(chart.columns)
    ]
    names.append(say(left, top - 25, chart.column, **SOFT))
    names.append(say(left, bottom + 19, chart.row, **SOFT))
    rows = [say(left - 8, top + r * high + 18, name) for r, name in enumerate(chart.rows)]
    middle: Keys = {"font_size": 12, "text_anchor": "middle"}
    groups = [
        tag("g", "".join(back), look="void", opacity=0.4),
        tag("g", "".join(cells), look="r0"),
        *(tag("g", "".join(each), look=look, **middle) for look, each in numbers.items()),
        tag("g", "".join(rows), **TEXT, text_anchor="end"),
        tag("g", "".join(names), **TEXT),
    ]
    return "".join(groups), chart.width, bottom + 30
