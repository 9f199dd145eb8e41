"""The fingerprint tape: of each rank its collectives in order, and the first place they differ.

A row is a rank, a column a place in the order of its group. A collective that is over has a check
mark, the current one a thick frame, what is not there a dashed one; the columns in which the ranks
are not together are framed, with a word above: nothing is told by colour alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from allreduce_edu.engine.spmd.errors import ProgramError
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.engine.spmd.simulate import Run
from allreduce_edu.engine.spmd.states import Call, State
from allreduce_edu.engine.spmd.strips import strips
from allreduce_edu.engine.spmd.words import kind_text, ranks_text, verb
from allreduce_edu.show import svg
from allreduce_edu.show.draw import CHECK, Keys, clip, say, tag
from allreduce_edu.show.lineplot import CHAR, PAD
from allreduce_edu.show.waits import wrapped

_SHOWN = 5  # columns, the last ones
_ONE_BY_ONE = 8  # so many ranks have a row each; of more, those with equal strips share one
_NAMES, _WIDE, _HIGH, _GAP = 66.0, 130.0, 46.0, 14.0
_APART, _LINE = 8.0, 17
_TITLE = "Fingerprint tape"
_GONE = {"returned": "has returned", "raised": "has raised"}
_MIDDLE: Keys = {"text_anchor": "middle"}

Place = tuple[int, int]  # group, number


class Column(NamedTuple):
    """One place in the order: the members of its group, and who is there with what."""

    place: Place
    members: tuple[int, ...]
    calls: dict[int, Call]

    @property
    def name(self) -> str:
        """Return "1", or "1 of group 2"."""
        group, number = self.place
        return f"{number} of group {group}" if group else str(number)

    @property
    def missing(self) -> list[int]:
        """The members that are not there."""
        return [rank for rank in self.members if rank not in self.calls]

    @property
    def usual(self) -> str:
        """The fingerprint of most."""
        return Counter(map(_print_of, self.calls.values())).most_common(1)[0][0]

    @property
    def odd(self) -> list[int]:
        """The members whose fingerprint is another."""
        usual = self.usual
        return [rank for rank, call in self.calls.items() if _print_of(call) != usual]

    @property
    def lines(self) -> int:
        """How many different lines of the program they come from."""
        return len({call.site.line for call in self.calls.values()})


class Tape:
    """The strips of all ranks; shown as an image with its story in words.

    Parameters
    ----------
    found
        A `spmd.Run`, a `spmd.Hang`, a `spmd.Deadlock` or `spmd.Mismatch` that a run has raised, or
        the states of a `Recording` of real ranks.

    Examples
    --------
    >>> from allreduce_edu import spmd
    >>> Tape(spmd.run(lambda comm: comm.barrier(), ranks=2))
    Tape: 2 ranks, 1 collective each, no difference.
    """

    def __init__(self, found: Run | Hang | ProgramError | Sequence[State]) -> None:
        self._states = _states(found)
        if not any(state.calls for state in self._states):
            raise ValueError("found must hold collectives, and no rank has begun one")
        self._columns = _columns(self._states)

    def __repr__(self) -> str:
        return f"Tape: {self.summary}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": svg.image(self.svg())}

    @property
    def columns(self) -> list[Column]:
        """Every place in the order, the earliest first."""
        return list(self._columns)

    @cached_property
    def differing(self) -> list[Column]:
        """The columns in which somebody is missing, or does something else."""
        return [column for column in self._columns if column.missing or column.odd]

    @property
    def summary(self) -> str:
        """One sentence: how many, and where the strips differ first."""
        if self.differing:
            return self._difference(self.differing[0])
        most = max(len(state.calls) for state in self._states)
        each = f"{most} collective{'s' * (most != 1)} each"
        return f"{len(self._states)} ranks, {each}, no difference."

    @property
    def alt(self) -> str:
        """What the picture shows, in words."""
        rows = (f"{ranks_text(ranks)}: {self._row_told(ranks[0])}." for ranks in self._rows())
        return " ".join([f"{_TITLE}.", self.summary, *rows, *self._notes()])

    def _difference(self, column: Column) -> str:
        """Say who differs in a column, and in what."""
        there = [r for r in column.calls if r not in column.odd]
        said = [f"{ranks_text(there)} {verb(there, 'calls', 'call')} {column.usual}"]
        said += [f"rank {rank} calls {_print_of(column.calls[rank])}" for rank in column.odd]
        ends: dict[str, list[int]] = {}
        for rank in column.missing:
            ends.setdefault(self._instead(rank), []).append(rank)
        said += [
            f"{ranks_text(who)} {end if len(who) == 1 else end.replace('has', 'have')}"
            for end, who in ends.items()
        ]
        return f"At number {column.name} {'; '.join(said)}."

    def _instead(self, rank: int) -> str:
        """Say where a rank is that is not in a column."""
        state = self._states[rank]
        now = state.calls[-1].part if state.calls and not state.calls[-1].done else None
        return (
            f"is in {now.name} {_named(now.place)}"
            if now
            else _GONE.get(state.status, "is elsewhere")
        )

    def _shortly(self, rank: int) -> str:
        """Say the same in 22 characters, if numbers are short."""
        calls = self._states[rank].calls
        if not calls or calls[-1].done:
            return self._instead(rank)
        group, number = calls[-1].part.place
        return f"in {f'group {group}, ' * bool(group)}number {number}"

    def _row_told(self, rank: int) -> str:
        told = []
        for column in self._shown:
            if rank in column.calls:
                call = column.calls[rank]
                done = "over" if call.done else "current"
                told.append(f"{column.name} {_print_of(call)}{_at(call)}, {done}")
            elif rank in column.members:
                told.append(f"{column.name} not there: it {self._instead(rank)}")
        return "; ".join(told)

    def _notes(self) -> list[str]:
        """Say what a reader may overlook: what is not drawn, and equal calls from other lines."""
        notes = []
        if left := len(self._columns) - len(self._shown):
            notes.append(f"{left} earlier {'column is' if left == 1 else 'columns are'} not drawn.")
        notes += [
            f"Number {column.name} fits, and comes from different lines of the program: did the "
            "ranks mean the same call?"
            for column in self._shown
            if column.lines > 1 and column not in self.differing
        ]
        return notes

    @property
    def _shown(self) -> list[Column]:
        return self._columns[-_SHOWN:]

    def _rows(self) -> list[list[int]]:
        """Return the ranks of each row."""
        rows: dict[Any, list[int]] = {}
        for state in self._states:
            alone = state.rank if len(self._states) <= _ONE_BY_ONE else self._row_told(state.rank)
            rows.setdefault(alone, []).append(state.rank)
        return list(rows.values())

    # ------------------------------------------------------------------------- the picture

    def svg(self) -> str:
        """Return the picture as SVG text."""
        ident = "at" + hashlib.sha256(self.alt.encode()).hexdigest()[:8]
        rows, columns = self._rows(), self._shown
        width = max(PAD * 2 + _NAMES + (_WIDE + _GAP) * len(columns), 480.0)
        lines = wrapped(self.summary, width)
        body = [say(PAD, 24, _TITLE, look="text", font_size=15, font_weight=600)]
        body += [
            say(PAD, 45 + _LINE * k, line, look="text", font_size=12)
            for k, line in enumerate(lines)
        ]
        top = 45 + _LINE * len(lines) + 34
        body += self._key(45 + _LINE * len(lines))
        foot = top + (_HIGH + _APART) * len(rows)
        for k, column in enumerate(columns):
            body += self._head(column, PAD + _NAMES + (_WIDE + _GAP) * k, top, foot)
        for i, ranks in enumerate(rows):
            body += self._row(ranks, top + (_HIGH + _APART) * i)
        notes = [part for note in self._notes() for part in wrapped(note, width)]
        body += [
            say(PAD, foot + 22 + _LINE * k, line, look="soft", font_size=12)
            for k, line in enumerate(notes)
        ]
        size = width, foot + 6 + (10 + _LINE * len(notes)) * bool(notes)
        return svg.document("".join(body), ident, size, _TITLE, self.alt)

    def _key(self, y: float) -> Iterator[str]:
        """Say what marks and frames mean, as far as there are such."""
        calls = [call for column in self._shown for call in column.calls.values()]
        gone = any(column.missing for column in self._shown)
        frame = "m0-7h26v13h-26z"
        entries = [
            ("check", f"m9 -1{CHECK}", "over", any(call.done for call in calls)),
            ("done", frame, "current: waits in it", not all(call.done for call in calls)),
            ("copy", frame, "not there", gone),
        ]
        x = float(PAD)
        for look, d, text, shown in entries:
            if shown:
                yield tag("path", look=look, d=f"M{x:g} {y - 4:g}{d}")
                yield say(x + 34, y, text, look="soft", font_size=11)
                x += 56 + len(text) * CHAR

    def _head(self, column: Column, x: float, top: float, foot: float) -> Iterator[str]:
        """Draw a column's number, and its frame if the ranks differ there."""
        differs = column in self.differing
        word = f"{column.name}: differs" if differs else column.name
        look = "wrong" if differs else "soft"
        yield say(x + _WIDE / 2, top - 8, word, look=look, font_size=12, font_weight=600, **_MIDDLE)
        if differs:
            keys: Keys = {"x": x - 5, "y": top - 4, "width": _WIDE + 10, "height": foot - top}
            yield tag("rect", look="tint", rx=6, **keys)
            yield tag("rect", look="twice", rx=6, **keys)

    def _row(self, ranks: list[int], y: float) -> Iterator[str]:
        rank = ranks[0]
        name = ranks_text(ranks)
        pill: Keys = {"x": PAD, "y": y + 13, "width": 54, "height": 20, "rx": 10}
        if len(ranks) == 1:
            yield tag("rect", look=f"r{rank % 16}", **pill)
            yield say(PAD + 27, y + 27, name, look="head", font_size=11, **_MIDDLE)
        else:
            yield say(PAD, y + 20, "ranks", look="text", font_size=11)
            yield say(PAD, y + 35, clip(name[6:], 11), look="text", font_size=11)
        for k, column in enumerate(self._shown):
            x = PAD + _NAMES + (_WIDE + _GAP) * k
            if rank in column.calls:
                yield from self._cell(column, rank, x, y)
            elif rank in column.members:
                keys: Keys = {"x": x, "y": y, "width": _WIDE, "height": _HIGH, "rx": 5}
                yield tag("rect", look="cell", stroke_opacity=0, **keys)
                yield tag("rect", look="copy", **keys)
                text = clip(self._shortly(rank), 22)
                yield say(x + _WIDE / 2, y + 27, text, look="wrong", font_size=11, **_MIDDLE)

    def _cell(self, column: Column, rank: int, x: float, y: float) -> Iterator[str]:
        call = column.calls[rank]
        keys: Keys = {"x": x, "y": y, "width": _WIDE, "height": _HIGH, "rx": 5}
        yield tag("rect", look="cell", **keys)
        if not call.done:
            yield tag("rect", look="done", **keys)
        look = "wrong" if rank in column.odd else "text"
        yield say(x + 7, y + 16, clip(call.part.what, 20), look=look, font_size=12)
        if call.part.kind:
            text = clip(kind_text(call.part.kind), 20)
            yield say(x + 7, y + 29, text, look="value", font_size=10)
        if call.site.line:
            yield say(x + 7, y + 42, f"line {call.site.line}", look="soft", font_size=10)
        if call.done:
            yield tag("path", look="check", d=f"M{x + _WIDE - 13:g} {y + 37:g}{CHECK}")
        if rank in column.odd:
            yield tag("path", look="cross", d=f"M{x + _WIDE - 11:g} {y + 28:g}m-4-4l8 8m0-8l-8 8")


def _states(found: Run | Hang | ProgramError | Sequence[State]) -> tuple[State, ...]:
    if isinstance(found, Run):
        calls = strips(found.trace, found.ranks)
        return tuple(State(rank, "returned", calls=each) for rank, each in enumerate(calls))
    states = found.states if isinstance(found, Hang | ProgramError) else tuple(found)
    if not all(isinstance(state, State) for state in states):
        raise TypeError(f"found must be a Run, a Hang or states, got {type(found).__name__}")
    return states


def _columns(states: Sequence[State]) -> list[Column]:
    """Return the places, those that are over for all before those where somebody is."""
    found: dict[Place, dict[int, Call]] = {}
    for step in range(max(len(state.calls) for state in states)):
        for state in states:
            if step < len(state.calls):
                call = state.calls[step]
                found.setdefault(call.part.place, {})[state.rank] = call
    columns = [Column(p, next(iter(c.values())).part.members, c) for p, c in found.items()]
    return sorted(columns, key=lambda c: not all(call.done for call in c.calls.values()))


def _print_of(call: Call) -> str:
    """Return a fingerprint: operation, dtype and shape."""
    of = f" of {kind_text(call.part.kind)}" if call.part.kind else ""
    return f"{call.part.what}{of}"


def _named(place: Place) -> str:
    group, number = place
    return f"{number} of group {group}" if group else f"number {number}"


def _at(call: Call) -> str:
    return f" in line {call.site.line}" if call.site.line else ""
