"""Judges for what is made of collectives: an all-reduce from two others, and a global accuracy.

A learner's function runs on simulated ranks, each of which sees only its own data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine import spmd
from allreduce_edu.engine.algorithms import ring_all_gather, ring_reduce_scatter
from allreduce_edu.engine.check import count
from allreduce_edu.engine.cost import sent_bytes
from allreduce_edu.engine.schedule import Schedule, even_cut
from allreduce_edu.engine.verify import place_values
from allreduce_edu.lessons.checks import SHOWN, TRIED, Verdict, right, wrong
from allreduce_edu.lessons.family import server_reduce

Array = npt.NDArray[Any]
_ALLOWED = 2  # S that a rank may send
_S = 840  # elements on each rank: divided by 1 to 8
_ODD = 61  # elements that no 2 to 8 divides
_ORDER = (SHOWN, *(n for n in TRIED if n not in (SHOWN, 1)), 1)  # that of the pictures first


# ------------------------------------------------- exercise 1: an all-reduce from two others


class Parts:
    """What one rank can call in exercise 1: four collectives; what it sends is counted.

    Attributes
    ----------
    rank, size : int
    """

    def __init__(self, comm: spmd.Comm) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self.sent = 0  # bytes

    def __repr__(self) -> str:
        return f"comm of rank {self.rank} of {self.size}: reduce, broadcast, reduce_scatter, ..."

    def reduce(self, x: Array) -> Array:
        """Replace `x` on rank 0 by the sum; on the others it means nothing. Over a server."""
        self._count(server_reduce(self.size), x.nbytes)
        return np.asarray(self._comm.reduce(x))

    def broadcast(self, x: Array) -> Array:
        """Replace `x` by that of rank 0, which sends it to everybody."""
        self._count(server_reduce(self.size).mirrored(), x.nbytes)
        return np.asarray(self._comm.broadcast(x))

    def reduce_scatter(self, x: Array) -> Array:
        """Return one chunk of the sum: rank r has chunk r + 1, where the ring finishes it."""
        bounds = np.cumsum([0, *even_cut(len(x), 1, self.size)])
        self._count(ring_reduce_scatter(self.size), np.diff(bounds) * x.itemsize)
        chunk = (self.rank + 1) % self.size
        total = np.asarray(self._comm.all_reduce(x.copy()))
        return total[bounds[chunk] : bounds[chunk + 1]].copy()

    def all_gather(self, x: Array) -> list[Array]:
        """Return a list of everybody's `x`, in rank order."""
        lengths = [int(each[0]) for each in self._comm.all_gather(np.array([len(x)]))]
        padded = np.pad(x, (0, max(lengths) - len(x)))  # a real all-gather needs equal sizes
        gathered = zip(self._comm.all_gather(padded), lengths, strict=True)
        got = [each[:length] for each, length in gathered]
        sizes = [got[(chunk - 1) % self.size].nbytes for chunk in range(self.size)]
        self._count(ring_all_gather(self.size), sizes)
        return got

    def _count(self, schedule: Schedule, sizes: Any) -> None:
        self.sent += int(sent_bytes(schedule, sizes)[self.rank])


def builds_all_reduce(program: Any) -> Verdict:
    """Judge ``program(comm, x)``, an all-reduce of two other collectives; see `Parts`.

    First the values, then the bits that all ranks must share, then the bytes.
    """
    if not callable(program):
        return wrong(f"give the function itself, my_all_reduce, got {type(program).__name__}")
    most = max(TRIED)  # where bytes show most
    for fault, tried in ((_values, _ORDER), (_bits, _ORDER), (_bytes, (most,))):
        for n in tried:
            if problem := fault(program, n):
                return wrong(f"with {count(n, 'rank')}: {problem}")
    return right(
        "the sum on every rank, in the same bits, for 1 to 8 ranks, and no rank sends more than "
        f"{_ALLOWED} S"
    )


def _on_ranks(program: Callable[..., Any], x: Any) -> tuple[list[Any], list[int]]:
    """Return what each rank returned, and the bytes that it sent."""

    def one(comm: spmd.Comm, share: Array) -> tuple[Any, int]:
        parts = Parts(comm)
        return program(parts, share), parts.sent

    results, sent = zip(*spmd.run(one, x, show=False).results, strict=True)
    return list(results), list(sent)


def _values(program: Callable[..., Any], n: int) -> str | None:
    for x in (place_values(n, n), place_values(n, _ODD)):
        try:
            results, sent = _on_ranks(program, x)
        except spmd.Deadlock as hang:
            return f"it hangs: {hang}"
        total = x.sum(axis=0)
        for rank, got in enumerate(results):
            if problem := _no_array(got, total) or _wrong_sum(got, total, rank, n):
                return problem
        if n > 1 and not sum(sent):
            return "nothing was sent: call two of comm's collectives"
    return None


def _no_array(got: Any, total: Array) -> str | None:
    if got is None or got is ...:
        return f"my_all_reduce returned {got!r}; return the array with the sum"
    if isinstance(got, list):
        return "it returns a list of pieces; join them into one array with np.concatenate"
    shape = getattr(got, "shape", None)
    if shape != total.shape:
        return f"return an array of shape {total.shape}, as x is, got {shape or type(got).__name__}"
    return None


def _wrong_sum(got: Array, total: Array, rank: int, n: int) -> str | None:
    if np.array_equal(got, total):
        return None
    held = f"rank {rank} ends with {_row(got)}"
    chunks, mine = np.array_split(total, n), np.sort(got)
    if np.array_equal(mine, np.sort(total)) and np.array_equal(
        got, np.concatenate([*chunks[1:], chunks[0]])
    ):
        return (
            f"{held}: all pieces are there, rolled by one. Piece r of the list came from rank r, "
            "and reduce_scatter leaves chunk r + 1 there"
        )
    return f"{held}, and it should hold {_row(total)}"


def _row(values: Array) -> str:
    shown = ", ".join(str(each) for each in values[:8].tolist())
    return f"{shown}, …" if len(values) > 8 else shown


def _bits(program: Callable[..., Any], n: int) -> str | None:
    """Count the different results of floating-point numbers whose sums are rounded."""
    x = np.random.default_rng(n).normal(size=(n, _S))
    results, sent = _on_ranks(program, x)
    different = len({np.asarray(each).tobytes() for each in results})
    if different == 1:
        return None
    return (
        f"right up to rounding, but there are {different} different results: each rank adds in an "
        f"order of its own. And a rank sends {max(sent) / x[0].nbytes:.3g} S"
    )


def _bytes(program: Callable[..., Any], n: int) -> str | None:
    x = place_values(n, _S)
    sent = _on_ranks(program, x)[1]
    most = max(sent)
    if most <= _ALLOWED * x[0].nbytes:
        return None
    return (
        f"every value is right. But rank {sent.index(most)} sends {most / x[0].nbytes:.3g} S; "
        f"{_ALLOWED} S are allowed"
    )


# ----------------------------------------------------------- exercise 2: a global accuracy

_COUNTS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((8, 8), (1, 4), (1, 4), (0, 1)),
    ((100, 120), (100, 120), (100, 120), (100, 120)),
    ((3, 4), (0, 0), (1, 2)),
    ((70_000, 90_000), (1, 3)),
    ((5, 7),),
)


def accuracy_of_all(program: Any) -> Verdict:
    """Judge ``program(comm, correct, count)``: on every rank the accuracy over all images."""
    if not callable(program):
        return wrong(f"give the function itself, accuracy, got {type(program).__name__}")
    for counts in _COUNTS:
        if problem := _accuracy(program, counts):
            listed = ", ".join(f"{c} of {n}" for c, n in counts)
            return wrong(f"for {listed}: {problem}")
    return right("all images weigh the same, on every rank, whatever the counts")


def _accuracy(program: Callable[..., Any], counts: Sequence[tuple[int, int]]) -> str | None:
    def one(comm: spmd.Comm, share: tuple[int, int]) -> Any:
        return program(comm, *share)

    try:
        results = spmd.run(one, list(counts), show=False).results
    except spmd.Deadlock as hang:
        return f"it hangs: {hang}"
    numbers = [_number(each) for each in results]
    for rank, (number, given) in enumerate(zip(numbers, results, strict=True)):
        if number is None:
            return f"return a number, the accuracy; rank {rank} returned {given!r:.40}"
    found = [number for number in numbers if number is not None]
    return _off(found, counts)


def _number(value: Any) -> float | None:
    array = np.asarray(value)
    return float(array.reshape(())) if array.size == 1 and array.dtype.kind in "iuf" else None


def _off(found: list[float], counts: Sequence[tuple[int, int]]) -> str | None:
    """Say how the ranks' numbers differ from the accuracy, and which recipe they are."""
    correct, images = (sum(column) for column in zip(*counts, strict=True))
    good = [_near(number, correct / images) for number in found]
    if all(good):
        return None
    if good[0]:
        rank = good.index(False)
        return (
            f"rank 0 has {found[0]:.3f}, rank {rank} has {found[rank]:.3f}: `reduce` gives the sum "
            "to rank 0 alone"
        )
    own = [c / n if n else math.nan for c, n in counts]
    said = {
        f"{found[0]:.3f} is the mean of the ranks' accuracies: a rank with one image weighs as "
        "much as one with eight": sum(own) / len(own),
        f"{found[0]:.3f} is the sum of the ranks' accuracies": sum(own),
        "every rank still has its own accuracy: nothing was combined": own[0],
        f"the counters have wrapped around: in a byte {correct} reads {correct % 256}": _wrapped(
            correct, images, 256
        ),
    }
    for sentence, recipe in said.items():
        if _near(found[0], recipe):
            return sentence
    return f"rank 0 has {found[0]:.3f}; {correct} of {images} is {correct / images:.3f}"


def _wrapped(correct: int, images: int, size: int) -> float:
    return correct % size / (images % size) if images % size else math.nan


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-12)
