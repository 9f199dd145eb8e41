"""One round of a collective: transfers that happen at the same time, and rounds that are alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import integer, kind
from allreduce_edu.engine.problems import PARTS, cells_in_both

Ints = npt.NDArray[np.intp]
FEW_TRANSFERS = 64  # in a round, up to which a loop is faster than numpy
_LARGEST = int(np.iinfo(np.intp).max)
_SHOWN = 12  # transfers that print() writes out


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

    def listed(self) -> Round:
        """Return the same round with its transfers one by one: itself, unless it is a `Mesh`."""
        return self

    def changed(self, change: Callable[[Round], Round]) -> Round:
        """Return what `change` makes of it."""
        return change(self)

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

    def round(self, i: int) -> Round:
        """Return round i, or say what the author of `at` gave instead."""
        found: Any = self.at(i)
        if not isinstance(found, Round):
            raise TypeError(f"the rounds of an Alike must be Rounds, got {kind(found)}")
        return found

    def mapped(self, change: Callable[[Round], Round]) -> Alike:
        """Return the same number of rounds, each changed."""
        return Alike(self.times, lambda i: self.round(i).changed(change))

    def after(self, i: int) -> Alike:
        """Return what is left after the first i rounds."""
        return Alike(self.times - i, lambda j: self.at(i + j))


def together(k: int, a: Round, b: Round) -> Round:
    """Return both as round k of ``a | b``; ValueError if they write the same place."""
    a, b = a.listed(), b.listed()
    if a.span != b.span:
        a, b = a.expanded(), b.expanded()
    for rank, chunk in cells_in_both(a, b):
        raise ValueError(f"a | b: both write rank {rank}, chunk {chunk} in round {k}")
    parts = [np.concatenate([getattr(each, part) for each in (a, b)]) for part in PARTS]
    return Round(parts[0], parts[1], parts[2], parts[3], a.span)
