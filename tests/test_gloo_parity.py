"""The schedule `gloo_ring` predicts the last bit of torch.distributed's all_reduce on gloo."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="compares with torch.distributed")

import torch.distributed as dist  # noqa: E402

from allreduce_edu.engine.algorithms import gloo_ring, ring  # noqa: E402
from allreduce_edu.engine.execute import run  # noqa: E402
from allreduce_edu.realdist.parity import parity  # noqa: E402
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


@pytest.mark.parametrize(("ranks", "elements"), [(2, 5_000_003), (5, 5_000_000), (8, 1_000_003)])
def test_millions_of_elements_and_eight_ranks_too(ranks, elements):
    with Pool(ranks, backend="gloo", timeout=120) as pool:
        found = parity(pool, [elements], ["fp32", "bf16"])
    assert found.differ == (), found


def test_what_was_found_is_said_whatever_the_version(pool, monkeypatch):
    found = parity(pool, [1, 1003])
    version = torch.__version__.partition("+")[0]
    assert (found.torch, len(found.equal), found.differ) == (version, 8, ())
    monkeypatch.setattr("allreduce_edu.realdist.parity.SEEN", (version,))
    assert repr(found) == f"torch {version}: 8 of 8 cases equal in every bit"
    monkeypatch.setattr("allreduce_edu.realdist.parity.SEEN", ("1.0",))
    monkeypatch.setattr("allreduce_edu.realdist.parity.gloo_ring", ring)
    told = f"torch {version}, which this suite was not tested on (1.0): "
    if pool.ranks == 2:  # two addends have one order
        told += "1 of 1 cases equal in every bit"
    else:
        told += "0 of 1 cases equal in every bit; the first that differs: 100,003 elements of fp32"
    assert repr(parity(pool, [100_003], ["fp32"])) == told


def test_it_is_for_gloo_alone():
    pool = Pool(2, backend="gloo")
    pool.backend = "nccl"
    with pytest.raises(ValueError, match=r"backend gloo, got Pool of 2 ranks, NCCL, not started"):
        parity(pool)


def test_the_textbook_ring_differs_so_the_comparison_can_fail(pool):
    """Two addends have one order; from three on gloo's order is not the textbook's."""
    x = torch.randn(pool.ranks, 100_003, generator=torch.Generator().manual_seed(1))
    differs = run(ring(pool.ranks), x) != run(gloo_ring(pool.ranks), x)
    assert bool(differs.any()) == (pool.ranks > 2)
