"""Counts what a schedule sends: bytes, messages, the busiest port.

`sizes` is bytes per chunk (array[chunks]), or bytes per rank: an int, which the schedule cuts as
so many elements of one byte. Where elements must not be torn, pass
``schedule.cut(elements, itemsize) * itemsize``.
Counted, never taken from a formula: the formulas are what the tests compare with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import integer
from allreduce_edu.engine.schedule import Schedule, schedule_of

_MOST_BYTES = 1 << 50  # a petabyte; sums of more would wrap around
Bytes = npt.NDArray[np.int64]


def sent_bytes(schedule: Schedule, sizes: Any) -> Bytes:
    """Return the bytes that each rank sends, array[ranks]; a link sends and receives at once.

    ValueError for sizes that do not fit, or a schedule that cannot be played.
    """
    return _per_rank(schedule, sizes, "src")


def received_bytes(schedule: Schedule, sizes: Any) -> Bytes:
    """Return the bytes that each rank receives, array[ranks]."""
    return _per_rank(schedule, sizes, "dst")


def busiest_port(schedule: Schedule, sizes: Any) -> int:
    """Return the most bytes that any rank sends, or receives if that is more: one direction."""
    out, into = sent_bytes(schedule, sizes), received_bytes(schedule, sizes)
    return int(max(out.max(), into.max()))


def messages(schedule: Schedule, sizes: Any = None) -> int:
    """Return how many messages cross links: one per (round, src, dst) with more than 0 bytes.

    Many chunks over one link in a round are one message. Without `sizes` every chunk counts.
    """
    size = chunk_bytes(schedule, np.ones(schedule.chunks, np.int64) if sizes is None else sizes)
    total = 0
    for r in schedule.check():
        loaded = size[r.chunk] > 0
        total += len(np.unique(r.src[loaded] * schedule.ranks + r.dst[loaded]))
    return total


def chunk_bytes(schedule: Schedule, sizes: Any) -> Bytes:
    """Return bytes per chunk, array[chunks], from either form of `sizes`."""
    schedule_of(schedule)
    if not isinstance(sizes, (list, tuple, np.ndarray)):
        array = np.asarray(schedule.cut(_modest(integer("sizes", sizes, 0))))
    else:
        array = np.array([_modest(integer("sizes", each, 0)) for each in sizes], np.int64)
    if array.shape != (schedule.chunks,):
        raise ValueError(
            f"sizes must be bytes per rank (an int) or {schedule.chunks} bytes per chunk, "
            f"got {array.size}"
        )
    return array.astype(np.int64)


def _modest(size: int) -> int:
    if size > _MOST_BYTES:
        raise ValueError(f"sizes must be at most {_MOST_BYTES:,} bytes, got {size:,}")
    return size


def _per_rank(schedule: Schedule, sizes: Any, end: str) -> Bytes:
    size = chunk_bytes(schedule, sizes)
    total = np.zeros(schedule.ranks, np.int64)
    for r in schedule.check():
        np.add.at(total, getattr(r, end), size[r.chunk])
    return total
