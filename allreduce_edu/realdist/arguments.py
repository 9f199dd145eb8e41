"""Packs a call for each rank: the function, its arguments, the text of the cells they stem from."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from allreduce_edu.realdist import report, wire
from allreduce_edu.realdist.group import Group
from allreduce_edu.realdist.report import RankError


class PerRank:
    """An argument of which each rank gets its own: ``PerRank([a, b])`` gives a to rank 0."""

    def __init__(self, values: Sequence[object]) -> None:
        self.values = list(values)

    def __repr__(self) -> str:
        return f"PerRank of {len(self.values)} values"


def pack(fn: Callable[..., Any], args: Sequence[object], ranks: int) -> list[list[memoryview]]:
    """Return each rank's pickled call; ranks with equal arguments share one."""
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {report.clean(repr(fn))} ({type(fn).__name__})")
    own = [arg for arg in args if isinstance(arg, PerRank)]
    for arg in own:
        if len(arg.values) != ranks:
            raise ValueError(
                f"PerRank must hold one value for each of {ranks} ranks, got {len(arg.values)}"
            )
    if not own:
        return [_dumps(fn, args)] * ranks
    return [_dumps(fn, [_of_rank(arg, rank) for arg in args]) for rank in range(ranks)]


def _of_rank(arg: object, rank: int) -> object:
    return arg.values[rank] if isinstance(arg, PerRank) else arg


def _dumps(fn: Callable[..., Any], args: Sequence[object]) -> list[memoryview]:
    try:
        return wire.dumps((fn, tuple(args)))
    except Exception as error:  # noqa: BLE001 - pickling runs code of any kind of object
        what = _culprit(fn, args)
        raise TypeError(f"{what} cannot travel to the ranks: {report.clean(str(error))}") from None


def _culprit(fn: Callable[..., Any], args: Sequence[object]) -> str:
    for number, arg in enumerate(args, 1):
        try:
            wire.dumps(arg)
        except Exception:  # noqa: BLE001
            return f"argument {number} ({type(arg).__name__})"
    return f"{getattr(fn, '__name__', 'fn')}, or something that it uses,"


def unpack(rank: int, answer: Sequence[memoryview]) -> Any:
    """Return the result that a rank's answer carries."""
    try:
        return wire.loads(answer[1:])
    except Exception as error:
        text = report.clean(str(error))
        raise RankError(f"the result of rank {rank} cannot be read here: {text}") from error


def news(group: Group) -> dict[str, str]:
    """Return source text that is in no file, as that of cells, and that the ranks lack."""
    new = {}
    for name, entry in list(linecache.cache.items()):
        if len(entry) > 2 and group.sources.get(name) is not entry and not os.path.exists(name):  # noqa: PTH110
            group.sources[name] = entry
            new[name] = "".join(entry[2])
    return new


def move(group: Group) -> dict[str, object]:
    """Return the folder and search path of this process, if the ranks have others, else nothing."""
    try:
        here = os.getcwd()  # noqa: PTH109 - as text, for the ranks
    except FileNotFoundError:  # somebody deleted it
        here = ""
    place: dict[str, object] = {"folder": here, "path": [each or here for each in sys.path]}
    if place == group.place:
        return {}
    group.place = place
    return place
