"""Says how what the ranks hold differs: from each other, and from what one process computes.

Vectors are weights or gradients of a small network, all parameters in a row, NaN where a
parameter has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from allreduce_edu.realdist.lengths import factor

NEAR = 1e-6  # relative to the largest entry; float32 reached 2e-7


def gradient(model: Any) -> Any:
    """Return all gradients as one vector, NaN where a parameter has none."""
    import torch

    from allreduce_edu.realdist.train import flat

    pairs = ((p, p.grad) for p in model.parameters())
    return flat(torch.full_like(p, torch.nan) if g is None else g for p, g in pairs).numpy()


def weights(model: Any) -> Any:
    """Return all parameters as one vector."""
    from allreduce_edu.realdist.train import flat

    return flat(model.parameters()).numpy()


def owners(model: Any) -> list[str]:
    """Return, for each entry of a vector, the name of the parameter that it belongs to."""
    return [name for name, p in model.named_parameters() for _ in range(p.numel())]


def gaps(mine: Sequence[Any], names: Sequence[str]) -> str | None:
    """Say where a rank has no gradient, or other than `names`."""
    for rank, vector in enumerate(mine):
        if len(vector) != len(names):
            return f"rank {rank} holds {len(vector)} gradients in place of {len(names)}"
        if missing := np.flatnonzero(np.isnan(vector)).tolist():
            return (
                f"p.grad of `{names[missing[0]]}` is None or NaN on rank {rank}. all_reduce "
                "changes its argument in place and returns None: do not assign its result"
            )
    return None


def disagreement(mine: Sequence[Any], names: Sequence[str], what: str = "gradients") -> str | None:
    """Say which ranks hold different bits, and where."""
    for rank, vector in enumerate(mine[1:], 1):
        differs = different(vector, mine[0])
        if differs.size:
            near = np.allclose(vector, mine[0], rtol=1e-4, atol=1e-6)
            how = "in the last bits" if near else "by much"
            where = names[int(differs[0])]
            return f"ranks 0 and {rank} hold different {what}, {how}, first in `{where}`"
    return None


def different(a: Any, b: Any) -> Any:
    """Return the places where two vectors differ in a bit."""
    return np.flatnonzero(a.view("u4") != b.view("u4"))


def another(mine: Any, right: Any, names: Sequence[str], hints: dict[float, str]) -> str | None:
    """Say how the gradient that all ranks hold differs from that of one process.

    `hints` says what is to be said of one that is so many times as long.
    """
    atol = NEAR * float(np.abs(right).max())
    if np.allclose(mine, right, rtol=0, atol=atol):
        return None
    times = factor([lambda: (mine, right)], atol)
    if not times:
        where = names[int(np.abs(mine - right).argmax())]
        return f"all ranks agree, on another gradient; it differs most in `{where}`"
    hint = next((f": {text}" for x, text in hints.items() if abs(times - x) < 1e-3), "")
    return f"all ranks agree, on a gradient {times:.4g} times as long as the right one{hint}"
