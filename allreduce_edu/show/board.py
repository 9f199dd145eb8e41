"""The board: any collective of the family, before and after, for any op, dtype and eight ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import traitlets

from allreduce_edu.engine.check import count, unknown
from allreduce_edu.engine.cost import received_bytes, sent_bytes
from allreduce_edu.engine.dtypes import DTYPES, OPS, short_name
from allreduce_edu.engine.execute import OverflowWarning, run
from allreduce_edu.engine.frames import frames
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import expected, starting
from allreduce_edu.lessons.family import FAMILY, starting_values
from allreduce_edu.lessons.typed import HELP, typed_values
from allreduce_edu.show import paint, svg
from allreduce_edu.show.explorers import Table, html_table
from allreduce_edu.show.player import CSS, SCRIPT, STATIC, Player, scenes

CHOICES: dict[str, dict[Any, str]] = {
    "collective": {name: name for name in FAMILY},
    "op": {op: op.upper() for op in OPS},
    "dtype": {name: name for name in DTYPES},
    "ranks": {n: str(n) for n in range(2, 9)},
}
LABELS = {"collective": "Collective", "op": "Op", "dtype": "Data type", "ranks": "Ranks"}
_WHOLE = 1e10  # whole floating-point numbers below are written out
Array = npt.NDArray[Any]


class Shown(NamedTuple):
    """What the board shows at one setting."""

    schedule: Schedule
    x: Array  # [rank, element]
    op: str
    after: Array
    table: Table
    words: str


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
        new["name"] = f"{settings['collective']}, {_of(shown)}"
        own = _own_bytes(settings, shown)
        new["full"] = max((shown.schedule.ranks - 1) * own, 1)
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


def show(collective: str, op: str, dtype: str, ranks: int, values: str) -> Shown:
    """Play one setting.

    Raises
    ------
    TypeError, ValueError
        With a sentence, for settings that do not go together.
    """
    member = FAMILY[collective]
    own, what = (
        (typed_values(values, ranks, dtype, ranks), "typed")
        if values.strip()
        else starting_values(ranks, dtype)
    )
    schedule, x = member.make(ranks), own
    if collective == "all-to-all":
        x = _for_everybody(own)
    op = op if member.adds else "sum"
    after, wrapped = _played(schedule, x, op)
    table = Table(("rank", "before", "after", "sends", "receives"), list(_rows(schedule, x, after)))
    words = " ".join(_said(collective, schedule, own, op, table, what, wrapped))
    return Shown(schedule, x, op, after, table, words)


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


def _for_everybody(own: Array) -> Array:
    """Put rank r's own array where an all-to-all expects it: chunks r*n to r*n + n-1 of rank r."""
    n, length = own.shape
    if length % n:
        raise ValueError(
            f"an all-to-all needs one chunk for each rank, all of one size: "
            f"as many numbers on a rank as {n} divides, got {length}"
        )
    x = np.zeros((n, n, length), own.dtype)
    x[np.arange(n), np.arange(n)] = own
    return x.reshape(n, n * length)


def _played(schedule: Schedule, x: Array, op: str) -> tuple[Array, str]:
    """Return what the ranks hold at the end, and what was said of overflow."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", OverflowWarning)
        with np.errstate(over="ignore", invalid="ignore"):
            after = run(schedule, x, op)
    return after, next((str(each.message) for each in said), "")


# ------------------------------------------------------------------------------ in words


def _rows(schedule: Schedule, x: Array, after: Array) -> Iterator[tuple[str, ...]]:
    """Yield a row for each rank; values without meaning stand in parentheses."""
    bounds = [0, *np.cumsum(schedule.cut(x.shape[1], x.itemsize)).tolist()]
    begins, ends = starting(schedule), expected(schedule).meaning
    left = schedule.collective in ("reduce", "reduce_scatter")
    sizes = np.diff(bounds) * x.itemsize
    sent, received = sent_bytes(schedule, sizes), received_bytes(schedule, sizes)
    few = schedule.collective == "all_to_all"
    for r in range(schedule.ranks):
        before = [_chunk(x[r, a:b]) if m else "·" for (a, b), m in _zip(bounds, begins[r])]
        later = [
            _chunk(after[r, a:b]) if m else f"({_chunk(after[r, a:b])})" if left else "·"
            for (a, b), m in _zip(bounds, ends[r])
        ]
        if few:  # what is not its own is no part of a rank's array
            before, later = ([text for text in row if text != "·"] for row in (before, later))
        rows = (" | ".join(row) for row in (before, later))
        yield (str(r), *rows, f"{sent[r]} B", f"{received[r]} B")


def _zip(bounds: list[int], meaning: Array) -> Iterator[tuple[tuple[int, int], bool]]:
    return zip(pairwise(bounds), meaning.tolist(), strict=True)


def _chunk(values: Array, most: int = 4) -> str:
    texts = [_text(value) for value in values[:most].tolist()]
    return " ".join(texts + ["…"] * (len(values) > most)) or "–"


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    whole = value.is_integer() and abs(value) < _WHOLE
    return f"{value:.0f}" if whole else f"{value:.7g}"


def _of(shown: Shown) -> str:
    adds = any(each.reduce.any() for each in shown.schedule)
    op = f"{shown.op.upper()} of " if adds else ""
    return f"{op}{short_name(shown.x.dtype)} over {count(shown.schedule.ranks, 'rank')}"


def _own_bytes(settings: dict[str, Any], shown: Shown) -> int:
    whole: int = shown.x.shape[1] * shown.x.itemsize
    return whole // shown.schedule.ranks if settings["collective"] == "all-to-all" else whole


def _said(
    collective: str, schedule: Schedule, own: Array, op: str, table: Table, what: str, wrapped: str
) -> Iterator[str]:
    """Yield the sentences under the table."""
    size = own.shape[1] * own.itemsize
    sent = [int(row[3][:-2]) for row in table.rows]
    most = max(sent)
    promise = FAMILY[collective].promise
    yield f"{promise[0].upper()}{promise[1:]}."
    yield (
        f"S, the array of one rank, is {count(size, 'byte')} ({what}). In "
        f"{count(sum(1 for _ in schedule), 'round')} {sum(sent) / size:.3g} S cross the links, "
        f"at most {most / size:.3g} S out of one port."
    )
    if not FAMILY[collective].adds:
        yield "It only copies: the op plays no part."
    if op == "avg":
        yield f"The sum is divided once, by {schedule.ranks}, at the end."
    if any("(" in row[2] for row in table.rows):
        yield "In parentheses: left behind, without meaning."
    if wrapped:
        yield f"{wrapped[0].upper()}{wrapped[1:]}."
