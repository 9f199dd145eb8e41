"""Examines what right sums do not show: the bytes of an all-reduce, and a measured time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from allreduce_edu.engine import cost, spmd
from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.links import Links
from allreduce_edu.engine.spmd import trace
from allreduce_edu.lessons.museum.exhibit import Examined
from allreduce_edu.lessons.museum.simulated import differing, not_right

LINK = "10 GbE"
SIZE = 1 << 18  # bytes for each rank of what `timed` loads
_LATE = 0.05  # seconds


def vectors(ranks: int) -> Any:
    """Return 12 numbers for each rank, which float16 does not hold; 2, 3 and 4 divide 12."""
    return np.arange(4097, 4097 + ranks * 12).reshape(ranks, 12).astype(np.float32)


def economical(run: spmd.Run, x: Any) -> Examined:
    """Ask for the sums of all ranks, with no more bytes through a port than a ring sends."""
    disagree, wrong = differing(run.results), not_right(run.results[0], x.sum(0))
    busiest = run.busiest_port()
    least = cost.busiest_port(ring(len(x)), x[0].nbytes)
    if not wrong and busiest > least:
        wrong = (
            f"the sums are right, and the busiest rank sends or receives {busiest} bytes for "
            f"{x[0].nbytes} bytes of numbers: {busiest / least:.3g} times the {least} that are "
            f"enough for {len(x)} ranks"
        )
    return disagree, wrong


# ----------------------------------------------------------------------------------- a stopwatch


def late(ranks: int) -> list[float]:
    """Return the seconds that each rank takes to load its batch: rank 1 has the slow disk."""
    return [_LATE if rank == 1 else 0.001 for rank in range(ranks)]


def timed(program: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of comm and seconds that calls ``program(comm, load, clock)``."""

    def called(comm: Any, seconds: float) -> Any:
        def load() -> Any:
            comm.work(seconds)
            return np.zeros(comm.size * SIZE, np.uint8)

        return program(comm, load, lambda: _now(comm))

    return called


def _now(comm: Any) -> float:
    """Return the modelled time of a rank, in seconds."""
    links = Links.uniform(comm.size, LINK)
    return float(trace.clocks(comm.world.trace, links, lambda _: False)[comm.me])


def measured(run: spmd.Run, late: Any) -> Examined:
    """Ask for the seconds of one exchange with both neighbours, without the waiting before it."""
    links = Links.uniform(run.ranks, LINK)
    src, dst = np.array([0]), np.array([1])
    right = float(np.max(links.alpha(src, dst) + links.beta(src, dst) * SIZE * run.ranks))
    got, disagree = np.ravel(run.results[0]), differing(run.results)
    if got.size != 1 or got.dtype.kind not in "fiu":
        return disagree, f"the program gives {run.results[0]!r:.40} in place of seconds"
    if abs(got[0] - right) <= right / 100:
        return disagree, None
    return disagree, (
        f"all ranks agree on {1e3 * got[0]:.3f} ms, and the messages take {1e3 * right:.3f} ms "
        f"on {LINK}: between the first rank that began and the last lie "
        f"{1e3 * (max(late) - min(late)):.0f} ms"
    )
