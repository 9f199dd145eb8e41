"""Several schedules at once: one play button, the same numbers, and a port meter under each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import anywidget
import traitlets

from allreduce_edu.engine.check import count, integer
from allreduce_edu.engine.cost import busiest_port, rounds, sent_bytes
from allreduce_edu.engine.frames import frames
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.show import svg
from allreduce_edu.show.player import CSS, SCRIPT, STATIC
from allreduce_edu.show.scene import layout

RANKS = range(2, 9)
_S = 840  # bytes on each rank: divided by 1 to 8


class Together(anywidget.AnyWidget):
    """Schedules that begin together; who is done early waits for the others.

    Parameters
    ----------
    *make : function of the number of ranks that returns a `Schedule`
    ranks : int
        The number of ranks to begin with, 2 to 8; a control.

    Examples
    --------
    >>> Together(parameter_server, ring, ranks=8)
    Together over 8 ranks. parameter server: 2 rounds, 14 S in all, busiest port 7 S. ...
    """

    _esm = SCRIPT + (STATIC / "together.js").read_text(encoding="utf-8")
    _css = CSS + (STATIC / "together.css").read_text(encoding="utf-8")
    boards = traitlets.List(traitlets.Dict()).tag(sync=True)
    index = traitlets.Int(0).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    speed = traitlets.Float(1.0).tag(sync=True)
    ranks = traitlets.Int(4).tag(sync=True)
    offered_ranks = traitlets.List(traitlets.Int(), default_value=list(RANKS)).tag(sync=True)

    def __init__(self, *make: Callable[[int], Schedule], ranks: int = 4) -> None:
        if not make:
            raise ValueError("make must be one or more functions of the number of ranks, got none")
        integer("ranks", ranks, RANKS[0], RANKS[-1])
        self._make = make
        super().__init__(boards=_boards(make, ranks), ranks=ranks)

    @traitlets.validate("ranks")
    def _check_ranks(self, proposal: Any) -> int:
        return integer("ranks", proposal["value"], RANKS[0], RANKS[-1])

    @traitlets.validate("index")
    def _check_index(self, proposal: Any) -> int:
        last = max(len(board["frames"]["steps"]) for board in self.boards)
        return integer("index", proposal["value"], 0, last)

    @traitlets.observe("ranks")
    def _rebuild(self, change: Any) -> None:
        if change["old"] and self.boards:
            with self.hold_sync():
                self.index, self.playing = 0, False
                self.boards = _boards(self._make, self.ranks)

    def twin(self) -> str:
        """Return the last frame of each, and its bytes, as HTML that needs no script."""
        parts = []
        for board in self.boards:
            shown = board["frames"]
            last = len(shown["steps"])
            parts.append(f"<p><strong>{escape(shown['name'])}</strong>: {board['words']}</p>")
            parts.append(svg.image(svg.still(shown, last, "board")))
        return "\n".join(parts)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({"text/plain": repr(self)}, {})
        return data | {"text/html": self.twin()}, metadata

    def __repr__(self) -> str:
        told = (f"{board['frames']['name']}: {board['words']}." for board in self.boards)
        return f"Together over {count(self.ranks, 'rank')}. {' '.join(told)}"


def _boards(make: Sequence[Callable[[int], Schedule]], ranks: int) -> list[dict[str, Any]]:
    return [_board(each(ranks)) for each in make]


def _board(schedule: Schedule) -> dict[str, Any]:
    shown = frames(schedule)
    scene = layout(shown, "board", values=schedule.ranks <= 5, dense=True)
    return {"frames": shown, "scene": scene, "words": in_words(schedule)}


def in_words(schedule: Schedule) -> str:
    """Return rounds, bytes in all and at the busiest port, in S, the size of one rank's array."""
    total, most = sent_bytes(schedule, _S).sum() / _S, busiest_port(schedule, _S) / _S
    return f"{count(rounds(schedule), 'round')}, {total:.3g} S in all, busiest port {most:.3g} S"
