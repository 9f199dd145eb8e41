"""Draws the additions behind one element as a tree, and three lamps for the bits of a sum.

Edges that cross a wire are thick. What is still to come has a dashed frame, the hop at hand a
tinted one; a lamp that is out is crossed. Nothing is told by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from allreduce_edu.lessons.additions import QUESTIONS, Node
from allreduce_edu.show.axes import number
from allreduce_edu.show.charts import Chart
from allreduce_edu.show.draw import Keys, say, tag

_WIDE, _HIGH = 88.0, 68.0  # from leaf to leaf, from hop to hop
_BOX = (78.0, 40.0)
_TOP, _PAD, _CHAR = 62.0, 14.0, 6.3
_MIDDLE: Keys = {"text_anchor": "middle"}
_TEXT: Keys = {"look": "text", "font_size": 12}
_SOFT: Keys = {"look": "soft", "font_size": 11}
Place = tuple[float, float]


def written(value: float) -> str:
    """Write a value with as many digits as tell it from its neighbours, six at most."""
    return number(value) if not math.isfinite(value) else f"{value:.6g}"


def places(lost: float) -> str:
    """Write what was lost, in ulps."""
    if not math.isfinite(lost):
        return "too large"
    return "exact" if not lost else f"{lost:+.2g} ulp".replace("-", "−")


@dataclass(frozen=True, repr=False)
class Additions(Chart):
    """The additions behind one element, as far as hop `hop`."""

    title: str
    root: Node
    hop: int

    @property
    def alt(self) -> str:
        """Say every sum so far, and what it lost."""
        done = [n for n in self.root.nodes() if n.parts and n.hop <= self.hop]
        told = [f"hop {n.hop}: {self._told(n)}" for n in sorted(done, key=lambda n: n.hop)]
        rest = sum(1 for n in self.root.nodes() if n.hop > self.hop)
        left = f" {rest} still to come." if rest else ""
        return f"{self.title}. {'; '.join(told) or 'nothing added yet'}.{left}"

    def _told(self, node: Node) -> str:
        if len(node.parts) == 1:
            return f"{written(node.parts[0].value)} is copied as {written(node.value)}"
        a, b = (
            written(node.arrived if i == node.crossed else part.value)
            for i, part in enumerate(node.parts)
        )
        sent = f", {places(node.sent_lost)} on the wire before" if node.sent_lost else ""
        return f"{a} + {b} = {written(node.value)}, {places(node.lost)}{sent}"


def draw(chart: Additions, _ident: str) -> tuple[str, float, float]:
    """Return what is inside the picture, its width and its height."""
    at: dict[Node, Place] = {}
    leaves = _placed(chart.root, at, 0)
    last = max(node.hop for node in at)
    width = max(2 * _PAD + leaves * _WIDE, 480.0)
    shift = (width - leaves * _WIDE) / 2
    where = {
        node: (shift + (x + 0.5) * _WIDE, _TOP + 22 + (last - level) * _HIGH)
        for node, (x, level) in at.items()
    }
    parts = [*_key()]
    for node, place in where.items():
        parts += _edges(node, place, where, done=node.hop <= chart.hop)
    for node, place in where.items():
        parts += _box(node, place, chart.hop)
    return "".join(parts), width, _TOP + last * _HIGH + 62


def _placed(node: Node, at: dict[Node, Place], first: int) -> int:
    """Place a node above the middle of its parts, and say how many leaves it has."""
    if not node.parts:
        at[node] = (float(first), 0.0)
        return 1
    taken = 0
    for part in node.parts:
        taken += _placed(part, at, first + taken)
    at[node] = (sum(at[part][0] for part in node.parts) / len(node.parts), float(node.hop))
    return taken


def _key() -> Iterator[str]:
    x = _PAD
    for look, words in (("thick", "crosses a wire"), ("add", "stays on its rank")):
        yield tag("path", look=look, d=f"M{x:g} 41h24")
        yield say(x + 32, 45, words, **_TEXT)
        x += 52 + len(words) * _CHAR
    yield say(x, 45, "ulp: one unit in the last place", **_SOFT)


def _edges(node: Node, to: Place, where: Mapping[Node, Place], *, done: bool) -> Iterator[str]:
    for i, part in enumerate(node.parts):
        (x, y), (a, b) = where[part], to
        wire = node.crossed == i
        d = f"M{x:.1f} {y - _BOX[1] / 2:.1f}L{a:.1f} {b + _BOX[1] / 2:.1f}"
        look = "thick" if wire else "add"
        yield tag("path", look=look, d=d, opacity=1 if done else 0.3)
        if wire and done and node.sent_lost:
            text = f"{written(node.arrived)}, {places(node.sent_lost)}"
            yield _beside((x + a) / 2, (y + b) / 2 + 4, text, left=x < a)


def _beside(x: float, y: float, text: str, *, left: bool) -> str:
    """Write on the outer side of an edge."""
    keys: Keys = {"look": "label", "font_size": 11, "text_anchor": "end" if left else "start"}
    return say(round(x + (-18 if left else 9), 1), round(y - 3 * left, 1), text, **keys)


def _box(node: Node, at: Place, hop: int) -> Iterator[str]:
    x, y = round(at[0] - _BOX[0] / 2, 1), round(at[1] - _BOX[1] / 2, 1)
    keys: Keys = {"x": x, "y": y, "width": _BOX[0], "height": _BOX[1], "rx": 7}
    yield tag("rect", look="cell", stroke_opacity=0, **keys)
    if node.hop > hop:
        yield tag("rect", look="copy", opacity=0.5, **keys)
        return
    if node.parts and node.hop == hop:
        yield tag("rect", look="tint", **keys)
    yield tag("rect", look="done", **keys)
    middle: Keys = {"font_size": 13, **_MIDDLE}
    if not node.parts:
        pill: Keys = {"x": x + 9, "y": y + 22, "width": _BOX[0] - 18, "height": 15, "rx": 7}
        yield say(round(at[0], 1), y + 16, written(node.value), look="value", **middle)
        yield tag("rect", look=f"r{node.rank % 8}", **pill)
        head: Keys = {"look": "head", "font_size": 11, **_MIDDLE}
        yield say(round(at[0], 1), y + 33, f"rank {node.rank}", **head)
        return
    yield say(round(at[0], 1), y + 17, written(node.value), look="value", **middle)
    copied = len(node.parts) == 1
    below = "sent to all" if copied else places(node.lost)
    look = "wrong" if not copied and node.lost else "soft"
    yield say(round(at[0], 1), y + 33, below, look=look, font_size=11, **_MIDDLE)


# ------------------------------------------------------------------------------------ lamps


@dataclass(frozen=True, repr=False)
class Lamps(Chart):
    """A row of three lamps for each way of adding: lit where the bits are the same."""

    title: str
    rows: Mapping[str, Sequence[bool]]

    @property
    def alt(self) -> str:
        """Say every lamp."""
        told = [
            f"{name}: "
            + ", ".join(
                f"{question} {'yes' if lit else 'no'}"
                for question, lit in zip(QUESTIONS, lits, strict=True)
            )
            for name, lits in self.rows.items()
        ]
        return f"{self.title}. {'; '.join(told)}."


def draw_lamps(chart: Lamps, _ident: str) -> tuple[str, float, float]:
    """Return what is inside the picture, its width and its height."""
    left = _PAD + max(len(name) for name in chart.rows) * _CHAR + 20
    columns = [left + k * 112 + 50 for k in range(3)]
    parts = [
        say(x, 48, question, **_TEXT, **_MIDDLE)
        for x, question in zip(columns, QUESTIONS, strict=True)
    ]
    for row, (name, lits) in enumerate(chart.rows.items()):
        y = 72 + 32 * row
        parts.append(say(_PAD, y + 4, name, **_TEXT))
        for x, lit in zip(columns, lits, strict=True):
            parts += _lamp(x - 24, y, lit=lit)
    return "".join(parts), left + 3 * 112 + _PAD, 72 + 32 * len(chart.rows)


def _lamp(x: float, y: float, *, lit: bool) -> Iterator[str]:
    if lit:
        yield tag("circle", look="r2", cx=x, cy=y, r=10)
        keys: Keys = {"fill": "none", "stroke": "#ffffff", "stroke_width": 2.2}
        yield tag("path", d=f"M{x - 5:g} {y:g}l4 4 6-8", **keys)
    else:
        yield tag("circle", look="bad", cx=x, cy=y, r=10)
        yield tag("path", look="cross", d=f"M{x - 4:g} {y - 4:g}l8 8m0-8l-8 8")
    yield say(x + 17, y + 4, "same" if lit else "other", **_TEXT)
