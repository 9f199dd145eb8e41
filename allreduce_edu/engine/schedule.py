"""A collective algorithm as data: rounds of transfers between ranks, of chunks.

A schedule knows ranks and chunks. It knows no bytes, no dtype, no clock and no picture:
everything else in this package is a reader of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import integer, unknown

Ints = npt.NDArray[np.intp]
COLLECTIVE_NAMES = ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "custom")
_SHOWN = 12  # transfers of a round, and rounds, that print() writes out


@dataclass(frozen=True, eq=False, repr=False)
class Round:
    """Transfers that happen together: rank src[i] sends chunk[i] to rank dst[i].

    All of them read before any of them writes. Where several combine into one (rank, chunk),
    they do so in array order.

    Attributes
    ----------
    src, dst, chunk : int array, shape (transfers,)
    reduce : bool array, shape (transfers,)
        True: dst combines what it holds with what came.  False: it replaces.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, src: Any, dst: Any, chunk: Any, reduce: Any) -> Round:
        """Make a round from anything that broadcasts to one length."""
        parts = np.broadcast_arrays(*(np.atleast_1d(part) for part in (src, dst, chunk, reduce)))
        for name, part in zip(("src", "dst", "chunk"), parts, strict=False):
            if part.dtype.kind not in "iu" and part.size:
                raise TypeError(f"{name} must hold integers, got dtype {part.dtype}")
        s, d, c = (np.ravel(part).astype(np.intp) for part in parts[:3])
        return cls(s, d, c, np.ravel(parts[3]).astype(bool))

    def __len__(self) -> int:
        return len(self.src)

    def __repr__(self) -> str:
        moves = [
            f"{s}→{d}:c{c}"
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
        Returns the rounds; called again for every reading.
    collective : str
        What it claims to be, one of ``COLLECTIVE_NAMES``; ``verify`` holds it to that.
    root : int or None
        For reduce and broadcast.
    owner : tuple of int or None
        For reduce_scatter and all_gather: the rank that ends or starts with each chunk.
    cutter : callable
        ``cutter(elements, itemsize, chunks)`` gives elements per chunk.
    """

    name: str
    ranks: int
    chunks: int
    rounds: Callable[[], Iterable[Round]] = field(repr=False)
    collective: str = "all_reduce"
    root: int | None = None
    owner: tuple[int, ...] | None = None
    cutter: Callable[[int, int, int], Ints] = even_cut

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", integer("ranks", self.ranks, 1))
        object.__setattr__(self, "chunks", integer("chunks", self.chunks, 1))
        if self.collective not in COLLECTIVE_NAMES:
            raise ValueError(unknown("collective", self.collective, COLLECTIVE_NAMES))

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rounds())

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, ranks={self.ranks}, chunks={self.chunks})"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.ranks} ranks, {self.chunks} chunks"]
        shown = list(islice(self, _SHOWN + 1))
        lines += [f"round {k}  {each}" for k, each in enumerate(shown[:_SHOWN], 1)]
        return "\n".join(lines + ["…"] * (len(shown) > _SHOWN))

    def cut(self, elements: int, itemsize: int = 1) -> Ints:
        """Return how many of `elements` each chunk gets; the sum is `elements`."""
        elements = integer("elements", elements, 0)
        return self.cutter(elements, integer("itemsize", itemsize, 1), self.chunks)

    def named(self, name: str, collective: str | None = None, **changes: Any) -> Schedule:
        """Return the same rounds under another name, claiming another collective if given."""
        return replace(self, name=name, collective=collective or self.collective, **changes)

    def __rshift__(self, then: Schedule) -> Schedule:
        """Play `self`, then `then`."""
        if (self.ranks, self.chunks) != (then.ranks, then.chunks):
            raise ValueError(
                f"a >> b needs equal ranks and chunks, got {self.ranks} ranks, {self.chunks} "
                f"chunks and {then.ranks} ranks, {then.chunks} chunks"
            )
        return replace(
            self,
            name=f"{self.name} >> {then.name}",
            rounds=lambda: chain(self, then),
            collective=_followed(self, then),
        )

    def __or__(self, other: Schedule) -> Schedule:
        """Play both at the same time: their rounds are zipped, their writes must not collide."""
        return Schedule(
            f"{self.name} | {other.name}",
            max(self.ranks, other.ranks),
            max(self.chunks, other.chunks),
            lambda: (_together(k, *pair) for k, pair in enumerate(zip_longest(self, other), 1)),
            collective="custom",
            cutter=self.cutter,
        )

    def on(self, ranks: Sequence[int], chunks: Sequence[int] | None = None) -> Schedule:
        """Relabel: what rank i and chunk j did is done by ``ranks[i]`` with ``chunks[j]``."""
        to_rank = _relabel("ranks", ranks, self.ranks)
        to_chunk = _relabel("chunks", range(self.chunks) if chunks is None else chunks, self.chunks)
        return Schedule(
            self.name,
            int(to_rank.max()) + 1,
            int(to_chunk.max()) + 1,
            lambda: (
                Round(to_rank[r.src], to_rank[r.dst], to_chunk[r.chunk], r.reduce) for r in self
            ),
            collective="custom",
            cutter=self.cutter,
        )

    def mirrored(self) -> Schedule:
        """Play backwards, copying where it added: reduce-scatter becomes its all-gather."""
        if not all(each.reduce.all() for each in self):
            raise ValueError(
                f"{self.name!r} also copies; only a schedule that adds has a mirror image"
            )
        mirror = {"reduce_scatter": "all_gather", "reduce": "broadcast"}
        return replace(
            self,
            name=f"{self.name} mirrored",
            rounds=lambda: (Round.of(r.dst, r.src, r.chunk, False) for r in reversed(list(self))),
            collective=mirror.get(self.collective, "custom"),
        )

    def problems(self) -> list[str]:
        """Return what makes the schedule unplayable, a sentence each; an empty list is good."""
        return list(chain.from_iterable(_problems(self, k, each) for k, each in enumerate(self, 1)))

    def check(self) -> Schedule:
        """Return self, or raise ValueError with the first of its `problems`."""
        for k, each in enumerate(self, 1):
            for sentence in _problems(self, k, each):
                raise ValueError(f"{self.name}: {sentence}")
        return self


def _followed(first: Schedule, then: Schedule) -> str:
    """Name the collective that two in a row amount to."""
    pair = first.collective, then.collective
    if pair == ("reduce_scatter", "all_gather") and first.owner == then.owner:
        return "all_reduce"
    if pair == ("reduce", "broadcast") and first.root == then.root:
        return "all_reduce"
    return "custom"


def _together(k: int, a: Round | None, b: Round | None) -> Round:
    if a is None or b is None:
        return a or b or Round.of([], [], [], True)
    both = set(zip(a.dst.tolist(), a.chunk.tolist(), strict=True)) & set(
        zip(b.dst.tolist(), b.chunk.tolist(), strict=True)
    )
    if both:
        rank, chunk = min(both)
        raise ValueError(f"a | b: both write rank {rank}, chunk {chunk} in round {k}")
    return Round(*(np.concatenate(part) for part in zip(_parts(a), _parts(b), strict=True)))


def _parts(r: Round) -> tuple[npt.NDArray[Any], ...]:
    return r.src, r.dst, r.chunk, r.reduce


def _relabel(name: str, labels: Sequence[int], count: int) -> Ints:
    array = np.asarray([integer(name, each, 0) for each in labels], np.intp)
    if len(array) != count or len(set(array.tolist())) != count:
        raise ValueError(f"{name} must be {count} different numbers, got {list(labels)}")
    return array


def _problems(schedule: Schedule, k: int, r: Round) -> Iterator[str]:
    """Yield what is wrong with round k, a sentence each."""
    for name, part, limit in (
        ("src", r.src, schedule.ranks),
        ("dst", r.dst, schedule.ranks),
        ("chunk", r.chunk, schedule.chunks),
    ):
        outside = part[(part < 0) | (part >= limit)]
        if outside.size:
            yield f"round {k}: {name} must be between 0 and {limit - 1}, got {outside[0]}"
            return
    for rank in r.src[r.src == r.dst][:1]:
        yield f"round {k}: rank {rank} sends to itself"
    cell = r.dst * schedule.chunks + r.chunk
    cells, writers = np.unique(cell, return_counts=True)
    shared = np.intersect1d(cell[~r.reduce], cells[writers > 1])
    for each in shared[:1]:
        rank, chunk = divmod(int(each), schedule.chunks)
        yield f"round {k}: rank {rank}, chunk {chunk} is replaced and written again at once"
