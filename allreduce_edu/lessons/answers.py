"""What the engine, or a run on real ranks, says to a question, in the words of its choices.

Each function computes; `questions` has the choices. They are apart from the notebooks, where an
answer would stand above its question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from allreduce_edu.engine import cost
from allreduce_edu.engine.bandwidth import busbw
from allreduce_edu.engine.cost import busiest_port, sent_bytes
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.links import Link, Links
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.engine.verify import summation_order
from allreduce_edu.lessons import questions
from allreduce_edu.lessons.questions import Question
from allreduce_edu.lessons.readers import share_counts

_S = 5040  # bytes on each rank; divisible by 1 to 10


def in_charge(schedule: Schedule) -> str:
    """Return the rank that sends more than all others, or "none"."""
    sent = sent_bytes(schedule, _S)
    most = np.flatnonzero(sent == sent.max())
    if len(most) > 1:
        return "none"
    return "the last rank" if most[0] == schedule.ranks - 1 else f"rank {most[0]}"


def hot_port(schedule: Schedule) -> str:
    """Return what the busiest port sends or receives, in S."""
    return f"{busiest_port(schedule, _S) / _S:.3g} S"


def left_by_reduce(before: Any, after: Any, rank: int) -> str:
    """Return what a reduce to rank 0 leaves on another rank, from [rank, element]."""
    left = after[rank]
    named = {
        f"{before[rank][0]}, as before": before[rank],
        str(after[0][0]): after[0],
        "0": np.zeros_like(left),
    }
    same = (name for name, values in named.items() if np.array_equal(left, values))
    return next(same, "something that means nothing")


def who_waits(all_reduce: Hang, broadcast: Hang) -> str:
    """Return who waits for a rank that leaves out either."""
    one, other = sorted(all_reduce.edges), sorted(broadcast.edges)
    present = len(all_reduce.states) - 1
    if len(one) == present and other == [0]:
        return "everybody; in the broadcast only rank 0"
    if len(one) == len(other) == present:
        return "everybody, both times"
    return "its neighbours, ranks 1 and 3; in the broadcast rank 0"


def two_stories(server: Schedule, ring: Schedule, everyone: Schedule) -> str:
    """Return which two of three send the same in total, and which two have equal ports."""
    ways = {"server": server, "ring": ring, "everyone to everyone": everyone}
    totals = {name: int(sent_bytes(each, _S).sum()) for name, each in ways.items()}
    ports = {name: busiest_port(each, _S) for name, each in ways.items()}
    return f"total: {_equal_two(totals)}; port: {_equal_two(ports)}"


def _equal_two(numbers: Mapping[str, int]) -> str:
    pairs = combinations(numbers, 2)
    return next((f"{a} and {b}" for a, b in pairs if numbers[a] == numbers[b]), "none")


def first_finished(schedule: Schedule, rank: int = 0) -> str:
    """Return when a chunk is first finished anywhere, and which one `rank` then holds."""
    finished = share_counts(schedule).counts == schedule.ranks
    first = int(finished.any((1, 2)).argmax())
    held = np.flatnonzero(finished[first, rank])
    what = "all of them" if len(held) == schedule.chunks else f"chunk {held[0]}"
    return f"{first} rounds, {what}"


def order_of_additions(schedule: Schedule) -> str:
    """Return whether the order of additions depends on the chunk or on the rank."""
    ranks, chunks = range(schedule.ranks), range(schedule.chunks)
    by_chunk = {str(summation_order(schedule, 0, c)) for c in chunks}
    by_rank = {str(summation_order(schedule, r, 0)) for r in ranks}
    if len(by_rank) > 1:
        return "in a different order on each rank"
    several = len(by_chunk) > 1
    return "in a different order for each chunk" if several else "rank 0 first, for every chunk"


def compared(other: Callable[[int], Schedule], ring: Callable[[int], Schedule], x: Any) -> str:
    """Return how another ring's results and bytes compare with the ring's."""
    mine, yours, n = run(other(len(x)), x), run(ring(len(x)), x), len(x)
    if not np.allclose(mine, yours, rtol=1e-4, atol=1e-5):
        return "wrong sums"
    if mine.tobytes() != yours.tobytes():
        return "right sums, other bits"
    same = (sent_bytes(other(n), _S) == sent_bytes(ring(n), _S)).all()
    return "the same bits for the same bytes" if same else "right sums, more bytes"


def slower(times: float) -> str:
    """Return how much longer a ring takes than before."""
    nearest = min((1.0, 1.5, 3.0), key=lambda each: abs(each - times))
    if nearest == 1:
        return "as long as before; only its two ranks are late"
    return f"about {nearest:g} times as long"


def later_by(seconds: Sequence[float]) -> str:
    """Return who is done later, and by how much, from each rank's delay."""
    late = [f"{each * 1e3:.3g} ms" for each in seconds if each > 1e-9]
    if len(late) == 1:
        return f"only rank {int(np.argmax(seconds))}, by {late[0]}"
    return f"all, by {late[0]}"


def more_ranks(before: Schedule, after: Schedule) -> str:
    """Return how bytes per rank and rounds change from one schedule to the other."""
    sent = [busiest_port(schedule, 2 * _S) for schedule in (before, after)]
    rounds = [sum(1 for _ in schedule) for schedule in (before, after)]
    more = 100 * (sent[1] / sent[0] - 1)
    if round(more) == 100:
        return "twice the bytes, twice the rounds"
    return f"{more:.0f} % more bytes, {rounds[0]} rounds become {rounds[1]}"


def as_long(times: float) -> str:
    """Return how long the ring takes, compared with another way."""
    if times < 0.95:
        return "shorter: each of its messages is smaller"
    if times < 1.05:
        return "as long: the ring is the best there is"
    return f"{times:.0f} times as long"


def seven_billion(schedule: Schedule) -> dict[str, Any]:
    """Return the seconds of 7 billion numbers in fp32 over 10 Gb/s, with the question for them."""
    size, link = 4 * 7_000_000_000, Link.of(0, 10e9 / 8)
    seconds = cost.time(schedule, size, Links.uniform(schedule.ranks, link))
    return {"answer": seconds, **questions.seven_billion(size * link.beta, schedule.ranks)}


def share_of_link(size: float, seconds: float, ranks: int, link: float) -> str:
    """Return which share of one direction of its links an all-reduce uses."""
    return f"{100 * busbw(size, seconds, ranks) / link:.0f} %"


def equal_before_step(losses: Sequence[float], gradients: Sequence[str]) -> str:
    """Return what is equal on all ranks, from their losses and fingerprints of gradients."""
    if len(set(gradients)) > 1:
        return "nothing: `step()` will make them equal"
    return "the gradients only" if len(set(losses)) > 1 else "the losses and the gradients"


def bits_compared(library: Any, ours: Any) -> str:
    """Return how many of two results [rank, element] differ in their bits, and on which ranks."""
    if any((result != result[0]).any() for result in (library, ours)):
        return "tens of thousands, and the ranks differ too"
    share = (library[0] != ours[0]).mean()
    if share > 0.1:
        return "tens of thousands, all ranks alike"
    return "a few, where the rounding was close" if share else "none: a sum is a sum"


def divided_twice(times: float, curves: Mapping[str, tuple[float, float]]) -> str:
    """Return what a divided loss does to `.grad`, and whose last loss shows it.

    `curves` holds, for "SGD" and "AdamW", the last loss without and with the division.
    """
    if abs(times - 1) < 0.01:
        return "the right one: DDP sums, so divide"
    if times > 1:
        return "four times too much; both curves blow up"
    seen = {name: abs(wrong - right) > 0.05 * right for name, (right, wrong) in curves.items()}
    if seen["SGD"] and not seen["AdamW"]:
        return "a quarter; SGD's curve shows it, AdamW's does not"
    return "a quarter; both curves show it"


def all_reduces(always: int, quiet: int) -> str:
    """Return the counts without and with `no_sync`."""
    return f"{always}, and {quiet}"


def about(share: float, question: Question) -> str:
    """Return the choice "about ..." of a question that is nearest to a measured share."""
    return min(question[1], key=lambda choice: abs(float(choice.split()[-1]) - share))


def later(apart: Any) -> str:
    """Return what becomes of replicas that start apart, from their distance step by step."""
    names = ("closer, or at the same point", "as far as at the start", "further")
    return names[_trend(apart[0], apart[-1])]


def after_a_miss(apart: Any, step: int) -> str:
    """Return what becomes of the gap that opens in a step, from the distance step by step."""
    names = ("it heals within some steps", "it stays, for ever", "it grows from step to step")
    return names[_trend(apart[step], apart[-1])]


def _trend(first: float, last: float) -> int:
    """Return 0 if it has shrunk, 1 if it is the same within a thousandth, 2 if it has grown."""
    return 1 if abs(last - first) <= 1e-3 * first else 2 * (last > first)


def ones_added(ring: float, tree: float) -> str:
    """Return the sums of 1,000 ones, on a ring and by a balanced tree."""
    if ring == tree:
        return f"{ring:g} both ways" if np.isfinite(ring) else "infinite both ways"
    return f"{ring:g} on the ring, {tree:g} by the tree"


def accumulator(narrow: Any, wide: Any, exact: Any) -> str:
    """Return what a wider accumulator changes: results before and after, and the exact sums."""
    if np.array_equal(narrow, wide):
        return "the same: not one bit changes"
    times = np.abs(narrow - exact).mean() / np.abs(wide - exact).mean()
    several = "several times smaller: one rounding is left"
    return several if times > 3 else "about half: half of the roundings are gone"


def equal_elements(got: Any) -> str:
    """Return what equal elements end as, from got[rank, element] of 256 and ones."""
    rows = np.asarray(got)
    if (rows != rows[0]).any():
        return "256 on some ranks, 260 on others"
    values = sorted(set(rows[0].tolist()))
    one = f"{values[0]:g} in every element"
    return one if len(values) == 1 else "256 in some, 260 in others, on every rank alike"


def changed(share: float) -> str:
    """Return in how many sums last bits differ."""
    if not share:
        return "none: the same numbers are added"
    return "about a third" if share < 0.6 else "nearly all"
