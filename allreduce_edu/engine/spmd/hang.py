"""Why nobody can go on: who waits for whom, where, after what, and what to look at first.

Made from plain states, so that simulated ranks and real processes are explained by the same words.
Ranks that stand in the same call at the same line share their lines: 64 ranks stay readable.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from allreduce_edu.engine.spmd.clues import first_clue
from allreduce_edu.engine.spmd.states import State
from allreduce_edu.engine.spmd.words import kind_text, ranks_text, verb

WIDTH = 78
_SHOWN_CIRCLE, _SHOWN_OFFERS = 9, 4


class Hang:
    """An explanation: `text` for people, `data` for a picture.

    Attributes
    ----------
    states : tuple of State
        One per rank.
    edges : dict
        rank that waits -> the ranks that it waits for.
    circle : list of int
        The shortest circle of ranks that wait for each other; empty if there is none.
    look_first : str
        What to look at first.
    """

    def __init__(self, states: Sequence[State]) -> None:
        self.states = tuple(states)
        self.edges = {s.rank: self._waits_for(s) for s in states if s.status == "waits"}
        self.circle = _circle(self.edges)

    def __repr__(self) -> str:
        return f"Hang of {len(self.states)} ranks: {self.summary}"

    def __str__(self) -> str:
        return self.text

    def _waits_for(self, state: State) -> list[int]:
        if state.part is not None:
            mine = state.part
            there = {
                s.rank
                for s in self.states
                if s.part and s.part.place == mine.place and s.part.what == mine.what
            }
            return [rank for rank in mine.members if rank not in there]
        found: list[int] = []
        for need in state.needs:
            others = [s.rank for s in self.states if s.rank != state.rank]
            found += others if need.peer is None else [need.peer]
        return list(dict.fromkeys(found))

    @cached_property
    def summary(self) -> str:
        """One sentence: who waits, in which circle."""
        waiting = list(self.edges)
        gone = [s.rank for s in self.states if s.status in ("returned", "raised")]
        said = f"all {len(waiting)} ranks wait"
        if len(waiting) < len(self.states):
            said = f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')}"
        if gone:
            said += f" and {ranks_text(gone)} {verb(gone, 'has', 'have')} returned"
        if not self.circle:
            return f"{said}."
        c = [*map(str, self.circle)]
        path = [*c, c[0]] if len(c) <= _SHOWN_CIRCLE else [*c[:3], "...", c[-1], c[0]]
        return f"{said}, in a circle: {' -> '.join(path)}."

    @cached_property
    def text(self) -> str:
        """The explanation: who waits where, after what, and what to look at first."""
        lines = [self.summary, ""]
        for together in _alike(self.states):
            lines += self._told(together)
        lines += [*self._untaken(), ""]
        lines += textwrap.wrap(f"Look first: {self.look_first}", WIDTH)
        return "\n".join([*lines, *self._later()])

    @cached_property
    def timeout(self) -> float | None:
        """After how many seconds the first rank gives up, if the program has set a time-out."""
        said = [s.timeout for s in self.states if s.status == "waits" and s.timeout is not None]
        return min(said, default=None)

    def _later(self) -> list[str]:
        if self.timeout is None:
            return []
        said = (
            f"With this time-out a real job would stand still for {self.timeout:,g} s and then "
            "give up; nobody comes meanwhile."
        )
        return ["", *textwrap.wrap(said, WIDTH)]

    @cached_property
    def look_first(self) -> str:
        """The likeliest cause, the telling ones before those that are mere consequences."""
        return first_clue(self)

    def _told(self, together: Sequence[State]) -> list[str]:
        first, who = together[0], ranks_text([s.rank for s in together])
        before = f"completed before: {first.last.text}" if first.last else ""
        if first.status == "waits":
            lines = [f"  {who}: {doing(together, len(self.states))}", f"      {first.site}"]
            return lines + [f"      {before}"] * bool(before)
        what = "could go on" if first.status == "runs" else first.status
        lines = [f"  {who}: {what}{f'; {before}' * bool(before)}"]
        return lines + [f"      {first.last.site}" for _ in lines if first.last]

    def _untaken(self) -> list[str]:
        """Tell of messages that nobody takes, but for those whose sender is told of already."""
        lines = []
        for s in self.states:
            own = {(n.peer, n.tag) for n in s.needs if n.side == "send"}
            for offer in s.offers:
                if (offer.peer, offer.tag) not in own:
                    to = f"from rank {s.rank} to rank {offer.peer}{_tagged(offer.tag)}"
                    lines.append(f"  not received: {kind_text(offer.kind)} {to}, {offer.site}")
        left = len(lines) - _SHOWN_OFFERS
        return lines[:_SHOWN_OFFERS] + [f"  and {left} more messages not received"] * (left > 0)

    def data(self) -> dict[str, Any]:
        """Return the explanation as what JSON can say: what a picture draws."""
        return {
            "ranks": len(self.states),
            "summary": self.summary,
            "look_first": self.look_first,
            "circle": self.circle,
            "edges": [[a, b] for a, others in self.edges.items() for b in others],
            "states": [self._state_data(s) for s in self.states],
        }

    def _state_data(self, s: State) -> dict[str, Any]:
        usual, mine = self.usual(s), s.part and s.part.what
        return {
            "rank": s.rank,
            "status": s.status,
            "doing": doing([s], len(self.states)) if s.status == "waits" else s.status,
            "site": str(s.site) if s.site else "",
            "line": s.site.line if s.site else 0,
            "code": s.site.text if s.site else "",
            "last": s.last.text if s.last else "",
            "expected": usual or "",
            "actual": mine or "",
            "odd": bool(usual) and usual != mine,
        }

    def usual(self, state: State) -> str | None:
        """Return what most ranks call where this one is in the order, or None if none compares."""
        if state.part is None:
            return None
        rivals = [s.part for s in self.states if s.part and s.part.place == state.part.place]
        return Counter(part.what for part in rivals).most_common(1)[0][0]


def _circle(edges: dict[int, list[int]]) -> list[int]:
    """Return a shortest circle, smallest rank first, by a breadth-first walk from every rank."""
    best: list[int] = []
    for start in sorted(edges):
        paths, seen = [[start]], {start}
        for path in paths:
            if best and len(path) >= len(best):
                break
            for to in edges.get(path[-1], ()):
                if to == start:
                    best = path
                    break
                if to in edges and to not in seen and to > start:
                    seen.add(to)
                    paths.append([*path, to])
    return best


def _alike(states: Iterable[State]) -> list[list[State]]:
    """Group the ranks that are told of together."""
    groups: dict[Any, list[State]] = {}
    for s in states:
        needs = tuple((n.side, n.tag, n.peer is None) for n in s.needs)
        part = s.part and (*s.part.place, s.part.what, s.part.kind)
        last = s.last and s.last[1:3]
        groups.setdefault((s.status, s.call, str(s.site), needs, part, last), []).append(s)
    return list(groups.values())


def doing(together: Sequence[State], size: int) -> str:
    """Return what ranks do that are in the same call at the same line."""
    first = together[0]
    if first.part:
        return first.part.text
    said = []
    for i, need in enumerate(first.needs):
        kinds = {s.needs[i].kind for s in together}
        of = f": {kind_text(need.kind)}" if need.kind and len(kinds) == 1 else ""
        said.append(f"{need.to} {_peer(together, i, size)}{_tagged(need.tag)}{of}")
    return " and ".join(said)


def _peer(together: Sequence[State], i: int, size: int) -> str:
    """Return "rank 3", or "rank r+1" for many that each have their own."""
    peers = [s.needs[i].peer for s in together]
    if peers[0] is None:
        return "any rank"
    if len(set(peers)) == 1:
        return f"rank {peers[0]}"
    away = {
        (peer - s.rank) % size for s, peer in zip(together, peers, strict=True) if peer is not None
    }
    if len(away) > 1:
        return f"ranks {', '.join(map(str, peers))}"
    offset = away.pop()
    return f"rank r+{offset}" if offset <= size // 2 else f"rank r-{size - offset}"


def _tagged(tag: int) -> str:
    return f", tag {tag}" if tag else ""
