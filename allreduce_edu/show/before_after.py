"""One collective, played on one set of data: what each rank holds before and after, in words."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import count
from allreduce_edu.engine.cost import received_bytes, sent_bytes
from allreduce_edu.engine.dtypes import short_name
from allreduce_edu.engine.execute import OverflowWarning, run
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import expected, starting
from allreduce_edu.lessons.family import FAMILY, starting_values
from allreduce_edu.lessons.typed import typed_values
from allreduce_edu.show.explorers import Table

Array = npt.NDArray[Any]
_WHOLE = 1e10  # whole floating-point numbers below are written out
_NOTHING = "·"  # where nothing matters


class Shown(NamedTuple):
    """A collective, played.

    Attributes
    ----------
    schedule : Schedule
    x, after : array [rank, element]
        What the ranks hold at the start and at the end.
    op : str
    size : int
        S, the bytes of one rank's own array.
    sent, received : int array [rank]
        In bytes.
    name, words : str
    table : Table
    """

    schedule: Schedule
    x: Array
    after: Array
    op: str
    size: int
    sent: Array
    received: Array
    name: str
    words: str
    table: Table


def show(collective: str, op: str, dtype: str, ranks: int, values: str) -> Shown:
    """Play one member of the family, on typed values or on `starting_values`.

    Raises
    ------
    TypeError, ValueError
        With a sentence, for settings that do not go together.
    """
    member = FAMILY[collective]
    own, what = (
        (typed_values(values, ranks, dtype, ranks), "typed")
        if values.strip()
        else starting_values(ranks, dtype)
    )
    schedule, op = member.make(ranks), op if member.adds else "sum"
    x = _for_everybody(own) if schedule.collective == "all_to_all" else own
    after, wrapped = _played(schedule, x, op)
    sizes = schedule.cut(x.shape[1], x.itemsize) * x.itemsize
    sent, received = sent_bytes(schedule, sizes), received_bytes(schedule, sizes)
    size = own.shape[1] * own.itemsize
    words = [_promise(member.promise), _bytes(schedule, size, sent, what), *_remarks(schedule, op)]
    words += [f"{wrapped[0].upper()}{wrapped[1:]}."] if wrapped else []
    of = f"{op.upper()} of " if member.adds else ""
    name = f"{collective}, {of}{short_name(x.dtype)} over {count(ranks, 'rank')}"
    rows = [
        (str(r), *cells, f"{sent[r]} B", f"{received[r]} B")
        for r, cells in enumerate(_cells(schedule, x, after))
    ]
    table = Table(("rank", "before", "after", "sends", "receives"), rows)
    return Shown(schedule, x, after, op, size, sent, received, name, " ".join(words), table)


def _for_everybody(own: Array) -> Array:
    """Put rank r's own array where an all-to-all expects it: chunks r*n to r*n + n-1 of rank r."""
    n, length = own.shape
    if length % n:
        raise ValueError(
            f"an all-to-all needs one chunk for each rank, all of one size: "
            f"as many numbers on a rank as {n} divides, got {length}"
        )
    x = np.zeros((n, n, length), own.dtype)
    x[np.arange(n), np.arange(n)] = own
    return x.reshape(n, n * length)


def _played(schedule: Schedule, x: Array, op: str) -> tuple[Array, str]:
    """Return what the ranks hold at the end, and what was said of overflow."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", OverflowWarning)
        with np.errstate(over="ignore", invalid="ignore"):
            after = run(schedule, x, op)
    return after, next((str(each.message) for each in said), "")


# --------------------------------------------------------------------------------- the table


def _cells(schedule: Schedule, x: Array, after: Array) -> Iterator[tuple[str, str]]:
    """Yield each rank's chunks before and after; what is left without meaning in parentheses."""
    bounds = [0, *np.cumsum(schedule.cut(x.shape[1], x.itemsize)).tolist()]
    left = "({})" if _leaves(schedule) else _NOTHING
    own_only = schedule.collective == "all_to_all"  # the rest is no part of a rank's array
    meaning = starting(schedule), expected(schedule).meaning
    for before, later, begins, ends in zip(x, after, *meaning, strict=True):
        columns = (
            [
                _chunk(values[a:b]) if matters else other.format(_chunk(values[a:b]))
                for (a, b), matters in zip(pairwise(bounds), at, strict=True)
                if matters or not own_only
            ]
            for values, at, other in ((before, begins, _NOTHING), (later, ends, left))
        )
        first, last = (" | ".join(column) for column in columns)
        yield first, last


def _leaves(schedule: Schedule) -> bool:
    """Whether ranks end with something that looks like a result and is none."""
    return schedule.collective in ("reduce", "reduce_scatter")


def _chunk(values: Array, most: int = 4) -> str:
    texts = [_text(value) for value in values[:most].tolist()]
    return " ".join(texts + ["…"] * (len(values) > most)) or "–"


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    whole = value.is_integer() and abs(value) < _WHOLE
    return f"{value:.0f}" if whole else f"{value:.7g}"


# --------------------------------------------------------------------------------- the words


def _promise(promise: str) -> str:
    return f"{promise[0].upper()}{promise[1:]}."


def _bytes(schedule: Schedule, size: int, sent: Array, what: str) -> str:
    rounds = count(sum(1 for _ in schedule), "round")
    return (
        f"S, the array of one rank, is {count(size, 'byte')} ({what}). In {rounds} "
        f"{sent.sum() / size:.3g} S cross the links, at most {sent.max() / size:.3g} S out of "
        "one port."
    )


def _remarks(schedule: Schedule, op: str) -> Iterator[str]:
    if not any(each.reduce.any() for each in schedule):
        yield "It only copies: the op plays no part."
    elif op == "avg":
        yield f"The sum is divided once, by {schedule.ranks}, at the end."
    if _leaves(schedule):
        yield "In parentheses: left behind, without meaning."
