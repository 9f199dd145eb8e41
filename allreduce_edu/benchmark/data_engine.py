"""Group A: playing a schedule on numbers, beside the same adds and copies of whole rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from allreduce_edu.benchmark import rivals
from allreduce_edu.benchmark.measure import Meter, Row, Table, Target, ratio, span
from allreduce_edu.engine.algorithms import ALGORITHMS, ring
from allreduce_edu.engine.execute import run, steps
from allreduce_edu.engine.schedule import Schedule

_KIB = 1024
_MOST = 1 << 28  # bytes of the largest buffer
_SMALL = 1 << 22  # with --quick


def tables(meter: Meter) -> Iterator[Table]:
    """Yield the tables of this group."""
    yield _against_the_limit(meter)
    yield _against_others(meter)


def played(schedule: Schedule, buf: Any) -> None:
    """Play a schedule in place, and look at nothing on the way."""
    for _ in steps(schedule, buf):
        pass


def limit(schedule: Schedule, buf: Any) -> Callable[[], None]:
    """Return the adds and copies of a schedule, as contiguous operations on rows of `buf`."""
    work = rows(schedule, buf)

    def play() -> None:
        for held, came, adds in work:
            if adds:
                np.add(held, came, out=held)
            else:
                held[...] = came

    return play


def rows(schedule: Schedule, buf: Any) -> list[tuple[Any, Any, bool]]:
    """Return (held, came, adds) of each operation: as few as do the same adds and copies.

    What a round adds is one operation, cut only where it is more than half of the buffer. They
    walk through the buffer, so that each reads what the last one wrote.
    """
    flat = buf.reshape(-1)
    cell = flat.size // (schedule.ranks * schedule.chunks)
    work, at = [], 0
    for r in schedule:
        for adds in (True, False):
            left = cell * int((r.reduce == adds).sum())
            while left:
                size = min(left, flat.size // 2)
                at = at if at + 2 * size <= flat.size else 0
                work.append((flat[at + size : at + 2 * size], flat[at : at + size], adds))
                left, at = left - size, at + size
    return work


def zeros(schedule: Schedule, chunk_bytes: int) -> Any:
    """Return float32 zeros [rank, chunk, element], written to memory and not only promised."""
    shape = schedule.ranks, schedule.chunks, max(chunk_bytes // 4, 1)
    return np.full(shape, 0, np.float32)


def _against_the_limit(meter: Meter) -> Table:
    most = _SMALL if meter.quick else _MOST
    made = [(name, make(n)) for name, make in ALGORITHMS.items() for n in (4, 16, 64)]
    rows = [
        _fraction(meter, name, schedule, chunk)
        for name, schedule in made
        for chunk in (4 * _KIB, 64 * _KIB, 256 * _KIB, 1024 * _KIB)
        if schedule.ranks * schedule.chunks * chunk <= most
    ]
    head = (
        "algorithm",
        "N",
        "chunk",
        "`steps`",
        "at the first reading",
        "`run`",
        "limit",
        "limit / `steps`",
    )
    return Table("A1. Data engine: the fraction of the limit that `steps` reaches", head, rows)


def _fraction(meter: Meter, name: str, schedule: Schedule, chunk: int) -> Row:
    overlaps = any(r.reads_what_it_writes for r in schedule)
    buf = zeros(schedule, chunk)
    x = zeros(schedule, chunk).reshape(schedule.ranks, -1)
    mine, first, whole, least = meter.seconds(
        partial(played, schedule, buf),
        lambda: played(replace(schedule), buf),
        lambda: run(schedule, x),
        limit(schedule, buf),
    )
    promised = not overlaps and chunk >= 64 * _KIB
    what = f"{name}{' (reads what it writes)' if overlaps else ''}"
    beside = (
        str(schedule.ranks),
        f"{chunk // _KIB} KiB",
        span(mine),
        span(first),
        span(whole),
        span(least),
    )
    return Row(what, beside, ratio(least, mine), Target(0.8, at_least=True) if promised else None)


def _against_others(meter: Meter) -> Table:
    """Rings; the threaded group works on N threads, so both are timed on the wall."""
    rows = []
    sizes = (4 * _KIB, 1024 * _KIB) if meter.quick else (4 * _KIB, 1024 * _KIB, 16384 * _KIB)
    for n in (4, 16):
        for size in sizes:
            schedule = ring(n)
            buf = zeros(schedule, size // n)
            mine, objects = meter.seconds(
                partial(played, schedule, buf), rivals.ring_of_objects(buf)[0]
            )
            target = Target(5.0 if size >= 1024 * _KIB else 11.0, at_least=True)
            cells = (str(n), f"{size // _KIB} KiB", span(objects), span(mine))
            rows.append(Row("an object per rank and message", cells, ratio(objects, mine), target))
            rows += _threads(meter, schedule, buf)
    rows.append(_temporaries())
    head = ("instead", "N", "S", "takes", "`steps`", "times as long")
    return Table("A2. Data engine: a ring, beside other code", head, rows)


def _threads(meter: Meter, schedule: Schedule, buf: Any) -> list[Row]:
    group = rivals.threaded_group(buf.reshape(len(buf), -1))
    if not group:
        return []
    play, stop, _ = group
    try:
        mine, theirs = meter.seconds(partial(played, schedule, buf), play, on_the_wall=True)
    finally:
        stop()
    size = buf[0].nbytes // _KIB
    cells = (str(len(buf)), f"{size} KiB", span(theirs), span(mine))
    slower = ratio(theirs, mine)
    return [Row("torch's threaded group", cells, slower, Target(3.0, at_least=True))]


def _temporaries() -> Row:
    """Bytes that a ring allocates at most on its way: counted, not timed."""
    rounds = list(ring(16))
    schedule = Schedule("ring", 16, 16, lambda: rounds)
    buf = zeros(schedule, 64 * _KIB)
    played(schedule, buf)
    tracemalloc.start()
    played(schedule, buf)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    cells = ("16", "1024 KiB", "–", "–")
    return Row("KiB of temporaries (of 16,384)", cells, most / _KIB, Target(64.0))
