"""A small network on the digits, in numpy: real gradients without torch.

64 pixels, one hidden layer of ReLUs, 10 classes, mean cross-entropy. The parameters are one
flat float32 vector, which is what an all-reduce sees.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from allreduce_edu.data import digits
from allreduce_edu.engine.check import integer

Vector = npt.NDArray[np.float32]
INPUTS, CLASSES = 64, 10


def initial_weights(hidden: int = 32, seed: int = 0) -> Vector:
    """Return a fresh flat parameter vector: W1, b1, W2, b2, uniform in +-1/sqrt(inputs)."""
    rng = np.random.default_rng(seed)
    parts = []
    for inputs, outputs in ((INPUTS, hidden), (hidden, CLASSES)):
        bound = inputs**-0.5
        parts += [rng.uniform(-bound, bound, outputs * inputs), rng.uniform(-bound, bound, outputs)]
    return np.concatenate(parts).astype(np.float32)


def loss_and_gradient(weights: Vector, x: Vector, y: npt.NDArray[np.int64]) -> tuple[float, Vector]:
    """Return the mean cross-entropy over the samples and its gradient, flat like `weights`."""
    w1, b1, w2, b2 = _unpack(weights)
    hidden = np.maximum(x @ w1.T + b1, 0)
    logits = hidden @ w2.T + b2
    logits -= logits.max(1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(p[rows, y]).mean())
    p[rows, y] -= 1
    d_out = p / np.float32(len(y))
    d_hidden = (d_out @ w2) * (hidden > 0)
    parts = (d_hidden.T @ x, d_hidden.sum(0), d_out.T @ hidden, d_out.sum(0))
    return loss, np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def gradient_shares(ranks: int, batch: int = 16, seed: int = 0) -> Vector:
    """Return g[rank, parameter]: one model, each rank's gradient on its own images."""
    ranks, batch = integer("ranks", ranks, 1), integer("batch", batch, 1)
    data = digits(seed)
    if ranks * batch > len(data.x):
        raise ValueError(
            f"ranks x batch must be at most {len(data.x)} images, got {ranks} x {batch}"
        )
    weights = initial_weights(seed=seed)
    slices = [slice(r * batch, (r + 1) * batch) for r in range(ranks)]
    return np.stack([loss_and_gradient(weights, data.x[s], data.y[s])[1] for s in slices])


def _unpack(weights: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    hidden = (len(weights) - CLASSES) // (INPUTS + 1 + CLASSES)
    ends = np.cumsum([hidden * INPUTS, hidden, CLASSES * hidden])
    w1, b1, w2, b2 = np.split(weights, ends)
    return w1.reshape(hidden, INPUTS), b1, w2.reshape(CLASSES, hidden), b2
