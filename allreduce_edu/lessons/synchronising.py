"""Judges a learner's own averaging of gradients, between replicas in one process.

First the same bits on all ranks, then the gradient that one process with all the images would
have: the two are different promises, and each is broken by mistakes that keep the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.data import digits
from allreduce_edu.lessons.checks import Verdict, right, wrong
from allreduce_edu.lessons.network import Array
from allreduce_edu.lessons.replicas import Replicas, Setting
from allreduce_edu.lessons.training import initial_weights, loss_and_gradient

Synchronise = Callable[[list[Array]], Any]
Combine = Callable[[Callable[[Any, Any], Array], list[tuple[Any, Any]]], Any]
_STEPS = 20
_NEAR = 1e-6  # the largest gap to one process after those steps; a ring reaches 3e-7
_TRIED = (4, 3, 2, 5, 8, 1)  # ranks, the number in the pictures first
_SPLITS = ((8, 4, 4, 1), (5, 1, 3), (2, 7, 1, 6, 3))
_GOOD = 1e-5  # relative error of a gradient; the reference reaches 1e-7


# ------------------------------------------------------------------ exercise 1: all the same


def synchronises(synchronise: Synchronise) -> Verdict:
    """Judge `synchronise(grads)`, which gets one gradient per rank and returns one for each.

    It trains with it for 20 steps: all replicas must hold the same bits, and be one process.
    """
    for ranks in _TRIED:
        if problem := _training(synchronise, ranks):
            return wrong(f"with {ranks} rank{'s' if ranks > 1 else ''}: {problem}")
    return right(
        f"after {_STEPS} steps all replicas hold the same bits, for 1 to 8 ranks, and they are "
        "one process with the whole batch, up to rounding"
    )


def _training(synchronise: Synchronise, ranks: int) -> str | None:
    """Train replicas with the learner's function, and say what is wrong with them."""
    training = Replicas(Setting(ranks=ranks, steps=_STEPS, shards="shuffled"))
    for step in range(_STEPS):
        grads = training.gradients()
        given = synchronise([row.copy() for row in grads])
        if problem := _form(given, grads):
            return problem
        shared = np.stack([np.asarray(each) for each in given])
        if step == 0 and (problem := _first_step(shared, grads)):
            return problem
        training.update(shared)
    return _same_bits(training.weights) or _one_process(training.weights[0], ranks)


def _form(given: Any, grads: Array) -> str | None:
    """Say what is wrong with the form of what the function returned."""
    if given is ...:
        return "replace the dots with a list: one array for each rank"
    if given is None:
        return "synchronise returned None; return a list with one array for each rank"
    if not isinstance(given, (list, tuple, np.ndarray)) or len(given) != len(grads):
        what = f"{len(given)} arrays" if isinstance(given, (list, tuple)) else type(given).__name__
        return f"return a list with one array for each rank ({len(grads)}), got {what}"
    for rank, each in enumerate(given):
        shape = getattr(each, "shape", None)
        if shape != grads[0].shape:
            return f"rank {rank} must get an array of shape {grads[0].shape}, got {shape}"
    return None


def _first_step(shared: Array, grads: Array) -> str | None:
    """Recognise the mistakes that one step betrays."""
    mean = grads.astype(np.float64).mean(axis=0)
    kept = [rank for rank, row in enumerate(shared) if np.array_equal(row, grads[rank])]
    if len(grads) > 1 and len(kept) == len(grads):
        return "every rank still has its own gradient: nothing was averaged"
    if kept and len(kept) == len(grads) - 1:
        (who,) = set(range(len(grads))) - set(kept)
        return f"rank {who} has a new gradient, rank {kept[0]} still has its own: that is `reduce`"
    if np.ptp(shared, axis=0).any():
        return None  # told after the last step, with the place
    if not np.allclose(shared, mean, rtol=1e-3, atol=1e-5):
        times = float(shared[0] @ mean / (mean @ mean))
        if np.allclose(shared[0], times * mean, rtol=1e-3, atol=1e-5):
            hint = ": it is the sum, divide by the number of ranks"
            return f"all ranks agree, on a gradient {times:.3g} times as long as the mean" + (
                hint if abs(times - len(grads)) < 1e-2 else ""
            )
        return "all ranks agree, on a gradient that is not the mean of all"
    return None


def _same_bits(weights: Array) -> str | None:
    """Say which two ranks hold different bits, and where first."""
    for rank, row in enumerate(weights[1:], 1):
        at = np.flatnonzero(row.view("u4") != weights[0].view("u4"))
        if at.size:
            gap = float(np.abs(row - weights[0]).max())
            near = gap < 1e-4
            how = (
                f"by {gap:.0e} at most: right up to rounding, in an order that differs from rank "
                "to rank. Let all ranks add in one order"
                if near
                else f"by up to {gap:.2g}"
            )
            return f"ranks 0 and {rank} differ in parameter {at[0]} after {_STEPS} steps, {how}"
    return None


def _one_process(weights: Array, ranks: int) -> str | None:
    alone = Replicas(Setting(ranks=1, batch=16 * ranks, steps=_STEPS, shards="shuffled"))
    while not alone.over:
        alone.step()
    gap = float(np.abs(weights - alone.weights[0]).max())
    if gap <= _NEAR:
        return None
    return (
        f"all ranks agree, but after {_STEPS} steps they are {gap:.1e} away from one process with "
        "the whole batch; rounding explains a millionth"
    )


# -------------------------------------------------------------- exercise 2: unequal shares


def combines(combine: Combine) -> Verdict:
    """Judge `combine(gradient, shards)` on shards of 8, 4, 4 and 1 images, and on others.

    ``gradient(x, y)`` is the mean gradient of some images; the result must be that of all of them
    together. The images are counted, and may not leave their rank.
    """
    for images in _SPLITS:
        if problem := _combined(combine, images):
            return wrong(f"for {_listed(images)} images: {problem}")
    return right(
        "the gradient of all images together, up to rounding, for three different splits, "
        "each image used on its own rank"
    )


class _Counted:
    """The mean gradient of some images, which remembers which ones it was asked about."""

    def __init__(self, weights: Array, where: dict[bytes, int]) -> None:
        self.weights, self.where = weights, where
        self.seen: set[bytes] = set()
        self.mixed = 0

    def __repr__(self) -> str:
        return "gradient(x, y): the mean gradient of the images x with the labels y"

    def __call__(self, x: Any, y: Any) -> Array:
        x, y = np.asarray(x, np.float32), np.asarray(y)
        names = [row.tobytes() for row in x]
        if len({self.where[name] for name in names if name in self.where}) > 1:
            self.mixed = max(self.mixed, len(names))
        self.seen |= set(names)
        return loss_and_gradient(self.weights, x, y)[1]


def _combined(combine: Combine, images: Sequence[int]) -> str | None:
    data, weights = digits(), initial_weights()
    cuts = np.cumsum((0, *images))
    shards = [(data.x[a:b], data.y[a:b]) for a, b in pairwise(cuts)]
    where = {row.tobytes(): r for r, (x, _) in enumerate(shards) for row in x}
    gradient = _Counted(weights, where)
    given = combine(gradient, shards)
    if given is None:
        return "combine returned None; return one array, the gradient of all images"
    if getattr(given, "shape", None) != weights.shape:
        return f"return one array of shape {weights.shape}, got {getattr(given, 'shape', given)}"
    if gradient.mixed:
        return f"no rank has {gradient.mixed} of them: images stay on their ranks, gradients travel"
    total = int(cuts[-1])
    if len(gradient.seen) < total:
        return (
            f"only {len(gradient.seen)} of {total} images were used; the others were paid for too"
        )
    return _off(np.asarray(given, np.float64), shards, weights, images)


def _off(given: npt.NDArray[Any], shards: Any, weights: Array, images: Sequence[int]) -> str | None:
    """Say how a gradient differs from that of all images, and which recipe it is."""
    x, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
    whole = loss_and_gradient(weights, x, y)[1].astype(np.float64)
    each = np.stack([loss_and_gradient(weights, *shard)[1] for shard in shards])
    if _error(given, whole) < _GOOD:
        return None
    n = len(images)
    recipes = {
        "it is the mean of the ranks' means: the last image alone weighs as much as all of rank 0's"
        if images[-1] == 1
        else "it is the mean of the ranks' means: every rank weighs the same, however few its "
        "images": each.mean(axis=0),
        f"it is 1/{n} of the right one: weights that add up to 1 need no second division": whole
        / n,
        "it is the sum of all images' gradients: divide by their number": whole * sum(images),
        "it is the sum of the ranks' means": each.sum(axis=0),
    }
    for sentence, wrong_one in recipes.items():
        if _error(given, wrong_one) < _GOOD:
            return sentence
    return f"it is off by {_error(given, whole):.2g} times the length of the right gradient"


def _error(given: npt.NDArray[Any], want: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(given - want) / np.linalg.norm(want))


def _listed(images: Sequence[int]) -> str:
    return ", ".join(map(str, images[:-1])) + f" and {images[-1]}"
