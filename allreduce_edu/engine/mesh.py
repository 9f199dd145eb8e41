"""A round in which each of many ranks talks to each of many, as its ends alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from allreduce_edu.engine.rounds import Ints, Round


@dataclass(frozen=True, eq=False, repr=False)
class Mesh(Round):
    """Every rank of `src` sends to every one of `dst`: N(N-1) transfers in 2N numbers.

    A shorthand like ``Round.span``: ``Schedule.blocks`` yields it as it was written, who reads a
    schedule plainly gets one transfer per pair. Whoever is on both sides sends itself no message.

    Attributes
    ----------
    src, dst : int array, one a column [senders, 1], the other a row [1, receivers]
        All different.
    chunk : int array
        Of the shape of one of them, or [1, 1].
    reduce : bool array
        Broadcasts with both.
    make : callable
        Returns the same transfers as a plain round, in their order.
    transfers : int
        How many those are.
    """

    make: Callable[[], Round] = field(kw_only=True)
    transfers: int = field(kw_only=True)

    @classmethod
    def between(
        cls,
        src: Ints,
        dst: Ints,
        chunk: Any,
        reduce: Any,
        make: Callable[[], Round],
        transfers: int,
    ) -> Mesh:
        """Make one from arrays of senders and of receivers; ValueError if one is named twice."""
        for name, ranks in (("src", src), ("dst", dst)):
            if len(np.unique(ranks)) < len(ranks):
                raise ValueError(f"{name} must be different ranks, got one twice")
        chunk, reduce = np.atleast_2d(chunk), np.atleast_2d(reduce)
        return cls(src[:, None], dst[None], chunk, reduce, make=make, transfers=transfers)

    def __post_init__(self) -> None:
        shapes = np.shape(self.src), np.shape(self.dst)
        if any(len(shape) != 2 or 1 not in shape for shape in shapes):
            raise ValueError(f"src and dst must be a column and a row, got shapes {shapes}")
        if np.shape(self.chunk) not in ((1, 1), *shapes):
            shape = np.shape(self.chunk)
            raise ValueError(f"chunk must be one, or one for each of an end, got shape {shape}")

    def listed(self) -> Round:
        """Return the same transfers one by one."""
        return self.make()

    def expanded(self) -> Round:
        """Return the same round with one transfer per pair and chunk."""
        return self.make().expanded()

    def crossing(self) -> Round:
        """Return the transfers that cross a link, one by one."""
        return self.make().crossing()

    def changed(self, change: Callable[[Round], Round]) -> Round:
        """Return what `change` makes of it, as its ends again."""
        seen, make = change(self), self.make
        return replace(seen, make=lambda: change(make())) if isinstance(seen, Mesh) else seen

    def __len__(self) -> int:
        return self.transfers

    def __repr__(self) -> str:
        return f"{self.src.size:,} ranks → {self.dst.size:,} ranks  {self.phase}"


def at_end(end: Ints, values: Any, how: np.ufunc = np.add) -> tuple[Ints, Any]:
    """Return ranks and what transfers bring them, a line of a mesh made one value."""
    lines = tuple(axis for axis, length in enumerate(end.shape) if length == 1)
    return end.ravel(), how.reduce(values, axis=lines).ravel()
