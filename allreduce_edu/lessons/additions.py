"""The additions behind one element: whose numbers, in which order, and what each one loses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.algorithms import naive, one_shot, recursive_doubling, ring
from allreduce_edu.engine.check import integer
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.precision import Format, exact_sum, format_of, rounded, ulp
from allreduce_edu.engine.schedule import Schedule

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """A number of the tree: a rank's share, a sum of two, or a finished sum that was copied.

    Attributes
    ----------
    value : float
    hop : int
        How many additions stand below it, one upon another; 0 for a share.
    lost : float
        What this step lost, in places (ulps) of the format that it was rounded to.
    rank : int
        Where it is.
    parts : tuple of Node
        Nothing for a share; what was added; the one that was copied.
    crossed : int or None
        Which of the parts came over a wire, if any did.
    arrived : float
        What came over the wire, rounded for it.
    sent_lost : float
        What that rounding lost, in places of the wire's format.
    """

    value: float
    hop: int
    lost: float
    rank: int
    parts: tuple[Node, ...] = ()
    crossed: int | None = None
    arrived: float = 0.0
    sent_lost: float = 0.0

    def __repr__(self) -> str:
        kind = ("share", "copy", "sum")[len(self.parts)]
        return f"Node({kind} {self.value:g} on rank {self.rank}, hop {self.hop})"

    def nodes(self) -> Iterator[Node]:
        """Yield every number below, and this one."""
        for part in self.parts:
            yield from part.nodes()
        yield self


def additions(
    schedule: Schedule, numbers: Sequence[float], wire: Any, keep: Any, *, chunk: int = 0
) -> Node:
    """Return the tree of one element of `chunk`, which is numbers[r] on rank r.

    Each number is rounded to `wire` when it is sent, each sum to `keep`; what is received
    as finished is the copy that all but its owner have. Values are those of ``run``.
    """
    w, k = format_of(wire), format_of(keep)
    chunk = integer("chunk", chunk, 0, schedule.chunks - 1)
    if len(numbers) != schedule.ranks:
        raise ValueError(f"numbers must be one per rank ({schedule.ranks}), got {len(numbers)}")
    held = [Node(float(each), 0, 0.0, rank) for rank, each in enumerate(numbers)]
    for r in schedule.check():
        ours = np.flatnonzero(r.chunk == chunk)
        sent = [held[src] for src in r.src[ours]]
        for dst, adds, came in zip(r.dst[ours].tolist(), r.reduce[ours], sent, strict=True):
            held[dst] = _added(held[dst], came, dst, w, k) if adds else _copied(came, dst, w)
    copies = [node for node in held if len(node.parts) == 1]
    return copies[0] if copies else held[0]


def _added(mine: Node, came: Node, rank: int, wire: Format, keep: Format) -> Node:
    crosses = came.rank != rank
    arrived, sent_lost = _rounded(came.value, wire) if crosses else (came.value, 0.0)
    value, lost = _rounded(mine.value + arrived, keep)
    parts = tuple(sorted((mine, came), key=lambda part: (-part.hop, part.rank)))  # longest first
    hop = 1 + max(mine.hop, came.hop)
    crossed = parts.index(came) if crosses else None
    return Node(value, hop, lost, rank, parts, crossed, arrived, sent_lost)


def _copied(came: Node, rank: int, wire: Format) -> Node:
    if len(came.parts) == 1:  # a copy of a copy has its bits
        return came
    value, lost = _rounded(came.value, wire)
    return Node(value, came.hop + 1, lost, rank, (came,), 0, value, lost)


def _rounded(x: float, kind: Format) -> tuple[float, float]:
    """Return x rounded, and what that lost in places of the format."""
    with np.errstate(over="ignore"):
        value = float(rounded(np.array([x], np.float64), kind)[0])
    lost = (value - x) / float(ulp(np.array([x]), kind)[0])
    return value, lost if np.isfinite(lost) else float("inf")


# ------------------------------------------------------------------ three questions of bits


def cut_in_two(x: Array) -> Array:
    """Play two rings, one for each half of the elements."""
    half, n = x.shape[1] // 2, len(x)
    return np.concatenate([run(ring(n), x[:, :half]), run(ring(n), x[:, half:])], axis=1)


def _in_order(x: Array, order: Sequence[int], keep: str = "fp32") -> Array:
    total = rounded(x[order[0]], keep)
    for rank in order[1:]:
        total = rounded(total + x[rank], keep)
    return np.repeat(total[None], len(x), axis=0)


Reduction = Callable[[Array, Sequence[int]], Array]  # shares, and the order in which ranks arrive
WAYS: dict[str, Reduction] = {
    "ring": lambda x, _: run(ring(len(x)), x),
    "ring, bucket cut in two": lambda x, _: cut_in_two(x),
    "recursive doubling": lambda x, _: run(recursive_doubling(len(x)), x),
    "one-shot, in rank order": lambda x, _: run(one_shot(len(x)), x),
    "each rank adds its own first": lambda x, _: run(naive(len(x)), x),
    "server, in order of arrival": _in_order,
    "ring, bf16 wire, fp32 kept": lambda x, _: run(ring(len(x)), x, wire="bf16"),
    "the same, owner rounds too": lambda x, _: run(ring(len(x)), x, wire="bf16", round_owner=True),
}
QUESTIONS = ("on all ranks", "from run to run", "as one process")


def lamps(way: Reduction, x: Array, keep: str = "fp32") -> tuple[bool, bool, bool]:
    """Return whether the bits are the same: on all ranks, from run to run, as one process.

    Three runs, in which the ranks arrive in other orders. One process adds the shares in the order
    of their ranks, and rounds each sum to `keep`.
    """
    n, rng = len(x), np.random.default_rng(0)
    runs = [way(x, rng.permutation(n).tolist()) for _ in range(3)]
    alone = _in_order(x, range(n), keep)
    same_ranks = all(bool((got == got[0]).all()) for got in runs)
    same_runs = all(got.tobytes() == runs[0].tobytes() for got in runs)
    return same_ranks, same_runs, all(bool((got == alone).all()) for got in runs)


def total_error(node: Node, numbers: Sequence[float], kind: Any) -> float:
    """Return how far a finished sum is from the exact one, in places of the format."""
    truth = exact_sum(np.array(numbers)[:, None])
    return float(((node.value - truth) / ulp(truth, kind))[0])
