"""The digits: 1,797 real 8x8 images that ship with the package, so nothing is downloaded."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

TEST = 360


class Digits(NamedTuple):
    """Images as rows of 64 pixels in 0..1 (float32) and their labels 0..9 (int64)."""

    x: npt.NDArray[np.float32]  # [1437, 64], to train on
    y: npt.NDArray[np.int64]
    x_test: npt.NDArray[np.float32]  # [360, 64]
    y_test: npt.NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Digits({len(self.x):,} images to train on, {len(self.x_test)} to test)"


def digits(seed: int = 0) -> Digits:
    """Return the digits in one fixed shuffle; `README.md` beside this file has their source."""
    with files(__package__).joinpath("digits.npz").open("rb") as file, np.load(file) as archive:
        images: Any = archive["images"]
        labels: Any = archive["labels"]
    order = np.random.default_rng(seed).permutation(len(labels))
    x = (images.reshape(-1, 64) / np.float32(16)).astype(np.float32)[order]
    y = labels.astype(np.int64)[order]
    return Digits(x[:-TEST], y[:-TEST], x[-TEST:], y[-TEST:])
