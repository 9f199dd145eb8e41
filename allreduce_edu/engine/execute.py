"""Plays a schedule on real numbers: numpy arrays or torch tensors, any dtype.

The order of additions is the schedule's alone, so replicas and reruns are equal bit for bit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from allreduce_edu.engine.check import kind
from allreduce_edu.engine.dtypes import as_numpy, check_op, combiner, full_name, is_torch
from allreduce_edu.engine.precision import Rounding
from allreduce_edu.engine.problems import outside
from allreduce_edu.engine.rounds import FEW_TRANSFERS, Ints, Round
from allreduce_edu.engine.schedule import Schedule, expandable, schedule_of

_VIEW = 4 * 1024  # bytes a chunk from which one call per transfer beats one per round
_INSTEAD = "count its bytes with sent_bytes and its time with cost.time, which read blocks"
_FEW_CELLS = 1 << 14  # of which a view each is made at once
_SLAB = 1 << 20  # bytes copied at once where a round reads what it writes


class OverflowWarning(RuntimeWarning):
    """An integer result did not fit its dtype and wrapped around."""


def run(
    schedule: Schedule,
    x: Any,
    op: str = "sum",
    *,
    wire: Any = None,
    accumulate: Any = None,
    round_owner: bool = False,
    saturate: bool = False,
) -> Any:
    """Play `schedule` on `x` and return what every rank holds at the end.

    The caller's arrays never change, and no gradient flows through. Places that the collective
    leaves without meaning (on a rank that is not the root of a reduce, say) hold whatever the
    rounds left there.

    Parameters
    ----------
    schedule : Schedule
    x : array [ranks, ...], or a sequence with one array per rank
        numpy arrays or torch tensors; all of one shape and dtype, cut by ``schedule.cut``.
        Ranks that only serve have none.
    op : "sum", "avg", "max", "min" or "prod"
        avg is the sum divided once by the number of shares, and needs a floating-point dtype.
    wire, accumulate : a name in ``precision.FORMATS`` or a dtype, optional
        What numbers are rounded to when they are sent (copies included), and the dtype in which
        partial results are kept; x's own, or the accumulator's, if not given. The result is
        rounded to x's dtype at the end.
    round_owner : bool
        True: who sends a number keeps it rounded too. With a wire narrower than the accumulator
        replicas *disagree* without it.
    saturate : bool
        As for ``precision.rounded``.

    Returns
    -------
    Like `x`: an array for an array, a list for a sequence; same shapes, dtype and device.

    Raises
    ------
    TypeError, ValueError
        For arrays that do not fit together or the schedule, and for an op without a meaning.

    Warns
    -----
    OverflowWarning
        Once, if an integer sum or product wraps around.
    """
    shares = as_call(schedule, x, op)
    rounding = Rounding.of(
        shares[0].dtype, wire, accumulate, round_owner=round_owner, saturate=saturate
    )
    if rounding:
        return _unloaded(*_run_rounded(schedule, shares, op, rounding), x, shares)
    buf, bounds = load(schedule, shares)
    exact = _exact(buf, op)
    for _ in _steps(schedule, buf, op):
        pass
    if exact is not None:
        _warn_of_overflow(schedule, buf, exact, op, 3)
    if op == "avg":
        buf /= schedule.workers
    return _unloaded(buf, bounds, x, shares)


@np.errstate(over="ignore", invalid="ignore")
def _run_rounded(
    schedule: Schedule, shares: Sequence[Any], op: str, rounding: Rounding
) -> tuple[Any, Ints]:
    """Play in float32 or float64, rounding after every step; return (buffer, bounds) as `load`."""
    buf, bounds = load(schedule, [as_numpy(each).astype(rounding.storage) for each in shares])
    buf = rounding.kept(buf)
    for _ in _steps(schedule, buf, op, rounding):
        pass
    if op == "avg":
        buf = rounding.kept(buf / schedule.workers)
    like = shares[0]
    return (_torch().from_numpy(buf).to(like) if is_torch(like) else buf.astype(like.dtype)), bounds


def as_call(schedule: Schedule, x: Any, op: str) -> list[Any]:
    """Return one array per rank, if `schedule` can be played on them with `op`, else raise."""
    shares = as_shares(schedule, x)
    check_op(op, shares[0].dtype)
    if op == "avg" and schedule.collective in ("all_gather", "broadcast"):
        raise ValueError(f"op 'avg' has no meaning for {schedule.name!r}, which only copies")
    expandable(schedule, _INSTEAD).check()
    return shares


def steps(
    schedule: Schedule, buf: Any, op: str = "sum", rounding: Rounding | None = None
) -> Iterator[tuple[Round, Any]]:
    """Play `schedule` in place on ``buf[rank, chunk, ...]``; yield (round, buf) after each round.

    What is yielded is the live buffer: copy what you want to keep. avg adds only. ValueError in
    a round that names a rank or chunk that there is not; ``schedule.check()`` finds all that is
    wrong before anything moves. With a `rounding` the buffer is numpy's, in ``rounding.storage``.
    """
    if not hasattr(buf, "shape"):
        raise TypeError(f"buf must be a numpy array or a torch tensor, got {kind(buf)}")
    if tuple(buf.shape[:2]) != (schedule_of(schedule).ranks, schedule.chunks):
        raise ValueError(
            f"buf must have shape ({schedule.ranks}, {schedule.chunks}, ...), "
            f"one cell per rank and chunk, got {tuple(buf.shape)}"
        )
    check_op(op, buf.dtype)
    if rounding and buf.dtype != rounding.storage:
        raise TypeError(f"buf must be {rounding.storage} for {rounding}, got {buf.dtype}")
    expandable(schedule, _INSTEAD)
    return _steps(schedule, buf, op, rounding)


def _steps(
    schedule: Schedule, buf: Any, op: str, rounding: Rounding | None = None
) -> Iterator[tuple[Round, Any]]:
    combine = combiner(op, buf)
    buf = buf.detach() if is_torch(buf) else buf  # the same memory, without a history
    whole = buf[:, :, None] if buf.ndim == 2 else buf
    few = schedule.ranks * schedule.chunks <= _FEW_CELLS
    cells = [list(rank) for rank in whole] if few else whole  # each a view of the buffer
    for k, r in enumerate(schedule.spans(), 1):
        for sentence in () if schedule.is_playable else outside(r, k, *buf.shape[:2]):
            raise ValueError(f"{schedule.name}: {sentence}")
        if rounding:
            _play_rounded(whole, r.expanded(), combine, rounding)
        else:
            _play(whole, cells, r, combine)
        yield r.expanded(), buf


@np.errstate(over="ignore", invalid="ignore")
def _play_rounded(buf: Any, r: Round, combine: Any, rounding: Rounding) -> None:
    """Play one round, rounding what crosses a wire and what is kept."""
    cells, which = np.unique(r.src * buf.shape[1] + r.chunk, return_inverse=True)
    where, crosses = np.divmod(cells, buf.shape[1]), r.src != r.dst
    for part in _slabs(buf, len(cells)):
        own = part[where]
        wire = rounding.sent(own)
        if rounding.round_owner:
            part[where] = own = wire

        def sent(i: Any, own: Any = own, wire: Any = wire) -> Any:
            if crosses.all():
                return wire[which[i]]
            flags = crosses[i].reshape(-1, *[1] * (own.ndim - 1))
            return np.where(flags, wire[which[i]], own[which[i]])

        _in_layers(
            part, r, sent, lambda held, came: rounding.kept(combine(held, came)), rounding.kept
        )


@np.errstate(over="ignore", invalid="ignore")  # inf and NaN are values, carried like others
def _play(buf: Any, cells: Any, r: Round, combine: Any) -> None:
    """Play one round in place: everything is read before anything is written."""
    one_by_one = len(r) <= FEW_TRANSFERS or _cell_bytes(buf) * r.span >= _VIEW
    if not r.reads_what_it_writes:
        if one_by_one:
            _one_by_one(buf, cells, r, combine)
        else:
            r = r.expanded()
            _in_layers(buf, r, lambda i: buf[r.src[i], r.chunk[i]], combine)
        return
    r = r.expanded()
    if one_by_one:
        for part in _slabs(buf, len(r.read_and_written)):
            _one_by_one_from_copies(part, r, combine)
        return
    kept, which = np.unique(r.src * buf.shape[1] + r.chunk, return_inverse=True)
    for part in _slabs(buf, len(kept)):
        before = part[np.divmod(kept, buf.shape[1])]  # a copy
        _in_layers(part, r, lambda i: before[which[i]], combine)  # noqa: B023 - used at once


def load(schedule: Schedule, shares: Sequence[Any]) -> tuple[Any, Ints]:
    """Copy the shares into a fresh ``buf[rank, chunk, longest]``; return it and the bounds.

    Chunk c of a share is ``flat[bounds[c]:bounds[c + 1]]``; shorter chunks end in zeros, and so
    do ranks that only serve.
    """
    first = shares[0]
    flat = [share.reshape(-1) for share in shares]
    elements = int(flat[0].shape[0])
    sizes = schedule.cut(elements, first.dtype.itemsize)
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
    longest = int(sizes.max(initial=0))
    shape = (schedule.ranks, schedule.chunks, longest)
    buf = first.new_zeros(shape) if is_torch(first) else np.zeros(shape, first.dtype)
    for rank, share in enumerate(flat):
        if longest * schedule.chunks == elements:
            buf[rank] = share.reshape(schedule.chunks, longest)
            continue
        for chunk, (start, stop) in enumerate(pairwise(bounds.tolist())):
            buf[rank, chunk, : stop - start] = share[start:stop]
    return buf, bounds


def _unloaded(buf: Any, bounds: Ints, x: Any, shares: Sequence[Any]) -> Any:
    """Return what the ranks hold, in the container that `x` is."""
    if not isinstance(x, (list, tuple)) and buf.shape[1] * buf.shape[2] == bounds[-1]:
        return buf[: len(shares)].reshape(x.shape)  # chunks of one size: nothing to copy
    result = [_joined(buf[rank], bounds, share) for rank, share in enumerate(shares)]
    if isinstance(x, (list, tuple)):
        return result
    return np.stack(result) if isinstance(x, np.ndarray) else _torch().stack(result)


def _joined(row: Any, bounds: Ints, like: Any) -> Any:
    """Copy one rank's chunks out into one array of the shape of `like`."""
    flat = (
        np.empty(bounds[-1], row.dtype)
        if isinstance(row, np.ndarray)
        else row.new_empty(int(bounds[-1]))
    )
    for chunk, (start, stop) in enumerate(pairwise(bounds.tolist())):
        flat[start:stop] = row[chunk, : stop - start]
    return flat.reshape(like.shape)


def _one_by_one(buf: Any, cells: Any, r: Round, combine: Any) -> None:
    """One contiguous operation per transfer, and no copy: the fastest but for tiny chunks."""
    k = r.span
    for src, dst, c, adds in r.moves:
        if k == 1:
            held, came = cells[dst][c], cells[src][c]
        else:
            held, came = buf[dst, c : c + k], buf[src, c : c + k]
        if adds:
            combine(held, came, out=held)
        else:
            held[...] = came


def _one_by_one_from_copies(buf: Any, r: Round, combine: Any) -> None:
    """Do the same where a round reads what it writes: that is copied first."""
    ranks, chunks = zip(*r.read_and_written, strict=True)
    before = dict(zip(r.read_and_written, buf[ranks, chunks], strict=True))
    for src, dst, c, adds in r.moves:
        held, came = buf[dst, c], before.get((src, c))
        came = buf[src, c] if came is None else came
        if adds:
            combine(held, came, out=held)
        else:
            held[...] = came


def _in_layers(
    buf: Any,
    r: Round,
    sent: Callable[[Any], Any],
    combine: Any,
    copied: Callable[[Any], Any] = lambda came: came,
) -> None:
    """Make a few calls per round, for small chunks; `sent(at)` is what came by transfers `at`."""
    for at in _layers(r.dst * buf.shape[1] + r.chunk):
        adds = r.reduce[at]
        for those, adding in ((at[adds], True), (at[~adds], False)):
            if those.size:
                where = r.dst[those], r.chunk[those]
                came = sent(those)
                buf[where] = combine(buf[where], came) if adding else copied(came)


def _layers(cell: Ints) -> list[Ints]:
    """Cut transfers into lots, in array order, so that none meets a cell twice.

    ``buf[dst] += ...`` with a repeated index keeps only the last one: hence the lots.
    """
    order = np.argsort(cell, kind="stable")
    place = np.arange(len(cell))
    first = np.diff(cell[order], prepend=-1) != 0  # of those that write its cell
    layer = np.empty_like(place)
    layer[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    lots = np.cumsum(np.bincount(layer))[:-1]
    return np.split(np.argsort(layer, kind="stable"), lots)


def _slabs(buf: Any, cells: int) -> Iterator[Any]:
    """Cut the elements so that a copy of `cells` cells fits a cache, and is never the buffer."""
    elements = buf.shape[2]
    element_bytes = max(_cell_bytes(buf) // max(elements, 1), 1)
    least = _VIEW if _cell_bytes(buf) >= _VIEW else 1
    width = max(max(_SLAB // cells, least) // element_bytes, 1)
    for start in range(0, elements, width):
        yield buf[:, :, start : start + width]


def _cell_bytes(buf: Any) -> int:
    return int(math.prod(buf.shape[2:])) * int(buf.dtype.itemsize)


def as_shares(schedule: Schedule, x: Any) -> list[Any]:
    """Return one array per rank, all of one shape and dtype, or say which rank differs."""
    if not isinstance(x, (list, tuple)) and not getattr(x, "shape", ()):
        raise TypeError(f"x must be an array or a list of arrays, got {type(x).__name__}")
    shares = [share.detach() if is_torch(share) else np.asarray(share) for share in x]
    if len(shares) != schedule_of(schedule).workers:
        who = f"rank ({schedule.ranks})" if not schedule.servers else f"worker ({schedule.workers})"
        raise ValueError(f"x must hold one array per {who}, got {len(shares)}")
    if len({is_torch(share) for share in shares}) > 1:
        raise TypeError("all ranks must pass numpy arrays, or all torch tensors, got both")
    for what in ("shape", "dtype", "device", "layout"):
        kinds = [_shown(getattr(share, what, None)) for share in shares]
        for rank, each in enumerate(kinds):
            if each != kinds[0]:
                raise ValueError(
                    f"all ranks must pass the same {what}; "
                    f"rank 0 has {kinds[0]}, rank {rank} has {each}"
                )
    layout = getattr(shares[0], "layout", "torch.strided")  # numpy has no other
    if str(layout) != "torch.strided":
        raise TypeError(f"x must be dense, got {layout}; call x.to_dense() first")
    return shares


def _shown(what: Any) -> str:
    return str(tuple(what)) if isinstance(what, tuple) else str(what)


def _exact(buf: Any, op: str) -> Any:
    """Return a wider copy to play beside integers that may overflow, else None."""
    name = full_name(buf.dtype)
    if not name.startswith(("int", "uint")) or op not in ("sum", "prod"):
        return None
    values = np.asarray(buf)
    largest = max(abs(int(values.max(initial=0))), abs(int(values.min(initial=0))))
    if op == "sum" and largest * 4 * len(values) <= np.iinfo(name).max:
        return None
    return values.astype(object)  # Python's own integers, which have no end


def warn_of_overflow(schedule: Schedule, shares: Sequence[Any], op: str, stacklevel: int) -> None:
    """Warn if `op` over these shares wraps around, for those who play it elsewhere."""
    buf, _ = load(schedule, shares)
    exact = _exact(buf, op)
    if exact is None:
        return
    for _ in _steps(schedule, buf, op):
        pass
    _warn_of_overflow(schedule, buf, exact, op, stacklevel + 1)


def _warn_of_overflow(schedule: Schedule, buf: Any, exact: Any, op: str, stacklevel: int) -> None:
    """Warn once if `buf`, played, differs from the exact integers, played."""
    for _ in _steps(schedule, exact, op):
        pass
    for rank, chunk, element in np.argwhere(exact != np.asarray(buf))[:1].tolist():
        warnings.warn(
            f"the {op} does not fit {full_name(buf.dtype)} and wraps around: rank {rank}, chunk "
            f"{chunk} should hold {exact[rank, chunk, element]}, got {buf[rank, chunk, element]}",
            OverflowWarning,
            stacklevel=stacklevel,
        )


def _torch() -> Any:
    import torch

    return torch
