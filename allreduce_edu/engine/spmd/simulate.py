"""Runs one ordinary function as N simulated ranks, and ends them whatever happens."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from allreduce_edu.engine.check import count, integer
from allreduce_edu.engine.dtypes import is_torch
from allreduce_edu.engine.links import Link, Links
from allreduce_edu.engine.spmd import errors, trace
from allreduce_edu.engine.spmd.comm import copy_of
from allreduce_edu.engine.spmd.errors import Limits
from allreduce_edu.engine.spmd.events import Event, Outcome
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.engine.spmd.printing import Printing
from allreduce_edu.engine.spmd.world import SimulatedWorld

MOST_RANKS = 64
MESSAGES = 200_000
_one_at_a_time = threading.Lock()  # sys.stdout and the stop button are the process's


class Run(trace.Counted):
    """What a run gave.

    Attributes
    ----------
    results : list
        What each rank returned; where it returned nothing, its own array as it left it.
    trace : list of Event
        Every post, match and wait, in the order in which they happened.
    hazards : list of Outcome
        What would go wrong on other days: only with ``strict=False``.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self.ranks = world.size
        self.results: list[Any] = world.results
        self.trace: list[Event] = world.trace
        self.hazards: list[Outcome] = world.hazards
        self.groups = world.groups
        self.buffered = world.buffered

    def __repr__(self) -> str:
        collectives = sum(1 for e in self.trace if e.kind == "all")
        said = [f"{count(self.ranks, 'rank')}", count(len(trace.messages(self.trace)), "message")]
        said += [f"{self.sent_bytes().sum():,} bytes"]
        said += [count(collectives, "collective")] if collectives else []
        return f"Run: {', '.join(said)}"

    def traffic(self) -> trace.Bytes:
        """Return bytes[src, dst]."""
        return trace.traffic(self.trace, self.ranks)

    def clocks(self, links: Links | Link | str) -> trace.Clocks:
        """Return when each rank ends, array[ranks], in modelled seconds.

        As in `cost.clocks`, but in the order of the program: a rank sends one message at a time
        and receives one at a time, and ``comm.work`` takes its time. A link stands for a network
        of such links.
        """
        network = links if isinstance(links, Links) else Links.uniform(self.ranks, links)
        if network.ranks != self.ranks:
            raise ValueError(f"links must be for {self.ranks} ranks, got {network!r}")

        def early(size: int) -> bool:
            return self.buffered is True or (self.buffered is not False and size <= self.buffered)

        return trace.clocks(self.trace, network, early)


def run(
    fn: Callable[..., Any],
    x: Any = None,
    ranks: int | None = None,
    *,
    buffered: bool | int = False,
    strict: bool = True,
    order: Sequence[int] | None = None,
    seconds: float = 10.0,
    wall: float = 60.0,
    messages: int = MESSAGES,
    show: bool = True,
) -> Run:
    """Call ``fn(comm, x[rank])`` on every rank and return what they gave.

    The caller's arrays never change: each rank gets a copy of its own. What ranks print appears
    with their number. Modules and global variables are shared by all ranks, as they are not by
    real ones.

    Parameters
    ----------
    fn : callable
        ``fn(comm, share)``; ``fn(comm)`` without `x`.
    x : array [ranks, ...], sequence with one entry per rank, or function of the rank; optional
    ranks : int, optional
        1 to 64; needed where `x` does not say it.
    buffered : bool or int
        True: a send returns at once, as if the network held everything. An int: messages of up to
        that many bytes do. False is what gloo does: it waits for the receive.
    strict : bool
        Raise for what goes wrong only sometimes: an array changed before ``wait``, a request
        that is never waited for.
    order : sequence of int, optional
        The seed of an order that `orders` has found; then nothing is printed, and not `strict`.
    seconds, wall : float
        Seconds of the processor, and of the clock, before the ranks are ended.
    messages : int
        So many are taken for an endless loop.
    show : bool
        Whether to show what the ranks print.

    Raises
    ------
    Deadlock, Mismatch, Hazard, Endless
        With the explanation as text, and `states`.
    Exception
        What the learner's own code raised, with the rank and where the others were.
    """
    shares = shares_of(fn, x, ranks)
    limits = Limits(seconds, wall, messages)
    world = SimulatedWorld(len(shares), buffered=buffered, most=messages, strict=strict)
    called = fn if x is not None else without_x(fn)
    if order is not None:
        from allreduce_edu.engine.spmd.chance import run_ordered

        return run_ordered(called, shares, order)
    return run_in(world, called, shares, limits, show=show)


def hang(fn: Callable[..., Any], x: Any = None, ranks: int | None = None) -> Hang:
    """Run a program that hangs and return why; ValueError if it comes to its end."""
    try:
        run(fn, x, ranks, show=False)
    except errors.Deadlock as deadlock:
        return deadlock.hang
    raise ValueError("the program comes to its end: nobody waits")


def run_in(
    world: SimulatedWorld,
    fn: Callable[..., Any],
    shares: Sequence[Any],
    limits: Limits,
    *,
    show: bool = False,
) -> Run:
    """Run in a world that is made already: `run` for those who choose orders."""
    presses: list[int] = []
    with _stop_button(presses), _alone():
        left = _go(world, fn, shares, limits, presses, show)
        if not left:
            world.close()
    outcome = world.outcome
    assert outcome
    if outcome.kind != "done":
        errors.throw(world, outcome, left, limits)
    if presses:  # while it ended: a loop of runs must stop too
        raise KeyboardInterrupt
    return Run(world)


def _go(
    world: SimulatedWorld,
    fn: Callable[..., Any],
    shares: Sequence[Any],
    limits: Limits,
    presses: list[int],
    show: bool,
) -> list[int]:
    """Run to an outcome and end every rank; return the ranks that could not be ended yet."""
    with Printing(mute=not show) as printing:

        def look() -> bool:
            printing.drain()
            return bool(presses)

        baton = world.begin(fn, shares)
        printing.rank_of = baton.start()
        baton.give(0)
        if why := baton.watch(limits.seconds, limits.wall, look):
            rank = -1 if world.running is None else world.running
            where = baton.stack(rank) if rank >= 0 else ()
            world.outcome = Outcome(why, rank=rank, where=where)
        if world.outcome and world.outcome.kind != "done":
            printing.close_ears()
        return baton.end()


@contextmanager
def _alone() -> Iterator[None]:
    if not _one_at_a_time.acquire(blocking=False):
        raise RuntimeError(
            "another spmd.run is going on in this process; it cannot be called inside a rank"
        )
    try:
        yield
    finally:
        _one_at_a_time.release()


@contextmanager
def _stop_button(presses: list[int]) -> Iterator[None]:
    """Note SIGINT instead of raising it, so that no half-ended run is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: presses.append(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def without_x(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of comm and nothing that calls ``fn(comm)``."""
    return lambda comm, _: fn(comm)


def shares_of(fn: Any, x: Any, ranks: int | None) -> list[Any]:
    """Return each rank's own copy of its share."""
    if not callable(fn):
        raise TypeError(f"fn must be a function of comm and an array, got {type(fn).__name__}")
    if ranks is not None:
        ranks = integer("ranks", ranks, 1, MOST_RANKS)
    if x is None or callable(x):
        if ranks is None:
            raise TypeError("ranks must be given where x does not say how many there are")
        return [None if x is None else _own(x(rank)) for rank in range(ranks)]
    if not isinstance(x, (list, tuple)) and not getattr(x, "shape", ()):
        raise TypeError(f"x must be an array or a list of arrays, got {type(x).__name__}")
    integer("the number of arrays in x", len(x), 1, MOST_RANKS)
    if ranks is not None and len(x) != ranks:
        raise ValueError(f"x must hold one array per rank ({ranks}), got {len(x)}")
    return [_own(share) for share in x]


def _own(share: Any) -> Any:
    return copy_of(share) if isinstance(share, np.ndarray) or is_torch(share) else share
