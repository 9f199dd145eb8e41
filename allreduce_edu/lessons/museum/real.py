"""Exhibits on real ranks: programs with torch.distributed and DDP, in processes that may die."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allreduce_edu.engine.check import count
from allreduce_edu.engine.spmd.words import ranks_text, verb
from allreduce_edu.lessons.museum.exhibit import Examined, Outcome
from allreduce_edu.lessons.museum.program import Program
from allreduce_edu.lessons.museum.simulated import Page
from allreduce_edu.realdist import places
from allreduce_edu.realdist.pool import Pool, RankError

Examine = Callable[[Callable[..., Any]], Examined]


@dataclass(frozen=True)
class Real:
    """Runs a program on real ranks of gloo.

    Attributes
    ----------
    examine
        Called on every rank with the program's function: runs it, and says where the ranks
        disagree and what is wrong; what rank 0 says counts.
    ranks
        As many as the visitor meets, and the judge tries.
    seconds
        How long the ranks wait for each other before it is a hang.
    sparing
        Whether an edited program may begin no more collectives than the reference.
    """

    examine: Examine
    ranks: int = 4
    seconds: float = 15.0
    sparing: bool = True

    def run(self, program: Program) -> Outcome:
        """Run the program as the visitor meets it."""
        if trouble := _cannot_run(program):
            return Outcome(hangs=trouble)
        printed = Page()
        try:
            with (
                contextlib.redirect_stdout(printed),
                Pool(self.ranks, backend="gloo", timeout=self.seconds) as pool,
            ):
                found = pool.run(_examined, self.examine, program.entry)
        except RankError as error:
            return Outcome(hangs=_told(error), printed=printed.getvalue(), error=error)
        except TypeError as error:  # of what it uses in the notebook: a lock, a pool
            why = str(error).partition("cannot travel")[2]
            return Outcome(hangs=f"the program cannot travel{why}", error=error)
        disagree, wrong, calls = found[0]
        return Outcome(None, disagree, wrong, calls, printed.getvalue())

    def problem(self, program: Program, fixed: Program) -> str | None:
        """Say what is still wrong, or that it sends more than is needed."""
        if trouble := _cannot_run(program):
            return trouble
        outcome = self.run(program)
        if said := outcome.hangs or outcome.disagree or outcome.wrong:
            return f"with {count(self.ranks, 'rank')}: {said}"
        if not self.sparing or str(program) == str(fixed):
            return None
        least = self.run(fixed).calls
        if outcome.calls > least:
            return f"it is right, with {outcome.calls} collectives on rank 0; {least} are enough"
        return None


def _cannot_run(program: Program) -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "this program runs on real ranks, which need PyTorch, and it is not installed here"
    return program.trouble


def _told(error: RankError) -> str:
    """Return what became of the ranks, and who is through if the others still wait."""
    waiting = [fate for fate in error.fates if fate.kind == "busy" and places.own(fate.frames)]
    through = [f.rank for f in error.fates if f.kind == "busy" and f not in waiting]
    if not waiting or not through or any(fate.failed for fate in error.fates):
        return str(error)
    have = verb(through, "has", "have")
    return (
        f"{error}\nLook first: {ranks_text(through)} {have} come to the end of the program. Which "
        f"call of {ranks_text(f.rank for f in waiting)} {have} {verb(through, 'it', 'they')} left "
        "out?"
    )


def _examined(examine: Examine, program: Callable[..., Any]) -> tuple[str | None, str | None, int]:
    from allreduce_edu.realdist.ddp import counting

    calls: list[str] = []

    def counted(*args: Any) -> Any:
        with counting() as made:
            result = program(*args)
        calls.extend(made)
        return result

    disagree, wrong = examine(counted)
    return disagree, wrong, len(calls)
