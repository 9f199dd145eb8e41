"""The collectives of each rank in their order, from a trace: what a fingerprint tape shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from allreduce_edu.engine.spmd.events import Event, Posted
from allreduce_edu.engine.spmd.states import Call, Part

_KEPT = 64  # of each rank, the latest


def part_of(q: Posted) -> Part:
    """Return a rank's part in a collective, as plain data."""
    return Part(q.group, q.comm.members, q.number, q.call, q.argument, q.kind)


def strips(trace: Sequence[Event], ranks: int) -> list[tuple[Call, ...]]:
    """Return for each rank its latest collectives, the last one perhaps not over."""
    found: list[deque[Posted]] = [deque(maxlen=_KEPT) for _ in range(ranks)]
    for event in trace:
        if event.kind == "post" and event.requests[0].side == "all":
            found[event.rank].append(event.requests[0])
    return [tuple(Call(part_of(q), q.site, q.done) for q in each) for each in found]
