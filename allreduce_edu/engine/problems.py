"""What can be wrong with a schedule's rounds and labels, each as a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import integer

if TYPE_CHECKING:
    from allreduce_edu.engine.rounds import Round

PARTS = ("src", "dst", "chunk", "reduce")  # the arrays of a Round


def problems_of(r: Round, k: int, ranks: int, chunks: int) -> Iterator[str]:
    """Yield what makes round k unplayable for so many ranks and chunks, a sentence each."""
    r = r.expanded() if r.span <= chunks else r  # a longer one could need any amount of memory
    strangers = list(outside(r, k, ranks, chunks))
    yield from strangers or _collisions(r, k, chunks)


def outside(r: Round, k: int, ranks: int, chunks: int) -> Iterator[str]:
    """Yield a sentence if round k names a rank or chunk that there is not."""
    if r.span > chunks:
        yield f"round {k}: span must be between 1 and {chunks}, got {r.span}"
        return
    for name, limit in (("src", ranks), ("dst", ranks), ("chunk", chunks - r.span + 1)):
        part = getattr(r, name)
        if part.size and part.astype(np.intp, copy=False).view(np.uintp).max() >= limit:
            wrong = part[(part < 0) | (part >= limit)][0]
            yield f"round {k}: {name} must be between 0 and {limit - 1}, got {wrong}"
            return  # a number below 0 is a very large one without its sign


def _collisions(r: Round, k: int, chunks: int) -> Iterator[str]:
    """Only the first to write a cell may replace it, and only after that may a rank name itself."""
    cell = r.dst * chunks + r.chunk
    order = np.argsort(cell, kind="stable")
    later = np.zeros(len(r), bool)
    later[order[1:]] = cell[order[1:]] == cell[order[:-1]]
    replaced = np.isin(cell, cell[~r.reduce & ~later])
    for rank in r.src[(r.src == r.dst) & ~(later & replaced)][:1]:
        yield f"round {k}: rank {rank} sends to itself"
    for i in np.flatnonzero(~r.reduce & later)[:1]:
        yield f"round {k}: rank {r.dst[i]}, chunk {r.chunk[i]} is written and replaced at once"


def cells_in_both(a: Round, b: Round) -> Iterator[tuple[int, int]]:
    """Yield the first (rank, chunk) that both rounds write, if there is one."""
    a, b = a.expanded(), b.expanded()
    chunks = 1 + max(a.chunk.max(initial=0), b.chunk.max(initial=0))
    one, other = a.dst * chunks + a.chunk, b.dst * chunks + b.chunk
    written = np.zeros(1 + max(one.max(initial=0), other.max(initial=0)), bool)
    written[one] = True
    for cell in np.sort(other[written[other]])[:1].tolist():
        yield divmod(cell, int(chunks))


def owners(owner: Any, ranks: int, chunks: int) -> npt.NDArray[np.intp]:
    """Return one rank per chunk, or say which is not."""
    array = np.asarray(owner)
    if array.shape != (chunks,):
        raise ValueError(f"owner must name a rank for each of {chunks} chunks, got {array.size}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"owner must hold integers, got dtype {array.dtype}")
    for wrong in array[(array < 0) | (array >= ranks)][:1].tolist():
        integer("owner", wrong, 0, ranks - 1)
    return array.astype(np.intp)


def labels(name: str, given: Any, count: int) -> npt.NDArray[np.intp]:
    """Return labels [copies, count], different within a row, or say what they must be."""
    try:
        array = np.atleast_2d(np.asarray(given))
    except ValueError:  # rows of unequal lengths
        array = np.empty((0, 0))
    fits = array.ndim == 2 and array.shape[1] == count and array.dtype.kind in "iu"
    ordered = np.sort(array, axis=-1)
    if not fits or (np.diff(ordered) == 0).any():
        raise ValueError(f"{name} must be {count} different numbers, got {given!r:.60}")
    if array.min() < 0:
        raise ValueError(f"{name} must be integers >= 0, got {array.min()}")
    return array.astype(np.intp)
