"""Plays a schedule on real numbers: numpy arrays or torch tensors, any dtype.

The order of additions is the schedule's alone, so replicas and reruns are equal bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.dtypes import check_op, combiner, full_name, is_torch
from allreduce_edu.engine.schedule import Ints, Round, Schedule, schedule_of

_VIEW = 32 * 1024  # bytes a chunk from which one call per transfer beats one per round


class OverflowWarning(RuntimeWarning):
    """An integer result did not fit its dtype and wrapped around."""


def run(schedule: Schedule, x: Any, op: str = "sum") -> Any:
    """Play `schedule` on `x` and return what every rank holds at the end.

    The caller's arrays never change, and no gradient flows through. Places that the collective
    leaves without meaning (on a rank that is not the root of a reduce, say) hold whatever the
    rounds left there.

    Parameters
    ----------
    schedule : Schedule
    x : array [ranks, ...], or a sequence with one array per rank
        numpy arrays or torch tensors; all of one shape and dtype, cut by ``schedule.cut``.
    op : "sum", "avg", "max", "min" or "prod"
        avg is the sum divided once by the number of ranks, and needs a floating-point dtype.

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
    buf, bounds = load(schedule, shares)
    exact = _exact(buf, op)
    for _ in steps(schedule, buf, op):
        pass
    if exact is not None:
        _warn_of_overflow(schedule, buf, exact, op)
    if op == "avg":
        buf /= schedule.ranks
    result = [_joined(buf[rank], bounds, share) for rank, share in enumerate(shares)]
    if isinstance(x, (list, tuple)):
        return result
    return np.stack(result) if isinstance(x, np.ndarray) else _torch().stack(result)


def as_call(schedule: Schedule, x: Any, op: str) -> list[Any]:
    """Return one array per rank, if `schedule` can be played on them with `op`, else raise."""
    shares = as_shares(schedule, x)
    check_op(op, shares[0].dtype)
    if op == "avg" and schedule.collective in ("all_gather", "broadcast"):
        raise ValueError(f"op 'avg' has no meaning for {schedule.name!r}, which only copies")
    schedule.check()
    return shares


def steps(schedule: Schedule, buf: Any, op: str = "sum") -> Iterator[tuple[Round, Any]]:
    """Play `schedule` in place on ``buf[rank, chunk, ...]``; yield (round, buf) after each round.

    What is yielded is the live buffer: copy what you want to keep. avg adds only. The schedule is
    taken as it is; ``schedule.check()`` finds what cannot be played.
    """
    if tuple(buf.shape[:2]) != (schedule_of(schedule).ranks, schedule.chunks):
        raise ValueError(
            f"buf must have shape ({schedule.ranks}, {schedule.chunks}, ...), "
            f"one cell per rank and chunk, got {tuple(buf.shape)}"
        )
    check_op(op, buf.dtype)
    return _steps(schedule, buf, op)


def _steps(schedule: Schedule, buf: Any, op: str) -> Iterator[tuple[Round, Any]]:
    combine = combiner(op, buf)
    cell_bytes = _cell_bytes(buf)
    for r in schedule:
        if cell_bytes >= _VIEW and not _reads_what_it_writes(r, schedule.chunks):
            _one_by_one(buf, r, combine)
        else:
            _all_at_once(buf, r, combine, schedule.chunks)
        yield r, buf


def load(schedule: Schedule, shares: Sequence[Any]) -> tuple[Any, Ints]:
    """Copy the shares into a fresh ``buf[rank, chunk, longest]``; return it and the bounds.

    Chunk c of a share is ``flat[bounds[c]:bounds[c + 1]]``; shorter chunks end in zeros.
    """
    first = shares[0]
    flat = [share.reshape(-1) for share in shares]
    elements = int(flat[0].shape[0])
    sizes = schedule.cut(elements, first.dtype.itemsize)
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
    shape = (schedule.ranks, schedule.chunks, int(sizes.max(initial=0)))
    buf = first.new_zeros(shape) if is_torch(first) else np.zeros(shape, first.dtype)
    for rank, share in enumerate(flat):
        for chunk, size in enumerate(sizes):
            buf[rank, chunk, :size] = share[bounds[chunk] : bounds[chunk + 1]]
    return buf, bounds


def _joined(row: Any, bounds: Ints, like: Any) -> Any:
    """Copy one rank's chunks out into one array of the shape of `like`."""
    flat = (
        np.empty(bounds[-1], row.dtype)
        if isinstance(row, np.ndarray)
        else row.new_empty(int(bounds[-1]))
    )
    for chunk, (start, stop) in enumerate(pairwise(bounds)):
        flat[start:stop] = row[chunk, : stop - start]
    return flat.reshape(like.shape)


@np.errstate(over="ignore", invalid="ignore")  # inf and NaN are values, carried like others
def _one_by_one(buf: Any, r: Round, combine: Any) -> None:
    """One contiguous operation per transfer, no copy: right where no cell is read and written."""
    for src, dst, chunk, reduce in zip(r.src, r.dst, r.chunk, r.reduce, strict=True):
        held, came = buf[dst, chunk], buf[src, chunk]
        if reduce:
            combine(held, came, out=held)
        else:
            held[...] = came


@np.errstate(over="ignore", invalid="ignore")
def _all_at_once(buf: Any, r: Round, combine: Any, chunks: int) -> None:
    """Read everything, then write, in array order where many meet: a few calls per round."""
    sent = buf[r.src, r.chunk]
    copy = ~r.reduce
    for at in _layers(r.dst * chunks + r.chunk, r.reduce):
        dst, chunk = r.dst[at], r.chunk[at]
        buf[dst, chunk] = combine(buf[dst, chunk], sent[at])
    if copy.any():
        buf[r.dst[copy], r.chunk[copy]] = sent[copy]


def _layers(cell: Ints, reduce: npt.NDArray[np.bool_]) -> Iterator[Ints]:
    """Yield the combining transfers so that no cell is met twice in one of the lots.

    ``buf[dst] += ...`` with a repeated index keeps only the last one: hence the lots.
    """
    left = np.flatnonzero(reduce)
    while left.size:
        _, first = np.unique(cell[left], return_index=True)
        first.sort()
        yield left[first]
        left = np.delete(left, first)


def _reads_what_it_writes(r: Round, chunks: int) -> bool:
    return bool(np.isin(r.src * chunks + r.chunk, r.dst * chunks + r.chunk).any())


def _cell_bytes(buf: Any) -> int:
    return int(np.prod(buf.shape[2:], dtype=np.int64)) * int(buf.dtype.itemsize)


def as_shares(schedule: Schedule, x: Any) -> list[Any]:
    """Return one array per rank, all of one shape and dtype, or say which rank differs."""
    if not isinstance(x, (list, tuple)) and not getattr(x, "shape", ()):
        raise TypeError(f"x must be an array or a list of arrays, got {type(x).__name__}")
    shares = [share.detach() if is_torch(share) else np.asarray(share) for share in x]
    if len(shares) != schedule_of(schedule).ranks:
        raise ValueError(f"x must hold one array per rank ({schedule.ranks}), got {len(shares)}")
    if len({is_torch(share) for share in shares}) > 1:
        raise TypeError("all ranks must pass numpy arrays, or all torch tensors, got both")
    for what in ("shape", "dtype"):
        kinds = [_shown(getattr(share, what)) for share in shares]
        for rank, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise ValueError(
                    f"all ranks must pass the same {what}; "
                    f"rank 0 has {kinds[0]}, rank {rank} has {kind}"
                )
    return shares


def _shown(kind: Any) -> str:
    return str(tuple(kind)) if isinstance(kind, tuple) else str(kind)


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


def _warn_of_overflow(schedule: Schedule, buf: Any, exact: Any, op: str) -> None:
    """Warn once if `buf`, played, differs from the exact integers, played."""
    for _ in _steps(schedule, exact, op):
        pass
    for rank, chunk, element in np.argwhere(exact != np.asarray(buf))[:1].tolist():
        warnings.warn(
            f"the {op} does not fit {full_name(buf.dtype)} and wraps around: rank {rank}, chunk "
            f"{chunk} should hold {exact[rank, chunk, element]}, got {buf[rank, chunk, element]}",
            OverflowWarning,
            stacklevel=3,
        )


def _torch() -> Any:
    import torch

    return torch
