"""Who waits for whom when a program hangs, as a picture: ranks, arrows, and the circle.

An arrow goes from a rank to the one that it waits for. Those of the circle are thick, and a rank
that does not wait has a dashed frame: nothing is told by colour alone.
"""

from __future__ import annotations

import hashlib
import math
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from allreduce_edu.engine.spmd.errors import Deadlock
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.show import svg
from allreduce_edu.show.draw import Keys, clip, say, tag

_LARGE = 8  # ranks that have room for a box with words
_BOX = (196.0, 66.0)
_DOT = (30.0, 30.0)
_MIDDLE: Keys = {"text_anchor": "middle"}
_TITLE, _MARGIN, _LINE = 24, 14, 17
_CHAR = 6.2  # width of a character of the text below, in pixels
_TEXT = 560.0  # least width of the picture, for the sentences


class _Node(NamedTuple):
    """Where a rank stands: the middle and half the size of its box."""

    x: float
    y: float
    w: float
    h: float

    def edge(self, to: _Node) -> tuple[float, float]:
        """Return where the line to another node leaves this one, with a gap."""
        dx, dy = to.x - self.x, to.y - self.y
        reach = min(
            (self.w + 5) / abs(dx) if dx else math.inf, (self.h + 5) / abs(dy) if dy else math.inf
        )
        return self.x + dx * reach, self.y + dy * reach


class Waits:
    """The picture of a hang; shown as an image with its explanation in words.

    Parameters
    ----------
    hang : Hang or Deadlock
        ``spmd.hang(fn, x)``, or the `spmd.Deadlock` that a run has raised.

    Examples
    --------
    >>> from allreduce_edu import spmd
    >>> Waits(spmd.hang(lambda comm: comm.recv(1 - comm.rank), ranks=2))
    Waits: all 2 ranks wait, in a circle: 0 -> 1 -> 0.
    """

    def __init__(self, hang: Hang | Deadlock) -> None:
        found = hang.hang if isinstance(hang, Deadlock) else hang
        if not isinstance(found, Hang):
            raise TypeError(f"hang must be a Hang or a Deadlock, got {type(hang).__name__}")
        self.hang = found
        self._states = found.data()["states"]
        self._ranks = len(self._states)
        self._large = self._ranks <= _LARGE
        circle = found.circle
        self._circle = set(pairwise([*circle, *circle[:1]]))

    def __repr__(self) -> str:
        return f"Waits: {self.hang.summary}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": svg.image(self.svg())}

    @property
    def alt(self) -> str:
        """What the picture shows, in words."""
        return " ".join(self.hang.text.split())

    def svg(self) -> str:
        """Return the picture as SVG text."""
        ident = "aw" + hashlib.sha256(self.hang.text.encode()).hexdigest()[:8]
        nodes, (width, foot) = self._places()
        body = [*self._head(width, ident), *self._arrows(nodes, ident)]
        body += [self._node(state, node) for state, node in zip(self._states, nodes, strict=True)]
        lines = [*self._words(width)]
        body += [
            say(_MARGIN, foot + 22 + _LINE * k, line, look="text", font_size=12)
            for k, line in enumerate(lines)
        ]
        size = width, foot + 22 + _LINE * len(lines)
        title = "Who waits for whom"
        return svg.document(_tip(ident) + "".join(body), ident, size, title, self.alt)

    def _places(self) -> tuple[list[_Node], tuple[float, float]]:
        """Return the nodes on an ellipse, and the width and foot of the drawing."""
        n = self._ranks
        w, h = _BOX if self._large else _DOT
        rx, ry = (max(155.0, 44.0 * n), max(72.0, 34.0 * n)) if self._large else (6.4 * n + 40,) * 2
        ry = ry if n > 2 else 0.0
        first = -math.pi / 2 if n > 2 else math.pi
        turns = [first + 2 * math.pi * k / n for k in range(n)]
        width = max(2 * rx + w + 2 * _MARGIN, _TEXT)
        top = self._top(width) + h / 2
        nodes = [
            _Node(
                round(width / 2 + (rx * math.cos(t) if n > 1 else 0), 1),
                round(top + ry + ry * math.sin(t), 1),
                w / 2,
                h / 2,
            )
            for t in turns
        ]
        return nodes, (round(width), round(max(node.y for node in nodes) + h / 2))

    def _top(self, width: float) -> float:
        return 44 + _LINE * (len(wrapped(self.hang.summary, width)) + 1)

    def _head(self, width: float, ident: str) -> Iterator[str]:
        yield say(_MARGIN, _TITLE, "Who waits for whom", look="text", font_size=15, font_weight=600)
        lines = wrapped(self.hang.summary[:1].upper() + self.hang.summary[1:], width)
        for k, line in enumerate(lines):
            yield say(_MARGIN, 45 + _LINE * k, line, look="text", font_size=12)
        yield from self._key(45 + _LINE * len(lines), ident)

    def _key(self, y: float, ident: str) -> Iterator[str]:
        """Say what arrows and frames mean, as far as there are such."""
        gone = any(state["status"] != "waits" for state in self._states)
        entries = [("add", "h26", "tip", "waits for", len(self.hang.edges) > 0)]
        entries += [("twice", "h26", "red", "waits for, in the circle", bool(self._circle))]
        entries += [("copy", "m0-7h26v13h-26z", "", "does not wait", gone)]
        x = float(_MARGIN)
        for look, d, tip, text, shown in entries:
            if shown:
                end = {"marker_end": f"url(#{ident}-{tip})"} if tip else {}
                yield tag("path", look=look, d=f"M{x:g} {y - 4:g}{d}", **end)
                yield say(x + 34, y, text, look="soft", font_size=11)
                x += 56 + len(text) * _CHAR

    def _arrows(self, nodes: list[_Node], ident: str) -> Iterator[str]:
        shown = [
            (a, b)
            for a, others in self.hang.edges.items()
            for b in (others if self._large else others[:1])
        ]
        pairs = sorted({*shown, *self._circle}, key=lambda pair: pair in self._circle)
        for a, b in pairs:
            circle = (a, b) in self._circle
            (x, y), (to_x, to_y) = nodes[a].edge(nodes[b]), nodes[b].edge(nodes[a])
            bend = 14.0 if (b, a) in pairs else 0.0
            yield tag(
                "path",
                look="twice" if circle else "add",
                d=_path(x, y, to_x, to_y, bend),
                marker_end=f"url(#{ident}-{'red' if circle else 'tip'})",
            )

    def _node(self, state: dict[str, Any], node: _Node) -> str:
        x, y = round(node.x - node.w, 1), round(node.y - node.h, 1)
        look = "chip" if state["status"] == "waits" else "copy"
        keys: Keys = {"x": x, "y": y, "width": 2 * node.w, "height": 2 * node.h, "rx": 8}
        back = tag("rect", look="cell", stroke_opacity=0, **keys)
        frame = back + tag("rect", look=look, **keys)
        rank = state["rank"]
        pill: Keys = {"width": 54, "height": 18, "rx": 9}
        if not self._large:
            pill = {"width": 26, "height": 26, "rx": 13}
            dot = tag("rect", look=f"r{rank % 16}", x=x + 2, y=y + 2, **pill)
            keys = {"look": "head", "font_size": 11, **_MIDDLE}
            return frame + dot + say(node.x, node.y + 4, str(rank), **keys)
        name = tag("rect", look=f"r{rank}", x=x + 6, y=y + 6, **pill)
        name += say(x + 33, y + 19, f"rank {rank}", look="head", font_size=11, **_MIDDLE)
        return frame + name + "".join(self._in_box(state, x, y))

    def _in_box(self, state: dict[str, Any], x: float, y: float) -> Iterator[str]:
        """Write what a rank does, where, and after what."""
        odd = state["odd"]
        if state["last"]:
            after = clip(f"after {state['last'].replace(', number', '')}", 23)
            yield say(x + 66, y + 19, after, look="soft", font_size=11)
        gone = {"returned": "has returned", "raised": "has raised", "runs": "could go on"}
        what = state["actual"] or state["doing"].partition(":")[0]
        what = gone.get(state["status"], what)
        yield say(x + 8, y + 40, clip(what, 29), look="wrong" if odd else "text", font_size=12)
        if odd:
            mark = f"M{x + 186:g} {y + 36:g}m-4-4l8 8m0-8l-8 8"
            yield tag("path", look="cross", d=mark)
        if state["code"]:
            text = clip(f"line {state['line']}: {state['code']}", 29)
            yield say(x + 8, y + 57, text, look="value", font_size=10)

    def _words(self, width: float) -> list[str]:
        """Return the lines below: what to look at first, and of many ranks where they are."""
        told = [] if self._large else [line for line in self.hang.text.splitlines()[2:] if line]
        told = [line for line in told if line.startswith("  ")]
        rows = [part for line in told for part in wrapped(line, width)]
        return rows + wrapped(f"Look first: {self.hang.look_first}", width)


def _path(x: float, y: float, to_x: float, to_y: float, bend: float) -> str:
    """Return a line, or a curve that leaves room for the one in the other direction."""
    start, end = f"M{x:.1f} {y:.1f}", f"{to_x:.1f} {to_y:.1f}"
    if not bend:
        return f"{start}L{end}"
    length = math.hypot(to_x - x, to_y - y) or 1.0
    dx, dy = (y - to_y) / length * bend * 2, (to_x - x) / length * bend * 2
    return f"{start}Q{(x + to_x) / 2 + dx:.1f} {(y + to_y) / 2 + dy:.1f} {end}"


def _tip(ident: str) -> str:
    """Return the arrowhead of the circle."""
    head = tag("path", d="M0 0L8 4L0 8z", look="wrong")
    size: Keys = {"refX": 6, "refY": 4, "markerWidth": 11, "markerHeight": 11, "orient": "auto"}
    keys: Keys = {"markerUnits": "userSpaceOnUse", "viewBox": "0 0 8 8", **size}
    return tag("defs", tag("marker", head, id=f"{ident}-red", **keys))


def wrapped(text: str, width: float) -> list[str]:
    """Break a text into lines of 12 px that fit a picture so wide."""
    return textwrap.wrap(text, int((width - 2 * _MARGIN) / _CHAR))
