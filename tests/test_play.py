"""A schedule on real ranks gives the bits and the bytes of the same schedule in simulation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real ranks need torch")

from allreduce_edu.engine.algorithms import ALGORITHMS, COLLECTIVES, parameter_server, ring  # noqa: E402
from allreduce_edu.engine.cost import messages, sent_bytes  # noqa: E402
from allreduce_edu.engine.execute import OverflowWarning, run  # noqa: E402
from allreduce_edu.engine.rounds import Round  # noqa: E402
from allreduce_edu.engine.schedule import Schedule  # noqa: E402
from allreduce_edu.realdist.play import parts  # noqa: E402
from allreduce_edu.realdist.pool import Pool  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
SIZES = (0, 1, 3, 61)  # none, fewer than ranks, and numbers that no 2..5 divides
DTYPES = ("float32", "float64", "float16", "int32", "bfloat16")


@pytest.fixture(scope="module", params=[1, 2, 3, 4, 5])
def pool(request):
    with Pool(request.param, backend="gloo") as pool:
        yield pool


def shares(ranks, size, dtype, library="torch"):
    """Position-dependent numbers whose sums round: an offset or an order that is off shows."""
    x = np.random.default_rng(ranks * 1000 + size).normal(0, 100, (ranks, size))
    if library == "numpy":
        return x.astype(dtype)
    return torch.from_numpy(x).to(getattr(torch, dtype))


def bits(x):
    if isinstance(x, (list, tuple)):
        return [bits(each) for each in x]
    return x.view(torch.uint8).numpy().tobytes() if torch.is_tensor(x) else x.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_bits_and_bytes_are_those_of_the_simulation(pool, name, dtype):
    schedule = ALGORITHMS[name](pool.ranks)
    for size in SIZES:
        x = shares(pool.ranks, size, dtype)
        played, sent = pool.play(schedule, x, count=True)
        assert (type(played), played.dtype, played.shape) == (type(x), x.dtype, x.shape)
        assert bits(played) == bits(run(schedule, x)), size
        sizes = schedule.cut(size, x.dtype.itemsize) * x.dtype.itemsize
        assert sent.tolist() == sent_bytes(schedule, sizes).tolist(), size


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_other_collectives_play_too(pool, name):
    schedule = COLLECTIVES[name](pool.ranks)
    x = shares(pool.ranks, 61, "float32", "numpy")
    assert bits(pool.play(schedule, x)) == bits(run(schedule, x))


@pytest.mark.parametrize("op", ["sum", "avg", "max", "min", "prod"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_all_operations_in_both_libraries(pool, op, library):
    schedule = ring(pool.ranks)
    x = shares(pool.ranks, 61, "float16", library) / 50
    assert bits(pool.play(schedule, x, op)) == bits(run(schedule, x, op))


def test_an_integer_that_wraps_around_is_told_as_in_simulation():
    x = np.full((4, 3), 100, np.int8)
    with Pool(4, backend="gloo") as pool:
        with pytest.warns(OverflowWarning, match="should hold 400, got -112") as caught:
            played = pool.play(ring(4), x)
        assert [Path(each.filename).name for each in caught] == ["test_play.py"]
        assert played.tolist() == [[-112] * 3] * 4
        pool.play(ring(4), x // 4)


def test_bfloat16_of_numpy(pool):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = shares(pool.ranks, 61, bfloat16, "numpy")
    assert bits(pool.play(ring(pool.ranks), x)) == bits(run(ring(pool.ranks), x))


def test_a_list_of_matrices_stays_one_and_is_not_changed(pool):
    x = [torch.rand(3, 5) for _ in range(pool.ranks)]
    before = bits(x)
    played = pool.play(ring(pool.ranks, chunks=3 * pool.ranks), x)
    assert isinstance(played, list)
    assert played[0].shape == (3, 5)
    assert bits(played) == bits(run(ring(pool.ranks, chunks=3 * pool.ranks), x))
    assert bits(x) == before


def test_large_messages_cross_in_both_directions(pool):
    x = shares(pool.ranks, 1_000_003, "float32", "numpy")
    assert bits(pool.play(ring(pool.ranks), x)) == bits(run(ring(pool.ranks), x))


def test_swapped_chunks_are_read_before_they_are_written():
    """Two ranks exchange a chunk: whoever wrote before it sent would give both the same."""
    swap = Schedule("swap", 2, 1, lambda: [Round.of([0, 1], [1, 0], 0, False)], collective="custom")
    with Pool(2, backend="gloo") as pool:
        assert pool.play(swap, np.array([[1.0], [2.0]])).tolist() == [[2.0], [1.0]]


def test_many_arrivals_in_one_chunk_combine_in_array_order():
    order = Schedule("order", 4, 1, lambda: [Round.of([3, 1, 2], 0, 0, True)], collective="custom")
    x = np.array([[1.0], [-1e16], [1.0], [1e16]])
    with Pool(4, backend="gloo") as pool:
        assert bits(pool.play(order, x)) == bits(run(order, x))
    assert ((1.0 + 1e16) - 1e16) + 1.0 != ((1.0 + 1.0) - 1e16) + 1e16  # the order is visible


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_parts_of_all_ranks_are_the_whole_schedule(name):
    schedule = ALGORITHMS[name](5)
    each = [parts(schedule, rank) for rank in range(5)]
    pairs = sum(len({*part.to.tolist()} - {r}) for r, rank in enumerate(each) for part in rank)
    assert pairs == messages(schedule)
    for k, rnd in enumerate(schedule):
        assert sum(len(rank[k].out) for rank in each) == len(rnd)
        assert sum(len(rank[k].into) for rank in each) == len(rnd)


def test_ranks_that_only_serve_pass_nothing_and_get_nothing_back():
    schedule = parameter_server(2, servers=2)
    x = shares(2, 61, "float32")
    with Pool(4, backend="gloo") as pool:
        for op in ("sum", "avg", "max"):
            played, sent = pool.play(schedule, x, op, count=True)
            assert bits(played) == bits(run(schedule, x, op))
        assert sent.tolist() == [244, 244, 248, 240]
    assert sent.tolist() == sent_bytes(schedule, schedule.cut(61, 4) * 4).tolist()


def test_bad_input_is_named_before_anything_starts():
    pool = Pool(2, backend="gloo")
    with pytest.raises(ValueError, match="must be for the 2 ranks of this pool, got Schedule"):
        pool.play(ring(3), np.ones((3, 4)))
    with pytest.raises(ValueError, match="rank 0 has"):
        pool.play(ring(2), [np.ones(3), np.ones(4)])
    with pytest.raises(ValueError, match="unknown op 'add'"):
        pool.play(ring(2), np.ones((2, 4)), "add")
    with pytest.raises(ValueError, match=r"op 'avg' has no meaning for .*, which only copies"):
        pool.play(COLLECTIVES["binomial_broadcast"](2), np.ones((2, 4)), "avg")
    assert repr(pool).endswith("not started")
