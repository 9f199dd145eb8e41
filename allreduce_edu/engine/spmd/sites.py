"""Where a rank is in the learner's program: the line, the function, the text of the line.

The file of a notebook cell is named after a process, so only files that exist on disk are named.
"""

from __future__ import annotations

import dis
import linecache
import os
import sysconfig
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

Stack = tuple[tuple[CodeType, int], ...]  # code and instruction of each frame, innermost first

_PACKAGE = Path(__file__).parents[2]
_OURS = (
    *(str(_PACKAGE / part) + os.sep for part in ("engine", "realdist")),
    str(_PACKAGE / "lessons" / "museum" / "program.py"),  # which runs what visitors write
)
_LIBRARY = (*(sysconfig.get_paths()[each] for each in ("stdlib", "platstdlib")), "<frozen")


class Site(NamedTuple):
    """One line of a learner's program, and the lines that called it."""

    file: str  # its name, or "" for a notebook's cell
    name: str
    line: int
    text: str
    via: str = ""

    def __str__(self) -> str:
        where = f"{self.file}, " if self.file else ""
        text = f": {self.text}" if self.text else ""
        via = f" (called from {self.via})" if self.via else ""
        return f"{where}line {self.line} of {self.name}{text}{via}"


NOWHERE = Site("", "a function without source", 0, "")


def is_ours(file: str) -> bool:
    """Tell whether a file is one of the machinery, and not a learner's or a lesson's."""
    return file.startswith(_OURS)


def stack_of(frame: FrameType | None) -> Stack:
    """Return the learner's frames from `frame` outwards; cheap, because it reads no source."""
    found = []
    while frame is not None:
        if not is_ours(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def site_of(stack: Stack) -> Site:
    """Return the learner's innermost line, with at most two lines that led to it."""
    own = [each for each in stack if not _is_library(each[0].co_filename)]
    if not own:
        return NOWHERE
    (code, at), *outer = own[:3]
    line = _line(code, at)
    exists = os.path.exists(code.co_filename)  # noqa: PTH110 - cells have odd names
    via = ", ".join(f"line {_line(c, i)} of {_name(c)}" for c, i in outer)
    text = linecache.getline(code.co_filename, line).strip()
    return Site(Path(code.co_filename).name if exists else "", _name(code), line, text, via)


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARY) or "site-packages" in file


def _name(code: CodeType) -> str:
    return "the cell" if code.co_name == "<module>" else code.co_name


def _line(code: CodeType, at: int) -> int:
    """Return the line of an instruction; of a call over several lines, the first."""
    if hasattr(code, "co_positions"):
        first = next(islice(code.co_positions(), at // 2, None), (None,))[0]
        if first:
            return int(first)
    starts = [line for start, line in dis.findlinestarts(code) if start <= at and line]
    return max(starts[-1:], default=code.co_firstlineno)
