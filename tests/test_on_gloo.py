"""Real ranks: reduce and max leave what the lesson says, or a word where there is no torch."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from allreduce_edu import run
from allreduce_edu.engine.spmd.collectives import gloo_reduce
from allreduce_edu.lessons import on_gloo


def test_after_reduce_only_the_root_has_the_sum():
    pytest.importorskip("torch")
    x = np.full((4, 4), 10.0 ** np.arange(4)[:, None])
    left = on_gloo.after_reduce(x)
    assert (left[0] == 1111).all()
    np.testing.assert_array_equal(left, run(gloo_reduce(4, 0), x))
    assert left[2].tolist() == [1100, 1100, 1101, 1101]
    assert (x == 10.0 ** np.arange(4)[:, None]).all()


def test_max_keeps_or_loses_a_nan_depending_on_its_rank():
    pytest.importorskip("torch")
    kept = []
    for rank in range(4):
        x = np.full((4, 4), 1.0)
        x[rank] = np.nan
        held = on_gloo.after_max(x)
        kept.append(int(np.isnan(held[0]).sum()))
        np.testing.assert_array_equal(held, held[[0] * 4])
    assert max(kept) > 0
    assert min(kept) == 0


def test_without_torch_there_is_nothing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert on_gloo.after_reduce(np.ones((2, 1))) is None
    assert on_gloo.after_max(np.ones((2, 1))) is None
