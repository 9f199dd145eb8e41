"""Finds the orders of events that can differ, and the shortest one that fails.

Two things are chance: which message a receive from anybody takes, and when the array of an isend
is read, if it is changed before ``wait``. All else a program fixes itself. A receive from anybody
is settled when nobody else can go on, so that every candidate is there. Runs are repeated from the
start under a list of choices, which is the seed that replays them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.engine.check import count, integer
from allreduce_edu.engine.spmd.comm import copy_of
from allreduce_edu.engine.spmd.errors import Limits, ProgramError
from allreduce_edu.engine.spmd.events import Posted, Waiting
from allreduce_edu.engine.spmd.simulate import Run, run_in, shares_of, without_x
from allreduce_edu.engine.spmd.world import SimulatedWorld

MOST_RANKS = 4
_LIMITS = Limits(seconds=5.0, wall=60.0, messages=20_000)
Late = dict[tuple[int, int], int]  # (rank, which of its isends) -> calls until it is waited for


class Choice(NamedTuple):
    """One thing that chance decided: option `taken` of `options`."""

    text: str
    taken: int
    options: int


class OrderedWorld(SimulatedWorld):
    """Simulated ranks whose chances are decided by `order`; beyond it, by the first option."""

    def __init__(self, size: int, order: Sequence[int], late: Late) -> None:
        super().__init__(size, buffered=False, most=_LIMITS.messages, strict=False)
        self.order = [integer("order", each, 0) for each in order]
        self.late = late
        self.choices: list[Choice] = []
        self._held: dict[Posted, int] = {}  # isends that have not read yet, and calls until then
        self._isends: Counter[int] = Counter()

    def _choose(self, texts: Sequence[str]) -> int:
        at = len(self.choices)
        taken = self.order[at] if at < len(self.order) else 0
        if taken >= len(texts):  # told by `misfit`: raised here it would seem the learner's own
            taken = 0
        self.choices.append(Choice(texts[taken], taken, len(texts)))
        return taken

    def misfit(self) -> str:
        """Return how the order does not fit the program, or ""."""
        options = [each.options for each in self.choices]
        if len(self.order) > len(options):
            return f"order must be {count(len(options), 'choice')}, got {len(self.order)}"
        for at, (taken, most) in enumerate(zip(self.order, options, strict=False)):
            if taken >= most:
                return f"choice {at} of order must be between 0 and {most - 1}, got {taken}"
        return ""

    # ------------------------------------------------------- who a receive hears

    def _receiver_of(self, send: Posted) -> Posted | None:
        return self._next(self.recvs, send, send.rank)

    def _sender_for(self, recv: Posted) -> Posted | None:
        return None if recv.peer is None else self._next(self.sends, recv, recv.peer)

    def _settle(self) -> bool:
        """Let an isend read, or a receive from anybody take one of the messages that are there."""
        if self._held:
            self._read(next(iter(self._held)))
            return True
        pairs = list(self._pairs())
        if not pairs:
            return False
        texts = [f"rank {r.rank} takes the message of rank {s.rank}" for r, s in pairs]
        recv, send = pairs[self._choose(texts)]
        self._next(self.recvs, recv, None)
        self._next(self.sends, recv, send.rank)
        self._match(send, recv)
        return True

    def _pairs(self) -> Iterator[tuple[Posted, Posted]]:
        """Yield (receive from anybody, message that it could take)."""
        for waiting in list(self.recvs.values()):
            for recv in [each for each in waiting if each.peer is None][:1]:
                for src in range(self.size):
                    for send in list(self._queue(self.sends, recv, src))[:1]:
                        yield recv, send

    # --------------------------------------------------- when an isend reads

    def _send(self, send: Posted) -> None:
        key = send.rank, self._isends[send.rank]
        self._isends[send.rank] += send.call == "isend"
        if send.call == "isend" and key in self.late:
            how = f"rank {send.rank}'s isend ({send.site}) reads its array"
            texts = [f"{how} at once"]
            texts += [f"{how} {count(k, 'call')} later" for k in range(1, self.late[key] + 1)]
            if calls := self._choose(texts):
                self._held[send] = calls
                return
            send.sent = copy_of(send.array)
        super()._send(send)

    def _read(self, send: Posted) -> None:
        del self._held[send]
        send.sent = copy_of(send.array)
        super()._send(send)

    def _block(self, me: int, waiting: Waiting) -> None:
        for send in [each for each in self._held if each.rank == me]:
            self._held[send] -= 1
            if self._held[send] <= 0 or send in waiting.requests:
                self._read(send)
        super()._block(me, waiting)


@dataclass(frozen=True)
class Order:
    """One order of events, and what came of it.

    Attributes
    ----------
    seed : tuple of int
        ``spmd.run(fn, x, order=seed)`` repeats it.
    steps : tuple of str
        What differed from the usual order.
    kind : str
        "result", or the name of what was raised.
    results : list, or None
    error : Exception, or None
    """

    seed: tuple[int, ...]
    steps: tuple[str, ...]
    kind: str
    results: list[Any] | None = field(default=None, compare=False)
    error: Exception | None = field(default=None, compare=False)

    def __str__(self) -> str:
        how = "; ".join(self.steps) or "the usual order"
        what = f": {self.error}" if self.error else ""
        return f"order={self.seed}: {how}: {self.kind}{what}"

    __repr__ = __str__


class Orders:
    """What became of a program in all orders that were tried.

    Attributes
    ----------
    runs : int
    complete : bool
        Whether these were all orders that can differ.
    outcomes : list of Order
        A shortest one for each thing that came out.
    failing : Order or None
        A shortest one that is not `good`.
    """

    def __init__(
        self, runs: int, *, complete: bool, outcomes: list[Order], failing: Order | None
    ) -> None:
        self.runs, self.complete, self.outcomes, self.failing = runs, complete, outcomes, failing

    def __repr__(self) -> str:
        tried = f"{'all ' * self.complete}{count(self.runs, 'order')}"
        came = count(len(self.outcomes), "outcome")
        return f"Orders: {tried} tried, {came}; fails: {self.failing or 'none'}"


def orders(
    fn: Callable[..., Any],
    x: Any = None,
    ranks: int | None = None,
    good: Callable[[list[Any]], bool] | None = None,
    *,
    most: int = 2_000,
) -> Orders:
    """Try every order of events that can differ; return what came out.

    Parameters
    ----------
    fn, x, ranks : as for `run`, at most 4 ranks
    good : function of the results, optional
        What is right. Default: what comes out in the usual order.
    most : int
        Runs, at most.
    """
    shares = shares_of(fn, x, ranks)
    integer("ranks", len(shares), 1, MOST_RANKS)
    integer("most", most, 1)
    called = fn if x is not None else without_x(fn)
    late = late_isends(called, shares)
    todo: deque[list[int]] = deque([[]])  # by number of choices that are not the first option
    first: dict[Any, Order] = {}
    failing, runs = None, 0
    while todo and runs < most:
        prefix = todo.popleft()
        order, choices = _one(called, shares, prefix, late)
        runs += 1
        first.setdefault(_key(order), order)
        if failing is None and not _is_good(order, good, first):
            failing = order
        taken = [each.taken for each in choices]
        for i in range(len(prefix), len(choices)):
            todo.extend([*taken[:i], k] for k in range(1, choices[i].options))
    return Orders(runs, complete=not todo, outcomes=list(first.values()), failing=failing)


def late_isends(fn: Callable[..., Any], shares: Sequence[Any]) -> Late:
    """Return the isends whose array changes before ``wait``, in the usual order."""
    world = OrderedWorld(len(shares), (), {})
    _outcome(world, fn, shares)
    changed = {h.requests[0] for h in world.hazards if h.kind == "changed before wait"}
    numbers: Counter[int] = Counter()
    calls: dict[int, int] = defaultdict(int)
    begun: dict[Posted, tuple[int, int]] = {}
    late: Late = {}
    for event in world.trace:
        if event.kind == "post" and event.requests[0].call == "isend":
            begun[event.requests[0]] = numbers[event.rank], calls[event.rank]
            numbers[event.rank] += 1
        if event.kind == "wait":
            calls[event.rank] += 1
            for each in changed.intersection(event.requests):
                number, then = begun[each]
                late.setdefault((event.rank, number), calls[event.rank] - then)
    return late


def run_ordered(fn: Callable[..., Any], shares: Sequence[Any], order: Sequence[int]) -> Run:
    """Run under an order that `orders` has found; ValueError if it is none of this program."""
    world = OrderedWorld(len(shares), order, late_isends(fn, shares))
    try:
        return run_in(world, fn, fresh(shares), _LIMITS)
    finally:
        if misfit := world.misfit():
            raise ValueError(misfit) from None


def _one(
    fn: Callable[..., Any], shares: Sequence[Any], prefix: Sequence[int], late: Late
) -> tuple[Order, list[Choice]]:
    world = OrderedWorld(len(shares), prefix, late)
    results, error = _outcome(world, fn, shares)
    taken = [each.taken for each in world.choices]
    while taken and not taken[-1]:
        taken.pop()
    steps = tuple(each.text for each in world.choices if each.taken)
    kind = "result" if error is None else type(error).__name__
    return Order(tuple(taken), steps, kind, results, error), world.choices


def _outcome(
    world: OrderedWorld, fn: Callable[..., Any], shares: Sequence[Any]
) -> tuple[list[Any] | None, Exception | None]:
    try:
        return run_in(world, fn, fresh(shares), _LIMITS).results, None
    except Exception as error:  # noqa: BLE001 - what the learner's code raises is an outcome
        return None, error


def fresh(shares: Sequence[Any]) -> list[Any]:
    """Return copies of the shares, for one more run."""
    return [copy_of(each) if hasattr(each, "dtype") else each for each in shares]


def _key(order: Order) -> Any:
    """Return what makes two outcomes the same."""
    if order.error is not None:
        return order.kind, str(order.error) if isinstance(order.error, ProgramError) else ""
    return order.kind, tuple(_bits(each) for each in order.results or ())


def _bits(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_bits(each) for each in value)
    return np.asarray(value).tobytes() if hasattr(value, "dtype") else repr(value)


def _is_good(
    order: Order, good: Callable[[list[Any]], bool] | None, first: dict[Any, Order]
) -> bool:
    if order.results is None:
        return False
    return good(order.results) if good else _key(order) == next(iter(first))
