"""Small words of the explanations: lists of ranks, kinds of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sized

from allreduce_edu.engine.spmd.comm import Kind


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "rank 3", "ranks 0, 1" or "ranks 0-3, 5"."""
    left, runs = sorted(ranks), []
    one = len(left) == 1
    while left:
        k = 1
        while k < len(left) and left[k] == left[0] + k:
            k += 1
        runs.append(f"{left[0]}-{left[k - 1]}" if k > 2 else ", ".join(map(str, left[:k])))
        left = left[k:]
    return f"{'rank' if one else 'ranks'} {', '.join(runs)}"


def kind_text(kind: Kind | None) -> str:
    """Return "float64 (4,)"."""
    return f"{kind[0]} {tuple(kind[1])}" if kind else "nothing"


def verb(ranks: Sized, one: str, many: str) -> str:
    """Return the form of a verb that goes with so many ranks."""
    return one if len(ranks) == 1 else many
