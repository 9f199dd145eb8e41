"""What ranks print during a run: whole lines with the rank's number, in the order of saying."""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

_MOST_LINES = 2_000


class Printing:
    """Stands for sys.stdout while it is entered; the caller's thread passes on what ranks say.

    What any other thread prints goes straight on. `mute` swallows what the ranks print.
    """

    def __init__(self, *, mute: bool = False) -> None:
        self.rank_of: dict[int, int] = {}  # by identity of the thread
        self._most = 0 if mute else _MOST_LINES
        self._mute = mute
        self._begun: dict[int, str] = {}
        self._lines: deque[str] = deque()
        self._count = 0

    def __repr__(self) -> str:
        return f"Printing of {len(self.rank_of)} ranks"

    def __enter__(self) -> Self:
        self._to = sys.stdout
        sys.stdout = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        sys.stdout = self._to
        for rank, rest in sorted(self._begun.items()):
            if rest:
                self._say(rank, rest)
        if self._count > self._most and not self._mute:
            self._lines.append(f"... and {self._count - self._most:,} more lines\n")
        self.drain()

    def write(self, text: str) -> int:
        """Take what a rank prints, or pass on what anybody else does."""
        rank = self.rank_of.get(threading.get_ident())
        if rank is None:
            return self._to.write(text)
        *whole, rest = (self._begun.get(rank, "") + text).split("\n")
        self._begun[rank] = rest
        for line in whole:
            self._say(rank, line)
        return len(text)

    def flush(self) -> None:
        """Do nothing for a rank: its lines are passed on by the caller's thread."""
        if threading.get_ident() not in self.rank_of:
            self._to.flush()

    def drain(self) -> None:
        """Print, in the caller's thread, what has been said since the last time."""
        if self._lines:
            self._to.write("".join(self._lines.popleft() for _ in range(len(self._lines))))

    def close_ears(self) -> None:
        """Take no more lines: the run is over."""
        self._most = min(self._most, self._count)

    def _say(self, rank: int, line: str) -> None:
        self._count += 1
        if self._count <= self._most:
            self._lines.append(f"[rank {rank}] {line}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._to, name)
