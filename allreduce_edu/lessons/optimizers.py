"""Optimizers whose state can be compared between replicas: one row of each array per replica."""

from __future__ import annotations

import numpy as np

from allreduce_edu.lessons.network import Array

USUAL_RATE = {"SGD": 0.1, "momentum": 0.02, "AdamW": 0.01}


class Optimizer:
    """SGD, SGD with momentum, or AdamW, with PyTorch's formulas; a state for each replica."""

    def __init__(self, name: str, rate: float | None, shape: tuple[int, ...]) -> None:
        self.name, self.rate, self.steps = name, rate or USUAL_RATE[name], 0
        kept = {"SGD": 0, "momentum": 1, "AdamW": 2}[name]
        self.state = [np.zeros(shape, np.float32) for _ in range(kept)]

    def __repr__(self) -> str:
        return f"Optimizer: {self.name} with rate {self.rate:g}, after {self.steps} steps"

    def step(self, weights: Array, grads: Array) -> None:
        """Change the weights in place."""
        self.steps += 1
        if self.name == "AdamW":
            weights -= self.rate * 0.01 * weights
            weights -= self.rate * self._adam(grads)
            return
        if self.state:
            self.state[0] *= 0.9
            self.state[0] += grads
            grads = self.state[0]
        weights -= self.rate * grads

    def _adam(self, grads: Array) -> Array:
        means = []
        for i, (decay, new) in enumerate(((0.9, grads), (0.999, grads**2))):
            self.state[i] *= decay
            self.state[i] += (1 - decay) * new
            means.append(self.state[i] / (1 - decay**self.steps))
        direction: Array = means[0] / (np.sqrt(means[1]) + 1e-8)
        return direction
