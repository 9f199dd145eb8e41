"""Judges a learner's own all-reduce, a program of messages: ``def my_all_reduce(comm, x)``.

Right for every number of ranks, for sizes that no rank divides, and for every dtype; or the
verdict names the rank, the chunk and what it holds, or explains the hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.engine import spmd
from allreduce_edu.engine.check import count
from allreduce_edu.engine.cost import busiest_port
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import explain
from allreduce_edu.lessons.checks import SHOWN, TRIED, Verdict, right, wrong

_SIZES = (0, 1, 3, 61)  # none, fewer than ranks, and numbers that no 2..8 divides
# A number is a + b * fine, exact in its dtype and in no narrower one: who casts is found.
_DTYPES = {"float64": 2**-40, "float32": 2**-13, "float16": 1 / 8, "int64": 2**40, "int8": 0}
_SECONDS = 2.0
_SHOWN_SIZE = 840 * 8  # divided by 1 to 8


def my_all_reduce(
    program: Any,
    ranks: Iterable[int] = TRIED,
    like: Callable[[int], Schedule] | None = None,
) -> Verdict:
    """Judge ``program(comm, x)``, which returns the sum over all ranks or writes it into `x`.

    Parameters
    ----------
    program : callable
    ranks : iterable of int
        The numbers of ranks that it must be right for.
    like : algorithm, optional
        It must not send more over its busiest port than this one, ``ring`` say.
    """
    if not callable(program):
        return wrong(f"give the function itself, my_all_reduce, got {type(program).__name__}")
    tried = sorted(ranks)
    found: dict[int, str] = {}
    for n in tried:
        if what := next(_faults(program, n), None):
            found[n] = what
            if isinstance(what, _Fatal):
                break
    if found:
        return wrong(_told(found, tried))
    if surplus := like and next(_surplus(program, like, tried), None):
        return wrong(f"every value is right. But {surplus}")
    return right(_praise(program, tried))


class _Fatal(str):
    """A fault that needs no other number of ranks to be told: a hang, an endless loop."""

    __slots__ = ()


class _Trial(NamedTuple):
    """One run: so many ranks, each with an array like this."""

    ranks: int
    size: int
    dtype: str
    fine: float = 0

    def data(self) -> Any:
        """Return position-dependent numbers whose sums are exact in any order."""
        rng = np.random.default_rng(1000 * self.ranks + self.size)
        a, b = rng.integers(-9, 10, (2, self.ranks, self.size))
        return (a + b * self.fine).astype(self.dtype)

    def __str__(self) -> str:
        numbers = f"{self.size} {self.dtype} number{'s' * (self.size != 1)}"
        return f"with {count(self.ranks, 'rank')} and {numbers} on each"


def _trials(n: int) -> Iterator[_Trial]:
    yield _Trial(n, 4 * n, "float64")
    for size in _SIZES:
        yield _Trial(n, size, "float64")
    for dtype, fine in _DTYPES.items():
        yield _Trial(n, 4 * n + 1, dtype, fine)


def _told(found: dict[int, str], tried: list[int]) -> str:
    """Tell of the number of ranks in the pictures if it is wrong, else of the first."""
    several = [n for n in found if n > 1]
    fatal = [n for n in found if isinstance(found[n], _Fatal)]
    n = fatal[0] if fatal else SHOWN if SHOWN in found else (several or list(found))[0]
    good = [each for each in tried if 1 < each < min(found)]
    many = f"{good[0]} to {good[-1]}" if len(good) > 1 else f"{good[0]}" if good else ""
    return f"right for {many} ranks; " * bool(good) + found[n]


def _faults(program: Callable[..., Any], n: int) -> Iterator[str]:
    """Yield what is wrong with n ranks; what the learner's code raises is let through."""
    for trial in _trials(n):
        x = trial.data()
        try:
            done = spmd.run(program, x, show=False, seconds=_SECONDS)
        except spmd.Deadlock as error:
            yield _Fatal(f"{trial} it hangs: {error}")
            return
        except spmd.ProgramError as error:
            yield _Fatal(f"{trial} it does not come to its end: {error}")
            return
        for event in done.trace:
            if event.kind == "all" and event.requests[0].array is not None:
                call = event.requests[0]
                yield _Fatal(f"comm.{call.call} is the library's; write yours with messages")
        yield from _wrong_kinds(done.results, x, trial)
        yield from _wrong_values(program, done.results, x, trial)


def _wrong_kinds(results: list[Any], x: Any, trial: _Trial) -> Iterator[str]:
    for rank, got in enumerate(results):
        if not isinstance(got, np.ndarray):
            yield f"{trial} rank {rank} returns {type(got).__name__} and no array"
        elif (got.dtype, got.shape) != (x.dtype, x.shape[1:]):
            yield (
                f"{trial} rank {rank} returns {got.dtype} of shape {got.shape}, and x is "
                f"{x.dtype} of shape {x.shape[1:]}"
            )


def _wrong_values(
    program: Callable[..., Any], results: list[Any], x: Any, trial: _Trial
) -> Iterator[str]:
    with np.errstate(over="ignore"):
        total = np.add.reduce(x, axis=0, dtype=x.dtype)
    for rank, got in enumerate(results):
        for place in np.flatnonzero(got != total)[:1].tolist():
            yield f"{trial} {_why(program, trial, rank, place, got[place], total[place])}"


def _why(
    program: Callable[..., Any], trial: _Trial, rank: int, place: int, got: Any, total: Any
) -> str:
    """Say which shares are wrong, if the program is a schedule; else which number."""
    number = f"rank {rank} ends with {got} in place of {total} at x[{place}]"
    try:
        made = spmd.schedule(program, x=np.zeros((trial.ranks, trial.size)))
        said = explain(made)
    except (spmd.NotASchedule, ValueError) as error:
        return f"{number}. {str(error)[:1].upper()}{str(error)[1:]}"
    return f"{said[0]}; {number}" if said else number


def _surplus(
    program: Callable[..., Any], like: Callable[[int], Schedule], tried: list[int]
) -> Iterator[str]:
    """Yield where its busiest port carries more than that of another algorithm."""
    for n in sorted(tried, key=lambda n: n != SHOWN):
        mine, rounds = _counted(program, n)
        other = like(n)
        enough = busiest_port(other, _SHOWN_SIZE)
        if mine > enough:
            yield (
                f"with {n} ranks the busiest port carries {mine / _SHOWN_SIZE:.4g} S; "
                f"{enough / _SHOWN_SIZE:.4g} S are enough"
            )
        least = sum(1 for _ in other)
        if rounds and rounds > least:
            yield f"with {n} ranks it takes {rounds} rounds; {least} are enough"


def _counted(program: Callable[..., Any], n: int) -> tuple[int, int]:
    """Return the bytes of the busiest port, and the rounds, or 0 if it is no schedule."""
    done = spmd.run(program, np.zeros((n, _SHOWN_SIZE // 8)), show=False)
    try:
        rounds = sum(1 for _ in spmd.schedule(program, n))
    except (spmd.NotASchedule, ValueError):
        rounds = 0
    return done.busiest_port(), rounds


def _praise(program: Callable[..., Any], tried: list[int]) -> str:
    n = SHOWN if SHOWN in tried else tried[-1]
    port, rounds = _counted(program, n)
    within = f" in {rounds} rounds" if rounds else ""
    x = np.random.default_rng(0).normal(size=(n, 61))
    replicas = {each.tobytes() for each in spmd.run(program, x, show=False).results}
    equal = (
        "replicas agree to the last bit"
        if len(replicas) == 1
        else ("but its replicas differ in their last bits: each adds in an order of its own")
    )
    return (
        f"the sum on every rank, for {len(tried)} numbers of ranks from {tried[0]} to {tried[-1]}, "
        f"{1 + len(_SIZES)} sizes and {len(_DTYPES)} dtypes. With {n} ranks its busiest port "
        f"carries {port / _SHOWN_SIZE:.4g} S{within}; {equal}"
    )
