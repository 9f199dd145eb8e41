"""The program of an exhibit: its text, or a function that a visitor has written."""

from __future__ import annotations

import contextlib
import dis
import importlib
import inspect
import linecache
import re
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from types import CodeType
from typing import Any

from allreduce_edu.engine import check, spmd
from allreduce_edu.lessons.museum.sets import IN_PROGRAMS, by_rank, with_sets_by_rank

SECONDS = 2.0  # of the processor: a busy machine makes no right program a hang
WALL = 10.0  # of the clock, for a program that sleeps
_MOST = 600  # characters of what an exception says


class NotAProgram(ValueError):  # noqa: N818 - the sentence says the rest
    """There is nothing in it that ranks could call; the message says why."""

    def _render_traceback_(self) -> list[str]:
        """Show the message alone, as IPython asks for it."""
        return [f"{type(self).__name__}: {self}"]


class Program:
    """The text of a program, or a function that a learner has written."""

    def __init__(self, source: str | Callable[..., Any]) -> None:
        if not isinstance(source, str) and (isinstance(source, type) or not callable(source)):
            raise TypeError(f"program must be a text or a function, got {check.kind(source)}")
        text = source.removeprefix("\ufeff").strip() + "\n" if isinstance(source, str) else ""
        self._source = text or source

    def __repr__(self) -> str:
        return self._source if isinstance(self._source, str) else f"the function {self.name}"

    @property
    def name(self) -> str:
        """The name of the function that is called: the last one."""
        return str(getattr(self.entry, "__name__", type(self.entry).__name__))

    @property
    def entry(self) -> Callable[..., Any]:
        """The last function that the text defines; its lines are numbered as in the text."""
        found, trouble = self._made
        if found is None:
            raise NotAProgram(trouble)
        return found

    @property
    def trouble(self) -> str | None:
        """Why ranks cannot call it, in a sentence; None if they can."""
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[Callable[..., Any] | None, str | None]:
        text = self._source
        try:
            found = (
                _last_function(_names(_compiled(text))) if isinstance(text, str) else by_rank(text)
            )
        except NotAProgram as error:
            return None, str(error)
        for kind, tells in _NEVER_RUN.items():
            if tells(found):
                return None, f"the program's function must be a plain one, and is {kind}"
        return found, None


_NEVER_RUN = {
    "a generator: calling it runs none of its lines": inspect.isgeneratorfunction,
    "async: calling it runs none of its lines": lambda fn: (
        inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    ),
}


def _compiled(text: str) -> CodeType:
    """Compile a text whose lines tracebacks are to show, or say which line is not Python."""
    try:
        file = f"<exhibit {sha256(text.encode()).hexdigest()[:8]}>"
        code: CodeType = compile(with_sets_by_rank(text, file), file, "exec")
    except SyntaxError as error:
        line = f"line {error.lineno}" if error.lineno else "the program"
        raise NotAProgram(f"{line} is not Python: {error.msg}") from None
    except Exception as error:  # noqa: BLE001 - too deep, or characters that no file can hold
        raise NotAProgram(f"the program is not Python: {said(error)}") from None
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    return code


def _names(code: CodeType) -> dict[str, Any]:
    """Run the lines outside of functions, as a simulated rank does: so they can be ended."""
    names: dict[str, Any] = {"__name__": "exhibit", "input": _input, **IN_PROGRAMS}
    for step in dis.get_instructions(code):  # an import may take long, and is never cut short
        if step.opname == "IMPORT_NAME":
            with contextlib.suppress(Exception, SystemExit):  # it is told when it is its turn
                importlib.import_module(str(step.argval))
    try:
        spmd.run(
            lambda _: exec(code, names),  # noqa: S102 - it is a learner's cell
            ranks=1,
            seconds=SECONDS,
            wall=WALL,
            show=False,
        )
    except spmd.Endless:
        raise NotAProgram(
            "the program's lines outside of functions do not come to an end"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever a learner's lines raise
        why = said(error)
        raise NotAProgram(f"the program stops before its function is called: {why}") from None
    return names


def _input(*_: object) -> str:
    """Stand for ``input``: ranks have no keyboard, and nobody would see the question."""
    raise RuntimeError("input() asks a keyboard, and ranks have none")


def _last_function(names: dict[str, Any]) -> Callable[..., Any]:
    last = [v for v in names.values() if getattr(v, "__module__", "") == "exhibit"]
    functions = [each for each in last if callable(each) and hasattr(each, "__code__")]
    if not functions:
        raise NotAProgram("the program must define a function, and defines none")
    found: Callable[..., Any] = functions[-1]
    return found


def said(error: BaseException) -> str:
    """Return an exception's kind and its own words, whatever these do."""
    return f"{type(error).__name__}: {words(error, _MOST)}"


def words(thing: object, most: int) -> str:
    """Return what a thing says of itself, without addresses, and never more than `most`."""
    try:
        text = str(thing)
    except Exception:  # noqa: BLE001 - a learner's own class may do anything
        return f"something of class {type(thing).__name__} that cannot say what it is"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    return text if len(text) <= most else f"{text[:most]} ..."
