"""What to look at first when ranks hang: one clue after the other, the telling ones first.

The order matters: a wrong tag or source is a cause, a rank that is missing from a collective often
only a consequence of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from allreduce_edu.engine.spmd.words import ranks_text, verb

if TYPE_CHECKING:
    from allreduce_edu.engine.spmd.hang import Hang
    from allreduce_edu.engine.spmd.sites import Site
    from allreduce_edu.engine.spmd.states import Part, State


def first_clue(hang: Hang) -> str:
    """Return the first clue that fits."""
    for clue in (_tags, _sources, _missing, _order, _groups, _stuck_before, _no_partner, _sides):
        for said in clue(hang):
            return said
    return "follow the circle: which of these calls should have met its partner?"


def _asks(hang: Hang) -> Iterator[tuple[int, int, int, int]]:
    """Yield (who, from whom, tag it wants, tag it is offered) of receives and offers that miss."""
    for s in hang.states:
        for need in s.needs:
            if need.side == "recv":
                for other in hang.states:
                    for offer in other.offers:
                        if offer.peer == s.rank:
                            peer = other.rank if need.peer is None else need.peer
                            yield s.rank, peer, need.tag, offer.tag


def _tags(hang: Hang) -> Iterator[str]:
    for who, src, wants, offered in _asks(hang):
        sent = {o.tag for s in hang.states if s.rank == src for o in s.offers if o.peer == who}
        if offered in sent and wants not in sent:
            yield f"rank {who} asks rank {src} for tag {wants}, but it sends with tag {offered}."


def _sources(hang: Hang) -> Iterator[str]:
    for s in hang.states:
        for need in s.needs:
            if need.side != "recv" or need.peer is None:
                continue
            for other in hang.states:
                if other.rank != need.peer and any(
                    o.peer == s.rank and o.tag == need.tag for o in other.offers
                ):
                    yield (
                        f"rank {s.rank} listens to rank {need.peer}, but the message that is "
                        f"there for it comes from rank {other.rank}. Check how source and "
                        "destination are computed."
                    )


def _missing(hang: Hang) -> Iterator[str]:
    by = {s.rank: s for s in hang.states}
    for s in _in_collectives(hang):
        gone = [r for r in hang.edges[s.rank] if by[r].status in ("returned", "raised")]
        if gone and s.part:
            yield (
                f"{ranks_text(gone)} {verb(gone, 'has', 'have')} returned and "
                f"{verb(gone, 'does', 'do')} not call {s.part.name} number {s.part.number}. Is the "
                "call inside an `if` or a `try`, or does a rank leave a loop sooner (fewer "
                "batches, a `break`)?"
            )


def _order(hang: Hang) -> Iterator[str]:
    for s in _in_collectives(hang):
        assert s.part
        callers: dict[str, list[int]] = {}
        for t in _in_collectives(hang):
            if t.part and t.part.place == s.part.place:
                callers.setdefault(t.part.what, []).append(t.rank)
        if len(callers) > 1:
            told = ", but ".join(f"{what} on {ranks_text(who)}" for what, who in callers.items())
            yield f"collective number {s.part.number} is {told}. {_why_in_order(callers)}"


def _why_in_order(calls: Iterable[str]) -> str:
    if any(call.startswith("group of") for call in calls):
        return (
            "To make a group is a collective of all ranks: those that will not be in it must call "
            "it too."
        )
    return (
        "Collectives are matched by their order, so every rank must call the same ones in the same "
        "order. Is one of these lines inside an `if`, or a loop over a dict or a set?"
    )


def _groups(hang: Hang) -> Iterator[str]:
    parts = {s.rank: s.part for s in _in_collectives(hang) if s.part}
    circle = hang.circle
    if not circle or len({parts[r].group if r in parts else -1 for r in circle}) < 2:
        return
    first, second, third = (circle * 2)[:3]
    if first in parts and second in parts:
        yield (
            f"groups are used in opposite order. Rank {first} waits in group {parts[first].group} "
            f"for rank {second}, which waits in group {parts[second].group} for rank {third}. Let "
            "every rank use its groups in one order."
        )


def _stuck_before(hang: Hang) -> Iterator[str]:
    for s in _in_collectives(hang):
        late = [
            t.rank
            for t in hang.states
            if t.rank in hang.edges[s.rank] and t.status == "waits" and t.part != s.part
        ]
        if late and s.part:
            yield (
                f"{ranks_text(late)} did not get as far as {s.part.name} number {s.part.number}: "
                f"see above where {verb(late, 'it waits', 'they wait')}."
            )


def _no_partner(hang: Hang) -> Iterator[str]:
    by = {s.rank: s for s in hang.states}
    gone = {r for to in hang.edges.values() for r in to if by[r].status in ("returned", "raised")}
    if gone and not hang.circle:
        yield (
            f"{ranks_text(gone)} {verb(gone, 'has', 'have')} returned without the other "
            "half of this message. Count sends and receives on both sides."
        )


def _sides(hang: Hang) -> Iterator[str]:
    circle = hang.circle or list(hang.edges)
    sides = {need.side for s in hang.states if s.rank in circle for need in s.needs}
    if sides == {"send"}:
        yield (
            "everybody sends before anybody receives, and a send waits until the other side "
            "receives (so does gloo, at every size). Use comm.sendrecv, or isend, recv and wait, "
            "or let every second rank receive first."
        )
    if sides == {"recv"}:
        yield "everybody receives before anybody sends. Somebody has to send first."


def _in_collectives(hang: Hang) -> list[State]:
    return [s for s in hang.states if s.status == "waits" and s.part]


def mismatch_clue(parts: Sequence[Part], sites: Iterable[Site]) -> str:
    """Return what to look at first if the parts of one collective do not fit together."""
    if parts[0].name == "group":
        return (
            "every rank must make every group, with the same members and in the same order, also "
            "those that it will not be in."
        )
    if len({(site.name, site.line) for site in sites}) > 1:
        return (
            "these are different lines of the program, that only met because each is collective "
            f"number {parts[0].number} of its rank. Who makes a call more than the others, or less?"
        )
    if len({part.what for part in parts}) > 1:
        return "every rank must ask for the same operation, to or from the same root."
    if len({part.kind and part.kind[1] for part in parts}) > 1:
        return (
            "the shapes differ. Is it the last batch, which is shorter on some ranks? Fill it up, "
            "and cut off what was filled; or tell each other the lengths first."
        )
    return "the dtypes differ. Nothing is converted on the way: convert before the call."
