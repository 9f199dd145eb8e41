"""Measures candidates in turn, repetition by repetition, and holds ratios to their targets.

A machine that is shared slows both sides of a ratio; hence every figure is the median of ratios
within one repetition, never the ratio of two medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Clock = Callable[[], float]
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Meter:
    """Takes times: `repetitions` of each candidate, one after the other in every repetition.

    Attributes
    ----------
    repetitions : int
    least : float
        Seconds that one sample lasts at least, by calling the candidate again and again.
    cpu, wall : callable
        The clocks: time of this thread for work on one thread, and time on the wall.
    quick : bool
        True: every row, at the smallest sizes.
    """

    repetitions: int = 7
    least: float = 0.01
    cpu: Clock = time.thread_time
    wall: Clock = time.perf_counter
    quick: bool = False

    def seconds(
        self, *candidates: Callable[[], Any], on_the_wall: bool = False
    ) -> tuple[Seconds, ...]:
        """Return seconds per call of each candidate, array[repetitions]; the first is a warm-up."""
        clock = self.wall if on_the_wall else self.cpu
        calls = [self._calls(clock, each) for each in candidates]
        taken = [
            [_per_call(clock, each, k) for each, k in zip(candidates, calls, strict=True)]
            for _ in range(self.repetitions)
        ]
        return tuple(np.array(taken).T)

    def _calls(self, clock: Clock, candidate: Callable[[], Any]) -> int:
        once = _per_call(clock, candidate, 1)
        return max(1, min(int(self.least / max(once, 1e-9)), 10_000))


def _per_call(clock: Clock, candidate: Callable[[], Any], calls: int) -> float:
    start = clock()
    for _ in range(calls):
        candidate()
    return (clock() - start) / calls


def ratio(numerator: Seconds, denominator: Seconds) -> float:
    """Return the median of the ratios of each repetition."""
    return float(np.median(numerator / denominator))


class Target(NamedTuple):
    """What a figure shall be: at most, or at least, `limit`."""

    limit: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"

    def verdict(self, value: float) -> str:
        """Say "met" or "missed"."""
        met = value >= self.limit if self.at_least else value <= self.limit
        return "met" if met else "missed"


class Row(NamedTuple):
    """One line of a table: what was measured, the figure that counts, and its target."""

    what: str
    beside: Sequence[str]  # further cells, already written
    value: float
    target: Target | None = None

    @property
    def verdict(self) -> str:
        """Say "met", "missed", or "–" where nothing was promised."""
        return self.target.verdict(self.value) if self.target else "–"


class Table(NamedTuple):
    """Rows under a title; `head` names what, the cells beside it, and the figure."""

    title: str
    head: Sequence[str]
    rows: Sequence[Row]

    def markdown(self) -> str:
        """Write the table, and how many targets were met."""
        head = [*self.head, "target", ""]
        lines = [f"## {self.title}", "", _line(head), _line(["---"] * len(head))]
        for row in self.rows:
            target = str(row.target) if row.target else "–"
            lines.append(_line([row.what, *row.beside, f"{row.value:.3g}", target, row.verdict]))
        judged = [row.verdict for row in self.rows if row.target]
        if judged:
            lines += ["", f"{judged.count('met')} of {len(judged)} targets met."]
        return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def span(seconds: Any) -> str:
    """Write a time with its unit: "1.23 ms"."""
    value = float(np.median(seconds))
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
