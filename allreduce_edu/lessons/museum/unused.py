"""Exhibits of DDP that stops: a parameter takes no part in a loss, on all ranks or on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allreduce_edu.lessons import vectors
from allreduce_edu.lessons.museum.exhibit import Examined, Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.training import HEAD, RATE, digits_batch

Losses = Callable[..., Sequence[Any]]


def two_heads() -> Any:
    """Return a model with two answers: which digit it is, and whether it is odd."""
    import torch
    from torch import nn

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.digit, self.odd = nn.Linear(64, 10), nn.Linear(64, 2)

        def forward(self, images: Any) -> tuple[Any, Any]:
            return self.digit(images), self.odd(images)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TwoHeads()


@dataclass(frozen=True)
class TwoSteps:
    """Calls ``program(model, *batch)`` on a rank; two SGD steps on the batch of all ranks.

    Attributes
    ----------
    batch
        ``batch(ranks)`` gives what all ranks together train on.
    losses
        ``losses(model, ranks, *batch)`` gives the loss of each rank; one process takes their mean.
    """

    batch: Callable[[int], tuple[Any, ...]]
    losses: Losses

    def __call__(self, program: Callable[..., Any]) -> Examined:
        """Say where the ranks end with other weights, or all with those of another training."""
        import torch.distributed as dist

        ranks, model = dist.get_world_size(), two_heads()
        batch = self.batch(ranks)
        program(model, *batch)
        held: list[Any] = [None] * ranks
        dist.all_gather_object(held, vectors.weights(model))
        names = vectors.owners(model)
        disagree = vectors.disagreement(held, names, "weights")
        return disagree, None if disagree else self._wrong(held[0], names, ranks, batch)

    def _wrong(self, mine: Any, names: list[str], ranks: int, batch: tuple[Any, ...]) -> str | None:
        import torch

        alone = two_heads()
        sgd = torch.optim.SGD(alone.parameters(), lr=RATE)
        for _ in range(2):
            sgd.zero_grad()
            loss: Any = torch.stack(list(self.losses(alone, ranks, *batch))).mean()
            loss.backward()
            sgd.step()
        gap = np.abs(mine - vectors.weights(alone))
        if np.nanmax(gap) < vectors.NEAR and not np.isnan(gap).any():
            return None
        where = names[int(np.nan_to_num(gap, nan=np.inf).argmax())]
        return f"all ranks agree, on weights that one process does not reach, first in `{where}`"


def _digit_losses(model: Any, ranks: int, images: Any, labels: Any) -> list[Any]:
    from torch.nn.functional import cross_entropy

    return [cross_entropy(model(images[r::ranks])[0], labels[r::ranks]) for r in range(ranks)]


def _some_known(ranks: int) -> tuple[Any, ...]:
    """Return images, labels, and whether it is known that an image is odd: of none on rank 1."""
    import torch

    images, labels = digits_batch(ranks)
    known = torch.arange(len(labels)) // ranks % 3 == 0
    known[1::ranks] = False
    return images, labels, known


def _both_losses(model: Any, ranks: int, images: Any, labels: Any, known: Any) -> list[Any]:
    from torch.nn.functional import cross_entropy

    losses = _digit_losses(model, ranks, images, labels)
    for r in range(ranks):
        if (mine := known[r::ranks]).any():
            odd = model(images[r::ranks][mine])[1]
            losses[r] = losses[r] + cross_entropy(odd, labels[r::ranks][mine] % 2)
    return losses


HEADLESS = Exhibit(
    name="head",
    wing="hangs",
    symptom="The first step works, and the second stops: Expected to have finished reduction",
    program=HEAD
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    for step in range(2):
        digit, odd = ddp(images[rank::ranks])  # two heads
        loss = cross_entropy(digit, labels[rank::ranks])  # `odd` comes next month
        sgd.zero_grad()
        loss.backward()
        sgd.step()
""",
    stage=Real(TwoSteps(digits_batch, _digit_losses), sparing=False),
    question="The error comes from the second forward. When was the mistake made?",
    choices={
        "in the second forward": "It only asks whether the step before has been finished, and "
        "that has not.",
        "in the first backward": "DDP waits for the gradients of all parameters in a bucket, and "
        "those of a head without a loss never come. It says nothing until the next forward.",
        "when DDP was made": "It has hung its hooks on every parameter, as it should. Which of "
        "them get a gradient, it cannot know then.",
    },
    answer="in the first backward",
    cause="A parameter without a part in the loss holds up its whole bucket, so gradients of the "
    "first step were not even averaged. Freeze it before wrapping, give it `0 * odd.sum()`, or "
    "let DDP look: `find_unused_parameters=True`. With TORCH_DISTRIBUTED_DEBUG=INFO the message "
    "names the parameters",
    fix={"DDP(model)": "DDP(model, find_unused_parameters=True)"},
    tried={
        "wrap again in each step": {
            "        digit, odd": "        ddp = DDP(model)\n        digit, odd",
        },
        "use the head somehow": {
            "  # `odd` comes next month": " + odd.mean()",
        },
        "go on after the error": {
            "        digit, odd = ddp(images[rank::ranks])  # two heads\n": "        try:\n"
            "            digit, odd = ddp(images[rank::ranks])\n"
            "        except RuntimeError:\n"
            "            continue\n",
        },
    },
    reports=(
        Report("pytorch/pytorch#43259", "years of programs that meet this line, and how"),
        Report("pytorch/torchdynamo#1844", "the same line, met while many models are compiled"),
    ),
    shows=(
        "Expected to have finished reduction in the prior iteration",
        "did not receive grad on this rank: 2 3",
        "line 11 of train",
    ),
)

BRANCH = Exhibit(
    name="branch",
    wing="hangs",
    symptom="One rank stops with Expected to have finished reduction, the others in backward()",
    program=HEAD
    + """
def train(model, images, labels, known):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y, known = images[rank::ranks], labels[rank::ranks], known[rank::ranks]
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    for step in range(2):
        digit, odd = ddp(x)
        loss = cross_entropy(digit, y)
        if known.any():  # of some images it is known whether they are odd
            loss = loss + cross_entropy(odd[known], y[known] % 2)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
""",
    stage=Real(TwoSteps(_some_known, _both_losses), ranks=3, seconds=8, sparing=False),
    question="All ranks run this text. Which line does one of them not run?",
    choices={
        "none, or it would be an error": "A rank whose batch has nothing for the second head "
        "leaves it out, in silence.",
        "the loss of the second head": "On one rank no image has it, so two parameters have no "
        "gradient there, and the others wait for that rank's bucket.",
        "backward()": "All of them call it. On one it returns with a bucket that was never sent.",
    },
    answer="the loss of the second head",
    cause="Which parameters take part must not depend on a rank's data, unless DDP is told: "
    "`find_unused_parameters=True`. Or bring a zero through every parameter: add `0 * odd.sum()` "
    "on all ranks. The rank with an error is at fault here; those in backward() wait for it",
    fix={"DDP(model)": "DDP(model, find_unused_parameters=True)"},
    tried={
        "the head in another branch": {
            "        sgd.zero_grad()": "        else:\n            loss = loss + odd.sum()\n"
            "        sgd.zero_grad()",
        },
        "no buffers": {"DDP(model)": "DDP(model, forward_sync_buffers=False)"},
    },
    reports=(
        Report("pytorch/pytorch#49321", "two branches, and a batch that has only one of them"),
        Report("pytorch/pytorch#15435", "a graph that differs between ranks stands still"),
    ),
    shows=(
        "rank 1 raised RuntimeError: Expected to have finished reduction",
        "did not receive grad on this rank: 2 3",
        "ranks 0 and 2 were in backward()",
        "line 17 of train",
    ),
)

EXHIBITS = (HEADLESS, BRANCH)
