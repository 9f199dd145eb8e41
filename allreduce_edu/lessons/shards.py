"""Who sees which images: one global shuffle, digits split by class, or unequal shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.lessons.training import CLASSES

Indices = npt.NDArray[np.int64]
SHARDS = ("by class", "shuffled", "unequal")


def classes_of(rank: int, ranks: int) -> range:
    """Return the digits that a rank sees when the classes are split: each on one rank only."""
    return range(*(-(-CLASSES * r // ranks) for r in (rank, rank + 1)))


def counts(shards: str, ranks: int, batch: int) -> Indices:
    """Return how many images each rank takes in a step; unequal ones are halved again and again."""
    if shards != "unequal":
        return np.full(ranks, batch)
    halvings = np.array([0, 1, 1, 3, 0, 2, 1, 3])[:ranks]
    uneven: Indices = np.maximum(batch >> halvings, 1)
    return uneven


def schedule(labels: Any, shards: str, ranks: int, batch: int, steps: int, seed: int) -> Indices:
    """Return index[step, rank, image]; rows of ranks that take fewer are filled up with image 0.

    The shuffled ranks share one shuffle, as DistributedSampler's do: together, 4 ranks with 16
    images each see exactly what one rank with 64 sees.
    """
    per_rank = counts(shards, ranks, batch)
    index = np.zeros((steps, ranks, batch), np.int64)
    if shards == "by class":
        for rank in range(ranks):
            own = np.flatnonzero(np.isin(labels, classes_of(rank, ranks)))
            index[:, rank] = _stream(own, steps * batch, [seed, rank]).reshape(steps, batch)
        return index
    all_images = np.arange(len(labels))
    rows = _stream(all_images, steps * per_rank.sum(), [seed]).reshape(steps, -1)
    for rank, part in enumerate(np.split(rows, np.cumsum(per_rank)[:-1], axis=1)):
        index[:, rank, : per_rank[rank]] = part
    return index


def _stream(images: Indices, length: int, seed: list[int]) -> Indices:
    """Return the images in a fresh order for each epoch, as many as are wanted."""
    rng = np.random.default_rng(seed)
    epochs = -(-length // len(images))
    return np.concatenate([rng.permutation(images) for _ in range(epochs)])[:length]
