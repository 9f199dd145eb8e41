"""A collective algorithm as data: rounds of transfers between ranks, of chunks.

A schedule knows ranks and chunks. It knows no bytes, no dtype, no clock and no picture:
everything else in this package is a reader of it. Read plainly it is a sequence of rounds, one
transfer per chunk; read as `blocks` it is as short as its author wrote it, so that a ring of
65,536 ranks is two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import count, integer, kind, listable, unknown
from allreduce_edu.engine.problems import (
    PARTS,
    cells_in_both,
    labels,
    outside,
    owners,
    problems_of,
)

T = TypeVar("T")
Ints = npt.NDArray[np.intp]
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
FEW_TRANSFERS = 64  # in a round, up to which a loop is faster than numpy
_LARGEST = int(np.iinfo(np.intp).max)
_SHOWN = 12  # transfers of a round, and rounds, that print() writes out
_KEPT = 1 << 15  # transfers up to which a schedule keeps its rounds: a ring of 64 ranks
_FEW_CELLS = 1 << 20  # no algorithm has too many transfers for so few
_MOST_TRANSFERS = 1 << 28  # read one by one: about half a minute


@dataclass(frozen=True, eq=False, repr=False)
class Round:
    """Transfers that happen together: rank src[i] sends chunk[i] to rank dst[i].

    All of them read before any of them writes. Where several write one (rank, chunk) they do so
    in array order, and only the first may replace. After a first that replaces, a rank may name
    itself: that is no message, it says where in the order its own share comes.

    Attributes
    ----------
    src, dst, chunk : int array, shape (transfers,)
    reduce : bool array, shape (transfers,)
        True: dst combines what it holds with what came.  False: it replaces.
    span : int
        A shorthand in which algorithms are written: each transfer carries `span` chunks in a
        row, the first of which is named. Who reads a schedule gets one transfer per chunk.

    Raises
    ------
    TypeError, ValueError
        If an array has another dtype or shape; ``Round.of`` converts what can be converted.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: npt.NDArray[np.bool_]
    span: int = 1

    def __post_init__(self) -> None:
        length = np.shape(self.src)[:1]
        for name, kinds in zip(PARTS, ("iu", "iu", "iu", "b"), strict=True):
            part = getattr(self, name)
            if not isinstance(part, np.ndarray) or part.dtype.kind not in kinds:
                what = "bool" if name == "reduce" else "int"
                raise TypeError(f"{name} must be an {what} array, got {kind(part)}; try Round.of")
            if part.ndim != 1 or part.shape != length:
                raise ValueError(
                    f"{name} must have one entry per transfer ({length[0] if length else 1}), "
                    f"got shape {part.shape}"
                )
        if type(self.span) is not int or self.span < 1:
            object.__setattr__(self, "span", integer("span", self.span, 1))

    @classmethod
    def of(cls, src: Any, dst: Any, chunk: Any, reduce: Any, span: int = 1) -> Round:
        """Make a round from anything that broadcasts to one length."""
        named = {"src": src, "dst": dst, "chunk": chunk, "reduce": reduce}
        try:
            parts = [np.asarray(part) for part in named.values()]
            length = max((part.size for part in parts if part.ndim), default=1)
            if any(part.shape not in ((), (length,)) for part in parts):
                parts = [np.ravel(each) for each in np.broadcast_arrays(*parts)]
        except ValueError:
            lengths = ", ".join(str(len(list(p)) if np.iterable(p) else 1) for p in named.values())
            raise ValueError(
                f"src, dst, chunk and reduce must have one length, got {lengths}"
            ) from None
        for name, part in zip(named, parts, strict=True):
            if part.size and part.dtype.kind not in ("b" if name == "reduce" else "iu"):
                what = "True or False" if name == "reduce" else "integers"
                raise TypeError(f"{name} must hold {what}, got dtype {part.dtype}")
            if part.dtype == np.uint64 and part.max(initial=0) > _LARGEST:
                raise ValueError(f"{name} must be at most {_LARGEST}, got {part.max()}")
        rows = [part if part.ndim else np.full(length, part) for part in parts]
        s, d, c = (row.astype(np.intp) for row in rows[:3])  # copies: the caller's may change
        return cls(s, d, c, rows[3].astype(np.bool_), span)

    def expanded(self) -> Round:
        """Return the same round with one transfer per chunk."""
        return self if self.span == 1 else self._expanded

    @cached_property
    def _expanded(self) -> Round:
        k = self.span
        chunk = (self.chunk[:, None] + np.arange(k)).ravel()
        return Round(self.src.repeat(k), self.dst.repeat(k), chunk, self.reduce.repeat(k))

    @cached_property
    def moves(self) -> list[tuple[int, int, int, bool]]:
        """The transfers as Python's numbers, (src, dst, chunk, reduce) each."""
        parts = (getattr(self, part).tolist() for part in PARTS)
        return list(zip(*parts, strict=True))

    @cached_property
    def read_and_written(self) -> list[tuple[int, int]]:
        """The (rank, chunk) that are both sent and written, so that their values must be kept."""
        moves = self.expanded().moves
        written = {(dst, c) for _, dst, c, _ in moves}
        return sorted(written & {(src, c) for src, _, c, _ in moves})

    @cached_property
    def reads_what_it_writes(self) -> bool:
        """Whether there are any such."""
        if len(self) * self.span <= FEW_TRANSFERS:
            return bool(self.read_and_written)
        r = self.expanded()
        chunks = 1 + int(r.chunk.max(initial=0))
        return bool(np.isin(r.src * chunks + r.chunk, r.dst * chunks + r.chunk).any())

    def crossing(self) -> Round:
        """Return the transfers that cross a link: all but those of a rank to itself."""
        return self._crossing

    @cached_property
    def _crossing(self) -> Round:
        out = self.src != self.dst
        if out.all():
            return self
        return Round(self.src[out], self.dst[out], self.chunk[out], self.reduce[out], self.span)

    def is_like(self, other: Round) -> bool:
        """Whether the two differ in their chunks alone."""
        return self.span == other.span and all(
            getattr(self, part).tobytes() == getattr(other, part).tobytes()
            for part in ("src", "dst", "reduce")
        )

    def __len__(self) -> int:
        return len(self.src)

    def __repr__(self) -> str:
        moves = [
            f"{s}→{d}:c{c}" + (f"-{c + self.span - 1}" if self.span > 1 else "")
            for s, d, c in islice(zip(self.src, self.dst, self.chunk, strict=True), _SHOWN)
        ]
        more = f" … {len(self) - _SHOWN:,} more" if len(self) > _SHOWN else ""
        return "  ".join(moves) + more + f"  {self.phase}"

    @property
    def phase(self) -> str:
        """What the receivers do: "add", "copy", "add and copy", or "idle" for no transfer."""
        if not len(self):
            return "idle"
        return "add" if self.reduce.all() else "add and copy" if self.reduce.any() else "copy"


@dataclass(frozen=True, repr=False)
class Alike:
    """`times` rounds, at(0), at(1), ..., that differ in nothing but which chunks they carry.

    A shorthand like ``Round.span``: one of them stands for all when bytes and time are counted.
    """

    times: int
    at: Callable[[int], Round]

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", integer("times", self.times, 0))
        if not callable(self.at):
            raise TypeError(f"at must be a function of the round's number, got {kind(self.at)}")

    def __repr__(self) -> str:
        return f"Alike({self.times}, ...)"

    def mapped(self, change: Callable[[Round], Round]) -> Alike:
        """Return the same number of rounds, each changed."""
        return Alike(self.times, lambda i: change(_a_round(self.at(i))))

    def after(self, i: int) -> Alike:
        """Return what is left after the first i rounds."""
        return Alike(self.times - i, lambda j: self.at(i + j))


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
            first = _a_round(alike.at(0))
            yield first
            for i in range(1, alike.times):
                each = _a_round(alike.at(i))
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
        return self._kept("_blocks", self._read_blocks, lambda block: len(block[0]))

    def _read_blocks(self) -> Iterator[tuple[Round, int]]:
        return ((_a_round(alike.at(0)), alike.times) for alike in self.alikes())

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
                return Round(rank[r.src], rank[r.dst], chunk[r.chunk], r.reduce, r.span)
            src, dst = to_rank[:, r.src], to_rank[:, r.dst]
            chunk = np.broadcast_to(to_chunk[:, r.chunk], src.shape)
            reduce = np.broadcast_to(r.reduce, src.shape)
            return Round(src.ravel(), dst.ravel(), chunk.ravel(), reduce.ravel(), r.span)

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
            return Round(r.src, r.dst, r.chunk * k, r.reduce, r.span * k)

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
            backwards = Alike(each.times, lambda i: each.at(each.times - 1 - i))
            return backwards.mapped(lambda r: Round(r.dst, r.src, r.chunk, ~r.reduce, r.span))

        return replace(
            self,
            name=f"{self.name} mirrored",
            rounds=lambda: map(mirror, reversed(list(self.alikes()))),
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


def _a_round(value: Any) -> Round:
    if not isinstance(value, Round):
        raise TypeError(f"the rounds of an Alike must be Rounds, got {kind(value)}")
    return value


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
        yield Alike(times, _both(one.at, other.at, k))
        k += times
        one = one.after(times) if one.times > times else next(a, None)
        other = other.after(times) if other.times > times else next(b, None)
    left = one or other
    yield from chain([left] if left else [], a, b)


def _both(
    one: Callable[[int], Round], other: Callable[[int], Round], k: int
) -> Callable[[int], Round]:
    return lambda i: _together(k + i, _a_round(one(i)), _a_round(other(i)))


def _together(k: int, a: Round, b: Round) -> Round:
    if a.span != b.span:
        a, b = a.expanded(), b.expanded()
    for rank, chunk in cells_in_both(a, b):
        raise ValueError(f"a | b: both write rank {rank}, chunk {chunk} in round {k}")
    parts = [np.concatenate([getattr(each, part) for each in (a, b)]) for part in PARTS]
    return Round(parts[0], parts[1], parts[2], parts[3], a.span)
