"""Holding Ctrl-C (the stop button) back, so that nothing is ever half started or half killed."""

from __future__ import annotations

import signal
import sys
import threading
from selectors import BaseSelector, SelectorKey
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_LATER = 0.02  # seconds: more than the end of a finalizer takes


class Interrupts:
    """Inside this context SIGINT is only noted; it is let in while `select` sleeps, and at the end.

    Learners press stop several times. The first press raises KeyboardInterrupt where the caller
    waits; the others fall into its clean-up and are dropped. A press that finds the call ended by
    another exception is raised after it. With `later`, for code that the garbage collector runs and
    in which an exception would get lost, it is raised when that code is over.

    Examples
    --------
    >>> with Interrupts() as interrupts:
    ...     print(interrupts)
    interrupts held back
    """

    def __init__(self, *, later: bool = False) -> None:
        self._later = later
        self._before = signal.getsignal(signal.SIGINT)
        # Only the main thread gets signals; a handler that Python does not know cannot be put back.
        on_main = threading.current_thread() is threading.main_thread()
        self._held = on_main and callable(self._before)
        self._letting_in = False
        self._noted = False

    def __repr__(self) -> str:
        return "interrupts held back" if self._held else "interrupts not ours to hold"

    def __enter__(self) -> Self:
        if self._held:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if not self._held:
            return
        signal.signal(signal.SIGINT, self._before)
        if self._noted and kind is not KeyboardInterrupt:
            if self._later:
                threading.Timer(_LATER, _press).start()
            else:
                signal.raise_signal(signal.SIGINT)

    def select(self, selector: BaseSelector, timeout: float) -> list[tuple[SelectorKey, int]]:
        """Wait as ``selector.select`` does; this is where an interrupt is raised."""
        self._letting_in = True
        try:
            if self._noted:
                self._deliver(None)
            return selector.select(timeout)
        finally:
            self._letting_in = False

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self._letting_in:
            self._deliver(frame)
        else:
            self._noted = True

    def _deliver(self, frame: FrameType | None) -> None:
        self._letting_in = self._noted = False
        if callable(self._before):
            self._before(signal.SIGINT, frame)


def in_one_line(interrupt: KeyboardInterrupt) -> None:
    """Let IPython show one line instead of our own frames, which help no learner."""
    said = "KeyboardInterrupt: stopped; the ranks were ended, and the next call starts new ones"
    interrupt._render_traceback_ = lambda: [said]  # type: ignore[attr-defined]


def _press() -> None:
    """Do as the stop button does, from another thread than the main one."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    elif (main := threading.main_thread().ident) is not None:
        signal.pthread_kill(main, signal.SIGINT)  # it may sleep: this wakes it
