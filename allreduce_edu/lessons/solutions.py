"""Solutions of exercises: one right way each, held by the tests to the judges.

Try first: the judges say what is wrong and where. Those of notebook 05 need torch and run on the
ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def my_all_reduce(comm: Any, x: Any) -> Any:
    """Notebook 02, exercise 1: reduce-scatter, then all-gather; chunk c comes from rank c-1."""
    parts = comm.all_gather(comm.reduce_scatter(x))
    return np.concatenate([parts[-1], *parts[:-1]])


def accuracy(comm: Any, correct: int, count: int) -> float:
    """Notebook 02, exercise 2: add the counts, divide once, on every rank."""
    total = comm.all_reduce(np.array([correct, count]))
    return float(total[0] / total[1])


def my_bucket(model: Any) -> None:
    """Notebook 05, exercise 1: average all gradients in one call."""
    import torch
    import torch.distributed as dist

    grads = [p.grad for p in model.parameters()]
    bucket: Any = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    for g, piece in zip(grads, bucket.split([g.numel() for g in grads]), strict=True):
        g.copy_(piece.view_as(g))


def my_ddp(model: Any) -> None:
    """Notebook 05, exercise 2: DDP, bit for bit (torch 2.13, one bucket).

    Each gradient is scaled before the sum. The bucket lies in the order of the parameters in the
    first backward, and in the order in which the gradients became ready in all others.
    """
    import torch
    import torch.distributed as dist

    order, ready = list(model.parameters()), []
    for p in order:
        dist.broadcast(p.data, 0)

    def hook(newest: Any) -> None:
        ready.append(newest)
        if len(ready) == len(order):
            bucket: Any = torch.cat([p.grad.reshape(-1) for p in order])
            bucket *= 1 / dist.get_world_size()
            dist.all_reduce(bucket)
            for p, piece in zip(order, bucket.split([p.numel() for p in order]), strict=True):
                p.grad.copy_(piece.view_as(p))
            order[:] = ready
            ready.clear()

    for p in order:
        p.register_post_accumulate_grad_hook(hook)


def my_accumulation(ddp: Any, batches: list[Any]) -> None:
    """Notebook 05, exercise 3: one all-reduce for several micro-batches."""
    from torch.nn.functional import cross_entropy

    def backward(x: Any, y: Any) -> None:
        loss: Any = cross_entropy(ddp(x), y) / len(batches)
        loss.backward()

    *most, last = batches
    with ddp.no_sync():
        for x, y in most:
            backward(x, y)
    backward(*last)
