"""What each rank is doing, shown live below the cell while a call lasts, and gone when it ends."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

_AFTER = 0.5  # seconds: what is over sooner needs no status, and would only make the page jump
_EVERY = 1.0  # seconds between two looks of the clock
_LONG = 90  # characters of a state
_VIEW = "application/vnd.jupyter.widget-view+json"
_SIGNS = {"starting": "○", "ready": "✓", "running": "▶", "done": "✓"}  # anything else has failed


class Status:
    """A line per rank, from half a second into a call until its end; only in a Jupyter notebook.

    It is sent as the view of a widget and nothing else, and taken back at the end: a notebook reads
    the same, and compares as equal, whether a call took long enough to show it or not.

    Parameters
    ----------
    title : str
        What stands above the lines.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.note = ""  # what a call of many parts is at
        self._due = time.monotonic() + _AFTER
        self._silent = not _in_notebook()
        self._depth = 0
        self._widget: Any = None

    def __repr__(self) -> str:
        return f"Status of {self.title}, {'shown' if self._widget else 'not shown'}"

    def __enter__(self) -> Self:
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._widget is not None:
            with contextlib.suppress(Exception):
                self._display({}, update=True)
                for each in (self._widget, self._widget.layout, self._widget.style):
                    each.close()
            self._widget = None

    def rest(self) -> float:
        """Return the seconds after which `show` wants to be called again."""
        return _EVERY if self._silent else max(0.0, self._due - time.monotonic())

    def show(self, states: Sequence[str], spent: float, deadline: float) -> None:
        """Show the state of each rank, and the seconds that a call took and may take."""
        if self._silent or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _EVERY
        clock = f"{spent:.0f} s of at most {deadline:g} s"
        try:
            self._put(_html(self.title, self.note, clock, states))
        except Exception:  # noqa: BLE001 - without a picture of it the call goes on all the same
            self._silent = True

    def _put(self, html: str) -> None:
        if self._widget is not None:
            self._widget.value = html
            return
        import ipywidgets

        self._widget = ipywidgets.HTML(html)
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        self._display({_VIEW: view})

    def _display(self, data: dict[str, object], **how: bool) -> None:
        from IPython.display import display

        name = self._widget.model_id
        display(data, raw=True, display_id=name, **how)  # type: ignore[no-untyped-call]


def _in_notebook() -> bool:
    """Whether the caller runs in a cell of a notebook: output of other threads goes astray."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    on_main = threading.current_thread() is threading.main_thread()
    return on_main and getattr(shell, "kernel", None) is not None


def _html(title: str, note: str, clock: str, states: Sequence[str]) -> str:
    head = " · ".join(filter(None, (title, note, clock)))
    rows = "".join(_row(rank, state) for rank, state in enumerate(states))
    style = "font: var(--jp-code-font-size, 13px)/1.5 var(--jp-code-font-family, monospace)"
    return (
        f'<div role="group" aria-label="{escape(title)}: what each rank is doing" style="{style}; '
        f'color: var(--jp-content-font-color1, inherit)"><div>{escape(head)}</div>{rows}</div>'
    )


def _row(rank: int, state: str) -> str:
    shown = state if len(state) <= _LONG else f"{state[:_LONG]}…"
    sign = _SIGNS.get(state, "✗")
    return f'<div><span aria-hidden="true">{sign} </span>rank {rank}: {escape(shown)}</div>'
