"""Axes of charts: where a number stands, which ticks there are, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PREFIXES = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}
_MOST_TICKS = 7


def number(x: float) -> str:
    """Write a number for a reader: three digits, thousands with commas, powers of ten if far."""
    if math.isnan(x):
        return "not a number"
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    if x and not 1e-3 <= abs(x) < 1e6:
        digits, exponent = f"{x:.2e}".split("e")
        digits = digits.rstrip("0").rstrip(".")
        power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
        return power if digits == "1" else f"{digits}·{power}"
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def si(unit: str) -> Callable[[float], str]:
    """Return a name for numbers of a unit, with its prefixes: 1 kB, 20 µs, 3 Gb/s."""

    def name(x: float) -> str:
        if not x or not math.isfinite(x):
            return f"{number(x)} {unit}"
        k = min(max(math.floor(round(math.log10(abs(x)), 9) / 3), -4), 5)
        return f"{number(x / 1000.0**k)} {_PREFIXES[k]}{unit}"

    return name


@dataclass(frozen=True)
class Axis:
    """What an axis measures, with its unit, and how.

    Attributes
    ----------
    label : str
        In words, with the unit: ``"time of one all-reduce, s"``.
    log : bool
        Whether equal ratios are equally far apart. Zeros then have a band of their own, below.
    low, high : float, optional
        The ends, where the data shall not decide.
    name
        How a value of this axis is written.
    """

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    name: Callable[[float], str] = field(default=number, repr=False)


@dataclass(frozen=True)
class Scale:
    """An axis with ends: gives each number its place between 0 and 1, and has ticks."""

    axis: Axis
    low: float
    high: float

    def __call__(self, x: Any) -> Any:
        """Return the place of a number, or of each of an array: 0 at the low end, 1 at the high."""
        if self.axis.log:
            low, high = math.log(self.low), math.log(self.high)
            return (np.log(x) - low) / (high - low)
        return (x - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return a few round numbers between the ends."""
        return _decades(self.low, self.high) if self.axis.log else _even(self.low, self.high)


def scale(axis: Axis, values: Iterable[float]) -> Scale:
    """Return a scale that has room for all values that can be drawn on this axis."""
    given = np.fromiter(values, float)
    shown = given[drawable(axis, given)].tolist()
    low, high = min(shown, default=1.0 if axis.log else 0.0), max(shown, default=1.0)
    if axis.log:
        low, high = _power(low, math.floor), _power(high, math.ceil)
        if low == high:
            low, high = low / 10, high * 10
    else:
        low = min(0.0, low) if axis.low is None else low
        high = high if high > low else low + (abs(low) or 1.0)
        ticks = _even(low, high)
        high = max(high, ticks[-1])
    low = low if axis.low is None else axis.low
    high = high if axis.high is None else axis.high
    return Scale(axis, low, high)


def drawable(axis: Axis, values: Any) -> Any:
    """Return whether each value has a place on the axis; zero on a log axis has none."""
    finite = np.isfinite(values)
    return finite & (np.asarray(values) > 0) if axis.log else finite


def _power(x: float, rounding: Callable[[float], int]) -> float:
    return float(10.0 ** rounding(round(math.log10(x), 9)))


def _decades(low: float, high: float) -> list[float]:
    """Return powers of ten, every second or third one if they are many, 2 and 5 if few."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = -(-(last - first + 1) // _MOST_TICKS)
    ticks = [10.0**k for k in range(first, last + 1, max(step, 1))]
    if len(ticks) > 2:
        return ticks
    between = (m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5))
    return [t for t in between if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]


def _even(low: float, high: float) -> list[float]:
    """Return round numbers at equal distances, the last one at or just below the high end."""
    rough = (high - low) / (_MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def crossings(
    x: Sequence[float], a: Sequence[float], b: Sequence[float], *, log: bool = False
) -> list[tuple[float, float]]:
    """Return where two lines over the same x cross, by interpolation between their points.

    With `log`, between logarithms: exact for power laws on log-log axes.
    """
    to, back = (math.log, math.exp) if log else (float, float)
    gap = [to(p) - to(q) for p, q in zip(a, b, strict=True)]
    found = []
    for i, (before, after) in enumerate(pairwise(gap)):
        if before and before * after <= 0:
            t = before / (before - after)
            at = [to(v[i]) + t * (to(v[i + 1]) - to(v[i])) for v in (x, a)]
            found.append((back(at[0]), back(at[1])))
    return found
