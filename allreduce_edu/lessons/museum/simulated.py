"""Exhibits on simulated ranks: programs of messages and collectives, on two to four."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allreduce_edu.engine import spmd
from allreduce_edu.engine.check import count
from allreduce_edu.engine.verify import place_values
from allreduce_edu.lessons.museum.exhibit import Examined, Outcome
from allreduce_edu.lessons.museum.program import SECONDS, WALL, NotAProgram, Program, said, words

_MANY = 8  # numbers; of more only the ends are shown
_MOST = 200  # characters of what a rank holds


def shares(ranks: int) -> Any:
    """Return data that shows whose share it is: (c+1)·10^r, exact in float64."""
    return place_values(ranks, ranks).astype(float)


@dataclass(frozen=True)
class Simulated:
    """Runs ``program(comm, x)``, or ``program(comm)`` without data, on simulated ranks.

    Attributes
    ----------
    right
        ``right(x)`` gives what every rank must end with, from the data of all.
    data
        ``data(ranks)`` gives the array or list with one entry per rank; None for none.
    ranks
        As many as the visitor meets.
    tried
        The numbers of ranks that an edited program is judged on.
    examine
        In the place of `right`: ``examine(run, x)`` says where the ranks of a run disagree, and
        what is wrong.
    called
        Makes of the program's function the one that ranks call, if it takes other arguments.
    strict
        Whether what goes wrong only sometimes ends the visitor's run; the judge's it always ends.
    sparing
        Whether the number of calls of an edited program counts.
    most
        How many times as many calls as the reference it may make then.
    """

    right: Callable[[Any], Any] | None = None
    data: Callable[[int], Any] | None = shares
    ranks: int = 4
    tried: Sequence[int] = (2, 3, 4)
    examine: Callable[[spmd.Run, Any], Examined] | None = None
    called: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    strict: bool = True
    sparing: bool = True
    most: float = 1.0

    def run(self, program: Program) -> Outcome:
        """Run the program as the visitor meets it."""
        return self._on(program, self.ranks, self.strict)

    def problem(self, program: Program, fixed: Program) -> str | None:
        """Say what is still wrong, and with how many ranks."""
        if program.trouble:
            return program.trouble
        for n in sorted(self.tried, key=lambda n: n != self.ranks):
            outcome = self._on(program, n)
            found = outcome.hangs or outcome.disagree or outcome.wrong
            if not found and self.sparing:
                found = self._too_many(outcome.calls, self._on(fixed, n).calls)
            if found:
                return f"with {count(n, 'rank')}: {found}"
        return None

    def _too_many(self, calls: int, enough: int) -> str | None:
        if calls <= self.most * enough:
            return None
        return f"it is right, with {calls} calls; {enough} are enough"

    def _on(self, program: Program, ranks: int, strict: bool = True) -> Outcome:
        x = self.data(ranks) if self.data else None
        printed = Page()
        try:
            with contextlib.redirect_stdout(printed):
                fn = self.called(program.entry) if self.called else program.entry
                run = spmd.run(fn, x, ranks, strict=strict, seconds=SECONDS, wall=WALL)
        except Exception as error:  # noqa: BLE001 - what a visitor's code raises is an outcome
            return Outcome(hangs=_told(error), printed=printed.getvalue(), error=error)
        disagree, wrong = self._examined(run, x)
        calls = sum(event.kind == "post" for event in run.trace)  # each is one rank's
        return Outcome(None, disagree, wrong, calls, printed.getvalue())

    def _examined(self, run: spmd.Run, x: Any) -> Examined:
        if self.examine:
            return self.examine(run, x)
        assert self.right is not None
        return differing(run.results), not_right(run.results[0], self.right(x))


class Page(io.StringIO):
    """Takes what is printed; a program that closes its output has not closed this."""

    def close(self) -> None:
        """Stay open."""


def _told(error: BaseException) -> str:
    if isinstance(error, (spmd.ProgramError, NotAProgram)):
        return str(error)
    return said(error) + "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))


def differing(results: Sequence[Any]) -> str | None:
    """Say which ranks end with other bits than rank 0, and what they hold."""
    first = _bits(results[0])
    others = [rank for rank, each in enumerate(results) if _bits(each) != first]
    if not others:
        return None
    rank = others[0]
    held = shown(results[0]), shown(results[rank])
    finer = ", in digits that are not shown" if held[0] == held[1] else ""
    return f"the ranks disagree: rank 0 ends with {held[0]}, rank {rank} with {held[1]}{finer}"


def not_right(got: Any, right: Any) -> str | None:
    """Say what all ranks hold in the place of the right answer."""
    with contextlib.suppress(Exception):  # it may be anything, and nothing to compare with
        if np.shape(got) == np.shape(right) and np.allclose(got, right, rtol=1e-6, atol=0):
            return None
    return f"all ranks agree on {shown(got)}, and one process with all the data has {shown(right)}"


def _bits(result: Any) -> bytes:
    """Return the bytes of numbers, and of anything else what it says of itself."""
    with contextlib.suppress(Exception):
        numbers = np.asarray(result)
        if numbers.dtype.kind in "biufc":
            return numbers.tobytes()
    return words(result, 10 * _MOST).encode()


def shown(held: Any) -> str:
    """Return what a rank holds as a few words: no more digits than a reader compares."""
    if isinstance(held, (float, np.floating)):
        return f"{held:.6g}"
    array = isinstance(held, np.ndarray)
    with np.printoptions(threshold=_MANY, edgeitems=3, linewidth=200, precision=4):
        text = words(held, _MOST)
    return f"{held.size} numbers, {text}" if array and held.size > _MANY else text
