"""Proofs: whose share is where, in what order it was added, and what is wrong if it is wrong.

Contributions catch wrong offsets, directions and missing rounds; only the volume catches a
round too many. `explain` looks at both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import count, integer
from allreduce_edu.engine.execute import steps
from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule, owner_of, schedule_of

Counts = npt.NDArray[np.int32]
_TIMES = {2: "twice"}
_CEILING = 1 << 20  # counts stop here, far below where int32 would wrap around to a false proof
_MOST_CELLS = 1 << 28


class Expected(NamedTuple):
    """What a collective promises, as counts[rank, chunk, whose share]."""

    start: Counts
    end: Counts
    meaning: npt.NDArray[np.bool_]  # [rank, chunk]: False where the end says nothing


def contributions(schedule: Schedule) -> Counts:
    """Return counts[rank, chunk, whose]: how often `whose` share is in what `rank` holds.

    An all-reduce is all ones. Found by playing the schedule on one-hot integers.

    Raises
    ------
    ValueError
        If ranks x chunks x ranks is too large to hold, before anything is allocated; or if the
        schedule cannot be played.
    """
    counts = _one_hot(schedule_of(schedule))
    for _ in counted(schedule.check(), counts):
        pass
    return counts


def counted(schedule: Schedule, counts: Counts) -> Iterator[tuple[Round, Counts]]:
    """Play on counts[rank, chunk, whose] in place; yield (round, counts) after each round."""
    for each in steps(schedule, counts):
        np.minimum(counts, _CEILING, out=counts)
        yield each


def expected(schedule: Schedule) -> Expected:
    """Return what ``schedule.collective`` promises.

    Raises
    ------
    ValueError
        For a "custom" schedule, which promises nothing; ``named`` gives it a promise.
    """
    if schedule_of(schedule).collective == "custom":
        raise ValueError(
            f"{schedule.name!r} does not say which collective it is; use .named(name, collective)"
        )
    start = _one_hot(schedule)
    end = np.broadcast_to(_promised(schedule), start.shape).astype(np.int32)
    return Expected(start, end, _meaning(schedule))


def _promised(schedule: Schedule) -> Any:
    """Return [chunk, whose]: whose share is in a chunk that is finished."""
    whose, chunk = np.arange(schedule.ranks), np.arange(schedule.chunks)[:, None]
    kind = schedule.collective
    if kind in ("all_gather", "gather"):
        return whose == owner_of(schedule)[:, None]
    if kind in ("broadcast", "scatter"):
        return (whose == (schedule.root or 0)) & (chunk >= 0)
    if kind == "all_to_all":
        return whose == chunk // schedule.ranks
    return (whose < schedule.workers) & (chunk >= 0)


def _meaning(schedule: Schedule) -> Any:
    """Return [rank, chunk]: whether that rank must end with that chunk finished."""
    rank, chunk = np.arange(schedule.ranks)[:, None], np.arange(schedule.chunks)
    kind = schedule.collective
    if kind in ("reduce_scatter", "scatter"):
        return rank == owner_of(schedule)
    if kind in ("reduce", "gather"):
        return (rank == (schedule.root or 0)) & (chunk >= 0)
    if kind == "all_to_all":
        return rank == chunk % schedule.ranks
    return (rank < schedule.workers) & (chunk >= 0)


def starting(schedule: Schedule) -> npt.NDArray[np.bool_]:
    """Return [rank, chunk]: whether what that rank holds there at the start can matter.

    False, for instance, on ranks that are about to receive a broadcast.
    """
    rank, chunk = np.arange(schedule.ranks)[:, None], np.arange(schedule.chunks)
    kind = schedule.collective
    if kind in ("all_gather", "gather"):
        matters = rank == owner_of(schedule)
    elif kind in ("broadcast", "scatter"):
        matters = (rank == (schedule.root or 0)) & (chunk >= 0)
    elif kind == "all_to_all":
        matters = rank == chunk // schedule.ranks
    else:
        matters = (rank >= 0) & (chunk >= 0)
    return np.asarray(matters)


def place_values(ranks: int, chunks: int) -> npt.NDArray[np.int64]:
    """Return x[rank, chunk] = (chunk + 1) * 10**rank: whose share it is can be read off a sum.

    The right sum over four ranks reads 1111, 2222, 3333, ...; a digit too large is a share
    added twice, a missing one a share lost. From the tenth chunk on the digits run together.
    """
    ranks = integer("ranks", ranks, 1, 16)
    chunks = integer("chunks", chunks, 1)
    return (np.arange(1, chunks + 1) * 10 ** np.arange(ranks, dtype=np.int64)[:, None]).astype(
        np.int64
    )


class Sum(tuple[Any, Any]):
    """Two things added: ``(held, came)``, each a rank's number or another `Sum`."""

    __slots__ = ()

    def __repr__(self) -> str:
        said: list[str] = []
        left: list[Any] = [self]
        while left:  # not by recursion: a ring of 1,000 ranks is 1,000 deep
            part = left.pop()
            if isinstance(part, Sum):
                left += [")", part[1], " + ", part[0], "("]
            else:
                said.append(str(part))
        return "".join(said)


def summation_order(schedule: Schedule, rank: int = 0, chunk: int = 0) -> Any:
    """Return the tree of additions behind one (rank, chunk), as nested `Sum` of rank numbers.

    ``((1 + 2) + 3)`` means: rank 2's share came and was added to 1's, then 3's to that.
    ValueError if there is no such rank or chunk, or if the schedule cannot be played.
    """
    schedule_of(schedule)
    rank = integer("rank", rank, 0, schedule.ranks - 1)
    chunk = integer("chunk", chunk, 0, schedule.chunks - 1)
    held: list[Any] = list(range(schedule.ranks))
    for r in schedule.check():
        ours = np.flatnonzero(r.chunk == chunk)
        sent = [held[src] for src in r.src[ours]]
        for dst, reduce, came in zip(r.dst[ours], r.reduce[ours], sent, strict=True):
            held[dst] = Sum((held[dst], came)) if reduce else came
    return held[rank]


def explain(schedule: Schedule) -> list[str]:
    """Return what is wrong with a schedule, a sentence each; an empty list is a proof.

    Names rank, chunk, whose share is held how often, and the round; the first is round 1. Up to
    64 rounds and 16 ranks it also finds a round that can be left out. ValueError for a "custom"
    schedule, which promises nothing.
    """
    problems = schedule_of(schedule).problems()
    if problems:
        return problems
    wrong = list(_wrong_cells(schedule))
    return _summary(wrong, sum(1 for _ in schedule)) if wrong else list(_surplus(schedule))


def wrong_shares(counts: npt.NDArray[Any], end: npt.NDArray[Any]) -> str:
    """Say in words how one cell's counts[whose] differ from what they must be."""
    lacking = np.flatnonzero(counts < end).tolist()
    over = [
        f"rank {whose}'s share {_times(int(counts[whose]))}"
        for whose in np.flatnonzero((counts > end) & (end > 0))
    ]
    foreign = [f"rank {whose}'s share" for whose in np.flatnonzero((counts > 0) & (end == 0))]
    said = [f"holds {' and '.join(over)}"] * bool(over)
    said += [f"should not hold {' and '.join(foreign)}"] * bool(foreign)
    if len(lacking) == 1:
        said.append(f"lacks rank {lacking[0]}'s share")
    elif lacking:
        said.append(f"lacks the shares of ranks {', '.join(map(str, lacking))}")
    return " and ".join(said)


def _times(count: int) -> str:
    return "very many times" if count >= _CEILING else _TIMES.get(count, f"{count} times")


def _one_hot(schedule: Schedule) -> Counts:
    n, c = schedule.ranks, schedule.chunks
    if n * c * n > _MOST_CELLS:
        raise ValueError(
            f"{n:,} ranks x {c:,} chunks would need {n * c * n:,} counts (at most "
            f"{_MOST_CELLS:,}); prove it at fewer ranks, and count bytes with sent_bytes"
        )
    shares = np.eye(n, dtype=np.int32)
    shares[schedule.workers :] = 0
    return np.repeat(shares[:, None], c, axis=1)


class _Wrong(NamedTuple):
    """A cell that ends wrong; `since` as in `spoiled`."""

    rank: int
    chunk: int
    since: int
    what: str
    over: bool  # it holds a share too often, or one that it should not hold


def spoiled(schedule: Schedule) -> npt.NDArray[np.int64]:
    """Return since[rank, chunk]: the round after which a cell stayed wrong for good.

    -1 for a cell that ends right; the number of rounds for one that nothing ever reached. A cell
    that lacks a share is wrong since it was last written.
    """
    return _spoiled(schedule)[0]


def _spoiled(schedule: Schedule) -> tuple[npt.NDArray[np.int64], Counts, Counts]:
    """Return since[rank, chunk], the counts at the end, and those promised."""
    start, end, meaning = expected(schedule)
    counts = start.copy()
    since = np.full(meaning.shape, -1)  # the last write, or the first of too many shares
    over = np.zeros_like(meaning)
    k = -1
    for k, (r, _) in enumerate(counted(schedule.check(), counts)):
        was_over, over = over, np.any(counts > np.maximum(end, 1), axis=-1)
        written = np.zeros_like(meaning)
        written[r.dst, r.chunk] = True
        since[written & ~(was_over & over)] = k
    since[since < 0] = k + 1
    since[(counts == end).all(-1) | ~meaning] = -1
    return since, counts, end


def _wrong_cells(schedule: Schedule) -> Iterator[_Wrong]:
    """Yield every cell that ends wrong."""
    since, counts, end = _spoiled(schedule)
    for rank, chunk in np.argwhere(since >= 0).tolist():
        have, want = counts[rank, chunk], end[rank, chunk]
        over = bool((have > np.maximum(want, 1)).any())
        yield _Wrong(rank, chunk, int(since[rank, chunk]), wrong_shares(have, want), over)


def _summary(wrong: list[_Wrong], rounds: int, most: int = 6) -> list[str]:
    """Order by round, earliest first, and say how many are left out."""
    wrong = sorted(wrong, key=lambda w: (w.since, w.rank, w.chunk))
    said = []
    for w in wrong[:most]:
        when = f"from round {w.since + 1} on" if w.over else f"last written in round {w.since + 1}"
        when = "nothing ever arrives there" if w.since == rounds else when
        said.append(f"rank {w.rank}, chunk {w.chunk} {w.what} ({when})")
    left = len(wrong) - most
    return said + ([f"and {left} more of the {len(wrong)} wrong cells"] if left > 0 else [])


def _surplus(schedule: Schedule) -> Iterator[str]:
    """Yield the first round of a right schedule that could be left out, with what it costs."""
    rounds: list[Round] = list(schedule)
    if len(rounds) > 64 or schedule.ranks > 16:
        return
    for k, each in enumerate(rounds):
        rest = rounds[:k] + rounds[k + 1 :]
        if any(_wrong_cells(replace(schedule, rounds=lambda rest=rest: rest))):  # type: ignore[misc]
            continue
        if not len(each):
            yield f"every value is right, but nothing is sent in round {k + 1}"
            return
        rank, extra = Counter(each.src.tolist()).most_common(1)[0]
        sends = sum(int((r.src == rank).sum()) for r in rounds)
        yield (
            f"every value is right, but round {k + 1} is not needed: rank {rank} sends "
            f"{count(sends, 'chunk')} where {sends - extra} are enough"
        )
        return
