"""A program on real ranks gives the bits and bytes of its simulation, and hangs in its words."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real ranks need torch")

import spmd_programs as programs  # noqa: E402
import test_hang  # noqa: E402

from allreduce_edu import Pool, spmd  # noqa: E402
from allreduce_edu.realdist.report import RankError  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
SIZES = (0, 1, 3, 61)
DTYPES = ("float32", "float64", "float16", "int32", "int8")
SECONDS = 1.5  # of a call that hangs, if the machine is not busy


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def pool(request):
    with Pool(request.param, backend="gloo") as pool:
        yield pool


@pytest.fixture(scope="module")
def three():
    with Pool(3, backend="gloo") as pool:
        yield pool


def shares(ranks, size, dtype="float64"):
    """Position-dependent numbers whose sums round: an order of additions that is off shows."""
    x = np.random.default_rng(ranks * 1000 + size).normal(0, 100, (ranks, size))
    return np.clip(x, -100, 100).astype(dtype)


def bits(value):
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    if torch.is_tensor(value):
        return str(value.dtype), value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return (value.dtype, value.shape, value.tobytes()) if hasattr(value, "dtype") else value


def assert_alike(pool, fn, x):
    real, simulated = pool.spmd(fn, x), spmd.run(fn, x, pool.ranks)
    assert bits(real.results) == bits(simulated.results)
    assert real.traffic().tolist() == simulated.traffic().tolist()


@pytest.mark.parametrize("program", programs.LINEAR, ids=lambda f: f.__name__)
def test_bits_and_bytes_are_those_of_the_simulation(pool, program):
    for size in SIZES:
        assert_alike(pool, program, shares(pool.ranks, size))
    for dtype in DTYPES:
        assert_alike(pool, program, shares(pool.ranks, 61, dtype))


@pytest.mark.parametrize("program", programs.POWERS_OF_TWO, ids=lambda f: f.__name__)
def test_programs_for_powers_of_two_too(pool, program):
    if pool.ranks != 3:
        for size in SIZES:
            assert_alike(pool, program, shares(pool.ranks, size, "float32"))


def every_collective(comm, x):
    root = comm.size - 1
    return [
        comm.all_reduce(x.copy()),
        comm.all_reduce(x.copy(), "max"),
        comm.all_reduce(x.copy(), "avg"),
        comm.reduce(x.copy(), root),
        comm.broadcast(x.copy(), root),
        *comm.all_gather(x),
        comm.reduce_scatter(x),
        comm.reduce(x.copy(), root, "avg"),
        comm.gather(x, root),
        comm.scatter(x, root),
        comm.all_to_all(np.stack([x, x + 1] * comm.size)),
        comm.all_reduce(np.stack([x, x])[:, ::2]),
    ]


def test_collectives_have_the_same_bits(pool):
    for size in (1, 5, 61, 1003):
        assert_alike(pool, every_collective, shares(pool.ranks, size, "float32"))


def test_reduce_leaves_the_same_partial_sums_elsewhere(three):
    def program(comm, x):
        return comm.reduce(x, 1)

    x = np.ones((3, 4)) * np.arange(1, 4)[:, None]
    assert_alike(three, program, x)
    assert spmd.run(program, x.astype("f4")).results[0].tolist() == [6, 6, 1, 1]


def mixed(comm, x):
    """Tensors, scalars, strided views, headers first, groups, any source and polls."""
    n, r = comm.size, comm.rank
    t = torch.arange(6.0).reshape(2, 3).t() + r
    came = comm.sendrecv(t.to(torch.bfloat16), (r + 1) % n, (r - 1) % n)
    number = comm.sendrecv(np.array(r), (r - 1) % n, (r + 1) % n)
    pair = comm.group([0, 2])
    if pair:
        pair.all_reduce(x)
    if r == 0:
        comm.send(x[::2], 1)
        room = torch.zeros(4, dtype=torch.int64)
        request = comm.irecv(2, room)
        while not request.is_completed():
            pass
        return came, number, x, request.wait()
    if r == 1:
        return came, number, x, comm.recv()
    comm.send(torch.arange(4) + 5, 0)
    return came, number, x, comm.rng.random()


def test_everything_else_has_the_same_bits_too(three):
    assert_alike(three, mixed, shares(3, 6))


def test_programs_without_x(three):
    assert three.spmd(lambda comm: (comm.rank, comm.size)).results == [(0, 3), (1, 3), (2, 3)]


# -------------------------------------------------------------------------------- hangs


HANGS = (
    programs.sends_first,
    test_hang.skips,
    test_hang.swaps,
    test_hang.receives_first,
    test_hang.two_groups,
    test_hang.stuck_before,
    test_hang.wrong_source,
    test_hang.wrong_tag,
    test_hang.one_send_too_many,
    test_hang.uneven_steps,
    test_hang.waits_longer,
)


def hang_on(pool, program, x):
    """Return the hang; on a busy machine ranks may need longer until they all wait."""
    for seconds in (SECONDS, 5 * SECONDS, 20 * SECONDS):
        try:
            pool.spmd(program, x, timeout=seconds)
        except spmd.Deadlock as deadlock:
            return deadlock
        except RankError as error:
            if any(fate.failed for fate in error.fates):
                raise
    raise AssertionError(f"{program.__name__} does not hang")


@pytest.mark.parametrize("program", HANGS, ids=lambda f: f.__name__)
def test_a_hang_is_explained_in_the_words_of_the_simulation(three, program):
    x = shares(3, 4)
    real = hang_on(three, program, x)
    with pytest.raises(spmd.Deadlock) as simulated:
        spmd.run(program, x)
    assert str(real) == str(simulated.value)
    assert real.hang.data() == simulated.value.hang.data()


def test_an_endless_loop_and_an_exception_are_told_by_the_pool(three):
    def loops(comm, x):
        while comm.rank == 1:
            pass
        comm.barrier()

    def raises(comm, x):
        if comm.rank == 1:
            x.reshape(7, 7)
        comm.barrier()

    with pytest.raises(RankError, match=r"rank 1 was .*"):
        three.spmd(loops, shares(3, 4), timeout=SECONDS)
    with pytest.raises(RankError, match="rank 1 raised ValueError: cannot reshape"):
        three.spmd(raises, shares(3, 4))


def test_a_mismatch_is_told_before_any_harm(three):
    def program(comm, x):
        if comm.rank == 0:
            comm.recv(1, out=np.empty(3))
        elif comm.rank == 1:
            comm.send(x.astype("f4"), 0)

    with pytest.raises(RankError, match=r"rank 0 made room for float64 \(3,\), rank 1 sent float"):
        three.spmd(program, shares(3, 4))


def test_a_message_of_one_program_does_not_reach_the_next(three):
    def leaves(comm, x):
        if comm.rank == 0:
            comm.isend(x, 1)

    def takes(comm, x):
        if comm.rank == 0:
            comm.send(x, 1)
        return comm.recv(0) if comm.rank == 1 else x

    first, second = shares(3, 4), shares(3, 9)
    three.spmd(leaves, first)
    assert bits(three.spmd(takes, second).results[1]) == bits(second[0])


def test_no_file_is_left_even_while_a_program_runs(three):
    def program(comm):
        comm.barrier()
        return sorted(str(p) for p in Path(tempfile.gettempdir()).glob("*/board"))

    assert three.spmd(program).results == [[], [], []]


def test_a_pool_of_gpus_is_refused(three, monkeypatch):
    monkeypatch.setattr(three, "backend", "nccl")
    with pytest.raises(ValueError, match="programs run on gloo, and this pool has nccl"):
        three.spmd(programs.ring, shares(3, 2))


def test_the_result_is_told_in_a_sentence(three):
    assert repr(three.spmd(programs.server, shares(3, 2))) == "RealRun: 3 real ranks, 64 bytes"
    with pytest.raises(ValueError, match=r"x must hold one array per rank \(3\), got 2"):
        three.spmd(programs.ring, shares(2, 2))
