"""Tells where a rank was: frames of an exception or of faulthandler, and the learner's own lines.

File names of notebook cells hold a process number, so a place is told by function, line and source
text; only files that exist on disk are named.
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

_NAME = r"[^\s\"'(\[<=]"  # one character of a file's name
CELL = re.compile(rf"(?<!{_NAME}){_NAME}*ipykernel_\d+[/\\]\d+\.py")
_OURS = str(Path(__file__).parent.parent)
_LIBRARY = tuple(sysconfig.get_paths()[each] for each in ("stdlib", "platstdlib"))
_ENTRY = ("worker.py", "answer")  # the frame that calls the learner's function
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_WRAPPERS = (
    "wrapper",
    "wrapped",
    "inner",
    "_fn",
    "decorate_context",
    "_wrapped_call_impl",
    "_call_impl",
)


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        where = f"{Path(self.file).name}, " if os.path.exists(self.file) else ""  # noqa: PTH110
        text = linecache.getline(self.file, self.line).strip()
        inside = "" if self.name == "<module>" else f" of {self.name}"
        return f"{where}line {self.line}{inside}" + (f": {text}" if text else "")


def of_exception(at: TracebackType | None) -> list[Frame]:
    """Return the frames of an exception, outermost first."""
    entries = traceback.extract_tb(at)
    return [Frame(each.filename, each.lineno or 0, each.name) for each in entries]


def of_dump(dump: str, thread: int) -> list[Frame] | None:
    """Return the frames of one thread in a dump of faulthandler, outermost first.

    None while the dump is incomplete: it is written line by line, and may still be on its way.
    """
    frames: list[Frame] = []
    inside = False
    for line in dump.splitlines():
        heading = _THREAD.match(line)
        if heading:
            inside = int(heading[1], 16) == thread
        elif inside and (match := _FRAME.match(line)):
            frames.append(Frame(match[1], int(match[2]), match[3]))
            if _is_entry(frames[-1]):
                return frames[::-1]
        elif inside and line.strip() == "...":  # 100 frames are all that faulthandler shows
            return frames[::-1]
    return None


def own(frames: Sequence[Frame]) -> list[Frame]:
    """Return the learner's frames; without any, the function that the pool was asked to run."""
    entry = next((i for i, frame in enumerate(frames) if _is_entry(frame)), -1)
    below = list(frames[entry + 1 :])
    asked = [frame for frame in below[:1] if not frame.file.startswith(_OURS)]
    return [frame for frame in below if not _is_foreign(frame)] or asked


def waiting_in(frames: Sequence[Frame]) -> str:
    """Return the name of the call that the learner's innermost line is in, or ''."""
    learners = own(frames)
    if not learners:
        return ""
    below = frames[len(frames) - frames[::-1].index(learners[-1]) :]
    names = [frame.name for frame in below if frame.name not in _WRAPPERS]
    return names[0] if names else ""


def _is_entry(frame: Frame) -> bool:
    return (Path(frame.file).name, frame.name) == _ENTRY and frame.file.startswith(_OURS)


def _is_foreign(frame: Frame) -> bool:
    parts = Path(frame.file).parts
    packaged = "site-packages" in parts or "dist-packages" in parts
    return packaged or frame.file.startswith((*_LIBRARY, _OURS, "<frozen"))
