"""A collective algorithm as data: rounds of transfers between ranks, of chunks.

A schedule knows ranks and chunks. It knows no bytes, no dtype, no clock and no picture:
everything else in this package is a reader of it. Read plainly it is a sequence of rounds, one
transfer per chunk; read as `blocks` it is as short as its author wrote it, so that a ring of
65,536 ranks is two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np

from allreduce_edu.engine.check import count, integer, kind, listable, unknown
from allreduce_edu.engine.problems import labels, outside, owners, problems_of
from allreduce_edu.engine.rounds import Alike, Ints, Round, together

T = TypeVar("T")
COLLECTIVE_NAMES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "reduce",
    "broadcast",
    "gather",
    "scatter",
    "all_to_all",
    "custom",
)
_ROOTED = ("reduce", "broadcast", "gather", "scatter")
_LARGEST = int(np.iinfo(np.intp).max)
_SHOWN = 12  # rounds that print() writes out
_KEPT = 1 << 15  # transfers up to which a schedule keeps its rounds: a ring of 64 ranks
_FEW_CELLS = 1 << 20  # no algorithm has too many transfers for so few
_MOST_TRANSFERS = 1 << 28  # read one by one: about half a minute


def even_cut(elements: int, itemsize: int, chunks: int) -> Ints:  # noqa: ARG001
    """Cut as ``numpy.array_split`` does: the first ``elements % chunks`` get one more."""
    return elements // chunks + (np.arange(chunks) < elements % chunks).astype(np.intp)


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """A collective algorithm: a lazy, re-iterable sequence of rounds.

    ``print(schedule)`` writes the rounds; ``a >> b`` plays one after the other, ``a | b`` both
    at the same time, ``s.on(...)`` gives other ranks and chunks, ``s.mirrored()`` plays it
    backwards.

    Attributes
    ----------
    name : str
    ranks, chunks : int
        A chunk is an identity, not a place: chunk 2 is chunk 2 on every rank.
    rounds : callable
        Returns the rounds, each a `Round` or several as an `Alike`; called again for every
        reading, unless they are few: those are kept.
    collective : str
        What it claims to be, one of ``COLLECTIVE_NAMES``; ``verify`` holds it to that.
    root : int or None
        For reduce, broadcast, gather and scatter.
    owner : int array, shape (chunks,), or None
        The rank that ends with each chunk (reduce_scatter, scatter), or starts with it
        (all_gather, gather); chunk c on rank c mod ranks if not given.
    cutter : callable
        ``cutter(elements, itemsize, chunks)`` gives elements per chunk.
    servers : int
        The last so many ranks have no share of their own.
    """

    name: str
    ranks: int
    chunks: int
    rounds: Callable[[], Iterable[Round | Alike]] = field(repr=False)
    collective: str = "all_reduce"
    root: int | None = None
    owner: Ints | None = None
    cutter: Callable[[int, int, int], Ints] = even_cut
    servers: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a str, got {kind(self.name)}")
        for name in ("ranks", "chunks"):
            object.__setattr__(self, name, listable(name, getattr(self, name)))
        integer("servers", self.servers, 0, self.ranks - 1)
        if not callable(self.rounds):
            raise TypeError(
                f"rounds must be a function that returns the rounds, got {kind(self.rounds)}"
            )
        if not callable(self.cutter):
            raise TypeError(f"cutter must be a function, got {kind(self.cutter)}")
        if self.collective not in COLLECTIVE_NAMES:
            raise ValueError(unknown("collective", self.collective, COLLECTIVE_NAMES))
        if self.root is not None or self.collective in _ROOTED:
            integer("root", self.root, 0, self.ranks - 1)
        if self.owner is not None:
            object.__setattr__(self, "owner", owners(self.owner, self.ranks, self.chunks))

    def __iter__(self) -> Iterator[Round]:
        for k, each in enumerate(self.spans(), 1):
            if each.span > self.chunks:  # else expanding it could need any amount of memory
                raise ValueError(f"{self.name}: {next(outside(each, k, self.ranks, self.chunks))}")
            yield each.expanded()

    def spans(self) -> Iterator[Round]:
        """Yield every round as it was written, with its ``span``."""
        return self._kept("_spans", self._read_spans, lambda r: len(r) * r.span)

    def _read_spans(self) -> Iterator[Round]:
        for alike in self.alikes():
            first = alike.round(0).listed()
            yield first
            for i in range(1, alike.times):
                each = alike.round(i).listed()
                if not first.is_like(each):
                    raise ValueError(
                        f"{self.name}: the rounds of an Alike must differ in their chunks alone, "
                        f"got {first} and {each}"
                    )
                yield each

    def blocks(self) -> Iterator[tuple[Round, int]]:
        """Yield (round, times): `times` rounds in a row differ from this one in chunks alone.

        The round is as it was written, with its ``span``: the whole schedule at its shortest.
        """
        return self._kept("_blocks", self._read_blocks, lambda block: block[0].src.size)

    def _read_blocks(self) -> Iterator[tuple[Round, int]]:
        return ((alike.round(0), alike.times) for alike in self.alikes())

    def _kept(
        self, name: str, read: Callable[[], Iterator[T]], transfers: Callable[[T], int]
    ) -> Iterator[T]:
        """Yield what `read` does, from the second time on from memory if it is little."""
        if name in self.__dict__:
            yield from self.__dict__[name]
            return
        kept, room = [], _KEPT
        for each in read():
            room -= transfers(each) + 1
            if room >= 0:
                kept.append(each)
            yield each
        if room >= 0:
            self.__dict__[name] = kept

    def transfers(self) -> int:
        """Return how many transfers of one chunk there are, counted by `blocks`."""
        return sum(len(r) * r.span * times for r, times in self.blocks())

    def alikes(self) -> Iterator[Alike]:
        """Yield the rounds as their author wrote them, a single one as ``Alike(1, ...)``."""
        found = self.rounds()
        if isinstance(found, Iterator) and found is self.rounds():
            raise ValueError(
                f"{self.name}: rounds must return new rounds at every call, got one iterator"
            )
        if not isinstance(found, Iterable):
            raise TypeError(f"{self.name}: rounds must return the rounds, got {kind(found)}")
        k = 1
        for each in found:
            if isinstance(each, Round):
                yield Alike(1, lambda _, each=each: each)  # type: ignore[misc]
            elif isinstance(each, Alike):
                if each.times:
                    yield each
            else:
                raise TypeError(f"{self.name}: round {k} must be a Round, got {kind(each)}")
            k += each.times if isinstance(each, Alike) else 1

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, ranks={self.ranks}, chunks={self.chunks})"

    def __str__(self) -> str:
        lines = [f"{self.name}: {count(self.ranks, 'rank')}, {count(self.chunks, 'chunk')}"]
        shown = list(islice(self, _SHOWN + 1))
        lines += [f"round {k}  {each}" for k, each in enumerate(shown[:_SHOWN], 1)]
        return "\n".join(lines + ["…"] * (len(shown) > _SHOWN))

    @property
    def workers(self) -> int:
        """How many ranks have a share of their own: 0 to workers-1."""
        return self.ranks - self.servers

    def cut(self, elements: int, itemsize: int = 1) -> Ints:
        """Return how many of `elements` each chunk gets, array[chunks]; the sum is `elements`."""
        elements = integer("elements", elements, 0)
        sizes = np.asarray(self.cutter(elements, integer("itemsize", itemsize, 1), self.chunks))
        fits = sizes.shape == (self.chunks,) and sizes.dtype.kind in "iu"
        if not fits or (sizes < 0).any() or sizes.sum() != elements:
            raise ValueError(
                f"{self.name}: its cutter must cut {elements} elements into {self.chunks} chunks, "
                f"got {sizes.tolist()!r:.60}"
            )
        return sizes

    def named(self, name: str, collective: str | None = None, **changes: Any) -> Schedule:
        """Return the same rounds under another name, claiming another collective if given."""
        return replace(self, name=name, collective=collective or self.collective, **changes)

    def __rshift__(self, then: Schedule) -> Schedule:
        """Play `self`, then `then`; ValueError unless both have the same ranks and chunks."""
        if not isinstance(then, Schedule):
            return NotImplemented
        if (self.ranks, self.chunks) != (then.ranks, then.chunks):
            raise ValueError(
                f"a >> b needs equal ranks and chunks, got {self.ranks} ranks, {self.chunks} "
                f"chunks and {then.ranks} ranks, {then.chunks} chunks"
            )
        return replace(
            self,
            name=f"{self.name} >> {then.name}",
            rounds=lambda: chain(self.alikes(), then.alikes()),
            collective=_followed(self, then),
        )

    def __or__(self, other: Schedule) -> Schedule:
        """Play both at the same time: their rounds are zipped, their writes must not collide.

        A collision is found when the rounds are read, and named by rank, chunk and round.
        """
        if not isinstance(other, Schedule):
            return NotImplemented
        if self.cutter is not other.cutter:
            raise ValueError(f"{self.name!r} and {other.name!r} cut an array in different ways")
        return Schedule(
            f"{self.name} | {other.name}",
            max(self.ranks, other.ranks),
            max(self.chunks, other.chunks),
            lambda: _zipped(self.alikes(), other.alikes()),
            collective="custom",
            cutter=self.cutter,
        )

    def on(self, ranks: Any, chunks: Any = None) -> Schedule:
        """Relabel: what rank i and chunk j did is done by ``ranks[i]`` with ``chunks[j]``.

        With two-dimensional labels a copy is played for each row, all at the same time: a ring in
        every node is ``ring(8).on(np.arange(64).reshape(8, 8))``.

        Parameters
        ----------
        ranks : int array, shape (ranks,) or (copies, ranks)
            All different.
        chunks : int array, shape (chunks,) or (copies, chunks), optional
            Different within a row; the same numbers if not given.
        """
        to_rank = labels("ranks", ranks, self.ranks)
        to_chunk = labels("chunks", range(self.chunks) if chunks is None else chunks, self.chunks)
        if len(to_rank) > 1 and len(np.unique(to_rank)) < to_rank.size:
            raise ValueError("ranks must be different numbers in every copy, got one twice")
        if len(to_chunk) not in (1, len(to_rank)):
            raise ValueError(
                f"chunks must have one row, or one for each of {len(to_rank)} copies, "
                f"got {len(to_chunk)}"
            )
        in_a_row = bool((np.diff(to_chunk) == 1).all())

        def relabelled(r: Round) -> Round:
            for sentence in outside(r, 0, self.ranks, self.chunks):
                raise ValueError(f"{self.name}: {sentence.partition(': ')[2]}")
            r = r if in_a_row else r.expanded()
            if len(to_rank) == len(to_chunk) == 1:
                (rank,), (chunk,) = to_rank, to_chunk
                return replace(r, src=rank[r.src], dst=rank[r.dst], chunk=chunk[r.chunk])
            r = r.listed()
            copies = to_rank[:, r.src], to_rank[:, r.dst], to_chunk[:, r.chunk], r.reduce
            src, dst, chunk, reduce = (part.ravel() for part in np.broadcast_arrays(*copies))
            return Round(src, dst, chunk, reduce, r.span)

        return Schedule(
            self.name,
            int(to_rank.max()) + 1,
            int(to_chunk.max()) + 1,
            lambda: (each.mapped(relabelled) for each in self.alikes()),
            collective="custom",
            cutter=self.cutter,
        )

    def split(self, k: int) -> Schedule:
        """Cut every chunk into k: the same rounds and bytes, in smaller pieces."""
        if integer("k", k, 1) == 1:
            return self
        listable("chunks", self.chunks * k)

        def finer(r: Round) -> Round:
            return replace(r, chunk=r.chunk * k, span=r.span * k)

        return replace(
            self,
            chunks=self.chunks * k,
            rounds=lambda: (each.mapped(finer) for each in self.alikes()),
            owner=None if self.owner is None else self.owner.repeat(k),
        )

    def mirrored(self) -> Schedule:
        """Play backwards, copying where it added: reduce-scatter becomes its all-gather.

        ValueError if it copies anywhere.
        """
        if not all(each.reduce.all() for each, _ in self.blocks()):
            raise ValueError(
                f"{self.name!r} also copies; only a schedule that adds has a mirror image"
            )
        mirrors = {"reduce_scatter": "all_gather", "reduce": "broadcast"}

        def mirror(each: Alike) -> Alike:
            backwards = Alike(each.times, lambda i: each.round(each.times - 1 - i))
            return backwards.mapped(lambda r: replace(r, src=r.dst, dst=r.src, reduce=~r.reduce))

        return replace(
            self,
            name=f"{self.name} mirrored",
            rounds=lambda: [mirror(each) for each in reversed(list(self.alikes()))],
            collective=mirrors.get(self.collective, "custom"),
        )

    def problems(self) -> list[str]:
        """Return what makes the schedule unplayable, a sentence each; an empty list is good."""
        found = (problems_of(r, k, self.ranks, self.chunks) for k, r in enumerate(self.spans(), 1))
        return list(chain.from_iterable(found))

    @property
    def is_playable(self) -> bool:
        """Whether `check` has found nothing wrong in rounds that are kept."""
        return bool(self.__dict__.get("_playable"))

    def check(self) -> Schedule:
        """Return self, or raise ValueError with the first of its `problems`."""
        if self.is_playable:
            return self
        for k, each in enumerate(self.spans(), 1):
            for sentence in problems_of(each, k, self.ranks, self.chunks):
                raise ValueError(f"{self.name}: {sentence}")
        self.__dict__["_playable"] = "_spans" in self.__dict__
        return self


def schedule_of(value: Any) -> Schedule:
    """Return `value`, or say what a schedule is: the commonest slip is ``run(ring, x)``."""
    if isinstance(value, Schedule):
        return value
    hint = "; call it with a number of ranks" if callable(value) else ""
    raise TypeError(f"schedule must be a Schedule such as ring(4), got {kind(value)}{hint}")


def expandable(schedule: Schedule, instead: str) -> Schedule:
    """Return `schedule` if its transfers can be read one by one, or say what to do `instead`."""
    if schedule_of(schedule).ranks * schedule.chunks <= _FEW_CELLS:
        return schedule
    total = 0
    for r, times in schedule.blocks():
        total += len(r) * r.span * times
        if total > _MOST_TRANSFERS:
            raise ValueError(
                f"{schedule.name} over {schedule.ranks:,} ranks has {schedule.transfers():,} "
                f"transfers, too many to read one by one (at most {_MOST_TRANSFERS:,}); {instead}"
            )
    return schedule


def _followed(first: Schedule, then: Schedule) -> str:
    """Name the collective that two in a row amount to."""
    pair = first.collective, then.collective
    if pair == ("reduce_scatter", "all_gather") and np.array_equal(owner_of(first), owner_of(then)):
        return "all_reduce"
    if pair == ("reduce", "broadcast") and first.root == then.root:
        return "all_reduce"
    return "custom"


def owner_of(schedule: Schedule) -> Ints:
    """Return one rank per chunk, array[chunks]: ``schedule.owner``, or what holds without it."""
    default = np.arange(schedule.chunks) % schedule.ranks
    return default if schedule.owner is None else schedule.owner


def _zipped(a: Iterator[Alike], b: Iterator[Alike]) -> Iterator[Alike]:
    """Pair the rounds of two schedules, as many at a time as are alike in both."""
    k, one, other = 1, next(a, None), next(b, None)
    while one and other:
        times = min(one.times, other.times)
        yield Alike(times, _both(one, other, k))
        k += times
        one = one.after(times) if one.times > times else next(a, None)
        other = other.after(times) if other.times > times else next(b, None)
    left = one or other
    yield from chain([left] if left else [], a, b)


def _both(one: Alike, other: Alike, k: int) -> Callable[[int], Round]:
    return lambda i: together(k + i, one.round(i), other.round(i))
