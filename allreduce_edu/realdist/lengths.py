"""How vectors that should be equal are apart: by a factor, or otherwise; and where.

All is done in double precision, one parameter after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

Vector = Any  # array of float64
Pair = Callable[[], tuple[Vector, Vector]]  # the one at hand, and the right one
_ROUNDINGS = 4  # of its own dtype that a number may be off in any case


class Gap(NamedTuple):
    """In what way vectors are apart.

    All by the factor `times`, or that of `name` by a factor, or that of `name` the most.
    """

    times: float | None
    name: str
    far: float  # the largest difference, as a share of the largest right number


def factor(pairs: Sequence[Pair], near: float) -> float | None:
    """Return how many times as long as the right vectors those at hand are, if they point alike."""
    over = sum(float(mine @ right) for mine, right in (pair() for pair in pairs))
    under = sum(float(right @ right) for _, right in (pair() for pair in pairs))
    if not any(mine.any() for mine, _ in (pair() for pair in pairs)):
        return 0.0
    if not over or not under:
        return None
    times = over / under
    near *= max(1, 1 / abs(times))  # what is blown up shows its roundings larger
    for mine, right in (pair() for pair in pairs):
        if not np.allclose(mine / times, right, rtol=0, atol=near):
            return None
    return times


def gap(pairs: Mapping[str, Pair], scale: float, near: float) -> Gap | None:
    """Return in what way vectors are apart by more than `near`, or None."""
    far = {name: float(np.abs(np.subtract(*pair())).max(initial=0)) for name, pair in pairs.items()}
    wrong = [name for name, each in far.items() if not each <= near]  # NaN is wrong too
    if not wrong:
        return None
    most = max(wrong, key=lambda name: math.inf if math.isnan(far[name]) else far[name])
    if not math.isfinite(far[most]):
        return Gap(None, most, far[most])
    times = factor(list(pairs.values()), near)
    if times is not None:
        return Gap(times, "", far[most] / scale)
    times = factor([pairs[wrong[0]]], near)
    return Gap(times, most if times is None else wrong[0], far[most] / scale)


def gap_of_gradients(mine: nn.Module, alone: nn.Module, rtol: float) -> Gap | None:
    """Return in what way the gradients of `mine` are not those of `alone`."""
    grads, rights = gradients(mine), gradients(alone)
    pairs = {
        name: partial(_both, grads[name], right)
        for name, right in rights.items()
        if not (right is None and grads[name] is None)
    }
    scale = largest(rights.values())
    return gap(pairs, scale, _fine(alone, rtol) * scale)


def gap_of_steps(mine: nn.Module, alone: nn.Module, rate: float, rtol: float) -> Gap | None:
    """Return in what way `mine` is not where plain SGD takes `alone` from where it is."""
    ends = _parameters(mine)
    pairs = {
        name: partial(_moves, ends[name], start, rate) for name, start in _parameters(alone).items()
    }
    scale = rate * largest(gradients(alone).values())
    rounding = 2 * _epsilon(alone) * largest(alone.parameters())
    return gap(pairs, scale, _fine(alone, rtol) * scale + rounding)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Return each parameter's gradient by name."""
    return {name: p.grad for name, p in _parameters(model).items()}


def largest(tensors: Iterable[Tensor | None]) -> float:
    """Return the largest absolute value, NaN if there is one among the numbers."""
    tops = [np.abs(_vector(t)).max(initial=0) for t in tensors if t is not None]
    return float(np.max(tops, initial=0))


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    from allreduce_edu.realdist.entries import parameters

    return dict(parameters(model))


def _both(mine: Tensor | None, right: Tensor | None) -> tuple[Vector, Vector]:
    """Return two gradients; one that is not there moves nothing."""
    a, b = (None if t is None else _vector(t) for t in (mine, right))
    return (np.zeros_like(b) if a is None else a), (np.zeros_like(a) if b is None else b)


def _moves(end: Tensor, start: Tensor, rate: float) -> tuple[Vector, Vector]:
    """Return how far a parameter has moved, and how far plain SGD moves it."""
    began = _vector(start)
    gradient = np.zeros_like(began) if start.grad is None else _vector(start.grad)
    return _vector(end) - began, -rate * gradient


def _vector(tensor: Tensor) -> Vector:
    """Return all numbers of a tensor in a row."""
    import torch

    dense = tensor.detach().cpu().to_dense().resolve_conj()
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    return real.double().reshape(-1).numpy()


def _fine(model: nn.Module, rtol: float) -> float:
    return max(rtol, _ROUNDINGS * _epsilon(model))


def _epsilon(model: nn.Module) -> float:
    """Return the coarsest rounding among the parameters' dtypes."""
    import torch

    kinds = {p.dtype for p in model.parameters() if p.is_floating_point() or p.is_complex()}
    return max((torch.finfo(kind).eps for kind in kinds), default=0.0)
