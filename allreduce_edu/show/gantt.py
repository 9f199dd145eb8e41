"""Who works when: a row for each rank, a bar for each of its rounds, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allreduce_edu.engine.check import count
from allreduce_edu.show.axes import Axis, scale
from allreduce_edu.show.charts import Chart
from allreduce_edu.show.draw import Keys, say, tag
from allreduce_edu.show.lineplot import CHAR, PAD, SOFT, TEXT

ROUNDS = {"adds": 0, "copies": 1}  # the colour of each kind of round
KINDS = (*ROUNDS, "waits", "late")
Box = tuple[float, float, float, str]  # x, y, width, name
_HIGH = 22
_DASHED: Keys = {
    "stroke": "#ffffff",
    "stroke_width": 1.6,
    "stroke_dasharray": "4 3",
    "fill": "none",
}


@dataclass(frozen=True)
class Bar:
    """What a rank does for a while: "adds", "copies", "waits", or is "late"; and in which round."""

    rank: int
    start: float
    end: float
    kind: str
    name: str = ""


@dataclass(frozen=True, repr=False)
class Gantt(Chart):
    """Bars over a common clock, a row for each rank; the axis says in which unit of time."""

    title: str
    x: Axis
    ranks: int
    bars: Sequence[Bar]
    width: int = 760

    def __post_init__(self) -> None:
        for bar in self.bars:
            if bar.kind not in KINDS or not 0 <= bar.start <= bar.end or bar.rank >= self.ranks:
                raise ValueError(f"bars must be of a rank, a kind and a time that exist, got {bar}")

    @property
    def alt(self) -> str:
        """Say of each rank how long it waits and when it is done."""
        rows: list[list[Bar]] = [[] for _ in range(self.ranks)]
        for bar in self.bars:
            rows[bar.rank].append(bar)
        told = " ".join(self._told(rank, row) for rank, row in enumerate(rows))
        return f"{self.title}. {self.x.label}. {told}"

    def _told(self, rank: int, row: list[Bar]) -> str:
        spent = dict.fromkeys(KINDS, 0.0)
        for bar in row:
            spent[bar.kind] += bar.end - bar.start
        late = f"begins at {self.x.name(spent['late'])}, " if spent["late"] else ""
        waits = f"waits {self.x.name(spent['waits'])}, " if spent["waits"] else ""
        rounds = count(sum(bar.kind in ROUNDS for bar in row), "round")
        end = max((bar.end for bar in row), default=0.0)
        return f"rank {rank}: {late}{waits}{rounds}, done at {self.x.name(end)}."


def draw(chart: Gantt, ident: str) -> tuple[str, float, float]:
    """Return what is inside the picture, its width and its height."""
    left = PAD + 8 + len(f"rank {chart.ranks - 1}") * CHAR
    right, top = chart.width - PAD - 10, 66.0
    bottom = top + chart.ranks * (_HIGH + 4)
    across = scale(chart.x, (bar.end for bar in chart.bars))
    wide = right - left
    parts = [_pattern(ident), _key(ident), _clock(chart, (left, right, top, bottom))]
    boxes: dict[str, list[Box]] = {kind: [] for kind in KINDS}
    for bar in chart.bars:
        x, end = (left + across(at) * wide for at in (bar.start, bar.end))
        boxes[bar.kind].append((x, top + bar.rank * (_HIGH + 4) + 2, end - x, bar.name))
    parts += [_filled(kind, each, ident) for kind, each in boxes.items() if each]
    for rank in range(chart.ranks):
        y = top + rank * (_HIGH + 4) + 17
        parts.append(say(left - 8, y, f"rank {rank}", **TEXT, text_anchor="end"))
    return "".join(parts), chart.width, bottom + 46


def _filled(kind: str, boxes: list[Box], ident: str) -> str:
    """Draw all boxes of a kind as one path: with a dashed foot if they copy, hatched if they wait.

    A pixel is left free between two boxes; a box that has room for it carries its name.
    """
    d = "".join(
        f"M{x:.1f} {y:g}h{max(w - 1, 0.5):.1f}v{_HIGH}h-{max(w - 1, 0.5):.1f}z"
        for x, y, w, _ in boxes
    )
    if kind == "late":
        return tag("path", look="bad", d=d)
    if kind == "waits":
        return tag("path", look="void", d=d) + tag("path", fill=f"url(#{ident}-wait)", d=d)
    foot = "".join(f"M{x + 1:.1f} {y + _HIGH - 3:g}h{max(w - 3, 0.5):.1f}" for x, y, w, _ in boxes)
    names = "".join(
        say(round(x + w / 2, 1), y + 14, name)
        for x, y, w, name in boxes
        if name and w > 6 + len(name) * CHAR
    )
    return (
        tag("path", look=f"r{ROUNDS[kind]}", d=d)
        + (tag("path", d=foot, **_DASHED) if kind == "copies" else "")
        + tag("g", names, look="head", font_size=11, text_anchor="middle")
    )


def _pattern(ident: str) -> str:
    size: Keys = {"patternUnits": "userSpaceOnUse", "width": 6, "height": 6}
    return tag(
        "defs", tag("pattern", tag("path", look="axis", d="M0 6L6 0"), **size, id=f"{ident}-wait")
    )


def _key(ident: str) -> str:
    said = {
        "adds": "a round that adds",
        "copies": "a round that copies",
        "waits": "waits for others",
        "late": "not there yet",
    }
    parts, x = [], float(PAD)
    for kind, words in said.items():
        parts.append(_filled(kind, [(x, 30.0, 22.0, "")], ident))
        parts.append(say(x + 28, 46, words, **TEXT))
        x += 48 + len(words) * CHAR
    return "".join(parts)


def _clock(chart: Gantt, box: tuple[float, float, float, float]) -> str:
    """Draw the time axis, with a thin line down from each tick."""
    left, right, top, bottom = box
    across, last = scale(chart.x, (bar.end for bar in chart.bars)), -1.0
    lines, parts = [], []
    for tick in across.ticks():
        at, name = left + across(tick) * (right - left), chart.x.name(tick)
        lines.append(f"M{at:.1f} {top:g}V{bottom + 4:g}")
        if at - len(name) * CHAR / 2 > last + 6:
            parts.append(say(round(at, 1), bottom + 18, name, text_anchor="middle"))
            last = at + len(name) * CHAR / 2
    parts.append(say((left + right) / 2, bottom + 36, chart.x.label, text_anchor="middle"))
    axis = tag("path", look="axis", d=f"M{left:g} {top:g}V{bottom:g}H{right:g}")
    return tag("path", look="grid", d="".join(lines)) + axis + tag("g", "".join(parts), **SOFT)
