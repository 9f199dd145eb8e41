"""Four ways to all-reduce, counted: rounds, messages, bytes; and judges of a learner's counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.engine import cost
from allreduce_edu.engine.algorithms import naive, parameter_server, recursive_doubling, ring
from allreduce_edu.engine.check import count
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import explain
from allreduce_edu.lessons.checks import SHOWN, TRIED, Verdict, right, wrong

# By the names of their closed forms, in the order of the lesson.
FOUR: dict[str, tuple[str, Callable[..., Schedule]]] = {
    "parameter_server": ("server", parameter_server),
    "naive": ("everyone to everyone", naive),
    "ring": ("ring", ring),
    "recursive_doubling": ("recursive doubling", recursive_doubling),
}


class Count(NamedTuple):
    """What one all-reduce costs, counted in its schedule.

    Attributes
    ----------
    rounds, messages : int
    total : int
        Bytes sent by all ranks together; as many are received.
    most, least : int
        Bytes sent by the rank that sends most, and by the one that sends least.
    port : int
        Bytes through the busiest port in one direction.
    """

    rounds: int
    messages: int
    total: int
    most: int
    least: int
    port: int


def counted(schedule: Schedule, elements: int, itemsize: int) -> Count:
    """Count an all-reduce of so many numbers of so many bytes each; no number is torn."""
    sizes = np.asarray(schedule.cut(elements, itemsize)) * itemsize
    sent, received = cost.sent_bytes(schedule, sizes), cost.received_bytes(schedule, sizes)
    return Count(
        cost.rounds(schedule),
        cost.messages(schedule, sizes),
        int(sent.sum()),
        int(sent.max()),
        int(sent.min()),
        int(max(sent.max(), received.max())),
    )


def least_sent(ranks: int, size: float) -> float:
    """Return 2(N-1)S/N: what the busiest rank of an exchange between pairs sends at least."""
    return 2 * (ranks - 1) * size / ranks


def messages_sent(schedule: Schedule, elements: int = 1, itemsize: int = 4) -> Any:
    """Return how many messages each rank sends, array[ranks]: one per round and partner."""
    sizes = np.asarray(schedule.cut(elements, itemsize))
    total = np.zeros(schedule.ranks, int)
    for r in schedule:
        full = (sizes[r.chunk] > 0) & (r.src != r.dst)
        pairs = np.unique(r.src[full] * schedule.ranks + r.dst[full])
        total += np.bincount(pairs // schedule.ranks, minlength=schedule.ranks)
    return total


# ------------------------------------------------------------- exercise 1: sent, exactly

_ELEMENTS = (10, 1003, 3, 1, 0)


def sent_exactly(sent: Any) -> Verdict:
    """Judge ``sent(n, elements, rank)``: the elements that a rank sends in a ring of n ranks."""
    if not callable(sent):
        return wrong(f"give the function itself, sent, got {type(sent).__name__}")
    for n in sorted(TRIED, key=lambda n: (n == 1, n != SHOWN)):  # one rank last: it is apart
        for elements in _ELEMENTS:
            if problem := _miscounted(sent, n, elements):
                return wrong(problem)
    return right(
        f"element for element what the engine sends, for 1 to {TRIED[-1]} ranks "
        f"and {', '.join(map(str, sorted(_ELEMENTS)))} elements"
    )


def _miscounted(sent: Callable[[int, int, int], Any], n: int, elements: int) -> str | None:
    """Say for which rank a learner's count is wrong, and what it may have been meant to be."""
    sizes = ring(n).cut(elements)
    truth = cost.sent_bytes(ring(n), sizes)
    given = []
    for rank in range(n):
        try:
            given.append(sent(n, elements, rank))
        except ZeroDivisionError:
            return f"sent({n}, {elements}, {rank}) divides by zero; {_where(n)}"
    said = f"sent({n}, {elements}, {{}}) is {{}}"
    for rank, value in enumerate(given):
        if value is ... or value is None:
            return f"{said.format(rank, value)}: return a number of elements"
        if not _equal(value, truth[rank]):
            why = _belief(given, n, elements)
            shown = repr(value) if isinstance(value, str) else value
            return f"{said.format(rank, shown)}, but rank {rank} sends {truth[rank]}. {why}"
    return None


def _equal(value: Any, truth: float) -> bool:
    try:
        return bool(value == truth)
    except (TypeError, ValueError):
        return False


def _where(n: int) -> str:
    return "with 1 rank there is nobody to send to: 0" if n == 1 else "no count needs that"


def _belief(given: list[Any], n: int, elements: int) -> str:
    """Return what a wrong count looks like."""
    if n == 1:
        return _where(n).capitalize()
    mean, ceiled = 2 * (n - 1) * elements / n, 2 * (n - 1) * -(-elements // n)
    if all(_equal(value, mean) for value in given):
        return "2(N-1)S/N is the mean over the ranks; some chunks have one element more"
    if all(_equal(value, ceiled) for value in given):
        return "Not every chunk is as large as the largest"
    return "It sends every chunk twice, but for two of them: which?"


# ------------------------------------------------------- exercise 2: one number, 64 ranks

RANKS, MOST_ROUNDS, MOST_MESSAGES = 64, 8, 8


def for_a_flag(schedule: Any) -> Verdict:
    """Judge an all-reduce of 4 bytes over 64 ranks: few rounds, and few messages per rank."""
    if schedule is ...:
        return wrong("choose a schedule, or write one: a function of the number of ranks")
    if callable(schedule):
        schedule = schedule(RANKS)
    if not isinstance(schedule, Schedule):
        return wrong(f"it must be a schedule, or a function that returns one, got {schedule!r:.60}")
    if schedule.ranks != RANKS:
        return wrong(f"it must be for {RANKS} ranks, got {schedule.ranks}")
    if problems := schedule.problems():
        return wrong(problems[0])
    if schedule.collective != "all_reduce":
        schedule = schedule.named(schedule.name, "all_reduce")
    if (said := explain(schedule)) and not said[0].startswith("every value is right"):
        return wrong(f"it does not all-reduce: {said[0]}")
    return _few(schedule)


def _few(schedule: Schedule) -> Verdict:
    sent = messages_sent(schedule)
    rounds, most, rank = cost.rounds(schedule), int(sent.max()), int(sent.argmax())
    told = f"{count(rounds, 'round')}, and rank {rank} sends {count(most, 'message')}"
    if rounds > MOST_ROUNDS:
        return wrong(f"{told}. At most {MOST_ROUNDS} rounds: each is a latency to wait for")
    if most > MOST_MESSAGES:
        everybody = " Every rank does" if sent.min() == most else " The others do not"
        return wrong(
            f"{told}.{everybody}. At most {MOST_MESSAGES} messages: each keeps the port busy"
        )
    return right(f"{told} at most; the sum of {RANKS} shares is on every rank")
