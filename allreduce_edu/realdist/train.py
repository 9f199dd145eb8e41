"""A small network on the digits, as a rank trains it: the same code on every rank and alone.

64 pixels, 32 hidden ReLUs, 10 classes. Needs torch; nothing here talks to other ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from allreduce_edu.data import digits


def make_model(seed: int = 0) -> nn.Sequential:
    """Return a fresh network; equal seeds give equal weights, on every rank."""
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays as it is
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def images(rank: int, step: int = 0, batch: int = 16, ranks: int = 4) -> tuple[Tensor, Tensor]:
    """Return the images and labels that `rank` trains on in a step; no two ranks share any.

    All ranks' images of a step together are ``images(0, step, batch * ranks, ranks=1)``. After
    the last image it goes on with the first.
    """
    data = digits()
    start = (step * ranks + rank) * batch
    mine = torch.arange(start, start + batch) % len(data.x)
    return torch.from_numpy(data.x)[mine], torch.from_numpy(data.y)[mine]


def accuracy(model: nn.Module) -> float:
    """Return the share of the 360 test images that the model reads right."""
    data = digits()
    with torch.no_grad():
        guess = model(torch.from_numpy(data.x_test)).argmax(1)
    return float((guess == torch.from_numpy(data.y_test)).float().mean())


def flat(tensors: Iterable[Tensor | None]) -> Tensor:
    """Return all tensors as one vector: a copy, on the CPU."""
    return torch.cat([t.detach().cpu().reshape(-1) for t in tensors if t is not None])


def fingerprint(tensors: Iterable[Tensor | None]) -> str:
    """Return a short hash of every bit: equal hashes, equal bits."""
    return hashlib.sha256(flat(tensors).numpy().tobytes()).hexdigest()[:8]


def gradients(model: nn.Module) -> list[Tensor | None]:
    """Return the gradients in the order of the parameters."""
    return [p.grad for p in model.parameters()]
