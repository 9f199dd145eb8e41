"""Training under a policy: in which format gradients are added up, and weights are kept.

Also the gradients of a network that has been trained for a while, for what fp16 makes of them.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from allreduce_edu.data import digits
from allreduce_edu.engine.check import integer, unknown
from allreduce_edu.engine.precision import format_of, rounded
from allreduce_edu.engine.schedule import even_cut
from allreduce_edu.lessons.network import Array
from allreduce_edu.lessons.replicas import Replicas, Setting
from allreduce_edu.lessons.training import initial_weights, loss_and_gradient

TRAINED = 3000  # steps


class Policy(NamedTuple):
    """The format of gradients on the ring, and that in which weights are kept."""

    gradients: str = "fp32"
    weights: str = "fp32"


POLICIES: dict[str, Policy] = {
    "all in fp32": Policy(),
    "bf16 ring": Policy("bf16"),
    "bf16 ring and weights": Policy("bf16", "bf16"),
    "fp8 e4m3 ring": Policy("fp8_e4m3"),
}


@np.errstate(over="ignore", invalid="ignore")
def ring_mean(shares: Array, kind: str) -> Array:
    """Return the mean of shares[rank, parameter], rounded at every hop of a ring.

    Each rank divides its share before it is rounded and sent. The bits of
    ``run(ring(n), shares / n, wire=kind, accumulate=kind)``.
    """
    n, elements = shares.shape
    x = rounded(shares / np.float32(n), kind)
    chunk = np.repeat(np.arange(n), even_cut(elements, 4, n))
    at = np.arange(elements)
    total: Array = x[chunk, at]
    for k in range(1, n):
        total = rounded(total + x[(chunk + k) % n, at], kind)
    return total


class Run(NamedTuple):
    """What came of a training: the mean loss of all ranks in each step, and the accuracy."""

    loss: Array
    accuracy: float
    stuck: float  # the share of weights that the last step's update would move, and did not


def training(
    policy: str, seed: int = 0, rate: float = 0.1, *, ranks: int = 8, steps: int = 300
) -> Generator[float, None, Run]:
    """Train the digits network under a policy; yield the share done and return a `Run`."""
    if policy not in POLICIES:
        raise ValueError(unknown("policy", policy, POLICIES))
    p = POLICIES[policy]
    setting = Setting(ranks=ranks, batch=8, steps=steps, shards="shuffled", rate=rate, seed=seed)
    replicas = Replicas(setting)
    replicas.weights[:] = rounded(replicas.weights, p.weights)
    stuck = 0.0
    while not replicas.over:
        mean = ring_mean(replicas.gradients(), p.gradients)
        before = replicas.weights.copy()
        replicas.update(np.repeat(mean[None], ranks, axis=0))
        wanted = replicas.weights != before
        replicas.weights[:] = rounded(replicas.weights, p.weights)
        stuck = float((replicas.weights == before)[wanted].mean()) if wanted.any() else 0.0
        yield replicas.done / steps
    report = replicas.report()
    return Run(report.loss.mean(axis=1), float(report.accuracy[0]), stuck)


@lru_cache(maxsize=64)
def trained(policy: str, seed: int = 0, rate: float = 0.1) -> Run:
    """Train to the end; results are kept."""
    work = training(policy, seed, rate)
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Run = end.value
            return result


# -------------------------------------------------------------- what fp16 makes of gradients


@lru_cache(maxsize=4)
def late_gradient(steps: int = TRAINED) -> Array:
    """Return the gradient of a network after `steps` of SGD with momentum 0.9, without zeros.

    Pixels that are black in every image, and units that are off, have exact zeros: left out. How
    small the others are depends on how long, and with which learning rate (0.1), one trains.
    """
    steps = integer("steps", steps, 1, 100_000)
    data, weights, rng = digits(), initial_weights(), np.random.default_rng(0)
    speed = np.zeros_like(weights)
    for _ in range(steps):
        which = rng.integers(0, len(data.x), 64)
        gradient = loss_and_gradient(weights, data.x[which], data.y[which])[1]
        speed = np.float32(0.9) * speed + gradient
        weights -= np.float32(0.1) * speed
    which = rng.integers(0, len(data.x), 64)
    gradient = loss_and_gradient(weights, data.x[which], data.y[which])[1]
    live: Array = gradient[gradient != 0]
    return live


class Fate(NamedTuple):
    """Shares of numbers that a format loses: to zero, to fewer digits, to infinity."""

    zero: float
    subnormal: float
    infinite: float


@np.errstate(over="ignore")
def fate(numbers: Array, kind: str, scale: float = 1.0) -> Fate:
    """Return what becomes of numbers that are multiplied by `scale` and rounded to `kind`."""
    got = np.abs(rounded(numbers * np.float32(scale), kind))
    normal = 2.0 ** format_of(kind).lowest
    small = (got > 0) & (got < normal)
    return Fate(*(float(each.mean()) for each in (got == 0, small, ~np.isfinite(got))))
