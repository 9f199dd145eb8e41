"""Rings to look at: two that are right though one looks wrong, and five that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from allreduce_edu.engine.algorithms import ring, ring_all_gather, ring_reduce_scatter
from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule

Ring = Callable[[int], Schedule]


def turned_round(n: int) -> Schedule:
    """Add to the right as ever, then copy to the *left*, the order of the chunks mirrored."""
    r = np.arange(n)
    return _then(n, (Round.of(r, (r - 1) % n, (r + 1 + k) % n, reduce=False) for k in range(n - 1)))


def turned_arrow(n: int) -> Schedule:
    """Copy to the left, and keep the order of the chunks: right for two ranks only."""
    r = np.arange(n)
    return _then(n, (Round.of(r, (r - 1) % n, (r + 1 - k) % n, reduce=False) for k in range(n - 1)))


def always_adding(n: int) -> Schedule:
    """Add in the second phase as well: wrong from its first round on."""
    r = np.arange(n)
    rounds = (Round.of(r, (r + 1) % n, (r - k) % n, reduce=True) for k in range(2 * (n - 1)))
    return _ring(n, rounds)


def forwards_the_sum(n: int) -> Schedule:
    """Pass on the whole running sum in place of what came: a row of Pascal's triangle."""
    src, chunk = np.divmod(np.arange(n * n), n)
    return _ring(n, (Round.of(src, (src + 1) % n, chunk, reduce=True) for _ in range(n - 1)))


def two_steps_back(n: int) -> Schedule:
    """Go back by two chunks in each adding round in place of one."""
    r = np.arange(n)
    adds = (Round.of(r, (r + 1) % n, (r - 2 * k) % n, reduce=True) for k in range(n - 1))
    return _ring(n, [*adds, *ring_all_gather(n)])


def one_copy_more(n: int) -> Schedule:
    """Copy once more than needed: right sums for more bytes."""
    return _ring(n, [*ring(n), *list(ring(n))[-1:]])


def _then(n: int, copies: Iterable[Round]) -> Schedule:
    return _ring(n, [*ring_reduce_scatter(n), *copies])


def _ring(n: int, rounds: Iterable[Round]) -> Schedule:
    listed = list(rounds)
    return Schedule("a ring", n, n, lambda: listed)


def _letter(letter: str, make: Ring) -> Ring:
    def hunted(n: int) -> Schedule:
        return make(n).named(f"ring {letter}", "all_reduce")

    return hunted


# The bug hunt's rings, under names that give nothing away.
HUNTED: dict[str, Ring] = {
    letter: _letter(letter, make)
    for letter, make in {
        "A": forwards_the_sum,
        "B": turned_arrow,
        "C": always_adding,
        "D": turned_round,
        "E": one_copy_more,
        "F": two_steps_back,
    }.items()
}
