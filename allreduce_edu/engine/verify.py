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

from allreduce_edu.engine.check import integer
from allreduce_edu.engine.execute import steps
from allreduce_edu.engine.schedule import Round, Schedule

Counts = npt.NDArray[np.int32]
_TIMES = {2: "twice"}
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
        If ranks x chunks x ranks is too large to hold, before anything is allocated.
    """
    counts = _one_hot(schedule)
    for _ in steps(schedule.check(), counts):
        pass
    return counts


def expected(schedule: Schedule) -> Expected:
    """Return what ``schedule.collective`` promises.

    Raises
    ------
    ValueError
        For a "custom" schedule, which promises nothing; ``named`` gives it a promise.
    """
    n, c = schedule.ranks, schedule.chunks
    start = _one_hot(schedule)
    end = np.ones_like(start)
    meaning = np.ones((n, c), bool)
    kind = schedule.collective
    owner = np.asarray(schedule.owner if schedule.owner is not None else np.arange(c) % n)
    if kind == "custom":
        raise ValueError(f"{schedule.name!r} does not say which collective it is; use .named(...)")
    if kind == "reduce_scatter":
        meaning = np.arange(n)[:, None] == owner
    elif kind == "reduce":
        meaning[:] = (np.arange(n) == (schedule.root or 0))[:, None]
    elif kind == "all_gather":
        end[:] = np.arange(n) == owner[:, None]
    elif kind == "broadcast":
        end[:] = np.arange(n) == (schedule.root or 0)
    return Expected(start, end, meaning)


def place_values(ranks: int, chunks: int) -> npt.NDArray[np.int64]:
    """Return x[rank, chunk] = (chunk + 1) * 10**rank: whose share it is can be read off a sum.

    The right sum over four ranks reads 1111, 2222, 3333, ...; a digit too large is a share
    added twice, a missing one a share lost.
    """
    ranks = integer("ranks", ranks, 1, 16)
    return (np.arange(1, chunks + 1) * 10 ** np.arange(ranks, dtype=np.int64)[:, None]).astype(
        np.int64
    )


class Sum(tuple[Any, Any]):
    """Two things added: ``(held, came)``, each a rank's number or another `Sum`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"({self[0]} + {self[1]})"


def summation_order(schedule: Schedule, rank: int = 0, chunk: int = 0) -> Any:
    """Return the tree of additions behind one (rank, chunk), as nested `Sum` of rank numbers.

    ``((1 + 2) + 3)`` means: rank 2's share came and was added to 1's, then 3's to that.
    """
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

    Names rank, chunk, whose share is held how often, and from which round on; the first is round 1.
    """
    problems = schedule.problems()
    if problems:
        return problems
    wrong = list(_wrong_cells(schedule))
    return _summary(wrong, sum(1 for _ in schedule)) if wrong else list(_surplus(schedule))


def wrong_shares(counts: npt.NDArray[Any], end: npt.NDArray[Any]) -> str:
    """Say in words how one cell's counts[whose] differ from what they must be."""
    lacking = np.flatnonzero(counts < end).tolist()
    over = [
        f"rank {whose}'s share {_TIMES.get(counts[whose], f'{counts[whose]} times')}"
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


def _one_hot(schedule: Schedule) -> Counts:
    n, c = schedule.ranks, schedule.chunks
    if n * c * n > _MOST_CELLS:
        raise ValueError(
            f"{n:,} ranks x {c:,} chunks would need {n * c * n:,} counts (at most "
            f"{_MOST_CELLS:,}); prove it at fewer ranks, and count bytes with sent_bytes"
        )
    return np.repeat(np.eye(n, dtype=np.int32)[:, None], c, axis=1)


class _Wrong(NamedTuple):
    rank: int
    chunk: int
    round: int
    what: str


def spoiled(schedule: Schedule) -> npt.NDArray[np.int64]:
    """Return since[rank, chunk]: the round after which a cell stayed wrong for good.

    -1 for a cell that ends right; the number of rounds for one that nothing ever reached.
    """
    start, end, meaning = expected(schedule)
    counts = start.copy()
    since = np.full(meaning.shape, -1)  # the last write, or the first of too many shares
    over = np.zeros_like(meaning)
    k = -1
    for k, (r, _) in enumerate(steps(schedule, counts)):
        was_over, over = over, np.any(counts > end, axis=-1)
        written = np.zeros_like(meaning)
        written[r.dst, r.chunk] = True
        since[written & ~(was_over & over)] = k
    since[since < 0] = k + 1
    since[(counts == end).all(-1) | ~meaning] = -1
    return since


def _wrong_cells(schedule: Schedule) -> Iterator[_Wrong]:
    """Yield every cell that ends wrong, with the round that spoiled it."""
    since, counts, end = spoiled(schedule), contributions(schedule), expected(schedule).end
    for rank, chunk in np.argwhere(since >= 0).tolist():
        what = wrong_shares(counts[rank, chunk], end[rank, chunk])
        yield _Wrong(rank, chunk, int(since[rank, chunk]), what)


def _summary(wrong: list[_Wrong], rounds: int, most: int = 6) -> list[str]:
    """Order by round, earliest first, and say how many are left out."""
    wrong = sorted(wrong, key=lambda w: (w.round, w.rank, w.chunk))
    said = [
        f"rank {w.rank}, chunk {w.chunk} {w.what} "
        + (
            "(nothing ever arrives there)"
            if w.round == rounds
            else f"(from round {w.round + 1} on)"
        )
        for w in wrong[:most]
    ]
    left = len(wrong) - most
    return said + ([f"and {left} more of the {len(wrong)} wrong cells"] if left > 0 else [])


def _surplus(schedule: Schedule) -> Iterator[str]:
    """Yield the rounds of a right schedule that could be left out, with what they cost."""
    rounds: list[Round] = list(schedule)
    if len(rounds) > 64 or schedule.ranks > 16:
        return
    for k, each in enumerate(rounds):
        rest = rounds[:k] + rounds[k + 1 :]
        if not any(_wrong_cells(replace(schedule, rounds=lambda rest=rest: rest))):  # type: ignore[misc]
            chunks = Counter(each.src.tolist())
            sends = Counter(int(src) for r in rounds for src in r.src)
            rank, extra = chunks.most_common(1)[0] if chunks else (0, 0)
            yield (
                f"every value is right, but round {k + 1} is not needed: rank {rank} sends "
                f"{sends[rank]} chunks where {sends[rank] - extra} are enough"
            )
            return
