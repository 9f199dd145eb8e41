"""What gloo leaves behind on four real ranks; None where torch is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.realdist.pool import PerRank, Pool

Array = npt.NDArray[Any]


def after_reduce(x: Sequence[Array]) -> Array | None:
    """Reduce to rank 0, with sum; return what every rank's buffer holds, [rank, element]."""
    return _held(_reduce, x)


def after_max(x: Sequence[Array]) -> Array | None:
    """All-reduce with max; return what every rank's buffer holds, [rank, element]."""
    return _held(_max, x)


def _held(fn: Callable[[Array], Array], x: Sequence[Array]) -> Array | None:
    if importlib.util.find_spec("torch") is None:
        return None
    with Pool(len(x), backend="gloo") as pool:
        return np.stack(pool.run(fn, PerRank(list(x))))


def _reduce(mine: Array) -> Array:
    import torch
    import torch.distributed as dist

    dist.reduce(torch.from_numpy(mine), 0)
    return mine


def _max(mine: Array) -> Array:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.from_numpy(mine), dist.ReduceOp.MAX)
    return mine
