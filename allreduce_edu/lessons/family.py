"""The family of collectives: each with one way to do it, what it promises, and data to try it on.

All are cut into as many chunks as there are ranks, so that boards can stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.algorithms import (
    all_to_all,
    binomial_reduce,
    gather,
    naive,
    ring,
    ring_all_gather,
    ring_reduce_scatter,
    scatter,
)
from allreduce_edu.engine.dtypes import dtype, is_float
from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import place_values

_HUNDRED = 100  # what every rank starts with where place values do not fit


@dataclass(frozen=True)
class Member:
    """One of the family: a schedule for n ranks, what it promises, and whether it combines."""

    make: Callable[[int], Schedule]
    promise: str
    adds: bool = True


def server_reduce(n: int) -> Schedule:
    """Let everybody send its whole array to rank 0, which adds: one round, (N-1)S into one port."""
    others = np.arange(1, n)
    both = [Round.of(others, 0, 0, True)] if n > 1 else []
    return Schedule("reduce to a server", n, 1, lambda: both, collective="reduce", root=0).split(n)


def broadcast(n: int) -> Schedule:
    """Copy rank 0's array to everyone: in each round all who have it serve one more.

    ceil(log2 N) rounds. Source: pytorch/gloo, gloo/broadcast.cc (the order of the pairs).
    """
    ahead = (1 << i for i in range((n - 1).bit_length()))
    pairs = [(np.arange(min(k, n - k)), k) for k in ahead]
    rounds = [Round.of(src, src + k, 0, False) for src, k in pairs]
    return Schedule("broadcast", n, 1, lambda: rounds, collective="broadcast", root=0)


def reduce_broadcast(n: int) -> Schedule:
    """Reduce to rank 0, which then sends the result to everybody."""
    reduce = server_reduce(n)
    return (reduce >> reduce.mirrored()).named("reduce + broadcast")


def scatter_gather(n: int) -> Schedule:
    """Reduce-scatter, then all-gather: the ring of notebook 00."""
    return ring(n).named("reduce-scatter + all-gather")


def gather_add(n: int) -> Schedule:
    """Let everybody get everybody's whole array and add for itself, its own share first."""
    return naive(n).split(n).named("all-gather + add")


WAYS = (reduce_broadcast, scatter_gather, gather_add)

FAMILY = {
    "all-reduce": Member(
        ring,
        "every rank ends with the combined array",
    ),
    "reduce": Member(
        lambda n: binomial_reduce(n).split(n),
        "rank 0 ends with the combined array, and only rank 0",
    ),
    "broadcast": Member(
        lambda n: broadcast(n).split(n),
        "every rank ends with rank 0's array",
        adds=False,
    ),
    "reduce-scatter": Member(
        ring_reduce_scatter,
        "each rank ends with one chunk of the combined array",
    ),
    "all-gather": Member(
        ring_all_gather,
        "each rank starts with one chunk, and every rank ends with all of them",
        adds=False,
    ),
    "gather": Member(
        gather,
        "each rank starts with one chunk, and rank 0 ends with all of them",
        adds=False,
    ),
    "scatter": Member(
        scatter,
        "rank 0 starts with all chunks, and each rank ends with one",
        adds=False,
    ),
    "all-to-all": Member(
        all_to_all,
        "each rank starts with one chunk for every rank, and ends with one from every rank",
        adds=False,
    ),
    "reduce + broadcast": Member(reduce_broadcast, "an all-reduce over a server, rank 0"),
    "all-gather + add": Member(gather_add, "an all-reduce in which everybody adds for itself"),
}


def starting_values(ranks: int, kind: str, each: int | None = None) -> tuple[npt.NDArray[Any], str]:
    """Return x[rank, element] to begin with, and what it is in words.

    (c + 1) · 10ʳ, one element a chunk, where all of that fits the dtype; else 100 everywhere,
    so that a sum runs over where it can.
    """
    place, to = place_values(ranks, each or ranks), dtype(kind)
    if to.kind == "b":
        return place > 0, "True on every rank"
    if place.max() <= largest(kind):
        return place.astype(to), "(c + 1) · 10ʳ in chunk c of rank r"
    return np.full_like(place, _HUNDRED).astype(to), f"{_HUNDRED} everywhere"


def largest(kind: str) -> float:
    """Return the largest number that a dtype holds."""
    to = dtype(kind)
    if not is_float(to):
        return int(np.iinfo(to).max)
    if to.name == "bfloat16":
        import ml_dtypes

        info: Any = ml_dtypes.finfo
        return float(info(to).max)
    return float(np.finfo(to).max)
