"""Ends a thread that runs a learner's code, whatever that code catches.

A shot is an exception that Python raises in another thread, at its next instruction that looks for
one. A handler that catches it is ended too: every line of it raises again, so each `try` of a nest
ends in its turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any

from allreduce_edu.engine.spmd.sites import is_ours

_MONITORING: Any = getattr(sys, "monitoring", None)  # since Python 3.12
_THREADING = threading.__file__


class Stop(BaseException):
    """Unwinds a rank whose run is over; ``except Exception`` lets it through.

    Before Python 3.12, an instance traces the learner's frames, and is made when a handler catches
    what was shot: each line that it then comes to fires the next shot.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if _MONITORING is None:
            tracer = partial(_fire, threading.get_ident(), Stop)
            for frame in _learners(sys._getframe(1)):  # noqa: SLF001
                frame.f_trace = tracer
            sys.settrace(_leave_calls)


def shoot(thread: int) -> None:
    """Raise Stop in a thread, soon."""
    _shoot(thread, Stop)


def leave() -> None:
    """Take back what Stop has done to this thread."""
    if sys.gettrace() is _leave_calls:
        sys.settrace(None)


class Lines:
    """Since Python 3.12: while entered, every line of the code that is marked raises Stop.

    Only in the threads of `threads`; other tools, as debuggers, are left alone.
    """

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self._marked: set[CodeType] = set()
        self._tool: int | None = None

    def __repr__(self) -> str:
        return f"Lines of {len(self._marked)} functions"

    def __enter__(self) -> Lines:  # noqa: PYI034 - typing_extensions is not at hand everywhere
        for tool in (4, 3) if _MONITORING else ():
            if self._tool is None and _MONITORING.get_tool(tool) is None:
                _MONITORING.use_tool_id(tool, "allreduce_edu")
                _MONITORING.register_callback(tool, _MONITORING.events.LINE, self._line)
                self._tool = tool
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._tool is not None:
            for code in self._marked:
                _MONITORING.set_local_events(self._tool, code, 0)
            _MONITORING.register_callback(self._tool, _MONITORING.events.LINE, None)
            _MONITORING.free_tool_id(self._tool)
        self._tool = None

    def mark(self, thread: int) -> None:
        """Let the lines of the code that a thread is in raise Stop."""
        self.threads.add(thread)
        if self._tool is None:
            return
        for frame in _learners(sys._current_frames().get(thread)):  # noqa: SLF001
            if frame.f_code not in self._marked:
                self._marked.add(frame.f_code)
                with contextlib.suppress(ValueError):
                    line = _MONITORING.events.LINE
                    _MONITORING.set_local_events(self._tool, frame.f_code, line)

    def _line(self, code: CodeType, line: int) -> None:  # noqa: ARG002
        if threading.get_ident() in self.threads:
            raise Stop


def _learners(frame: FrameType | None) -> list[FrameType]:
    """Return the frames that are neither the machinery's nor the thread's own."""
    found = []
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_ours(file) and file != _THREADING:
            found.append(frame)
        frame = frame.f_back
    return found


def _api(name: str, *kinds: Any) -> Any:
    """Return a function of Python's C interface that returns nothing.

    The tracers are such functions: Python stops tracing when a tracer raises, and one in Python
    would be hit by its own shot. C does not look at what it is given on top: frame, event, arg.
    """
    return ctypes.PYFUNCTYPE(None, *kinds)((name, ctypes.pythonapi))


_shoot = _api("PyThreadState_SetAsyncExc", ctypes.c_ulong, ctypes.py_object)
_fire = _api("PyThreadState_SetAsyncExc", ctypes.c_ulong, *[ctypes.py_object] * 4)
# Does nothing: a call that begins now may be a finaliser's, and is not traced.
_leave_calls = _api("PyThreadState_Get", *[ctypes.py_object] * 3)
