"""Asks a program whose share is in each message, and from which place of x.

Run it again with each rank's numbers raised by one, and subtract. The answer is checked (shares
add up, a step of -2 does -2 times what a step of 1 does, the path stays the same), so what is no
sum is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.dtypes import is_torch
from allreduce_edu.engine.rounds import Ints
from allreduce_edu.engine.spmd.errors import NotASchedule
from allreduce_edu.engine.spmd.simulate import Run, run
from allreduce_edu.engine.spmd.trace import messages

MIXED, NOTHING = -2, -1  # places: of an element that is made of several, or of none
Floats = npt.NDArray[np.float64]


class Shown(NamedTuple):
    """What one message carries, or one rank returns, element by element."""

    share: Floats  # [element, rank]: how much it moves when that rank's numbers rise by one
    place: Ints  # [element]: the position in x that it comes from


class Probe(NamedTuple):
    """A run, and what its messages and results are made of."""

    run: Run
    carried: list[Shown]  # by message, in the order in which they met
    held: list[Shown]  # by rank
    size: int  # elements of x on one rank


def as_like(like: Any, numbers: Floats) -> Any:
    """Return float64 numbers in the library of `like`."""
    if not is_torch(like):
        return numbers
    import torch

    return torch.from_numpy(numbers)


def ask(fn: Callable[..., Any], shares: Sequence[Any], order: Sequence[int] | None = None) -> Probe:
    """Find whose share is in each message and result, and from which place."""
    base = _quiet(fn, shares, order)
    path, texts = _path(base), _texts(base)
    n, shape, size = len(shares), tuple(shares[0].shape), int(np.prod(shares[0].shape))

    def moved(step: Callable[[int], Floats]) -> list[Floats]:
        """Return how much every element moves when rank r's numbers move by step(r)."""
        again = _quiet(fn, [s + as_like(s, step(r)) for r, s in enumerate(shares)], order)
        if _path(again) != path:
            raise NotASchedule("the program takes another path when its numbers change")
        return [new - old for new, old in zip(_texts(again), texts, strict=True)]

    ones, at = np.ones(shape), np.arange(1.0, size + 1).reshape(shape)
    each = [moved(lambda r, q=q: ones * (r == q)) for q in range(n)]  # type: ignore[misc]
    both, back = moved(lambda _: ones), moved(lambda _: -2 * ones)
    first, second = moved(lambda _: at), moved(lambda _: at * at)
    shown = []
    for k in range(len(texts)):
        share = np.stack([one[k] for one in each], -1)
        if not (near(share.sum(-1), both[k]) and near(-2 * both[k], back[k])):
            raise NotASchedule(
                f"{name_of(base, k)} is no sum of shares: a maximum, a clip, a choice?"
            )
        shown.append(Shown(share, _places(share.sum(-1), first[k], second[k])))
    cut = len(texts) - n
    return Probe(base, shown[:cut], shown[cut:], size)


def _quiet(fn: Callable[..., Any], shares: Sequence[Any], order: Sequence[int] | None) -> Run:
    return run(fn, list(shares), show=False, order=order)


def _texts(done: Run) -> list[Floats]:
    """Return what every message carried, and what every rank returned, as flat numbers."""
    sent = [send.sent for send, _ in messages(done.trace)]
    if any(each is None for each in sent):
        raise NotASchedule("the program sends more than a trace keeps; try it with less data")
    return [_flat(each) for each in [*sent, *done.results]]


def _flat(value: Any) -> Floats:
    try:
        return np.asarray(value, np.float64).reshape(-1)
    except (TypeError, ValueError):
        return np.zeros(0)


def _path(done: Run) -> list[Any]:
    """Return what a run did, without its numbers."""
    if any(e.kind == "all" and e.requests[0].array is not None for e in done.trace):
        raise NotASchedule("the program calls a collective, whose messages are the library's own")
    return [
        (e.kind, e.rank, [(q.side, q.rank, q.peer, q.tag, q.kind, q.stack) for q in e.requests])
        for e in done.trace
    ]


def near(a: Floats, b: Floats) -> bool:
    """Tell whether two lists of shares are the same."""
    return bool(np.allclose(a, b, atol=1e-3))


def _places(total: Floats, first: Floats, second: Floats) -> Ints:
    """Return where each element comes from: a mean of places is a mix unless squares agree."""
    some = np.abs(total) > 1e-6
    safe = np.where(some, total, 1.0)
    mean, square = first / safe, second / safe
    one = np.abs(square - mean * mean) < 1e-3 * (1 + mean * mean)
    place = np.where(one, np.round(mean) - 1, MIXED)
    return np.where(some, place, NOTHING).astype(np.intp)


def name_of(done: Run, k: int) -> str:
    """Name the k-th thing shown: a message with its line, or a result."""
    sent = messages(done.trace)
    if k < len(sent):
        return f"what rank {sent[k][0].rank} sends ({sent[k][0].site})"
    return f"the result of rank {k - len(sent)}"
