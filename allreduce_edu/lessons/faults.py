"""The questions of notebook 09, and what runs say to them in the words of the choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from allreduce_edu.engine import spmd
from allreduce_edu.engine.spmd.comm import Comm
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.lessons.museum import Outcome
from allreduce_edu.lessons.questions import Question

WHO_COMPLAINS: Question = (
    (
        "Two ranks make two all-reduces of one number each, first of `a`, then of `b`. Rank 1 "
        "forgets the first. Who complains?"
    ),
    {
        "rank 0, in its second call; rank 1 ends in peace": "Rank 1's `b` meets rank 0's `a`: "
        "operation, size and dtype fit, so they are added, and rank 1 goes home with a sum that "
        "nobody meant. Then rank 0 is alone.",
        "rank 1, in its first call": "Nothing is wrong with that call. Rank 0 waits in one just "
        "like it, and no call says which variable is meant.",
        "both, in their first calls": "The first calls find each other and are done. What is "
        "compared, if anything is, is operation, size and dtype: they are equal.",
        "nobody: the sizes match": "So they do, for the first calls. But rank 0 makes one call "
        "more than rank 1, and that one has no partner.",
    },
)
LONGER: Question = (
    (
        "A job stops at step 5,000 with `Timed out waiting 1800000ms`. Someone sets the time-out "
        "to two hours and starts it again. What happens at step 5,000?"
    ),
    {
        "the slow rank has time enough, and comes": "So it would be for a rank that is slow. One "
        "that has returned, or waits elsewhere, does not come however long the others stay.",
        "the same, and the message comes later": "Who waits there, and for whom, is decided by the "
        "program. The time-out only says how long the GPUs stand idle before it is told.",
        "it passes; a later step stops": "The same program makes the same calls. The rank that was "
        "missing is missing again, at the same step.",
        "it waits for ever, without a message": "It waits for as long as it was told to, and then "
        "says what it said before.",
    },
)
RULED_OUT: Question = (
    (
        "After 100 steps all ranks hold equal hashes of their weights, and the loss is too high. "
        "What do the equal hashes rule out?"
    ),
    {
        "nothing": "They rule out all that parts the ranks: weights of their own at the start, a "
        "layer that is not averaged, a step that one of them missed.",
        "a different start, and averages that are missed": "Either parts the ranks, and nothing "
        "brings them together again. What all do wrong alike leaves them equal.",
        "a loss divided twice, and ranks that all see the same images": "These are what equal "
        "hashes hide: every rank makes the same wrong step.",
        "both kinds: it is correct": "A check that passes ends the search. Ranks that agree may "
        "agree on a wrong gradient.",
    },
)


def who_complains(hang: Hang) -> str:
    """Return which of two ranks waits when the program has ended as far as it can."""
    waits = sorted(hang.edges)
    if waits == [0]:
        return "rank 0, in its second call; rank 1 ends in peace"
    return {(1,): "rank 1, in its first call", (): "nobody: the sizes match"}.get(
        tuple(waits), "both, in their first calls"
    )


def with_longer_timeout(before: Hang, after: Hang) -> str:
    """Return what another time-out has changed in a hang."""
    if before.edges != after.edges or before.look_first != after.look_first:
        return "it passes; a later step stops"
    later = before.timeout is not None and (after.timeout or 0) > before.timeout
    return (
        "the same, and the message comes later" if later else "it waits for ever, without a message"
    )


def ruled_out(parted: Iterable[Outcome], alike: Iterable[Outcome]) -> str:
    """Return what equal hashes rule out: faults that part ranks, or those that all share."""
    seen = all(outcome.disagree for outcome in parted)
    hidden = all(outcome.wrong and not outcome.disagree for outcome in alike)
    if seen:
        said = "a different start, and averages that are missed"
        return said if hidden else "both kinds: it is correct"
    return "nothing" if hidden else "a loss divided twice, and ranks that all see the same images"


# ---------------------------------------------------------------------------- who waits least


def inside(late: Sequence[float], elements: int = 1_000_000, link: str = "10 GbE") -> list[float]:
    """Return for each rank the modelled seconds inside a ring all-reduce.

    Each rank computes for so many seconds first: `late`.
    """

    def program(comm: Comm, x: np.ndarray) -> None:
        comm.work(late[comm.rank])
        chunks = np.array_split(x, comm.size)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for k in range(2 * (comm.size - 1)):
            mine = chunks[(comm.rank - k) % comm.size]
            comm.sendrecv(mine, right, left)

    run = spmd.run(program, np.zeros((len(late), elements)))
    return [float(end - begin) for end, begin in zip(run.clocks(link), late, strict=True)]


def who_is_slow(seconds: Sequence[float]) -> Question:
    """Return the question for the seconds that each rank was inside an all-reduce."""
    told = ", ".join(f"{each:.2f}" for each in seconds)
    least = min(range(len(seconds)), key=seconds.__getitem__)
    others = [rank for rank in range(len(seconds)) if rank != least]
    return (
        f"A profile shows how long each rank was inside one all-reduce: {told} s. Which is slow?",
        {
            f"rank {least}": "It comes last and finds all others waiting, so it is through at "
            "once. Who waits least is the one that all wait for.",
            _names(others): "In every other profile the longest bar is the culprit. Here the time "
            "inside is mostly time spent waiting for somebody.",
            "none: the network is": f"A slow network holds everybody. Rank {least} was inside for "
            "as long as the bytes need, and no longer.",
        },
    )


def slowest(late: Sequence[float]) -> str:
    """Return the rank that begins last."""
    return f"rank {max(range(len(late)), key=late.__getitem__)}"


def _names(ranks: Sequence[int]) -> str:
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}"
