"""Measured times as rates, and alpha and beta fitted to them.

A rate is bytes per second; sizes are bytes, as the benchmark nccl-tests counts them for each
collective. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import Registry, integer, numbers
from allreduce_edu.engine.formulas import closed_form
from allreduce_edu.engine.links import Link, Links

Floats = npt.NDArray[np.float64]

BUSBW: Registry[Callable[[int], float]] = Registry(
    "collective",
    {
        "all_reduce": lambda n: 2 * (n - 1) / n,
        "reduce_scatter": lambda n: (n - 1) / n,
        "all_gather": lambda n: (n - 1) / n,
        "all_to_all": lambda n: (n - 1) / n,
        "gather": lambda n: (n - 1) / n,
        "scatter": lambda n: (n - 1) / n,
        "broadcast": lambda n: 1.0,  # noqa: ARG005
        "reduce": lambda n: 1.0,  # noqa: ARG005
    },
)


def algbw(size: Any, seconds: Any) -> Any:
    """Return bytes per second as the caller sees them: size / seconds.

    `size` is one rank's array; for reduce-scatter, all-gather, gather and scatter all N pieces of
    it together.
    """
    return _positive("size", size, 0) / _positive("seconds", seconds)


def busbw(size: Any, seconds: Any, ranks: int, collective: str = "all_reduce") -> Any:
    """Return bytes per second through a port, if the busiest one moves as little as it must.

    algbw times 2(N-1)/N for all-reduce: what can be compared with *one direction* of a link,
    whatever N is. It stops describing the wire where the network adds up itself (NVLS, SHARP).
    """
    return algbw(size, seconds) * BUSBW[collective](integer("ranks", ranks, 1))


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """Alpha and beta that explain measured times best, and how well they do.

    Attributes
    ----------
    link : Link
        The fitted alpha (s per round) and beta (s per byte sent).
    sizes, seconds : array
        What was measured.
    predicted : array
        The model's seconds for the same sizes.
    """

    algorithm: str
    ranks: int
    link: Link
    sizes: Floats
    seconds: Floats
    predicted: Floats

    def __repr__(self) -> str:
        ratio = self.ratio
        return (
            f"Fit({self.algorithm} over {self.ranks} ranks: alpha {self.link.alpha * 1e6:.3g} µs, "
            f"beta {self.link.beta * 1e9:.3g} ns/byte; measured / predicted "
            f"{ratio.min():.2f} to {ratio.max():.2f})"
        )

    @property
    def ratio(self) -> Floats:
        """Measured over predicted, array[sizes]: 1 where the model is right."""
        return self.seconds / self.predicted

    def predict(self, size: float) -> float:
        """Return the modelled seconds for another size, in bytes."""
        return _model(self.algorithm, self.ranks, self.link, size)


def fit(sizes: Any, seconds: Any, ranks: int, algorithm: str = "ring") -> Fit:
    """Fit alpha and beta of ``closed_form(algorithm, ...)`` to measured times.

    Least squares of the *relative* error, so that a small size counts as much as a large one;
    neither comes out below 0.

    Parameters
    ----------
    sizes : array of bytes per rank
        Two different ones at least.
    seconds : array, as long
    ranks : int, at least 2
    algorithm : str
        A key of ``formulas.ROWS``.
    """
    ranks = integer("ranks", ranks, 2)
    s, t = _positive("sizes", sizes, 0), _positive("seconds", seconds)
    if s.ndim != 1 or s.shape != t.shape or len(np.unique(s)) < 2:
        raise ValueError(
            "sizes and seconds must be as long and hold two different sizes at least, "
            f"got {np.size(s)} and {np.size(t)}"
        )
    per_alpha = np.array([_model(algorithm, ranks, Link(1, 0), each) for each in s])
    per_beta = np.array([_model(algorithm, ranks, Link(0, 1), each) for each in s])
    alpha, beta = _least_squares(per_alpha / t, per_beta / t)
    link = Link(alpha, beta, "fitted")
    return Fit(algorithm, ranks, link, s, t, alpha * per_alpha + beta * per_beta)


def _model(algorithm: str, ranks: int, link: Link, size: float) -> float:
    return closed_form(algorithm, ranks, size, Links.uniform(ranks, link)).time


def _least_squares(a: Floats, b: Floats) -> tuple[float, float]:
    """Return x, y >= 0 that bring a x + b y closest to 1."""
    (x, y), *_ = np.linalg.lstsq(np.stack([a, b], 1), np.ones_like(a), rcond=None)
    if x < 0:
        return 0.0, float(b.sum() / (b @ b))
    if y < 0:
        return float(a.sum() / (a @ a)), 0.0
    return float(x), float(y)


def _positive(name: str, value: Any, low: float | None = None) -> Floats:
    array = np.asarray(numbers(name, value))
    if not (np.isfinite(array) & ((array > 0) | (array == low))).all():
        sign = ">=" if low == 0 else ">"
        raise ValueError(f"{name} must be {sign} 0 and finite, got {value!r:.60}")
    return array if array.ndim else array[()]
