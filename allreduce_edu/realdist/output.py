"""Printing what the ranks write: whole lines, labelled, rank after rank."""

from __future__ import annotations

import codecs
import sys
from collections import deque

from allreduce_edu.realdist.places import CELL

LINES = 2_000  # per rank and call: a rank that prints for ever must not fill the notebook
MOST = 200_000  # characters, likewise
LINE = 10_000  # characters


class Printer:
    """Prints in rank order: the lowest rank that still runs is shown live, the others wait for it.

    So the text of a cell is the same in every run, whichever rank was faster.
    """

    def __init__(self, ranks: int) -> None:
        self._lines = [_Lines() for _ in range(ranks)]
        self._over = [False] * ranks
        self._live = 0

    def __repr__(self) -> str:
        return f"Printer, at rank {self._live} of {len(self._lines)}"

    def feed(self, rank: int, data: bytes) -> None:
        """Take what `rank` wrote; nothing is printed yet."""
        self._lines[rank].feed(data)

    def finish(self, rank: int) -> None:
        """Say that no more will come from `rank` in this call."""
        if not self._over[rank]:
            self._over[rank] = True
            self._lines[rank].finish()

    def flush(self) -> None:
        """Print what is due, from the calling thread, so that it lands in the running cell."""
        while self._live < len(self._lines):
            for line in self._lines[self._live].take():
                _print(f"[rank {self._live}] {line}")
            if not self._over[self._live]:
                return
            self._live += 1


def _print(line: str) -> None:
    try:
        print(line)
    except UnicodeEncodeError:
        print(line.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))


class _Lines:
    """The lines of one rank: decoded, cut at the limits, of a progress bar only the last state."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ready: deque[str] = deque()
        self._rest = ""
        self._count = 0
        self._hidden = 0
        self._room = MOST

    def __repr__(self) -> str:
        return f"{self._count} lines"

    def feed(self, data: bytes) -> None:
        *whole, rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in whole:
            self._add(line)
        # A progress bar rewrites its line for ever: only what stands after the last return counts.
        self._rest = rest[rest.rstrip("\r").rfind("\r") + 1 :][: LINE + 1]

    def finish(self) -> None:
        if self._rest:
            self._add(self._rest)
        self._rest = ""
        if self._hidden:
            self._ready.append(f"... and {self._hidden:,} more lines, not shown")

    def take(self) -> list[str]:
        lines = list(self._ready)
        self._ready.clear()
        return lines

    def _add(self, line: str) -> None:
        self._count += 1
        if self._count > LINES or self._room <= 0:
            self._hidden += 1
            return
        shown = CELL.sub("<cell>", line.rstrip("\r").rpartition("\r")[2])
        cut = f"{shown[:LINE]} ... (line cut)" if len(shown) > LINE else shown
        self._room -= len(cut)
        self._ready.append(cut)
