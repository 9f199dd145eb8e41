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

    Raises
    ------
    TypeError, ValueError
        If an array has another dtype or shape; ``Round.of`` converts what can be converted.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        for name, part in vars(self).items():
            kind = "b" if name == "reduce" else "iu"
            if not isinstance(part, np.ndarray) or part.dtype.kind not in kind:
                what = "bool" if name == "reduce" else "int"
                raise TypeError(f"{name} must be an {what} array, got {_kind(part)}; try Round.of")
            if part.shape != (len(self.src),):
                raise ValueError(
                    f"{name} must have one entry per transfer ({len(self.src)}), "
                    f"got shape {part.shape}"
                )

    @classmethod
    def of(cls, src: Any, dst: Any, chunk: Any, reduce: Any) -> Round:
        """Make a round from anything that broadcasts to one length."""
        named = {"src": src, "dst": dst, "chunk": chunk, "reduce": reduce}
        try:
            parts = np.broadcast_arrays(*(np.atleast_1d(part) for part in named.values()))
        except ValueError:
            lengths = ", ".join(str(len(list(p)) if np.iterable(p) else 1) for p in named.values())
            raise ValueError(
                f"src, dst, chunk and reduce must have one length, got {lengths}"
            ) from None
        for name, part in zip(named, parts, strict=True):
            if part.size and part.dtype.kind not in ("b" if name == "reduce" else "iu"):
                what = "True or False" if name == "reduce" else "integers"
                raise TypeError(f"{name} must hold {what}, got dtype {part.dtype}")
        s, d, c = (np.ravel(part).astype(np.intp) for part in parts[:3])
        return cls(s, d, c, np.ravel(parts[3]).astype(np.bool_))

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
        For reduce_scatter and all_gather: the rank that ends or starts with each chunk; chunk c
        on rank c mod ranks if not given.
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
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a str, got {_kind(self.name)}")
        for name in ("ranks", "chunks"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        if not callable(self.rounds):
            raise TypeError(
                f"rounds must be a function that returns the rounds, got {_kind(self.rounds)}"
            )
        if self.collective not in COLLECTIVE_NAMES:
            raise ValueError(unknown("collective", self.collective, COLLECTIVE_NAMES))
        if self.root is not None or self.collective in ("reduce", "broadcast"):
            integer("root", self.root, 0, self.ranks - 1)
        if self.owner is not None and len(self.owner) != self.chunks:
            raise ValueError(
                f"owner must name a rank for each of {self.chunks} chunks, got {len(self.owner)}"
            )
        for rank in self.owner or ():
            integer("owner", rank, 0, self.ranks - 1)

    def __iter__(self) -> Iterator[Round]:
        found = self.rounds()
        if isinstance(found, Iterator) and found is self.rounds():
            raise ValueError(
                f"{self.name}: rounds must return new rounds at every call, got one iterator"
            )
        for k, each in enumerate(found, 1):
            if not isinstance(each, Round):
                raise TypeError(f"{self.name}: round {k} must be a Round, got {_kind(each)}")
            yield each

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, ranks={self.ranks}, chunks={self.chunks})"

    def __str__(self) -> str:
        lines = [f"{self.name}: {count(self.ranks, 'rank')}, {count(self.chunks, 'chunk')}"]
        shown = list(islice(self, _SHOWN + 1))
        lines += [f"round {k}  {each}" for k, each in enumerate(shown[:_SHOWN], 1)]
        return "\n".join(lines + ["…"] * (len(shown) > _SHOWN))

    def cut(self, elements: int, itemsize: int = 1) -> Ints:
        """Return how many of `elements` each chunk gets, array[chunks]; the sum is `elements`."""
        elements = integer("elements", elements, 0)
        sizes = np.asarray(self.cutter(elements, integer("itemsize", itemsize, 1), self.chunks))
        if sizes.shape != (self.chunks,) or (sizes < 0).any() or sizes.sum() != elements:
            raise ValueError(
                f"{self.name}: its cutter must cut {elements} elements into {self.chunks} chunks, "
                f"got {sizes.tolist()}"
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
            rounds=lambda: chain(self, then),
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
            lambda: (_together(k, *pair) for k, pair in enumerate(zip_longest(self, other), 1)),
            collective="custom",
            cutter=self.cutter,
        )

    def on(self, ranks: Sequence[int], chunks: Sequence[int] | None = None) -> Schedule:
        """Relabel: what rank i and chunk j did is done by ``ranks[i]`` with ``chunks[j]``.

        ValueError unless `ranks` and `chunks` hold as many different numbers as there are.
        """
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
        """Play backwards, copying where it added: reduce-scatter becomes its all-gather.

        ValueError if it copies anywhere.
        """
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


def schedule_of(value: Any) -> Schedule:
    """Return `value`, or say what a schedule is: the commonest slip is ``run(ring, x)``."""
    if isinstance(value, Schedule):
        return value
    hint = "; call it with a number of ranks" if callable(value) else ""
    raise TypeError(f"schedule must be a Schedule such as ring(4), got {_kind(value)}{hint}")


def count(number: int, what: str) -> str:
    """Return "1 rank", "4 ranks"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    name = getattr(value, "__name__", None) if callable(value) else None
    return f"the function {name}" if name else f"{value!r:.40} ({type(value).__name__})"


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
