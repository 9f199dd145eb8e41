"""What is asked of a program that returns numbers on real ranks: those of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from allreduce_edu.engine.verify import place_values
from allreduce_edu.lessons.museum.real import Examined
from allreduce_edu.lessons.museum.simulated import differing, not_right


def gathered(mine: Any) -> list[Any]:
    """Return what every rank has, on each of them, as numbers of numpy."""
    import torch
    import torch.distributed as dist

    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return [each.numpy() if isinstance(each, torch.Tensor) else each for each in told]


def _compared(results: Sequence[Any], right: Any) -> Examined:
    if disagree := differing(results):
        return disagree, None
    numbers = np.asarray(results[0]).dtype.kind in "fiub"
    return None, not_right(results[0] if numbers else repr(results[0]), right)


def _first(cases: Sequence[Examined]) -> Examined:
    """Return the first of several cases in which something is found."""
    return next((case for case in cases if any(case)), (None, None))


# --------------------------------------------------------------------------- one per exhibit


def recalls(program: Callable[..., Any]) -> Examined:
    """Call ``program(table)``: for ten classes how many images, and how many of them found."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    tables = [_table(each) for each in range(ranks)]
    got = gathered(program(torch.from_numpy(tables[rank].copy())))
    total = np.sum(tables, 0)
    return _compared(got, total[:, 1] / total[:, 0])


def _table(rank: int) -> Any:
    images = np.arange(30, 40) + rank
    return np.stack([images, images - np.arange(10) % (rank + 2)], 1).astype(np.float32)


def means(program: Callable[..., Any]) -> Examined:
    """Call ``program(scores)``: a list of numbers, on one rank whole ones."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    scores = [[1, 1] if each == 2 else [0.5, 1.0] for each in range(ranks)]
    got = gathered(program(scores[rank]))
    return _compared(got, float(np.concatenate(scores).mean()))


def spikes(program: Callable[..., Any]) -> Examined:
    """Call ``program(norms)``: a spike on rank 1, on rank 0, on none."""
    return _first([_spike(program, who) for who in (1, 0, None)])


def _spike(program: Callable[..., Any], who: int | None) -> Examined:
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    norms: Any = place_values(ranks, 8).astype(np.float32)  # the last rank's go up to thousands
    norms = norms / 10 if who is None else np.roll(norms, who + 1 - ranks, 0)
    got = gathered(program(torch.from_numpy(norms[rank].copy())))
    return _compared(got, norms.sum(0) if who is None else norms.max(0))
