"""What is asked of a program that returns numbers on real ranks: those of one process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from allreduce_edu.engine.verify import place_values
from allreduce_edu.lessons import vectors
from allreduce_edu.lessons.museum.exhibit import Examined
from allreduce_edu.lessons.museum.seen import alone, in_order
from allreduce_edu.lessons.museum.simulated import differing, not_right, shown
from allreduce_edu.lessons.museum.training import (
    BATCH,
    Trained,
    digits_batch,
    digits_model,
    mean_loss,
    trained,
)


def gathered(mine: Any) -> list[Any]:
    """Return what every rank has, on each of them, as numbers of numpy.

    What cannot travel does so as what it says of itself.
    """
    import torch.distributed as dist

    told: list[Any] = [None] * dist.get_world_size()
    mine = _plain(mine)
    try:
        pickle.dumps(mine)
    except Exception:  # noqa: BLE001 - a learner's program may return anything
        mine = shown(mine)
    dist.all_gather_object(told, mine)
    return told


def _plain(result: Any) -> Any:
    """Return a tensor as an array, whatever its dtype, and be it part of a graph."""
    import torch

    if not isinstance(result, torch.Tensor):
        return result
    result = result.detach()
    return (result.float() if result.dtype == torch.bfloat16 else result).numpy()


def _compared(results: Sequence[Any], right: Any) -> Examined:
    if disagree := differing(results):
        return f"{disagree}; one process with all the data has {shown(right)}", None
    return None, not_right(results[0], right)


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
    """Call ``program(scores)``: lists of numbers, which on one rank are whole ones."""
    return _first([_mean(program, part, whole) for part, whole in ((0.5, 2), (0.3, 0))])


def _mean(program: Callable[..., Any], part: float, whole: int) -> Examined:
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    scores = [[1, 1] if each == whole else [part, 1.0] for each in range(ranks)]
    return _compared(gathered(program(scores[rank])), float(np.concatenate(scores).mean()))


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


def evaluated(program: Callable[..., Any]) -> Examined:
    """Call ``program(model, test)``: numbers of images that the ranks do not divide."""
    return _first([_evaluation(program, images) for images in (357, 343)])


def _evaluation(program: Callable[..., Any], images: int) -> Examined:
    import torch
    from torch.utils.data import TensorDataset

    from allreduce_edu.data import digits

    data, model = digits(), alone(in_order(40, 64)).eval()
    x, y = torch.from_numpy(data.x_test[:images]), torch.from_numpy(data.y_test[:images])
    right = float((model(x).argmax(1) == y).double().mean())
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    with torch.no_grad():
        got = gathered(program(model, TensorDataset(x, y)))
    read = sum(gathered(sum(rows)))
    disagree, wrong = _compared(got, right)
    if wrong and isinstance(got[0], float) and read != images:
        wrong = (
            f"all ranks agree on {got[0]:.4f}, and have read {read} images together; there are "
            f"{images}, and one process reads {right:.4f} of them right"
        )
    return disagree, wrong


def logged(program: Callable[..., Any]) -> Examined:
    """Call ``program(model, images, labels)``, which makes a step and returns the loss."""
    told: list[Any] = []
    found = trained(lambda *given: told.append(program(*given)))
    if any(found):
        return found
    import torch.distributed as dist

    right = mean_loss(digits_model(), *digits_batch(dist.get_world_size())).item()
    got = gathered(told[0])
    disagree, wrong = _compared(got, right)
    if wrong and isinstance(got[0], float) and abs(got[0] / right - 1) > 0.1:
        wrong += f": {got[0] / right:.3g} times as much. The step itself is right"
    return disagree, wrong


def contrasted(program: Callable[..., Any]) -> Examined:
    """Call ``program(model, left, right)``: one step on pairs, each image against all others."""
    import torch.distributed as dist

    held: list[Any] = []

    def keeping(model: Any, *views: Any) -> None:
        program(model, *views)
        held.append(vectors.gradient(model))

    disagree, wrong = Trained(batch=_views, loss=_contrast)(keeping)
    ranks = dist.get_world_size()
    if wrong and np.allclose(held[0], _apart(ranks), rtol=0, atol=1e-6):
        wrong += (
            f". It is the mean of {ranks} gradients, each of {BATCH} pairs: one process tells "
            f"each image from {BATCH * ranks - 1} others, a rank from {BATCH - 1}"
        )
    return disagree, wrong


def _apart(ranks: int) -> Any:
    """Return the mean of the gradients of every rank's own pairs."""
    views, model = _views(ranks), digits_model()
    for rank in range(ranks):
        (_contrast(model, *(view[rank::ranks] for view in views)) / ranks).backward()
    return vectors.gradient(model)


def _views(ranks: int) -> tuple[Any, Any]:
    images = digits_batch(ranks)[0]
    return images, images.roll(1, 1)


def _contrast(model: Any, left: Any, right: Any) -> Any:
    import torch
    from torch.nn.functional import cross_entropy

    scores = model(left) @ model(right).T
    return cross_entropy(scores, torch.arange(len(scores)))
