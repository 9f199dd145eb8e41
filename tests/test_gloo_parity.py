"""The schedule `gloo_ring` predicts the last bit of torch.distributed's all_reduce on gloo."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="compares with torch.distributed")

import torch.distributed as dist  # noqa: E402

from allreduce_edu.engine.algorithms import gloo_ring, ring  # noqa: E402
from allreduce_edu.engine.execute import run  # noqa: E402
from allreduce_edu.realdist.pool import PerRank, Pool  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32")
SIZES = (0, 1, 3, 5, 1003, 100_003)
MIB = 1 << 20  # bytes that gloo's ring sends at once, at most


@pytest.fixture(scope="module", params=[2, 3, 4, 5])
def pool(request):
    with Pool(request.param, backend="gloo") as pool:
        yield pool


def all_reduced(x):
    dist.all_reduce(x)
    return x


def compare(pool, size, dtype):
    """Return the simulation's and the library's result, each [rank, element], as raw bytes."""
    generator = torch.Generator().manual_seed(1000 * pool.ranks + size)
    x = (3 * torch.randn(pool.ranks, size, generator=generator)).to(getattr(torch, dtype))
    simulated = run(gloo_ring(pool.ranks), x)
    real = torch.stack(pool.run(all_reduced, PerRank(list(x))))
    return simulated.view(torch.uint8), real.view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_bit_is_predicted(pool, size, dtype):
    simulated, real = compare(pool, size, dtype)
    assert torch.equal(simulated, real)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_bit_of_a_large_tensor_is_predicted(pool, dtype):
    """Here a chunk takes more segments than the two that it always has."""
    elements = (2 * pool.ranks + 1) * MIB // getattr(torch, dtype).itemsize + 17
    simulated, real = compare(pool, elements, dtype)
    assert torch.equal(simulated, real)


def test_the_textbook_ring_differs_so_the_comparison_can_fail(pool):
    """Two addends have one order; from three on gloo's order is not the textbook's."""
    x = torch.randn(pool.ranks, 100_003, generator=torch.Generator().manual_seed(1))
    differs = run(ring(pool.ranks), x) != run(gloo_ring(pool.ranks), x)
    assert bool(differs.any()) == (pool.ranks > 2)
