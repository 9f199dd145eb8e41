"""Readers of a run's trace: bytes, the busiest port, and clocks under alpha and beta.

Messages between two ranks are counted; what travels inside a collective is the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from allreduce_edu.engine.links import Links
    from allreduce_edu.engine.spmd.events import Event, Posted

Bytes = npt.NDArray[np.int64]
Clocks = npt.NDArray[np.float64]


class Counted:
    """What has counted its messages: how many bytes each rank sent and received."""

    def traffic(self) -> Bytes:
        """Return bytes[src, dst]."""
        raise NotImplementedError

    def sent_bytes(self) -> Bytes:
        """Return the bytes that each rank sent in messages, array[ranks]."""
        return np.asarray(self.traffic().sum(1))

    def received_bytes(self) -> Bytes:
        """Return the bytes that each rank received in messages, array[ranks]."""
        return np.asarray(self.traffic().sum(0))

    def busiest_port(self) -> int:
        """Return the most bytes that any rank sent, or received if that is more."""
        return int(max(self.sent_bytes().max(), self.received_bytes().max()))


def messages(trace: Sequence[Event]) -> list[tuple[Posted, Posted]]:
    """Return (send, receive) of every message, in the order in which they met."""
    return [(e.requests[0], e.requests[1]) for e in trace if e.kind == "match"]


def traffic(trace: Sequence[Event], ranks: int) -> Bytes:
    """Return bytes[src, dst]."""
    total = np.zeros((ranks, ranks), np.int64)
    for send, recv in messages(trace):
        total[send.rank, recv.rank] += send.nbytes
    return total


def clocks(trace: Sequence[Event], links: Links, early: Callable[[int], bool]) -> Clocks:
    """Return the modelled seconds at which each rank ends, array[ranks].

    A message begins when both sides are there and the ports are free: a rank sends one at a time
    and receives one at a time. A send of b bytes with ``early(b)`` does not wait for its receive.
    Collectives are meetings that take no time of their own.
    """

    def cost(src: int, dst: int, size: int) -> float:
        alpha, beta = links.alpha(np.array([src]), np.array([dst])), 0.0
        if size:
            beta = links.beta(np.array([src]), np.array([dst]))
        return float(np.max(alpha + beta * size))

    return _Clock(links.ranks, cost, early).read(trace)


class _Clock:
    """One pass over a trace: every event moves the time of a rank, a port or a request."""

    def __init__(
        self, ranks: int, cost: Callable[[int, int, int], float], early: Callable[[int], bool]
    ) -> None:
        self.now = np.zeros(ranks)
        self._out, self._in = np.zeros(ranks), np.zeros(ranks)
        self._begun: dict[Any, float] = {}
        self._ends: dict[Any, float] = {}
        self._cost, self._early = cost, early

    def __repr__(self) -> str:
        return f"Clock of {len(self.now)} ranks"

    def read(self, trace: Sequence[Event]) -> Clocks:
        for event in trace:
            handler = getattr(self, f"_{event.kind}", None)
            if handler:
                handler(event)
        return self.now

    def _post(self, event: Event) -> None:
        (request,) = event.requests
        self._begun[request] = self.now[event.rank]
        if request.side == "send" and self._early(request.nbytes):
            self._ends[request] = self.now[event.rank]  # for the sender; not for its port

    def _work(self, event: Event) -> None:
        self.now[event.rank] += event.seconds

    def _match(self, event: Event) -> None:
        send, recv = event.requests
        ports = max(self._out[send.rank], self._in[recv.rank])
        start = max(self._begun[send], ports)
        if not self._early(send.nbytes):
            start = max(start, self._begun[recv])
        end = start + self._cost(send.rank, recv.rank, send.nbytes)
        self._out[send.rank] = self._in[recv.rank] = self._ends[recv] = end
        self._ends.setdefault(send, end)

    def _all(self, event: Event) -> None:
        end = max(self._begun[each] for each in event.requests)
        self._ends |= dict.fromkeys(event.requests, end)

    def _wait(self, event: Event) -> None:
        for each in event.requests:
            self.now[event.rank] = max(self.now[event.rank], self._ends[each])
