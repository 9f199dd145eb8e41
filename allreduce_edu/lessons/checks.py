"""Judges for the exercises: they say what is wrong and where, never only that it is.

They count with the engine, for 1 to 8 ranks: a ring that is right for two ranks need not be
right for three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.cost import sent_bytes
from allreduce_edu.engine.execute import run, steps
from allreduce_edu.engine.frames import frames
from allreduce_edu.engine.schedule import Round, Schedule
from allreduce_edu.engine.verify import contributions, expected, place_values, wrong_shares

TRIED = range(1, 9)  # numbers of ranks that every judge tries
SHOWN = 4  # the number of ranks that messages prefer: the one in the pictures


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a judge found: ``ok``, and the sentence that says why."""

    ok: bool
    why: str

    def __repr__(self) -> str:
        return f"{'✓ Right' if self.ok else '✗ Not yet'}: {self.why}"


def right(why: str) -> Verdict:
    """Return a verdict that passes."""
    return Verdict(ok=True, why=why)


def wrong(why: str) -> Verdict:
    """Return a verdict that does not pass."""
    return Verdict(ok=False, why=why)


def shares_that_sum_to(goal: int, shares: Sequence[Any]) -> Verdict:
    """Judge whether one number on each of three ranks all-reduces to `goal`."""
    if len(shares) != 3 or any(each is ... for each in shares):
        return wrong(f"give three numbers, one for each rank, got {len(_filled(shares))}")
    result = int(run(ring(3), np.array(shares, np.int64).reshape(3, 1))[0, 0])
    if result == goal:
        return right(f"{' + '.join(map(str, shares))} = {result}, on every rank")
    if all(each == goal for each in shares):
        return wrong(
            f"every rank holds {goal} before the all-reduce, and {result} after it. "
            "The shares go in; the sum comes out"
        )
    return wrong(f"{' + '.join(map(str, shares))} = {result}, and it should read {goal}")


def rounds_until_finished(answer: Any, ranks: int = 4, rank: int = 0) -> Verdict:
    """Judge after how many rounds of the ring `rank` first holds a finished chunk."""
    if answer is ...:
        return wrong("step through the ring and count")
    done = _finished_cells(ring(ranks))
    first = next(k for k, cells in enumerate(done) if cells[rank].any())
    chunk = int(np.flatnonzero(done[first][rank])[0])
    all_done = next(k for k, cells in enumerate(done) if cells.all())
    if answer == first:
        return right(f"after round {first} rank {rank} holds chunk {chunk}, finished")
    if answer == all_done:
        return wrong(
            f"after round {all_done} every chunk is finished on every rank; "
            f"rank {rank} has its first one earlier"
        )
    if isinstance(answer, int) and 0 < answer < first:
        return wrong(
            f"something has arrived after round {answer}, but no chunk on rank {rank} "
            f"holds all {ranks} shares yet"
        )
    return wrong(
        f"after round {answer} rank {rank} has more than its first finished chunk, "
        "or there is no such round"
    )


def rounds_until_wrong(answer: Any, schedule: Schedule) -> Verdict:
    """Judge after how many rounds the player first marks a cell as wrong for good."""
    marked = [k for k, step in enumerate(frames(schedule)["steps"], 1) if step["wrong_cells"]]
    if answer is ...:
        return wrong("step through the rounds until a cell is marked as wrong")
    if not marked:
        return wrong("this schedule never goes wrong") if answer else right("it never goes wrong")
    first = marked[0]
    sentence = frames(schedule)["steps"][first - 1]["wrong"][0]
    if answer == first:
        return right(f"in round {first} it happens: {sentence}")
    if answer in marked:
        return wrong(f"round {answer} is where it shows as well; go back to where it begins")
    return wrong(f"after round {answer} no cell holds a share more than once, and none is lost yet")


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
        verb = "add" if self.add else "copy"
        return f"Step(send={_short(self.send)}, into={_short(self.into)}, {verb}, to={self.to:+d})"


Program = Callable[[int], Iterable[Step]]


def my_ring(program: Program | Callable[[int], Schedule]) -> Verdict:
    """Judge a ring: every share once and in its place, then the bytes, then the rounds."""
    found = {n: what for n in TRIED if (what := _wrong_values(program, n))}
    if found:
        n = SHOWN if SHOWN in found else min(found)
        hidden = "right for 2 ranks, wrong from 3 on. " if 2 not in found else ""
        return wrong(f"{hidden}With {n} ranks: {found[n]}")
    for n in (SHOWN, *TRIED):
        surplus = _too_much(_as_schedule(program, n), n)
        if surplus:
            return wrong(f"every value is right. But with {n} ranks {surplus}")
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
    plan = list(program(n))
    for k, step in enumerate(plan, 1):
        found = _step_problem(step, n, k) or _misplaced(step, n, k)
        if found:
            raise ValueError(found)
    r = np.arange(n)
    rounds = [Round.of(r, (r + s.to) % n, s.send, s.add) for s in plan if n > 1]
    return Schedule("my ring", n, n, lambda: rounds)


def _as_schedule(program: Any, n: int) -> Schedule:
    plan = program(n)
    return plan if isinstance(plan, Schedule) else ring_schedule(lambda _: plan, n)


def _wrong_values(program: Any, n: int) -> str | None:
    """Return what is wrong with a program at n ranks, bytes aside, or None."""
    plan = program(n)
    if isinstance(plan, Schedule):
        return _values(plan, n)
    plan = list(plan)
    problems = (_step_problem(step, n, k) for k, step in enumerate(plan, 1))
    return next(filter(None, problems), None) or _tagged_values(plan, n)


def _step_problem(step: Any, n: int, k: int) -> str | None:
    if not isinstance(step, Step):
        return f"round {k}: yield Step(send=..., into=..., add=...), got {type(step).__name__}"
    for name in ("send", "into", "add"):
        if getattr(step, name) is ...:
            return f"fill in `{name}`: it is still ..."
    if step.to not in (1, -1):
        return f"round {k}: to must be +1 or -1, got {step.to!r}"
    for name in ("send", "into"):
        value = np.asarray(getattr(step, name))
        if value.shape != (n,) or value.dtype.kind not in "iu":
            return f"round {k}: {name} must hold one chunk number for each of the {n} ranks"
        outside = value[(value < 0) | (value >= n)]
        if outside.size:
            return f"round {k}: {name} names chunk {outside[0]}; there are 0 to {n - 1} (use % n)"
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
    """Play on numbers that show whose share of which chunk they are; compare with the sum."""
    held = place_values(n, n)
    misplaced = None
    for k, step in enumerate(plan, 1):
        r = np.arange(n)
        came = held[r, step.send][(r - step.to) % n]
        held[r, step.into] = held[r, step.into] + came if step.add else came
        misplaced = misplaced or _misplaced(step, n, k)
    if (held == place_values(n, n).sum(0)).all():
        return None
    if misplaced:
        return f"{misplaced}; rank 0 ends with {_row(held[0])}"
    return _values(ring_schedule(lambda _: plan, n), n)


def _values(schedule: Schedule, n: int) -> str | None:
    """Name the first cell whose shares are wrong, and the digits in which that shows."""
    counts = contributions(schedule)
    for rank, chunk in np.argwhere((counts != 1).any(-1))[:1].tolist():
        shown = run(schedule, place_values(n, schedule.chunks))[rank]
        what = wrong_shares(counts[rank, chunk], np.ones(n))
        return f"rank {rank}, chunk {chunk} {what}; rank {rank} ends with {_row(shown)}"
    return None


def _too_much(schedule: Schedule, n: int) -> str | None:
    """Compare the bytes that each rank sends, and the rounds, with the ring's."""
    rounds, enough = sum(1 for _ in schedule), 2 * (n - 1)
    sent = sent_bytes(schedule, np.ones(schedule.chunks, int))
    rank = int(sent.argmax())
    if sent[rank] * n > enough * schedule.chunks and schedule.chunks < n:
        return (
            f"rank {rank} sends {sent[rank] / schedule.chunks:.4g} S, whole arrays; "
            f"{enough / n:.4g} S are enough, one chunk of {n} in each round"
        )
    if rounds > enough:
        return (
            f"there are {rounds} rounds and rank {rank} sends {sent[rank]} chunks; "
            f"{enough} rounds and {enough * schedule.chunks // n} chunks are enough"
        )
    return None


def _finished_cells(schedule: Schedule) -> list[npt.NDArray[np.bool_]]:
    """Return, for the start and after each round, which cells hold every share once."""
    counts = expected(schedule).start
    return [(counts == 1).all(-1), *((c == 1).all(-1) for _, c in steps(schedule, counts))]


def _filled(shares: Sequence[Any]) -> list[Any]:
    return [each for each in shares if each is not ...]


def _row(values: Any) -> str:
    return ", ".join(str(int(each)) for each in values)


def _short(value: Any) -> str:
    return "..." if value is ... else str(np.asarray(value).tolist())
