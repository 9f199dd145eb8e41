"""Rings to look at: one that is right though it looks wrong, one that is wrong."""

from __future__ import annotations

import numpy as np

from allreduce_edu.engine.algorithms import ring_reduce_scatter
from allreduce_edu.engine.schedule import Round, Schedule


def turned_round(n: int) -> Schedule:
    """Add to the right as ever, then copy to the *left*, the order of the chunks mirrored."""
    r = np.arange(n)
    copies = Schedule(
        "all-gather to the left",
        n,
        n,
        lambda: (Round.of(r, (r - 1) % n, (r + 1 + k) % n, reduce=False) for k in range(n - 1)),
    )
    return (ring_reduce_scatter(n) >> copies).named("ring, turned round", "all_reduce")


def always_adding(n: int) -> Schedule:
    """Add in the second phase as well: wrong from its first round on."""
    r = np.arange(n)
    return Schedule(
        "a ring that always adds",
        n,
        n,
        lambda: (Round.of(r, (r + 1) % n, (r - k) % n, reduce=True) for k in range(2 * (n - 1))),
    )
