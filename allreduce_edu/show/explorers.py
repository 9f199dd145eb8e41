"""Explorers: named controls above pictures that follow them.

Python holds the positions and draws; the browser shows controls and pictures. While an answer is
on its way the browser keeps only the newest wish, so dragging never queues up. What takes longer
is a generator: it runs in slices between the kernel's messages, shows its progress, and gives way
to a newer wish or to Stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import GeneratorType
from typing import Any

import anywidget
import traitlets

from allreduce_edu.engine.check import unknown
from allreduce_edu.show import paint
from allreduce_edu.show.axes import number
from allreduce_edu.show.charts import Chart

STATIC = Path(__file__).parent / "static"
SHOWN = 3  # with more controls than these, all but the first wait behind a button
_SLICE = 0.02  # seconds of work after which the kernel may hear messages
_TOLD = 0.1  # seconds between two signs of progress


@dataclass(frozen=True)
class Control:
    """A named control with a list of positions.

    Attributes
    ----------
    name : str
        The argument of the explorer's function that gets the value.
    label : str
        What is written beside it, with the unit.
    options : sequence or mapping
        The values, in order; a mapping also says how each is written: ``{"SGD": "plain SGD"}``.
    start
        The value to begin with; the first one if not given.
    kind : "choice", "slider" or "switch"
        A list, a slider over the options, or a check box for False and True.
    """

    name: str
    label: str
    options: Sequence[Any] | Mapping[Any, str]
    start: Any = None
    kind: str = "choice"

    def __post_init__(self) -> None:
        if self.kind not in ("choice", "slider", "switch"):
            raise ValueError(unknown("kind", self.kind, ("choice", "slider", "switch")))
        if len(self.values) < 2:
            raise ValueError(f"options of {self.name!r} must be two or more, got {self.values}")
        self.index(self.values[0] if self.start is None else self.start)

    @property
    def values(self) -> list[Any]:
        """The values of all positions."""
        return list(self.options)

    def index(self, value: Any) -> int:
        """Return the position of a value, or say which there are."""
        for i, each in enumerate(self.values):
            if each == value and type(each) is type(value):
                return i
        listed = ", ".join(repr(each) for each in self.values)
        raise ValueError(f"{self.name} must be one of {listed}, got {value!r}")

    def written(self, i: int) -> str:
        """Write the value of a position."""
        value = self.values[i]
        if isinstance(self.options, Mapping):
            return str(self.options[value])
        if isinstance(value, bool):
            return "on" if value else "off"
        return number(value) if isinstance(value, (int, float)) else str(value)


def slider(name: str, label: str, options: Sequence[Any], start: Any = None) -> Control:
    """Return a control that slides over its options."""
    return Control(name, label, options, start, "slider")


def switch(name: str, label: str, *, start: bool = False) -> Control:
    """Return a check box."""
    return Control(name, label, (False, True), start, "switch")


@dataclass(frozen=True)
class Table:
    """Rows of text under the pictures; the first cell of each row is its heading."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def told(self) -> dict[str, Any]:
        """Return the table as what travels to the browser."""
        return {"head": list(self.head), "rows": [list(row) for row in self.rows]}


@dataclass(frozen=True)
class View:
    """What an explorer shows: charts side by side, a sentence or two, and perhaps a table."""

    charts: Sequence[Chart]
    words: str = ""
    table: Table | None = None


Work = Generator[float, None, View]


class Explorer(anywidget.AnyWidget):
    """Pictures that follow named controls.

    Parameters
    ----------
    title
        What it is, in a few words.
    draw
        Gets the controls' values by name and returns a `View`, within 100 ms. What takes longer is
        a generator function: it yields its progress, 0 to 1, often, and returns the `View`.
    controls
        With more than three only the first is open; a button opens the rest.

    Examples
    --------
    >>> Explorer("Bytes", draw, slider("ranks", "Ranks", range(2, 9)))
    Explorer: Bytes. Ranks: 2.
    """

    _esm = STATIC / "explorer.js"
    _css = paint.css(".ar-explorer") + (STATIC / "explorer.css").read_text(encoding="utf-8")
    title = traitlets.Unicode().tag(sync=True)
    controls = traitlets.List(traitlets.Dict()).tag(sync=True)
    at = traitlets.List(traitlets.Int()).tag(sync=True)  # the position of each control
    opened = traitlets.Bool(False).tag(sync=True)
    view = traitlets.Dict().tag(sync=True)
    progress = traitlets.Float(1.0).tag(sync=True)  # below 1: at work
    problem = traitlets.Unicode("").tag(sync=True)
    asked = traitlets.Int(0).tag(sync=True)  # the browser's wishes, numbered
    heard = traitlets.Int(0).tag(sync=True)  # the last one that has been taken up
    stops = traitlets.Int(0).tag(sync=True)  # how often Stop was pressed

    def __init__(self, title: str, draw: Callable[..., Any], *controls: Control) -> None:
        names = [control.name for control in controls]
        if not controls or len(set(names)) < len(names):
            raise ValueError(f"controls must be one or more with different names, got {names}")
        self._draw, self._controls = draw, controls
        self._task: asyncio.Task[None] | None = None
        starts = (c.values[0] if c.start is None else c.start for c in controls)
        self._shown = [c.index(start) for c, start in zip(controls, starts, strict=True)]
        self._views = _finished(draw(**self._values(self._shown)))
        super().__init__(
            title=title,
            controls=[_told(control) for control in controls],
            at=self._shown,
            opened=len(controls) <= SHOWN,
            view=_told_view(self._views),
        )

    def turn(self, **values: Any) -> None:
        """Set controls by name and draw at once, all the way: what a reader's hand does slowly."""
        at = list(self.at)
        for name, value in values.items():
            names = [control.name for control in self._controls]
            if name not in names:
                raise ValueError(unknown("control", name, names))
            i = names.index(name)
            at[i] = self._controls[i].index(value)
        self._halt()
        self.at = at
        self._run(self._start())

    @property
    def values(self) -> dict[str, Any]:
        """The value of each control, by name."""
        return self._values(self.at)

    @property
    def shown(self) -> View:
        """What is shown now, as data."""
        return self._views

    def _values(self, at: Sequence[int]) -> dict[str, Any]:
        return {c.name: c.values[i] for c, i in zip(self._controls, at, strict=True)}

    @traitlets.validate("at")
    def _check_at(self, proposal: Any) -> list[int]:
        at = list(proposal["value"])
        counts = [len(control.values) for control in self._controls]
        if len(at) != len(counts) or not all(0 <= i < n for i, n in zip(at, counts, strict=True)):
            raise traitlets.TraitError(f"at must hold one position of each control, got {at}")
        return at

    @traitlets.observe("asked")
    def _wish(self, _: Any) -> None:
        """Take up what the browser asks for; the newest wish wins."""
        self._halt()
        work = self._start()
        if isinstance(work, GeneratorType):
            with suppress(RuntimeError):  # no loop: nobody is waiting, work at once
                loop = asyncio.get_running_loop()
                self.heard = self.asked
                self._task = loop.create_task(self._follow(work))
                return
        self._run(work)
        self.heard = self.asked

    @traitlets.observe("stops")
    def _stop(self, _: Any) -> None:
        if self.progress < 1:
            self._halt()
            self._refuse("Stopped: what you see belongs to the settings before.")

    def _start(self) -> Any:
        """Begin to draw; None if the function refuses."""
        try:
            return self._draw(**self.values)
        except Exception as error:  # noqa: BLE001 - a learner's function may raise anything
            self._refuse(str(error))

    def _run(self, work: Any) -> None:
        try:
            if work is not None:
                self._show(_finished(work))
        except Exception as error:  # noqa: BLE001
            self._refuse(str(error))

    async def _follow(self, work: Work) -> None:
        """Work in slices, between which the kernel hears messages."""
        rest = told = time.monotonic()
        try:
            while True:
                fraction, now = next(work), time.monotonic()
                if now - told > _TOLD:
                    self.progress, told = min(max(fraction, 0.0), 0.999), now
                if now - rest > _SLICE:
                    await asyncio.sleep(0.001)
                    rest = time.monotonic()
        except StopIteration as end:
            self._show(end.value)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001
            self._refuse(str(error))
        finally:
            work.close()

    def _halt(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _show(self, views: View) -> None:
        self._views, self._shown = views, list(self.at)
        with self.hold_sync():
            self.view, self.progress, self.problem = _told_view(views), 1.0, ""

    def _refuse(self, why: str) -> None:
        """Say why, and go back to the positions that the picture belongs to."""
        with self.hold_sync():
            self.at, self.progress, self.problem = self._shown, 1.0, why

    def twin(self) -> str:
        """Return positions, pictures, words and table as HTML that needs no script."""
        views = self._views
        parts = [f"<p><strong>{escape(self.title)}.</strong> {escape(self._set())}</p>"]
        parts += [chart.image() for chart in views.charts]
        parts.append(f"<p>{escape(views.words)}</p>" if views.words else "")
        parts.append(html_table(views.table) if views.table else "")
        return "\n".join(filter(None, parts))

    def _set(self) -> str:
        pairs = zip(self._controls, self.at, strict=True)
        return "; ".join(f"{control.label}: {control.written(i)}" for control, i in pairs) + "."

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({"text/plain": repr(self)}, {})
        return data | {"text/html": self.twin()}, metadata

    def __repr__(self) -> str:
        return f"Explorer: {self.title}. {self._set()} {self._views.words}".rstrip()


def _finished(work: Any) -> View:
    """Return what a function has drawn, or what its generator draws when it runs to its end."""
    if isinstance(work, GeneratorType):
        while True:
            try:
                next(work)
            except StopIteration as end:
                work = end.value
                break
    if not isinstance(work, View):
        raise TypeError(f"draw must return a View, got {type(work).__name__}")
    return work


def _told(control: Control) -> dict[str, Any]:
    options = [control.written(i) for i in range(len(control.values))]
    return {"label": control.label, "kind": control.kind, "options": options}


def _told_view(views: View) -> dict[str, Any]:
    table = views.table and views.table.told()
    return {
        "charts": [chart.svg(live=True) for chart in views.charts],
        "words": views.words,
        "table": table,
    }


_CELL = "padding: 3px 24px 3px 0; text-align: left; vertical-align: top"


def html_table(table: Table) -> str:
    """Return a table as HTML that brings its own style."""

    def cell(name: str, text: str, scope: str = "") -> str:
        return f'<{name}{scope} style="{_CELL}">{escape(text)}</{name}>'

    head = "".join(cell("th", text, ' scope="col"') for text in table.head)
    rows = [
        cell("th", row[0], ' scope="row"') + "".join(cell("td", text) for text in row[1:])
        for row in table.rows
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
