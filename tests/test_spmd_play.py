"""Schedules as programs of messages: the bits and bytes of `run`, and who waits if one is gone."""

from __future__ import annotations

import numpy as np
import pytest

from allreduce_edu import (
    ALGORITHMS,
    COLLECTIVES,
    Pool,
    explain,
    parameter_server,
    ring,
    run,
    sent_bytes,
    spmd,
)
from allreduce_edu.lessons.family import broadcast


def played(schedule, x):
    """Run a schedule as a program on every rank."""
    return spmd.run(lambda comm, share: spmd.play(schedule, comm, share), x)


@pytest.mark.parametrize("name", [*ALGORITHMS, *COLLECTIVES])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_it_gives_the_bits_and_the_bytes_of_run(name, n):
    schedule = (ALGORITHMS | COLLECTIVES)[name](n)
    x = np.random.default_rng(n).normal(size=(n, 2 * schedule.chunks + 1)).astype("f4")
    done = played(schedule, x)
    np.testing.assert_array_equal(np.stack(done.results), run(schedule, x))
    sizes = schedule.cut(x.shape[1], 4) * 4
    np.testing.assert_array_equal(done.sent_bytes(), sent_bytes(schedule, sizes))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_it_is_the_way_back_from_a_program_to_its_schedule(n):
    def program(comm, x):
        return spmd.play(ring(n), comm, x)

    made = spmd.schedule(program, n)
    assert explain(made) == []
    np.testing.assert_array_equal(sent_bytes(made, 840), sent_bytes(ring(n), 840))


@pytest.mark.parametrize("make", [lambda x: x.T, lambda x: x.reshape(2, -1)])
def test_it_works_in_place_on_any_shape(make):
    x = np.arange(24).reshape(3, 8)
    shares = [make(row.reshape(4, 2).copy()) for row in x]
    done = played(ring(3), shares)
    np.testing.assert_array_equal(done.results[1], sum(shares))

    def in_place(comm, share):
        spmd.play(ring(3), comm, share)
        return share

    np.testing.assert_array_equal(spmd.run(in_place, shares).results[2], sum(shares))


def test_torch_tensors_are_played_too():
    torch = pytest.importorskip("torch")
    x = [torch.tensor([1.0, 2.0, 3.0]) * 10**r for r in range(3)]
    assert [each.tolist() for each in played(ring(3), x).results] == [[111, 222, 333]] * 3


def play_the_ring(comm, x):
    return spmd.play(ring(3), comm, x)


def test_real_ranks_play_it_to_the_same_bits_for_the_same_bytes():
    pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(3, 10)).astype("f4")
    with Pool(3, backend="gloo") as pool:
        done = pool.spmd(play_the_ring, x)
    np.testing.assert_array_equal(np.stack(done.results), run(ring(3), x))
    np.testing.assert_array_equal(done.sent_bytes(), sent_bytes(ring(3), ring(3).cut(10, 4) * 4))


@pytest.mark.parametrize(
    ("schedule", "waiting"),
    [
        (ring(4), {0: [1, 3], 1: [2], 3: [2]}),
        (broadcast(4), {0: [2]}),
        (broadcast(3), {0: [2]}),
        (parameter_server(4), {0: [2], 1: [0], 3: [0]}),
    ],
)
def test_without_one_rank_the_others_wait_as_gloo_does(schedule, waiting):
    def program(comm, x):
        if comm.rank != 2:
            spmd.play(schedule, comm, x)

    assert spmd.hang(program, np.ones((schedule.ranks, 4))).edges == waiting


def test_other_numbers_of_ranks_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="ring all-reduce is for 3 ranks, there are 4"):
        played(ring(3), np.ones((4, 1)))


@pytest.mark.parametrize("n", range(1, 9))
def test_the_broadcast_takes_log2_rounds_and_reaches_everybody(n):
    assert explain(broadcast(n)) == []
    assert sum(1 for _ in broadcast(n)) == (n - 1).bit_length()
