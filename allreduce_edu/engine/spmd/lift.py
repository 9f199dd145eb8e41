"""Turns a program into a schedule: so the player plays it, cost counts it, verify proves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from allreduce_edu.engine.check import integer
from allreduce_edu.engine.rounds import Ints, Round
from allreduce_edu.engine.schedule import Schedule, even_cut
from allreduce_edu.engine.spmd.errors import NotASchedule
from allreduce_edu.engine.spmd.explained import Transfer, explained
from allreduce_edu.engine.spmd.probe import MIXED, Probe, as_like, ask, name_of, near
from allreduce_edu.engine.spmd.simulate import shares_of
from allreduce_edu.engine.verify import contributions

MOST_RANKS = 16


def schedule(
    fn: Callable[..., Any],
    ranks: int | None = None,
    x: Any = None,
    *,
    collective: str = "all_reduce",
    root: int | None = None,
    order: Sequence[int] | None = None,
) -> Schedule:
    """Return a program's messages as a schedule of `ranks` ranks.

    Chunks are the coarsest pieces of `x` such that every message carries whole pieces. A message
    is in a later round than those that its sender or receiver waited for before. The program runs
    ``ranks + 5`` times.

    Parameters
    ----------
    fn : callable
        ``fn(comm, x[rank])``.
    ranks : int, optional
        1 to 16.
    x : as for `run`, optional
        Its size is what counts: it is filled with small integers. Default: 4 elements a rank.
    collective, root
        What it claims to be.
    order : sequence of int, optional
        The seed of an order that `orders` has found.

    Raises
    ------
    NotASchedule
        For what is no sum of shares that stay in their places, or calls a collective.
    """
    shares = _integers(fn, ranks, x)
    probe = ask(fn, shares, order)
    atoms = _atoms(probe, probe.size)
    found = explained(probe, atoms, len(shares))
    rounds = [_round(found, k) for k in sorted({t.round for t in found})]
    sizes = np.bincount(atoms).astype(np.intp)
    name = getattr(fn, "__name__", "a program")
    made = Schedule(
        name,
        len(shares),
        len(sizes),
        lambda: rounds,
        collective=collective,
        root=root,
        cutter=_cutter(sizes),
    )
    _compare(made.check(), probe, atoms)
    return made


def _compare(made: Schedule, probe: Probe, atoms: Ints) -> None:
    """Raise unless the schedule ends with the shares with which the program ended."""
    counts = contributions(made)
    for rank, held in enumerate(probe.held):
        for share, place in zip(held.share, held.place, strict=True):
            want = counts[rank, atoms[place]] if place >= 0 else share
            if not (near(share, want) or near(share * made.ranks, want)):
                raise NotASchedule(
                    f"rank {rank} ends with other shares of piece {atoms[place]} than any order "
                    "of rounds gives"
                )


def _integers(fn: Any, ranks: int | None, x: Any) -> list[Any]:
    """Return small integers as float64, one array per rank: sums of them are exact."""
    if x is None:
        n = integer("ranks", ranks, 1, MOST_RANKS)
        x = np.zeros((n, 4 * n))
    like = shares_of(fn, x, ranks)
    integer("the number of arrays in x", len(like), 1, MOST_RANKS)
    if len({tuple(share.shape) for share in like}) > 1 or 0 in like[0].shape:
        raise ValueError("x must hold arrays of one shape and at least one element")
    rng = np.random.default_rng(0)
    filled = []
    for share in like:
        numbers = rng.integers(-4, 5, tuple(share.shape)).astype(np.float64)
        filled.append(as_like(share, numbers))
    return filled


# ---------------------------------------------------------------------- pieces and rounds


def _atoms(probe: Probe, size: int) -> Ints:
    """Return the piece of each position: positions that travel together are one piece."""
    carried: list[list[int]] = [[] for _ in range(size)]
    for k, shown in enumerate([*probe.carried, *probe.held]):
        if (shown.place == MIXED).any():
            raise NotASchedule(f"{name_of(probe.run, k)} mixes different places of x")
        if k < len(probe.carried):
            for place in shown.place[shown.place >= 0]:
                carried[place].append(k)
    numbers: dict[tuple[int, ...], int] = {}
    return np.array([numbers.setdefault(tuple(each), len(numbers)) for each in carried], np.intp)


def _round(found: Sequence[Transfer], k: int) -> Round:
    """Return round k; what one receiver combines stands in its order of using it."""
    now = sorted((t for t in found if t.round == k), key=lambda t: (t.used, t.src, t.chunk))
    return Round.of(
        [t.src for t in now], [t.dst for t in now], [t.chunk for t in now], [t.add for t in now]
    )


def _cutter(sizes: Ints) -> Callable[[int, int, int], Ints]:
    """Cut in the proportions that were found; evenly if all pieces are alike."""

    def cut(elements: int, itemsize: int, chunks: int) -> Ints:
        if len(set(sizes.tolist())) == 1:
            return even_cut(elements, itemsize, chunks)
        bounds = elements * np.concatenate([[0], np.cumsum(sizes)]) // max(1, sizes.sum())
        return np.asarray(np.diff(bounds), np.intp)

    return cut
