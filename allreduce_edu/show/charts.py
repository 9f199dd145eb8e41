"""Charts as data: lines on plain or log axes, bars, and heat maps.

A chart holds its numbers, checks them, says them in words, and draws itself as SVG text
(`plot.py`) that is its own static twin. Nothing is told by colour alone: lines have dashes and
marks, parts of bars have patterns, cells have their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from allreduce_edu.show.axes import Axis, crossings, number, si

Numbers = Sequence[float]


@dataclass(frozen=True)
class Line:
    """One line: a name and its points. `style` picks colour, dash and mark, by default in turn."""

    name: str
    x: Numbers
    y: Numbers
    style: int | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"line {self.name!r} has {len(self.x)} x and {len(self.y)} y")


@dataclass(frozen=True)
class Point:
    """A place on the chart with a word to it: a crossover, the size at hand."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Guide:
    """A dashed line right across the chart, at one value of the axis that the chart names."""

    at: float
    text: str


class Chart:
    """What all charts share: a title, words for the ear, and a picture for the eye."""

    title: str

    @property
    def alt(self) -> str:
        """What the picture shows, in words."""
        raise NotImplementedError

    def svg(self, *, live: bool = False) -> str:
        """Return the picture as SVG text; `live` leaves the colours to the page around it."""
        from allreduce_edu.show import plot

        return plot.draw(self, live=live)

    def image(self) -> str:
        """Return the picture as an HTML image that says what it shows."""
        from allreduce_edu.show.svg import image

        return image(self.svg())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.image()}

    def __repr__(self) -> str:
        return self.alt


@dataclass(frozen=True, repr=False)
class LineChart(Chart):
    """Lines over one x axis, with a key above them.

    Zeros on a log axis are drawn in a band below it, "exactly 0"; infinite values are left out.
    `points` are ringed; `guides` are verticals.
    """

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    points: Sequence[Point] = ()
    guides: Sequence[Guide] = ()
    size: tuple[int, int] = (520, 340)

    def __post_init__(self) -> None:
        if not self.lines:
            raise ValueError("lines must be one or more, got none")

    @property
    def alt(self) -> str:
        """Say each line's two ends, and each point."""
        told = [self._told(line) for line in self.lines]
        told += [f"{p.text}: {self.y.name(p.y)} at {self.x.name(p.x)}." for p in self.points]
        told += [f"{g.text}: at {self.x.name(g.at)}." for g in self.guides]
        return f"{self.title}. {self.y.label} against {self.x.label}. {' '.join(told)}"

    def _told(self, line: Line) -> str:
        shown = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
        if not shown:
            return f"{line.name}: nothing that can be drawn."
        if len({y for _, y in shown}) == 1:
            return f"{line.name}: {self.y.name(shown[0][1])} throughout."
        first, last = ((self.x.name(x), self.y.name(y)) for x, y in (shown[0], shown[-1]))
        return f"{line.name}: from {first[1]} at {first[0]} to {last[1]} at {last[0]}."


@dataclass(frozen=True, repr=False)
class BarChart(Chart):
    """Horizontal bars, one per name, each made of the parts in turn; sums stand at their ends.

    `guides` are values that all bars are compared with, a bound say.
    """

    title: str
    x: Axis
    names: Sequence[str]
    parts: dict[str, Numbers]
    guides: Sequence[Guide] = ()
    width: int = 520

    def __post_init__(self) -> None:
        if self.x.log:
            raise ValueError("bars need an axis that begins at 0, got a log axis")
        for part, values in self.parts.items():
            if len(values) != len(self.names):
                raise ValueError(
                    f"part {part!r} must have one value per name ({len(self.names)}), "
                    f"got {len(values)}"
                )
            if any(not value >= 0 for value in values):
                raise ValueError(f"part {part!r} must hold values >= 0, got {list(values)}")

    @property
    def totals(self) -> list[float]:
        """The length of each bar."""
        return [sum(values) for values in zip(*self.parts.values(), strict=True)]

    @property
    def alt(self) -> str:
        """Say each bar, with its parts where there are several."""
        told = []
        for i, (name, total) in enumerate(zip(self.names, self.totals, strict=True)):
            parts = ", ".join(f"{p} {self.x.name(v[i])}" for p, v in self.parts.items())
            inside = f" ({parts})" if len(self.parts) > 1 else ""
            told.append(f"{name}: {self.x.name(total)}{inside}.")
        told += [f"{g.text}: {self.x.name(g.at)}." for g in self.guides]
        return f"{self.title}. {self.x.label}. {' '.join(told)}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f}"


@dataclass(frozen=True, repr=False)
class HeatMap(Chart):
    """A table of cells that are the darker the larger their number, which stands in each.

    `row` and `column` are the axes' labels; `low` and `high` the values of the palest and the
    darkest cell; `name` writes a value.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Numbers]
    row: str
    column: str
    low: float = 0.0
    high: float = 1.0
    name: Callable[[float], str] = field(default=_percent, repr=False)
    width: int = 420

    def __post_init__(self) -> None:
        shape = {len(row) for row in self.values}
        if len(self.values) != len(self.rows) or shape != {len(self.columns)}:
            raise ValueError(
                f"values must have shape ({len(self.rows)}, {len(self.columns)}), "
                f"got {len(self.values)} rows of {sorted(shape)}"
            )
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")

    @property
    def alt(self) -> str:
        """Say every row."""
        told = [
            f"{name}: {', '.join(self.written(v) for v in values)}."
            for name, values in zip(self.rows, self.values, strict=True)
        ]
        columns = ", ".join(self.columns)
        return f"{self.title}. {self.column}: {columns}. {' '.join(told)}"

    def written(self, value: float) -> str:
        """Write one cell's number."""
        return self.name(value) if math.isfinite(value) else "–"

    def depth(self, value: float) -> float:
        """Return how dark a cell is, between 0 and 1."""
        if not math.isfinite(value):
            return 0.0
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


__all__ = [
    "Axis",
    "BarChart",
    "Chart",
    "Guide",
    "HeatMap",
    "Line",
    "LineChart",
    "Point",
    "crossings",
    "number",
    "si",
]
