"""Replicas of one network, trained side by side in one process, that stay the same or do not.

Each replica has weights, optimizer state, buffers and a random state of its own, and what travels
between them is a choice: nothing, gradients in every step, or weights now and then. Averages are
those of an all-reduce on a ring, bit for bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.data import digits
from allreduce_edu.engine.check import integer, unknown
from allreduce_edu.engine.schedule import even_cut
from allreduce_edu.lessons import network, shards
from allreduce_edu.lessons.network import Array, Lot, Score
from allreduce_edu.lessons.optimizers import USUAL_RATE, Optimizer

SYNCS = ("none", "gradients", "weights")
ADDITIONS = ("on a ring", "own share first")
SAME, DIFFERENT, NONE = "same bits", "different", "there is none"
SCORED = 10  # the test images are read in every tenth step, and at the end


@dataclass(frozen=True)
class Setting:
    """What is trained, and what the replicas tell each other.

    Attributes
    ----------
    ranks, batch, steps : int
        How many replicas, images of each in a step, and steps.
    sync : "none", "gradients" or "weights"
        What is averaged: gradients in every step, or weights after every `every` steps.
    every : int
        For weights: after how many steps. With as many as `steps`, once, at the end.
    missed : int, optional
        The step, counted from 1, in which the last rank uses its own gradient instead.
    late : int
        How many steps later an averaged gradient is used.
    shards : "by class", "shuffled" or "unequal"
        Which images a rank sees.
    by_count : bool
        Whether gradients are weighted by their number of images, or every rank alike.
    same_start : bool
        Whether the replicas start from the same weights.
    optimizer, rate
        "SGD", "momentum" or "AdamW"; its learning rate, or None for its usual one.
    dropout : float
        The share of hidden units that a rank drops, each rank others.
    batch_norm : bool
        Whether there is a BatchNorm, whose running statistics are buffers.
    additions : "on a ring" or "own share first"
        In which order the shares of an average are added.
    seed : int
    """

    ranks: int = 4
    batch: int = 16
    steps: int = 300
    sync: str = "gradients"
    every: int = 1
    missed: int | None = None
    late: int = 0
    shards: str = "by class"
    by_count: bool = False
    same_start: bool = True
    optimizer: str = "SGD"
    rate: float | None = None
    dropout: float = 0.0
    batch_norm: bool = False
    additions: str = "on a ring"
    seed: int = 0

    def __post_init__(self) -> None:
        names = {
            "sync": SYNCS,
            "shards": shards.SHARDS,
            "optimizer": USUAL_RATE,
            "additions": ADDITIONS,
        }
        for name, allowed in names.items():
            if getattr(self, name) not in allowed:
                raise ValueError(unknown(name, getattr(self, name), allowed))
        integer("ranks", self.ranks, 1, 8)
        integer("batch", self.batch, 1, 128)
        integer("steps", self.steps, 1, 10_000)
        integer("every", self.every, 1)
        integer("late", self.late, 0)
        integer("seed", self.seed, 0)
        if self.missed is not None:
            integer("missed", self.missed, 1, self.steps)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout!r}")
        if self.rate is not None and not 0 < self.rate < np.inf:
            raise ValueError(f"rate must be a number above 0, got {self.rate!r}")


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What came of a training.

    Attributes
    ----------
    distance : float64 array [step, pair]
        The Euclidean distance of two replicas' weights, before the first step and after each.
    loss : float32 array [step, rank]
        Each rank's loss on its own images.
    scored : tuple of int
        After which steps the test images were read.
    scores : tuple of Score
        Each replica on all test images, then.
    state : dict
        For each kind of state, whether all ranks hold the same bits.
    weights : float32 array [rank, parameter]
        At the end.
    """

    setting: Setting
    pairs: list[tuple[int, int]]
    distance: npt.NDArray[np.float64]
    loss: Array
    scored: tuple[int, ...]
    scores: tuple[Score, ...]
    state: dict[str, str]
    weights: Array

    @property
    def apart(self) -> npt.NDArray[np.float64]:
        """The largest distance of any two replicas, before the first step and after each."""
        largest: npt.NDArray[np.float64] = self.distance.max(axis=1, initial=0.0)
        return largest

    @property
    def accuracy(self) -> npt.NDArray[np.float64]:
        """The share of all test images that each replica reads right at the end."""
        return self.scores[-1].accuracy

    @property
    def by_class(self) -> npt.NDArray[np.float64]:
        """The same for each digit: [rank, class]."""
        return self.scores[-1].by_class

    @property
    def identical(self) -> bool:
        """Whether all replicas end with the same bits in every parameter."""
        return self.state["parameters"] == SAME

    def __repr__(self) -> str:
        s = self.setting
        how = "the same bits" if self.identical else "different weights"
        return f"Report: {s.ranks} replicas after {s.steps} steps, sync {s.sync}: {how}"


class Replicas:
    """A training in progress: ``step()`` until it is ``over``, then ``report()``.

    Examples
    --------
    >>> training = Replicas(Setting(sync="gradients"))
    >>> while not training.over:
    ...     training.step()
    >>> training.report().identical
    True
    """

    def __init__(self, setting: Setting) -> None:
        s = self.setting = setting
        data = digits()
        self._x, self._y, self._test = data.x, data.y, (data.x_test, data.y_test)
        self._index = shards.schedule(data.y, s.shards, s.ranks, s.batch, s.steps, s.seed)
        self._images = shards.counts(s.shards, s.ranks, s.batch)
        seeds = [s.seed + (0 if s.same_start else 1000 * r) for r in range(s.ranks)]
        self.weights = network.start(seeds, batch_norm=s.batch_norm)
        self.buffers = network.fresh_buffers(s.ranks) if s.batch_norm else None
        self.random = [np.random.default_rng([s.seed, 1 + r]) for r in range(s.ranks)]
        self._optimizer = Optimizer(s.optimizer, s.rate, self.weights.shape)
        self._waiting: deque[Array] = deque()
        self._pairs = list(combinations(range(s.ranks), 2))
        self._distance = [self._apart()]
        self._loss: list[Array] = []
        self._scores: dict[int, Score] = {}
        self.done = 0

    @property
    def over(self) -> bool:
        """Whether all steps are done."""
        return self.done == self.setting.steps

    def __repr__(self) -> str:
        return f"Replicas: {self.setting.ranks}, after {self.done} of {self.setting.steps} steps"

    def step(self) -> None:
        """Let every replica take one step, and average what the setting says."""
        grads = self.gradients()
        self.update(self._together(grads) if self.setting.sync == "gradients" else grads)

    @np.errstate(over="ignore", invalid="ignore")  # a rate that is far too high may overflow
    def gradients(self) -> Array:
        """Return each replica's gradient on its own images of this step: [rank, parameter]."""
        at = self._index[self.done]
        lot = Lot(self._x[at], self._y[at], self._images)
        losses, grads = network.losses_and_gradients(
            self.weights, lot, self.buffers, self._dropped(lot)
        )
        self._loss.append(losses)
        return grads

    @np.errstate(over="ignore", invalid="ignore")
    def update(self, grads: Array) -> None:
        """Let each replica's optimizer use its row of `grads`; this ends the step."""
        s = self.setting
        self.done += 1
        self._waiting.append(np.array(grads, np.float32))
        if len(self._waiting) > s.late:
            self._optimizer.step(self.weights, self._waiting.popleft())
        if s.sync == "weights" and self.done % s.every == 0:
            self.weights[:] = average(self.weights, s.additions)
        self._distance.append(self._apart())
        if self.done % SCORED == 0 or self.over:
            self._scores[self.done] = network.score(self.weights, *self._test, self.buffers)

    def _dropped(self, lot: Lot) -> Array | None:
        """Return what dropout multiplies hidden units by: each rank draws for itself."""
        p = self.setting.dropout
        if not p:
            return None
        shape = lot.y.shape[1], network.HIDDEN
        drawn = np.stack([rng.random(shape, np.float32) for rng in self.random])
        return (drawn >= p).astype(np.float32) / np.float32(1 - p)

    def _together(self, grads: Array) -> Array:
        """Return what each rank holds after the all-reduce."""
        s = self.setting
        shares = grads
        if s.by_count:
            weight = self._images * (s.ranks / self._images.sum())
            shares = grads * weight[:, None].astype(np.float32)
        averaged = average(shares, s.additions)
        if s.missed == self.done + 1:
            averaged[-1] = grads[-1]
        return averaged

    def _apart(self) -> npt.NDArray[np.float64]:
        if not self._pairs:
            return np.zeros(0)
        a, b = np.transpose(self._pairs)
        gap = self.weights[a] - self.weights[b]
        squares: npt.NDArray[np.float64] = np.einsum("pk,pk->p", gap, gap, dtype=np.float64)
        return np.sqrt(squares)

    def report(self) -> Report:
        """Return what has come of it."""
        if not self.over:
            raise RuntimeError(f"report() needs all {self.setting.steps} steps, got {self.done}")
        return Report(
            self.setting,
            self._pairs,
            np.stack(self._distance),
            np.stack(self._loss),
            tuple(self._scores),
            tuple(self._scores.values()),
            self._state(),
            self.weights,
        )

    def _state(self) -> dict[str, str]:
        random = [str(rng.bit_generator.state) for rng in self.random]
        return {
            "parameters": _same_bits([self.weights]),
            "optimizer state": _same_bits(self._optimizer.state),
            "buffers": _same_bits(self.buffers or ()),
            "random state": SAME if len(set(random)) == 1 else DIFFERENT,
        }


def train(**choices: Any) -> Report:
    """Train to the end and report; `choices` are those of `Setting`."""
    training = Replicas(Setting(**choices))
    while not training.over:
        training.step()
    return training.report()


def average(shares: Array, additions: str = "on a ring") -> Array:
    """Return the mean of shares[rank, parameter], as every rank holds it: [rank, parameter].

    On a ring: the bits of ``run(ring(n), shares, op="avg")``. A chunk is added up in one place,
    starting with the rank of its own number, and copied. With its own share first, each rank
    adds up for itself.
    """
    n, elements = shares.shape
    if additions == "own share first":
        order = (np.arange(n)[:, None] + np.arange(n)) % n  # [rank, who comes when]
        total: Array = shares[order[:, 0]]
        for k in range(1, n):
            total = total + shares[order[:, k]]
        total /= np.float32(n)
        return total
    chunk = np.repeat(np.arange(n), even_cut(elements, shares.itemsize, n))
    at = np.arange(elements)
    one = shares[chunk, at]
    for k in range(1, n):
        one = shares[(chunk + k) % n, at] + one
    return np.repeat((one / np.float32(n))[None], n, axis=0)


def _same_bits(states: Any) -> str:
    """Say whether each row of every array has the bits of the first."""
    if not len(states):
        return NONE
    same = all((each.view("u4") == each[:1].view("u4")).all() for each in states)
    return SAME if same else DIFFERENT
