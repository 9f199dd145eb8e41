"""How much a reduction loses: against the number of ranks, and by where it rounds.

A chain of 4,096 additions passes through the sum of every smaller number of ranks, and a balanced
tree holds one subtree for each power of two. So one of each gives the whole curve: the orders are
those of `ring`, `binomial_tree`, `halving_doubling` and `one_shot`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.data import digits
from allreduce_edu.engine.algorithms import ALGORITHMS
from allreduce_edu.engine.check import integer, unknown
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.precision import exact_sum, format_of, relative_rms, rounded
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.lessons.training import initial_weights, loss_and_gradient

Array = npt.NDArray[np.float32]
Sums = dict[int, Array]  # for each number of ranks, the sum of the first so many shares

MOST = 4096
ELEMENTS = 4096
_SLAB = 64
RANKS = tuple(2**k for k in range(1, 13))
DATA = ("same sign", "zero mean", "real gradients")
FORMATS_SHOWN = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2")


# ------------------------------------------------------------------------------------ data


def shares(data: str = "same sign", ranks: int = MOST, elements: int = ELEMENTS) -> Array:
    """Return x[rank, element], not to be written to: what every rank contributes.

    "same sign": uniform between 0.5 and 1.5. "zero mean": N(0, 1). "real gradients": each rank's
    gradient on 16 images of its own choice of a fresh network, without the pixels that are black
    in all images, and times a power of two that brings it near 1 (which changes no rounding but
    fp8's and fp16's smallest numbers).
    """
    if data not in DATA:
        raise ValueError(unknown("data", data, DATA))
    shape = integer("ranks", ranks, 1, MOST), integer("elements", elements, 1, ELEMENTS)
    return _largest(data) if shape == (MOST, ELEMENTS) else _drawn(data, shape)


@lru_cache(maxsize=1)
def _largest(data: str) -> Array:
    return _drawn(data, (MOST, ELEMENTS))


def _drawn(data: str, shape: tuple[int, int]) -> Array:
    rng = np.random.default_rng(0)
    if data == "same sign":
        x = rng.random(shape, np.float32) + np.float32(0.5)
    elif data == "zero mean":
        x = rng.standard_normal(shape, np.float32)
    else:
        x = _gradients(*shape)
    x.flags.writeable = False
    return x


def _gradients(ranks: int, elements: int) -> Array:
    images, weights, rng = digits(), initial_weights(80), np.random.default_rng(0)
    live = np.flatnonzero(images.x.max(axis=0))  # pixels that are not black in every image
    at = (np.arange(80)[:, None] * images.x.shape[1] + live).ravel()[:elements]
    x = np.empty((ranks, len(at)), np.float32)
    for row in x:
        which = rng.integers(0, len(images.x), 16)
        row[:] = loss_and_gradient(weights, images.x[which], images.y[which])[1][at]
    return x * np.float32(2.0 ** -np.round(np.log2(x.std())))


# ------------------------------------------------------------------ orders of addition


@np.errstate(over="ignore", invalid="ignore")
def chain(x: Array, kind: str) -> Sums:
    """Add rank after rank, rounding each sum: a ring's chunk, or one rank that adds up all."""
    total, found = rounded(x[0], kind), {}
    for n, share in enumerate(x[1:], 2):
        total = rounded(total + share, kind)
        if n & (n - 1) == 0:
            found[n] = total
    return found


@np.errstate(over="ignore", invalid="ignore")
def tree(x: Array, kind: str) -> Sums:
    """Add neighbours, then neighbouring pairs, and so on, rounding each sum: a balanced tree."""

    def neighbours(part: Array) -> Sums:
        found = {}
        while len(part) > 1:
            part = rounded(part[0::2] + part[1::2], kind)
            found[len(x) // len(part)] = part[0]
        return found

    return _by_slabs(x, neighbours)


@np.errstate(over="ignore", invalid="ignore")
def halves(x: Array, kind: str) -> Sums:
    """Add ranks half of all apart, then a quarter: halving-doubling, whose tree is balanced too."""

    def far_ranks(x: Array) -> Sums:
        found = {}
        for n in (n for n in RANKS if n <= len(x)):
            part = x[:n]
            while len(part) > 1:
                half = len(part) // 2
                part = rounded(part[:half] + part[half:], kind)
            found[n] = part[0]
        return found

    return _by_slabs(x, far_ranks)


def _by_slabs(x: Array, add: Callable[[Array], Sums]) -> Sums:
    """Add up a few elements of all ranks at a time, which stay in a cache."""
    parts = [add(x[:, k : k + _SLAB]) for k in range(0, x.shape[1], _SLAB)]
    return {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}


def wide(x: Array, kind: str) -> Sums:
    """Add raw shares in fp32 and round once, at the end: one-shot, or an exchange of raw shares."""
    return {n: rounded(total, kind) for n, total in chain(x, "fp32").items()}


ORDERS: dict[str, Callable[[Array, str], Sums]] = {
    "ring": chain,
    "balanced tree": tree,
    "halving-doubling": halves,
    "one-shot, fp32 inside": wide,
}


def exact(x: Array) -> dict[int, npt.NDArray[np.float64]]:
    """Return the sums in float64, whose own error is far below the last place of float32."""
    total, found, done = np.zeros(x.shape[1:]), {}, 0
    for n in (n for n in RANKS if n <= len(x)):
        total = total + x[done:n].sum(axis=0, dtype=np.float64)
        found[n], done = total, n
    return found


class Curve(NamedTuple):
    """The relative error (rms over all elements) of one order of addition, for each of `ranks`."""

    order: str
    ranks: list[int]
    error: list[float]


@lru_cache(maxsize=256)
def curve(data: str, kind: str, order: str) -> Curve:
    """Return the error against the number of ranks for one order of addition.

    Shares are rounded to `kind` first, so that only additions err. Infinite where a sum no longer
    fits into the format.
    """
    if order not in ORDERS:
        raise ValueError(unknown("order", order, ORDERS))
    x, truth = _rounded_shares(data, kind)
    sums = ORDERS[order](x, kind)
    return Curve(order, list(sums), [_error(sums[n], truth[n]) for n in sums])


@lru_cache(maxsize=1)
def _rounded_shares(data: str, kind: str) -> tuple[Array, dict[int, npt.NDArray[np.float64]]]:
    whole = shares(data)
    x = np.empty_like(whole)
    for k in range(0, len(x), _SLAB):
        x[k : k + _SLAB] = rounded(whole[k : k + _SLAB], kind)
    return x, exact(x)


def _error(got: Array, truth: npt.NDArray[np.float64]) -> float:
    if not np.isfinite(got).all():
        return float("inf")
    return relative_rms(got, truth)


def theory(order: str, data: str, kind: str, ranks: int) -> float:
    """Return the error that independent roundings add up to: chain or balanced tree.

    An addition errs by up to half a place, anywhere in it, which is s u / sqrt(7) (rms) for sums s
    anywhere in a binade. A chain has a rounding for each partial sum: u sqrt(N/21) if all
    shares have one sign, u sqrt(N/14) if their mean is zero. A tree's last few additions are the
    large ones: about 0.65 u, for any N (sums of equal terms stand near a power of two, half of them
    just below it); u sqrt(log2(N) / 7) if the mean is zero.
    """
    u, (mean, spread) = format_of(kind).unit, _moments(data)
    n, levels = float(ranks), np.log2(ranks)
    if order == "ring":
        squares = (mean * n**3 / 3 + spread * n**2 / 2) / 7
    elif order in ("balanced tree", "halving-doubling"):
        squares = mean * n * (n - 1) * 5 / 12 + spread * n * levels / 7
    else:
        raise ValueError(unknown("order", order, ("ring", "balanced tree", "halving-doubling")))
    return float(u * np.sqrt(squares / (mean * n**2 + spread * n)))


@lru_cache(maxsize=4)
def _moments(data: str) -> tuple[float, float]:
    """Return the mean square of the elements' means, and the mean of their variances."""
    if data == "zero mean":
        return 0.0, 1.0
    if data == "same sign":
        return 1.0, 1 / 12
    x = shares(data)
    spread = float(x.var(axis=0, dtype=np.float64).mean())
    return float((x.mean(axis=0, dtype=np.float64) ** 2).mean()) - spread / len(x), spread


# ------------------------------------------------------------- wire against accumulator


class Outcome(NamedTuple):
    """What an all-reduce leaves: relative error (rms, all ranks), and how many results differ."""

    error: float
    replicas: int

    @property
    def identical(self) -> bool:
        """Whether all ranks hold the same bits."""
        return self.replicas == 1


def outcome(
    schedule: Schedule,
    x: Any,
    wire: str | None = None,
    accumulate: str | None = None,
    *,
    round_owner: bool = False,
) -> Outcome:
    """Play `schedule` on float32 shares, and compare with their exact sum and rank with rank."""
    got = run(schedule, x, wire=wire, accumulate=accumulate, round_owner=round_owner)
    return Outcome(relative_rms(got, exact_sum(x)), len({row.tobytes() for row in got}))


def combinations(
    algorithm: str = "ring", ranks: int = 64, *, round_owner: bool = False, elements: int = 4096
) -> Iterator[tuple[str, str, Outcome]]:
    """Yield (wire, accumulator, outcome) for each of three formats on either side.

    The shares are N(0, 1), rounded to bf16 first: every one of them is exact in bf16 and fp32.
    """
    schedule = ALGORITHMS[algorithm](ranks)
    x = rounded(shares("zero mean", ranks, elements), "bf16")
    for wire in ("fp32", "bf16", "fp16"):
        for keep in ("fp32", "bf16", "fp16"):
            yield wire, keep, outcome(schedule, x, wire, keep, round_owner=round_owner)


# ---------------------------------------------------------------- the mean of fp16 numbers


def means_in_fp16(ranks: int, value: float) -> dict[str, float]:
    """Return the mean of equal fp16 numbers on a chain, by where the division stands."""
    n = np.float32(integer("ranks", ranks, 2, MOST))

    def mean(before: Any, after: Any) -> float:
        x = np.full((1 << (ranks - 1).bit_length(), 1), 0, np.float32)
        x[:ranks] = rounded(rounded(np.array([value], "f4"), "fp16") / np.float32(before), "fp16")
        total = chain(x, "fp16")[len(x)]
        return float(rounded(total / np.float32(after), "fp16")[0])

    return {
        "sum, then divide": mean(1, n),
        "divide, then sum": mean(n, 1),
        "divide by √N before and after": mean(np.sqrt(n), np.sqrt(n)),
    }
