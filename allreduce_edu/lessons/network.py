"""N copies of a small network at once, in numpy: each with its own weights, images and buffers.

64 pixels, hidden ReLUs, 10 classes, mean cross-entropy; with BatchNorm before the ReLUs and dropout
after them if wanted. A replica's parameters are one row of a matrix: W1, b1, W2, b2, and with
BatchNorm its scale and shift. Row r is computed as if it stood alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.lessons.training import CLASSES, INPUTS, initial_weights

Array = npt.NDArray[np.float32]
HIDDEN = 32
_LOT = 90  # images; the BLAS would start threads for more, and wait for them on a busy machine
_EPS = np.float32(1e-5)
_KEEP = np.float32(0.9)  # of a BatchNorm's running statistics, in each step


class Parts(NamedTuple):
    """The parameters of all replicas, as views: [rank, ...]."""

    w1: Array
    b1: Array
    w2: Array
    b2: Array
    scale: Array  # without BatchNorm, both are empty
    shift: Array


class Buffers(NamedTuple):
    """The running mean and variance of each replica's BatchNorm: [rank, hidden]."""

    mean: Array
    variance: Array


class Lot(NamedTuple):
    """The images of one step: x[rank, image, pixel], y[rank, image], how many are real on each."""

    x: Array
    y: npt.NDArray[np.int64]
    images: npt.NDArray[np.int64]

    def real(self) -> Array:
        """Return 1 for the images of each rank and 0 for what fills its row up."""
        width = np.arange(self.y.shape[1])
        return (width < self.images[:, None]).astype(np.float32)


def start(seeds: list[int], *, batch_norm: bool = False) -> Array:
    """Return one row of fresh parameters per seed; equal seeds give equal rows."""
    rows = [initial_weights(HIDDEN, seed) for seed in seeds]
    if batch_norm:
        extra = np.repeat(np.array([1, 0], "f4"), HIDDEN)
        rows = [np.concatenate([row, extra]) for row in rows]
    return np.stack(rows)


def fresh_buffers(ranks: int) -> Buffers:
    """Return the buffers before the first step."""
    return Buffers(np.zeros((ranks, HIDDEN), "f4"), np.ones((ranks, HIDDEN), "f4"))


def parts(weights: Array) -> Parts:
    """Return the parameters of each replica as matrices."""
    sizes = (HIDDEN * INPUTS, HIDDEN, CLASSES * HIDDEN, CLASSES, HIDDEN, HIDDEN)
    ends = np.minimum(np.cumsum(sizes), weights.shape[1])
    w1, b1, w2, b2, scale, shift = np.split(weights, ends[:-1], axis=1)
    n = len(weights)
    return Parts(
        w1.reshape(n, HIDDEN, INPUTS), b1, w2.reshape(n, CLASSES, HIDDEN), b2, scale, shift
    )


def losses_and_gradients(
    weights: Array, lot: Lot, buffers: Buffers | None = None, drop: Array | None = None
) -> tuple[Array, Array]:
    """Return loss[rank] and gradient[rank, parameter] on each rank's own images.

    With `buffers` there is a BatchNorm, and they take in this step's statistics. `drop` is what
    dropout multiplies the hidden units by.
    """
    p, real = parts(weights), lot.real()
    images: Array = lot.images.astype(np.float32)
    share = real / images[:, None]
    before = lot.x @ p.w1.transpose(0, 2, 1) + p.b1[:, None]
    norm = None if buffers is None else _Norm(before, real, p, buffers)
    before = before if norm is None else norm.out
    hidden = np.maximum(before, 0)
    if drop is not None:
        hidden = hidden * drop
    losses, d_out = _cross_entropy(hidden @ p.w2.transpose(0, 2, 1) + p.b2[:, None], lot.y, share)
    d_hidden = (d_out @ p.w2) * (before > 0)
    if drop is not None:
        d_hidden = d_hidden * drop
    grads = [d_out.transpose(0, 2, 1) @ hidden, d_out.sum(1)]
    if norm is not None:
        d_hidden, *of_norm = norm.backward(d_hidden)
        grads += of_norm
    grads = [d_hidden.transpose(0, 2, 1) @ lot.x, d_hidden.sum(1), *grads]
    n = len(weights)
    return losses, np.concatenate([each.reshape(n, -1) for each in grads], axis=1)


def _cross_entropy(logits: Array, y: npt.NDArray[np.int64], share: Array) -> tuple[Array, Array]:
    """Return the loss of each rank, and its derivative by the logits."""
    logits -= logits.max(-1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(-1, keepdims=True)
    rank, image = np.indices(y.shape)
    right = np.maximum(p[rank, image, y], np.float32(1e-30))  # never log 0
    losses = -(np.log(right) * share).sum(1)
    p[rank, image, y] -= 1
    return losses, p * share[..., None]


class _Norm:
    """A BatchNorm over the images of one rank: forward at once, backward when asked."""

    def __init__(self, x: Array, real: Array, p: Parts, buffers: Buffers) -> None:
        self.real, self.images, self.scale = real[..., None], real.sum(1), p.scale
        mean = self._mean(x)
        self.inverse = 1 / np.sqrt(self._mean((x - mean[:, None]) ** 2) + _EPS)
        self.normal = (x - mean[:, None]) * self.inverse[:, None] * self.real
        self.out = self.normal * p.scale[:, None] + p.shift[:, None]
        spread = self._mean((x - mean[:, None]) ** 2)
        unbiased = spread * (self.images / np.maximum(self.images - 1, 1))[:, None]
        for i, new in enumerate((mean, unbiased)):
            buffers[i][:] = _KEEP * buffers[i] + (1 - _KEEP) * new

    def _mean(self, x: Array) -> Array:
        mean: Array = (x * self.real).sum(1) / self.images[:, None]
        return mean

    def backward(self, d_out: Array) -> tuple[Array, Array, Array]:
        """Return the derivatives by what came in, by scale and by shift."""
        d_normal = d_out * self.scale[:, None]
        along = self._mean(d_normal * self.normal)[:, None] * self.normal
        d_in = (d_normal - self._mean(d_normal)[:, None] - along) * self.inverse[:, None]
        return d_in * self.real, (d_out * self.normal).sum(1), d_out.sum(1)


class Score(NamedTuple):
    """How well each replica reads some images: loss, and right[rank, class] of images[class]."""

    loss: Array
    right: npt.NDArray[np.int64]
    images: npt.NDArray[np.int64]

    @property
    def accuracy(self) -> npt.NDArray[np.float64]:
        """Return the share of all images that each replica reads right."""
        share: npt.NDArray[np.float64] = self.right.sum(1) / self.images.sum()
        return share

    @property
    def by_class(self) -> npt.NDArray[np.float64]:
        """Return the share of each class's images that each replica reads right."""
        share: npt.NDArray[np.float64] = self.right / self.images
        return share


def score(weights: Array, x: Array, y: Any, buffers: Buffers | None = None) -> Score:
    """Score each replica, with the BatchNorm statistics that it has collected itself."""
    lots = np.array_split(x, -(-len(x) // _LOT))
    logits = np.concatenate([_logits(weights, lot, buffers) for lot in lots], axis=1)
    labels = np.broadcast_to(y, (len(weights), len(y)))
    hit = logits.argmax(-1) == labels
    loss, _ = _cross_entropy(logits, labels, np.full(labels.shape, 1 / len(y), "f4"))
    right = np.stack([np.bincount(y, each, CLASSES) for each in hit]).astype(np.int64)
    return Score(loss, right, np.bincount(y, minlength=CLASSES))


def _logits(weights: Array, x: Array, buffers: Buffers | None) -> Array:
    p = parts(weights)
    hidden = x @ p.w1.transpose(0, 2, 1) + p.b1[:, None]
    if buffers is not None:
        scale = p.scale / np.sqrt(buffers.variance + _EPS)
        hidden = (hidden - buffers.mean[:, None]) * scale[:, None] + p.shift[:, None]
    logits: Array = np.maximum(hidden, 0) @ p.w2.transpose(0, 2, 1) + p.b2[:, None]
    return logits
