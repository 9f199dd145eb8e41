"""Counts what a schedule sends, and reckons how long that takes: bytes, messages, seconds.

`sizes` is bytes per chunk (array[chunks]), or bytes per rank: an int, which the schedule cuts as
so many elements of one byte. Where elements must not be torn, pass
``schedule.cut(elements, itemsize) * itemsize``.
Bytes are counted, never taken from a formula: `formulas` is what the tests compare with. Seconds
are modelled, never measured: see `Links`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import integer, kind, numbers
from allreduce_edu.engine.links import Links, Seconds
from allreduce_edu.engine.mesh import Mesh, at_end
from allreduce_edu.engine.problems import outside
from allreduce_edu.engine.rounds import Ints, Round
from allreduce_edu.engine.schedule import Schedule, expandable, schedule_of

_MOST_BYTES = 1 << 50  # a petabyte; sums of more would wrap around
_MOST_COUNTED = 1 << 62
_FEW_TRANSFERS = 1 << 20
_AT_ONCE = 1 << 14  # transfers of many sizes
_MOST_TIMES = 1 << 24  # (round, rank) pairs of a timeline
Bytes = npt.NDArray[np.int64]
cost = sys.modules[__name__]  # for ``from allreduce_edu import cost``, then ``cost.time(...)``


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
    for r, times, carried in _read(schedule, size):
        pair, full = r.src * schedule.ranks + r.dst, (carried > 0) & (r.src != r.dst)
        ordered = np.sort(pair[full], kind="stable")  # np.unique takes a hundred times as long
        total += times * int(np.count_nonzero(np.diff(ordered, prepend=-1)))
    return total


def rounds(schedule: Schedule) -> int:
    """Return how many rounds there are, idle ones included."""
    return sum(times for _, times in schedule_of(schedule).blocks())


def time(schedule: Schedule, sizes: Any, links: Links) -> float:
    """Return the modelled seconds until the last rank is done, all rounds being barriers.

    Reads blocks, so thousands of ranks take milliseconds. Rounds that are alike count as often
    as there are, each with the largest chunk: exact for chunks of one size, and for any sizes if
    all links are alike and some rank sends the largest chunk in each round, as in a ring; else at
    most one element a chunk too long. (Up to a million transfers, chunks without bytes are told
    apart round by round.)
    """
    _check(schedule, links)
    size = chunk_bytes(schedule, sizes)
    upto, total, even = _upto(size), 0.0, size.min() == size.max()
    uneven = 0 == size.min() < size.max() and schedule.transfers() <= _FEW_TRANSFERS
    for r, times in ((r, 1) for r in schedule.spans()) if uneven else schedule.blocks():
        for sentence in outside(r, 1, schedule.ranks, schedule.chunks):
            raise ValueError(f"{schedule.name}: {sentence}")
        alike = even or times > 1
        carried = _largest(upto, r.span) if alike else _carried(upto, r)
        total += times * float(links.cost(r, carried).max())
    return total


def times(schedule: Schedule, sizes: Iterable[Any], links: Links) -> Seconds:
    """Return the `time` of each of many `sizes`, array[sizes], from one reading of the rounds."""
    _check(schedule, links)
    size = np.array([chunk_bytes(schedule, each) for each in sizes]).reshape(-1, schedule.chunks)
    total, few = np.zeros(len(size)), schedule.transfers() <= _FEW_TRANSFERS
    uneven = few & (size.min(1) == 0) & (size.max(1) > 0)
    for those, blocks in ((~uneven, schedule.blocks()), (uneven, zip(schedule.spans(), repeat(1)))):
        for r, often in blocks if those.any() else ():
            for sentence in outside(r, 1, schedule.ranks, schedule.chunks):
                raise ValueError(f"{schedule.name}: {sentence}")
            total[those] += often * _slowest(links, r, size[those], alike=often > 1)
    return total


def _slowest(links: Links, r: Round, size: Bytes, *, alike: bool) -> Seconds:
    """Return the seconds of a round for each row of `size`, as many rows at once as fit a cache."""
    upto = np.concatenate([np.zeros_like(size[:, :1]), np.cumsum(size, 1)], 1)
    carried = upto[:, r.chunk + r.span] - upto[:, r.chunk]
    if isinstance(r, Mesh):
        if (carried == carried[:, :1, :1]).all():
            return np.asarray(links.cost(r, carried[:, :1, :1]).max(1))
        return np.array([links.cost(r, each).max() for each in carried])
    if alike:
        largest = (upto[:, r.span :] - upto[:, : -r.span]).max(1)
        carried = np.broadcast_to(largest[:, None], carried.shape)
    lot = max(_AT_ONCE // max(len(r), 1), 1)
    parts = (links.cost(r, carried[k : k + lot]).max(1) for k in range(0, len(size), lot))
    return np.concatenate([*parts])


class Busy(NamedTuple):
    """When each rank waits and works, arrays[rounds, ranks] in modelled seconds.

    A rank is ready when its last round is over, starts when all its partners are ready too, and
    ends when its messages are through; where it has none, the three are equal.
    """

    ready: Seconds
    start: Seconds
    end: Seconds

    def __repr__(self) -> str:
        n = self.end.shape
        return f"Busy({n[0]:,} rounds x {n[1]:,} ranks, {self.end.max(initial=0):.6g} s)"


def timeline(
    schedule: Schedule, sizes: Any, links: Links, late: Any = None, *, barrier: bool = False
) -> Busy:
    """Return who was busy when: `clocks`, with every round kept. Parameters as there."""
    _check(schedule, links)
    shape = (3, rounds(schedule), schedule.ranks)
    if shape[1] * shape[2] > _MOST_TIMES:
        raise ValueError(
            f"{schedule.name} over {shape[2]:,} ranks has {shape[1]:,} rounds, too many to keep "
            f"(at most {_MOST_TIMES:,} in all); use clocks, which keeps the last"
        )
    kept = np.empty(shape)
    for k, moments in enumerate(_clocks(schedule, sizes, links, late, barrier=barrier)):
        kept[:, k] = moments
    return Busy(*kept)


def clocks(
    schedule: Schedule, sizes: Any, links: Links, late: Any = None, *, barrier: bool = False
) -> Seconds:
    """Return the modelled seconds at which each rank is done, array[ranks].

    Ranks run free: a rank begins its next round when its partners of that round are there, and
    does not wait for others.

    Parameters
    ----------
    schedule : Schedule
    sizes : int or array[chunks]
    links : Links
    late : array[ranks], or dict of rank to seconds, optional
        When each rank begins; 0 for those not named.
    barrier : bool
        True: nobody goes on before all have ended a round, so all are done together.

    Raises
    ------
    ValueError
        If there are too many transfers to read one by one; `time` reads blocks.
    """
    _check(schedule, links)
    done = _late(late, links.ranks)
    for _, _, end in _clocks(schedule, sizes, links, late, barrier=barrier):
        done = np.full(links.ranks, end.max()) if barrier else end
    return done


def _clocks(
    schedule: Schedule, sizes: Any, links: Links, late: Any, *, barrier: bool
) -> Iterator[tuple[Seconds, Seconds, Seconds]]:
    """Yield (ready, start, end) of every round."""
    size = chunk_bytes(schedule, sizes)
    clock = _late(late, links.ranks)
    expandable(schedule, "use cost.time, which reads blocks")
    for r, times, carried in _read(schedule, size):
        seconds, meet = links.cost(r, carried), _Meeting.of(r, carried, links.ranks)
        for _ in range(times):
            start = meet.start(clock, barrier=barrier)
            done = np.where(meet.busy, start + seconds, clock)
            yield clock, start, done
            clock = np.full(links.ranks, done.max()) if barrier else done


class _Meeting(NamedTuple):
    """Who must be there before a rank can begin a round."""

    src: Ints
    dst: Ints
    busy: npt.NDArray[np.bool_]
    once: bool  # no rank sends or receives twice
    full: npt.NDArray[np.bool_] | None = None  # of the pairs of a mesh, those that meet

    @classmethod
    def of(cls, r: Round, carried: Bytes, ranks: int) -> _Meeting:
        real = (carried > 0) & (r.src != r.dst)
        if isinstance(r, Mesh):
            busy = np.zeros(ranks, bool)
            for end in (r.src, r.dst):
                rank, meets = at_end(end, real, np.logical_or)
                busy[rank] |= meets
            return cls(r.src, r.dst, busy, once=True, full=real)
        src, dst = r.src[real], r.dst[real]
        sends, receives = (np.bincount(end, minlength=ranks) for end in (src, dst))
        once = max(sends.max(initial=0), receives.max(initial=0)) <= 1
        return cls(src, dst, (sends + receives) > 0, bool(once))

    def start(self, clock: Seconds, *, barrier: bool) -> Seconds:
        """Return when each rank begins, from when each is ready."""
        start = clock.copy()
        if barrier:
            start[self.busy] = clock.max()
            return start
        together = np.maximum(clock[self.src], clock[self.dst])
        for end in (self.src, self.dst):
            latest = together
            if self.full is not None:  # those of a rank made one
                end, latest = at_end(end, together * self.full, np.maximum)  # noqa: PLW2901
            if self.once:
                start[end] = np.maximum(start[end], latest)
            else:
                np.maximum.at(start, end, latest)
        return start


def chunk_bytes(schedule: Schedule, sizes: Any) -> Bytes:
    """Return bytes per chunk, array[chunks], from either form of `sizes`."""
    schedule_of(schedule)
    if not isinstance(sizes, (list, tuple, np.ndarray)):
        array = np.asarray(schedule.cut(_modest(integer("sizes", sizes, 0))))
    elif isinstance(sizes, np.ndarray) and sizes.dtype.kind in "iu" and sizes.ndim == 1:
        array = sizes
        for extreme in (array.min(initial=0), array.max(initial=0)):
            _modest(integer("sizes", extreme, 0))
    else:
        array = np.array([_modest(integer("sizes", each, 0)) for each in sizes], np.int64)
    _modest(int(array.sum(dtype=float)))
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


def _check(schedule: Schedule, links: Any) -> None:
    if not isinstance(links, Links):
        hint = "links must be Links such as Links.uniform(8, '100 GbE')"
        raise TypeError(f"{hint}, got {kind(links)}")
    if schedule_of(schedule).ranks != links.ranks:
        raise ValueError(f"links are for {links.ranks} ranks, {schedule.name} has {schedule.ranks}")


def _late(late: Any, ranks: int) -> Seconds:
    if isinstance(late, dict):
        start = np.zeros(ranks)
        for rank, seconds in late.items():
            start[integer("late", rank, 0, ranks - 1)] = numbers("late", seconds)
    else:
        start = np.zeros(ranks) if late is None else np.asarray(numbers("late", late))
    if start.shape != (ranks,) or not (np.isfinite(start) & (start >= 0)).all():
        raise ValueError(f"late must be seconds >= 0 for each of {ranks} ranks, got {late!r:.60}")
    return start


def _upto(size: Bytes) -> Bytes:
    return np.concatenate([[0], np.cumsum(size)])


def _carried(upto: Bytes, r: Round) -> Bytes:
    """Return the bytes that each transfer carries, from the bytes up to each chunk."""
    carried: Bytes = upto[r.chunk + r.span] - upto[r.chunk]
    return carried


def _largest(upto: Bytes, span: int) -> int:
    return int((upto[span:] - upto[:-span]).max(initial=0))


def _read(schedule: Schedule, size: Bytes) -> Iterator[tuple[Round, int, Bytes]]:
    """Yield (round, times, bytes of each transfer): as blocks if chunks are of one size."""
    alike = not size.size or bool((size == size[0]).all())
    if not alike:
        expandable(schedule, "choose a size that cuts into equal chunks")
    k, upto = 1, _upto(size)
    for r, times in schedule_of(schedule).blocks() if alike else ((r, 1) for r in schedule.spans()):
        for sentence in outside(r, k, schedule.ranks, schedule.chunks):
            raise ValueError(f"{schedule.name}: {sentence}")
        yield r, times, _carried(upto, r)
        k += times


def _per_rank(schedule: Schedule, sizes: Any, end: str) -> Bytes:
    total, all_of_it = np.zeros(schedule_of(schedule).ranks, np.int64), 0.0
    for r, times, carried in _read(schedule, chunk_bytes(schedule, sizes)):
        here = np.where(r.src == r.dst, 0, carried) * times
        all_of_it += float(here.sum(dtype=float))
        if all_of_it > _MOST_COUNTED:
            raise ValueError(
                f"{schedule.name} sends more than {_MOST_COUNTED:,} bytes in all, too many to "
                "count; choose smaller sizes"
            )
        np.add.at(total, *at_end(getattr(r, end), here))
    return total
