"""What is asked of a program that trains with DDP: one plain step, beside one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allreduce_edu.lessons import vectors
from allreduce_edu.lessons.museum.real import Examined

RATE = 0.1
BATCH = 16  # images per rank


def trained(program: Callable[..., Any]) -> Examined:
    """Call ``program(model, images, labels)``, on a rank, and look at its gradients and weights.

    The images are those of all ranks together, as one process would see them. The program wraps
    the model, takes its share, and does one plain SGD step.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    from allreduce_edu.realdist.train import images, make_model

    ranks = dist.get_world_size()
    batch = images(0, 0, BATCH * ranks, ranks=1)
    model, alone = make_model(), make_model()
    program(model, *batch)
    cross_entropy(alone(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    held = torch.from_numpy(vectors.gradient(model))
    mine = [torch.empty_like(held) for _ in range(ranks)]
    dist.all_gather(mine, held)
    names = vectors.owners(model)
    held_by = [each.numpy() for each in mine]
    disagree = vectors.disagreement(held_by, names)
    wrong = vectors.another(held_by[0], vectors.gradient(alone), names, {})
    return disagree, None if disagree else wrong
