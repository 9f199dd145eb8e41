"""The board: any collective of the family, before and after, for any op, dtype and eight ranks."""

from __future__ import annotations

from html import escape
from typing import Any

import traitlets

from allreduce_edu.engine.check import unknown
from allreduce_edu.engine.dtypes import DTYPES, OPS
from allreduce_edu.engine.frames import frames
from allreduce_edu.lessons.family import FAMILY
from allreduce_edu.lessons.typed import HELP
from allreduce_edu.show import paint, svg
from allreduce_edu.show.before_after import Shown, show
from allreduce_edu.show.explorers import html_table
from allreduce_edu.show.player import CSS, SCRIPT, STATIC, Player, scenes

CHOICES: dict[str, dict[Any, str]] = {
    "collective": {name: name for name in FAMILY},
    "op": {op: op.upper() for op in OPS},
    "dtype": {name: name for name in DTYPES},
    "ranks": {n: str(n) for n in range(2, 9)},
}
LABELS = {"collective": "Collective", "op": "Op", "dtype": "Data type", "ranks": "Ranks"}


class Board(Player):
    """Any collective, before and after, with its transfers played and its bytes counted.

    Parameters
    ----------
    collective, op, dtype, ranks
        What to begin with; each is a control.
    values : str
        One number for each rank, or a list for each with ``;`` between. Without it (c + 1) · 10ʳ.

    Examples
    --------
    >>> Board("reduce")
    Board: reduce, SUM of int64 over 4 ranks. Rank 0 ends with the combined array, ...
    """

    _esm = SCRIPT + (STATIC / "board.js").read_text(encoding="utf-8")
    _css = CSS + paint.css(".ar-board") + (STATIC / "board.css").read_text(encoding="utf-8")
    choices = traitlets.List(traitlets.Dict()).tag(sync=True)
    hint = traitlets.Unicode(f"Values: {HELP}. Empty: (c + 1) · 10ʳ.").tag(sync=True)
    opened = traitlets.Bool(False).tag(sync=True)  # whether all controls are shown, or the first
    settings = traitlets.Dict().tag(sync=True)  # what the controls say
    table = traitlets.Dict().tag(sync=True)
    words = traitlets.Unicode().tag(sync=True)
    wish = traitlets.Dict().tag(sync=True)  # what the browser asks for, numbered
    heard = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        collective: str = "all-reduce",
        op: str = "sum",
        dtype: str = "int64",
        ranks: int = 4,
        values: str = "",
    ) -> None:
        settings = _checked(
            {"collective": collective, "op": op, "dtype": dtype, "ranks": ranks, "values": values}
        )
        shown = show(**settings)
        super().__init__(shown.schedule, shown.x, op=shown.op)
        self.choices = [
            {"name": name, "label": LABELS[name], "options": [[k, v] for k, v in options.items()]}
            for name, options in CHOICES.items()
        ]
        self._put(settings, shown)

    def turn(self, **settings: Any) -> None:
        """Set controls by name, as a reader's hand does."""
        self._answer(self.settings | _checked(settings))

    @property
    def shown(self) -> Shown:
        """What is shown now, as data; with a `problem`, what was shown before it."""
        return self._shown

    @traitlets.observe("wish")
    def _wish(self, _: Any) -> None:
        """Take up what the browser asks for; the newest wish wins."""
        wish = dict(self.wish)
        asked = wish.pop("asked", 0)
        try:
            self._answer(self.settings | _checked(wish))
        except (TypeError, ValueError) as error:
            self.problem = str(error)
        self.heard = asked

    def _answer(self, settings: dict[str, Any]) -> None:
        """Show these settings; if they do not go together, say why and keep the picture."""
        try:
            shown = show(**settings)
        except (TypeError, ValueError) as error:
            with self.hold_sync():
                self.settings, self.problem = settings, str(error)
            return
        self._put(settings, shown)

    def _put(self, settings: dict[str, Any], shown: Shown) -> None:
        new = frames(shown.schedule, shown.x, shown.op)
        new |= {"name": shown.name, "full": (shown.schedule.ranks - 1) * shown.size}
        self._shown, self._at = shown, (shown.schedule.ranks, 1)
        with self.hold_sync():
            self.settings, self.problem = settings, ""
            self.index, self.playing, self.ranks = 0, False, shown.schedule.ranks
            self.scenes, self.frames = scenes(new), new
            self.table, self.words = shown.table.told(), shown.words

    def twin(self) -> str:
        """Return the board as HTML that needs no script: settings, table, film strip, words."""
        parts = [f"<p><strong>{escape(self.frames['name'])}.</strong> {escape(self.words)}</p>"]
        parts += [f"<p>{escape(self.problem)}</p>"] if self.problem else []
        parts += [html_table(self.shown.table), svg.image(self.still())]
        return "\n".join(parts)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return data | {"text/html": self.twin()}, metadata

    def __repr__(self) -> str:
        return f"Board: {self.frames['name']}. {self.words}"


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        if name == "values":
            if not isinstance(value, str):
                raise TypeError(f"values must be text, got {type(value).__name__}")
        elif name not in CHOICES:
            raise ValueError(unknown("control", name, [*CHOICES, "values"]))
        elif not isinstance(value, (str, int)) or value not in CHOICES[name]:
            listed = ", ".join(map(str, CHOICES[name]))
            raise ValueError(f"{name} must be one of {listed}, got {value!r}")
    return settings
