"""Judges for the exercises: they say what is wrong and where, never only that it is.

They count with the engine, for 1 to 8 ranks: a ring that is right for two ranks need not be
right for three. A judge answers whatever it is given; what a learner's own code raises is let
through, because the learner's own line is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from textwrap import fill
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.check import integer
from allreduce_edu.engine.cost import sent_bytes
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import contributions, place_values, wrong_shares
from allreduce_edu.lessons.readers import share_counts

TRIED = range(1, 9)  # numbers of ranks that every judge tries
_LONG, _WIDTH = 79, 76  # characters: JupyterLab breaks a line that is too long inside a word
SHOWN = 4  # the number of ranks that messages prefer: the one in the pictures


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a judge found: ``ok``, and the sentence that says why."""

    ok: bool
    why: str

    def __repr__(self) -> str:
        said = f"{'✓ Right' if self.ok else '✗ Not yet'}: {self.why}"
        return "\n".join(map(_fitted, said.splitlines()))


def _fitted(line: str) -> str:
    """Break a long line between words; one that is indented is code, and stays."""
    if len(line) <= _LONG or line.startswith(" "):
        return line
    return fill(line, _WIDTH, break_long_words=False, break_on_hyphens=False)


def right(why: str) -> Verdict:
    """Return a verdict that passes."""
    return Verdict(ok=True, why=why)


def wrong(why: str) -> Verdict:
    """Return a verdict that does not pass."""
    return Verdict(ok=False, why=why)


# --------------------------------------------------------------------- numbers as answers


def shares_that_sum_to(goal: int, shares: Any) -> Verdict:
    """Judge whether one number on each of three ranks all-reduces to `goal`."""
    given = list(shares) if isinstance(shares, (list, tuple, np.ndarray)) else []
    given = [each for each in given if each is not ...]
    if len(given) != 3:
        return wrong(f"give a list of three numbers, one for each rank, got {len(given)}")
    try:
        numbers = [integer("a share", each, -(10**9), 10**9) for each in given]
    except (TypeError, ValueError) as error:
        return wrong(str(error))
    result = int(run(ring(3), np.array(numbers).reshape(3, 1))[0, 0])
    if result == goal:
        return right(f"{' + '.join(map(str, numbers))} = {result}, on every rank")
    if all(each == goal for each in numbers):
        return wrong(
            f"every rank holds {goal} before the all-reduce, and {result} after it. "
            "The shares go in; the sum comes out"
        )
    return wrong(f"{' + '.join(map(str, numbers))} = {result}, and it should read {goal}")


def rounds_until_finished(answer: Any, ranks: int = 4, rank: int = 0) -> Verdict:
    """Judge after how many rounds of the ring `rank` first holds a finished chunk."""
    done = share_counts(ring(ranks)).counts == ranks
    if (problem := _no_round(answer, len(done) - 1)) is not None:
        return problem
    first = next(k for k, cells in enumerate(done) if cells[rank].any())
    chunk = int(np.flatnonzero(done[first][rank])[0])
    if answer == first:
        return right(f"after round {first} rank {rank} holds chunk {chunk}, finished")
    if answer == len(done) - 1:
        return wrong(
            f"after round {answer} every chunk is finished on every rank; "
            f"rank {rank} has its first one earlier"
        )
    if answer < first:
        return wrong(
            f"after round {answer} no chunk on rank {rank} holds all {ranks} shares yet; "
            "that something has arrived does not finish it"
        )
    return wrong(f"after round {answer} rank {rank} has had a finished chunk for a while")


def _no_round(answer: Any, last: int) -> Verdict | None:
    """Return the verdict on what is no number of rounds, else None."""
    if answer is ...:
        return wrong("replace the dots with the number that you counted in the player")
    try:
        integer("the number of rounds", answer, 0, last)
    except (TypeError, ValueError) as error:
        return wrong(str(error))
    return None


# --------------------------------------------------------------------- rings as formulas


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """One round of a ring, as index formulas over all ranks r = 0..n-1 at once.

    Attributes
    ----------
    send : int array, shape (n,)
        ``send[r]``: the chunk that rank r sends.
    into : int array, shape (n,)
        ``into[r]``: the chunk in which rank r puts what arrives.
    add : bool
        True: what arrives is added to what is there.  False: it replaces it.
    to : int
        +1: everyone sends to rank r+1.  -1: to rank r-1.
    """

    send: Any
    into: Any
    add: Any
    to: int = 1

    def __repr__(self) -> str:
        return f"Step(send={self.send}, into={self.into}, add={self.add}, to={self.to})"


Program = Callable[[int], Iterable[Step]]


def my_ring(program: Any) -> Verdict:
    """Judge a ring: every share once and in its place, then the bytes, then the rounds.

    `program(n)` yields a `Step` per round, or returns a `Schedule`.
    """
    if not callable(program):
        return wrong(f"give the function itself, my_ring, got {type(program).__name__}")
    plans = {n: _plan(program, n) for n in TRIED}
    found = {n: what for n, plan in plans.items() if (what := _wrong_values(plan, n))}
    if several := [n for n in found if n > 1]:
        n = SHOWN if SHOWN in found else several[0]
        hidden = "right for 2 ranks, wrong from 3 on. " if several[0] == 3 else ""
        return wrong(f"{hidden}With {n} ranks: {found[n]}")
    for n in (SHOWN, *TRIED[1:]):
        if surplus := _too_much(plans[n], n):
            return wrong(f"every value is right. But with {n} ranks {surplus}")
    if found:
        return wrong(f"right for 2 to {TRIED[-1]} ranks. With 1 rank: {found[1]}")
    return right(
        f"every share once and in its place for N = 1 to {TRIED[-1]}, "
        "in 2(N-1) rounds of one chunk per rank"
    )


def ring_schedule(program: Program, n: int = 4) -> Schedule:
    """Turn a learner's formulas into a schedule that `Player` can play.

    Raises
    ------
    ValueError
        If a rank puts what arrives into another chunk than was sent: no schedule can say that.
    """
    plan = _plan(program, n)
    if isinstance(plan, Schedule):
        return plan
    problem = plan if isinstance(plan, str) else _plan_problem(plan, n)
    places = (_misplaced(step, n, k) for k, step in enumerate(plan, 1) if not problem)
    if found := problem or next(filter(None, places), None):
        raise ValueError(found)
    return _schedule(plan, n)


def _plan(program: Any, n: int) -> Any:
    """Return the learner's rounds for n ranks as a list, a schedule, or what is wrong with them."""
    plan = program(n)
    if isinstance(plan, (Schedule, str)):
        return plan
    if isinstance(plan, Step):
        return "the function returns one Step; yield one for each round"
    if plan is None:
        return "the function returns nothing: did you forget `yield`?"
    if not isinstance(plan, Iterable):
        return f"the function must yield Steps, got {type(plan).__name__}"
    most = 4 * n + 8
    rounds = list(islice(plan, most + 1))
    too_many = f"there are more than {most} rounds; {2 * (n - 1)} are enough"
    return too_many if len(rounds) > most else rounds


def _wrong_values(plan: Any, n: int) -> str | None:
    """Return what is wrong with a plan at n ranks, bytes aside, or None."""
    if isinstance(plan, str):
        return plan
    if not isinstance(plan, Schedule):
        return _plan_problem(plan, n) or _tagged_values(plan, n)
    if plan.ranks != n:
        return f"the function returns a schedule of {plan.ranks} ranks"
    return next(iter(plan.problems()), None) or _values(plan)


def _plan_problem(plan: list[Any], n: int) -> str | None:
    problems = (_step_problem(step, n, k) for k, step in enumerate(plan, 1))
    return next(filter(None, problems), None)


def _step_problem(step: Any, n: int, k: int) -> str | None:
    if not isinstance(step, Step):
        return f"round {k}: yield Step(send=..., into=..., add=...), got {type(step).__name__}"
    for name in ("send", "into", "add"):
        if getattr(step, name) is ...:
            return f"fill in `{name}`: it is still ..."
    if type(step.to) is not int or step.to not in (1, -1):
        return f"round {k}: to must be +1 or -1, got {step.to!r}"
    if not isinstance(step.add, (bool, np.bool_)):
        return f"round {k}: add must be True or False, got {step.add!r}"
    for name in ("send", "into"):
        value = _array(getattr(step, name))
        if value is None or value.shape != (n,) or value.dtype.kind not in "iu":
            return f"round {k}: {name} must hold one chunk number for each of the {n} ranks"
        outside = value[(value < 0) | (value >= n)]
        if outside.size:
            return f"round {k}: {name} names chunk {outside[0]}; there are 0 to {n - 1} (use % n)"
    return None


def _array(value: Any) -> npt.NDArray[Any] | None:
    try:
        return np.asarray(value)
    except ValueError:
        return None


def _misplaced(step: Step, n: int, k: int) -> str | None:
    """Say which rank puts a chunk into another chunk's place."""
    arriving = np.asarray(step.send)[(np.arange(n) - step.to) % n]
    for rank in np.flatnonzero(arriving != np.asarray(step.into))[:1]:
        return (
            f"in round {k} chunk {arriving[rank]} arrives on rank {rank}, "
            f"which puts it into chunk {np.asarray(step.into)[rank]}"
        )
    return None


def _tagged_values(plan: list[Step], n: int) -> str | None:
    """Play on one-hot tags, one per (rank, chunk), and compare with every share once."""
    tags = np.eye(n * n, dtype=np.int64).reshape(n, n, n * n)
    held, shown = tags.copy(), place_values(n, n)
    for step in plan:
        held, shown = _moved(held, step), _moved(shown, step)
    if (held == tags.sum(0)).all():
        return None
    if n == 1:
        return f"one rank has nobody to send to, and ends with {_row(shown[0])} in place of 1"
    places = (_misplaced(step, n, k) for k, step in enumerate(plan, 1))
    if misplaced := next(filter(None, places), None):
        return f"{misplaced}; rank 0 ends with {_row(shown[0])}"
    return _values(_schedule(plan, n))


def _moved(held: npt.NDArray[Any], step: Step) -> npt.NDArray[Any]:
    """Return held[rank, chunk, ...] after a step."""
    r = np.arange(len(held))
    came = held[r, step.send][(r - step.to) % len(held)]
    after = held.copy()
    after[r, step.into] = np.minimum(held[r, step.into] + came, 10**15) if step.add else came
    return after


def _schedule(plan: list[Step], n: int) -> Schedule:
    r = np.arange(n)
    rounds = [Round.of(r, (r + s.to) % n, s.send, s.add) for s in plan if n > 1]
    return Schedule("my ring", n, n, lambda: rounds)


def _values(schedule: Schedule) -> str | None:
    """Name the first cell whose shares are wrong, and the digits in which that shows."""
    counts = contributions(schedule)
    for rank, chunk in np.argwhere((counts != 1).any(-1))[:1].tolist():
        shown = run(schedule, place_values(schedule.ranks, schedule.chunks))[rank]
        what = wrong_shares(counts[rank, chunk], np.ones(schedule.ranks))
        return f"rank {rank}, chunk {chunk} {what}; rank {rank} ends with {_row(shown)}"
    return None


def _too_much(plan: Any, n: int) -> str | None:
    """Compare the bytes that each rank sends, and the rounds, with the ring's."""
    whole = isinstance(plan, Schedule)
    chunks = plan.chunks if whole else n
    sent = sent_bytes(plan, np.ones(chunks, int)) if whole else np.full(n, len(plan))
    rounds, enough = len(list(plan)), 2 * (n - 1)
    rank = int(sent.argmax())
    if sent[rank] * n > enough * chunks and chunks < n:
        return (
            f"rank {rank} sends {sent[rank] / chunks:.4g} S, whole arrays; "
            f"{enough / n:.4g} S are enough, one chunk of {n} in each round"
        )
    if rounds > enough:
        return (
            f"there are {rounds} rounds and rank {rank} sends {sent[rank]} chunks; "
            f"{enough} rounds and {enough * chunks // n} chunks are enough"
        )
    return None


def _row(values: Any) -> str:
    return ", ".join(str(int(each)) for each in values)
