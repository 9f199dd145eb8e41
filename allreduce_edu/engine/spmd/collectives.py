"""What the collectives of simulated ranks give: the numbers of gloo, bit for bit.

They are schedules of `algorithms`, played by `execute`; here they only get their arguments.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from allreduce_edu.engine.algorithms import gloo_ring
from allreduce_edu.engine.dtypes import is_torch
from allreduce_edu.engine.execute import OverflowWarning, run
from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.spmd.comm import copy_of, write


def parts(array: Any, count: int) -> list[Any]:
    """Cut along the first axis as ``numpy.array_split`` does; views."""
    if not is_torch(array):
        return np.array_split(array, count)
    return list(array.tensor_split(count))


def _summed(arrays: Sequence[Any], op: str) -> Any:
    return _played(gloo_ring(len(arrays)), arrays, op)


def _played(schedule: Schedule, arrays: Sequence[Any], op: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverflowWarning)
        return run(schedule, [copy_of(each) for each in arrays], op)


def _all_reduce(arrays: Sequence[Any], op: str) -> list[Any]:
    for held, total in zip(arrays, _summed(arrays, op), strict=True):
        write(held, total)
    return list(arrays)


def gloo_reduce(n: int, root: int) -> Schedule:
    """Reduce to `root` as gloo does: the first half of its ring, then every chunk to the root.

    So the other ranks end with partial sums. Source: pytorch/gloo, gloo/reduce.cc.
    """
    whole = gloo_ring(n)
    others = np.delete(np.arange(n), root)

    def rounds() -> Iterator[Round]:
        yield from islice(whole, n - 1)
        yield Round.of(others, root, others, False)

    return whole.named("gloo's reduce", "reduce", root=root, rounds=rounds)


def _reduce(arrays: Sequence[Any], argument: tuple[str, int]) -> list[Any]:
    op, root = argument
    for held, left in zip(arrays, _played(gloo_reduce(len(arrays), root), arrays, op), strict=True):
        write(held, left)
    return list(arrays)


def _broadcast(arrays: Sequence[Any], root: int) -> list[Any]:
    for held in arrays:
        write(held, copy_of(arrays[root]))
    return list(arrays)


def _all_gather(arrays: Sequence[Any], _: None) -> list[Any]:
    return [[copy_of(each) for each in arrays] for _ in arrays]


def _gather(arrays: Sequence[Any], root: int) -> list[Any]:
    return [_all_gather(arrays, None)[0] if rank == root else None for rank in range(len(arrays))]


def _scatter(arrays: Sequence[Any], root: int) -> list[Any]:
    return [copy_of(part) for part in parts(arrays[root], len(arrays))]


def _all_to_all(arrays: Sequence[Any], _: None) -> list[Any]:
    n = len(arrays)
    cut, results = [parts(each, n) for each in arrays], [copy_of(each) for each in arrays]
    for rank, result in enumerate(results):
        for src, room in enumerate(parts(result, n)):
            write(room, cut[src][rank])
    return results


def _reduce_scatter(arrays: Sequence[Any], op: str) -> list[Any]:
    totals = _summed(arrays, op)
    return [copy_of(parts(total, len(arrays))[i]) for i, total in enumerate(totals)]


def _barrier(arrays: Sequence[Any], _: None) -> list[Any]:
    return [None for _ in arrays]


# name -> f(one array per rank, argument) -> one result per rank; roots count within the group
RESULTS: dict[str, Callable[[Sequence[Any], Any], list[Any]]] = {
    "barrier": _barrier,
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}
