"""Sentences for bad input: each names the argument, the value and what is allowed."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")
_MOST_LISTED = 1 << 26  # half a gigabyte of int64


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return `value` as an int between `low` and `high`, or say in one sentence why not.

    Accepts numpy integers; refuses bool, because ``ranks=True`` is a mistake and not a number.
    """
    allowed = f">= {low}" if high is None else f"between {low} and {high}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or type(value).__name__ in ("bool", "bool_"):
        raise TypeError(
            f"{name} must be an integer {allowed}, got {value!r} ({type(value).__name__})"
        ) from None
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be an integer {allowed}, got {number}")
    return number


def listable(name: str, value: Any) -> int:
    """Return `value` as an int >= 1 that is not too large for one array entry each."""
    count = integer(name, value, 1)
    if count > _MOST_LISTED:
        raise ValueError(f"{name} must be at most {_MOST_LISTED:,}, got {count:,}")
    return count


def numbers(name: str, value: Any) -> Any:
    """Return `value` as a float or an array of floats, or say in one sentence why not."""
    import numpy as np  # here, since who only starts processes must not wait for it

    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number or an array, got {kind(value)}") from None
    return array if array.ndim else float(array)


def unknown(kind: str, name: object, choices: Iterable[str]) -> str:
    """Return the sentence for a name that is not on the list, with the nearest one that is."""
    names = sorted(choices)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(repr(each) for each in names)
    return f"unknown {kind} {name!r}; {hint}choose from {listed}"


def count(number: int, what: str) -> str:
    """Return "1 rank", "4 ranks"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def kind(value: Any) -> str:
    """Say what a value is that is not what it should be: "ring (function)", "3 (int)"."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and hasattr(value, "shape"):
        return f"an array of {dtype}"
    name = getattr(value, "__name__", None) if callable(value) else None
    return f"the function {name}" if name else f"{value!r:.40} ({type(value).__name__})"


class Registry(dict[str, T]):
    """A dict whose failed look-up says what the nearest name is and which names there are."""

    def __init__(self, kind: str, entries: dict[str, T]) -> None:
        super().__init__(entries)
        self.kind = kind

    def __missing__(self, name: str) -> T:
        raise ValueError(unknown(self.kind, name, self)) from None

    def __repr__(self) -> str:
        return f"{self.kind} names: {', '.join(self)}"
