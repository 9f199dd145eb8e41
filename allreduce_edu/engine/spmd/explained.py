"""Reads off what each rank did with what it received: add, replace, or not used yet.

A rank shows what it holds when it sends it, and at its end. What it received before must explain
that: then the message was added or has replaced. The rounds follow from who waits for what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.spmd.errors import NotASchedule
from allreduce_edu.engine.spmd.probe import Probe, near
from allreduce_edu.engine.spmd.trace import messages

if TYPE_CHECKING:
    from allreduce_edu.engine.rounds import Ints
    from allreduce_edu.engine.spmd.events import Posted

_END = 1 << 60
_TRIED = 6  # messages received and not shown, of which every subset is tried
Edges = dict[tuple[int, int], int]  # (a, b) -> least distance in rounds from message a to b


@dataclass
class Transfer:
    """One piece of one message; `used` is when its receiver first shows it."""

    message: int
    src: int
    dst: int
    chunk: int
    share: npt.NDArray[np.float64]
    add: bool = False
    used: int = _END
    round: int = 0


@dataclass
class _Look:
    """One moment of one piece on one rank: it got a transfer, or shows what it holds."""

    when: int
    share: npt.NDArray[np.float64]
    transfer: Transfer | None  # got, if `got`; else sent; None at the end
    got: bool


def explained(probe: Probe, atoms: Ints, ranks: int) -> list[Transfer]:
    """Return every transfer, with `add` and `round`, or raise NotASchedule."""
    met = messages(probe.run.trace)
    posted, waited = _moments(probe)
    transfers = list(_transfers(probe, atoms))
    looks: dict[tuple[int, int], list[_Look]] = defaultdict(list)
    for t in transfers:
        send, recv = met[t.message]
        looks[t.src, t.chunk].append(_Look(posted[send], t.share, t, got=False))
        looks[t.dst, t.chunk].append(_Look(waited.get(recv, _END - 1), t.share, t, got=True))
    edges: Edges = {}
    for (rank, chunk), moments in looks.items():
        seen = [*moments, *_ending(probe, rank, atoms, chunk)]
        seen.sort(key=lambda look: look.when)
        _explain(rank, chunk, np.eye(ranks)[rank], seen, edges, met)
    _assign_rounds(transfers, edges, _program_order(probe, transfers, edges))
    return transfers


def _moments(probe: Probe) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return when each request was posted, and when it was first waited for."""
    posted: dict[Any, int] = {}
    waited: dict[Any, int] = {}
    for when, event in enumerate(probe.run.trace):
        moments = {"post": posted, "wait": waited}.get(event.kind, {})
        for request in event.requests:
            moments.setdefault(request, when)
    return posted, waited


def _transfers(probe: Probe, atoms: Ints) -> Iterator[Transfer]:
    for k, (send, recv) in enumerate(messages(probe.run.trace)):
        shown = probe.carried[k]
        pieces = np.where(shown.place >= 0, atoms[np.maximum(shown.place, 0)], -1)
        for piece in np.unique(pieces[pieces >= 0]).tolist():
            share = shown.share[int(np.argmax(pieces == piece))]
            yield Transfer(k, send.rank, recv.rank, piece, share)


def _ending(probe: Probe, rank: int, atoms: Ints, chunk: int) -> list[_Look]:
    held = probe.held[rank]
    here = np.flatnonzero(held.place == int(np.argmax(atoms == chunk)))
    return [_Look(_END, held.share[i], None, got=False) for i in here[:1]]


# ------------------------------------------------------------------------ add or replace


def _explain(
    rank: int,
    chunk: int,
    own: npt.NDArray[np.float64],
    seen: list[_Look],
    edges: Edges,
    met: list[tuple[Posted, Posted]],
) -> None:
    """Walk through the moments of one piece on one rank; note who must come before whom."""
    have, before = own, [own]
    used: list[Transfer] = []
    pending: list[Transfer] = []
    for look in seen:
        if look.got and look.transfer:
            pending.append(look.transfer)
            continue
        choice = _choice(look.share, have, pending, fresh=not used)
        if choice is None:
            _refuse(rank, chunk, look, before, pending, met)
        assert choice is not None
        for t, what in zip(pending, choice, strict=True):
            if what:
                t.add, t.used = what == "add", look.when
                used.append(t)
        pending = [t for t, what in zip(pending, choice, strict=True) if not what]
        have = look.share
        before.append(have)
        if look.transfer:
            _order(look.transfer, used, pending, edges)
    if pending:
        _unused(rank, pending[0], met)
    for a, b in pairwise(used):
        _need(edges, a.message, b.message, 0 if a.add and b.add else 1)


def _choice(
    shown: npt.NDArray[np.float64],
    have: npt.NDArray[np.float64],
    pending: list[Transfer],
    *,
    fresh: bool,
) -> tuple[str, ...] | None:
    """Return what was done with each pending transfer ("add", "replace", "") to give `shown`."""
    n = len(have)
    for factor in (1.0, 1 / n):  # a mean of them: the division comes here, or at the start
        for choice in _choices(len(pending)):
            held = have
            for t, what in zip(pending, choice, strict=True):
                if what:
                    held = held + t.share if what == "add" else t.share
            divided_before = factor * have + held - have
            if near(shown, factor * held) or (fresh and near(shown, divided_before)):
                return choice
    return None


def _choices(count: int) -> Iterator[tuple[str, ...]]:
    """Yield what can have been done with `count` transfers, the usual things first."""
    for last in range(count + 1):  # everything used; the last one that replaced, if any
        yield ("replace",) * last + ("add",) * (count - last)
    yield ("",) * count
    if count <= _TRIED:
        yield from product(("add", "replace", ""), repeat=count)


def _refuse(
    rank: int,
    chunk: int,
    look: _Look,
    before: list[npt.NDArray[np.float64]],
    pending: list[Transfer],
    met: list[tuple[Posted, Posted]],
) -> None:
    """Say why what a rank shows is not made of what it held and received."""
    if look.transfer is None and any(near(look.share, each) for each in before):
        after = f" ({met[pending[-1].message][1].site})" if pending else ""
        raise NotASchedule(
            f"rank {rank} received piece {chunk}{after}, and its result is without it. "
            "`part = ...` gives the name another array and leaves x as it was; write into x with "
            "`part[:] = ...`"
        )
    where = f" ({met[look.transfer.message][0].site})" if look.transfer else ""
    raise NotASchedule(
        f"rank {rank} {'sends' if look.transfer else 'returns'} a piece {chunk} that is not made "
        f"of the one that it holds{where}: it keeps two versions of the piece, and a schedule "
        "knows one"
    )


def _unused(rank: int, t: Transfer, met: list[tuple[Posted, Posted]]) -> None:
    raise NotASchedule(f"rank {rank} never uses what it received ({met[t.message][1].site})")


# ------------------------------------------------------------------------------ the rounds


def _need(edges: Edges, a: int, b: int, distance: int) -> None:
    if a != b:
        edges[a, b] = max(distance, edges.get((a, b), 0))


def _order(sent: Transfer, used: list[Transfer], pending: list[Transfer], edges: Edges) -> None:
    """Let what is in a message come in an earlier round, what is not yet in it not before it."""
    for t in used:
        _need(edges, t.message, sent.message, 1)
    for t in pending:
        _need(edges, sent.message, t.message, 0)


def _program_order(probe: Probe, transfers: list[Transfer], edges: Edges) -> Edges:
    """Let a message begin after those that either side has waited for, where that is possible."""
    posted, waited = _moments(probe)
    numbers = {t.message for t in transfers}
    halves: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for k, pair in enumerate(messages(probe.run.trace)):
        for half in pair if k in numbers else ():
            halves[half.rank].append((k, posted[half], waited.get(half, _END)))
    order: Edges = {}
    for mine in halves.values():
        for (a, _, done), (b, begun, _) in permutations(mine, 2):
            if done < begun and (b, a) not in edges:
                order[a, b] = 1
    return order


def _assign_rounds(transfers: list[Transfer], edges: Edges, order: Edges) -> None:
    """Give every message the earliest round that its predecessors allow."""
    both = {pair: max(edges.get(pair, 0), order.get(pair, 0)) for pair in edges | order}
    numbers = {t.message for t in transfers}
    found = _longest(numbers, both) or _longest(numbers, edges)
    if found is None:
        raise NotASchedule("the messages do not fall into rounds that read before they write")
    for t in transfers:
        t.round = found[t.message]


def _longest(numbers: set[int], edges: Edges) -> dict[int, int] | None:
    """Return the longest path to each message, or None if there is a circle."""
    level = dict.fromkeys(numbers, 1)
    for _ in range(len(numbers) + 1):
        changed = False
        for (a, b), distance in edges.items():
            if level[b] < level[a] + distance:
                level[b], changed = level[a] + distance, True
        if not changed:
            return level
    return None
