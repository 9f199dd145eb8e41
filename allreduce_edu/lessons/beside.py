"""A learner's program beside the algorithms of the library: rounds, messages, bytes, seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.engine import cost, spmd
from allreduce_edu.engine.algorithms import ALGORITHMS
from allreduce_edu.engine.check import integer
from allreduce_edu.engine.links import Links


class Row(NamedTuple):
    """The figures of one program or algorithm; sent and port in bytes, time in seconds."""

    name: str
    rounds: int | None  # None: the program is no schedule
    messages: int
    sent: int  # by the rank that sends most
    port: int  # through the busiest port, in one direction
    time: float


class Beside:
    """A table whose first row is the program; prints as text.

    Attributes
    ----------
    rows : list of Row
    """

    def __init__(self, rows: Sequence[Row], size: int, title: str) -> None:
        self.rows, self._size, self._title = list(rows), size, title

    def __repr__(self) -> str:
        heads = ["", "rounds", "messages", "sent / S", "port / S", "time"]
        table = [heads, *(self._cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if k == 0 else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            for cells in table
        ]
        return "\n".join([self._title, *(line.rstrip() for line in lines)])

    def _cells(self, row: Row) -> list[str]:
        in_s = (f"{part / self._size:.4g}" for part in (row.sent, row.port))
        rounds = "–" if row.rounds is None else str(row.rounds)
        return [row.name, rounds, f"{row.messages:,}", *in_s, f"{row.time * 1e6:.1f} µs"]


def beside(
    program: Callable[..., Any],
    ranks: int,
    *names: str,
    elements: int = 6720,
    link: str = "100 GbE",
) -> Beside:
    """Count a program and the named algorithms on `ranks` arrays of so many float64.

    The program's time is that of its own order of calls; an algorithm's, that of its rounds.
    """
    elements = integer("elements", elements, 1)
    size, links = 8 * elements, Links.uniform(ranks, link)
    title = f"{ranks} ranks, S = {size:,} bytes on each, {link}, modelled"
    rows = [_of_program(program, ranks, elements, links)]
    rows += [_of_algorithm(name, ranks, elements, links) for name in names]
    return Beside(rows, size, title)


def _of_program(program: Callable[..., Any], ranks: int, elements: int, links: Links) -> Row:
    done = spmd.run(program, np.zeros((ranks, elements)), show=False)
    try:
        rounds = cost.rounds(spmd.schedule(program, ranks))
    except (spmd.NotASchedule, ValueError):
        rounds = None
    messages = sum(1 for e in done.trace if e.kind == "match" and e.requests[0].nbytes)
    name = getattr(program, "__name__", "the program")
    sent, time = int(done.sent_bytes().max()), float(done.clocks(links).max())
    return Row(name, rounds, messages, sent, done.busiest_port(), time)


def _of_algorithm(name: str, ranks: int, elements: int, links: Links) -> Row:
    schedule = ALGORITHMS[name](ranks)
    sizes = schedule.cut(elements, 8) * 8
    return Row(
        name,
        cost.rounds(schedule),
        cost.messages(schedule, sizes),
        int(cost.sent_bytes(schedule, sizes).max()),
        cost.busiest_port(schedule, sizes),
        cost.time(schedule, sizes, links),
    )
