"""The answers of notebook 09 are what runs say, and each choice is what some run would say."""

from __future__ import annotations

import numpy as np
import pytest

from allreduce_edu import Links, Predict, clocks, museum, ring, spmd
from allreduce_edu.lessons import faults

NUMBERS = np.array([[1.0, 2], [10, 20]])


def hang(*calls):
    """Return why two ranks stop that make so many all-reduces each."""

    def program(comm, x):
        for _ in range(calls[comm.rank]):
            comm.all_reduce(x)

    return spmd.hang(program, NUMBERS)


def test_who_forgets_does_not_complain():
    assert faults.who_complains(hang(2, 1)) == "rank 0, in its second call; rank 1 ends in peace"
    assert faults.who_complains(hang(1, 2)) == "rank 1, in its first call"
    both = spmd.hang(lambda comm: comm.recv(1 - comm.rank), ranks=2)
    assert faults.who_complains(both) == "both, in their first calls"
    for said in (hang(2, 1), hang(1, 2), both):
        assert faults.who_complains(said) in faults.WHO_COMPLAINS[1]


def timed(seconds, missing=1):
    def program(comm):
        comm.timeout = seconds
        if comm.rank != missing:
            comm.barrier()

    return spmd.hang(program, ranks=3)


def test_a_longer_time_out_changes_nothing_but_the_hour():
    said = faults.with_longer_timeout(timed(1800), timed(7200))
    assert said == "the same, and the message comes later"
    others = [(timed(1800), timed(7200, missing=2)), (timed(7200), timed(1800))]
    for before, after in others:
        assert faults.with_longer_timeout(before, after) != said
        assert faults.with_longer_timeout(before, after) in faults.LONGER[1]


def test_equal_hashes_rule_out_the_wing_of_those_that_disagree():
    parted, alike = museum["thawed"].run(), museum["twice"].run()
    right = "a different start, and averages that are missed"
    assert faults.ruled_out([parted], [alike]) == right
    assert {faults.ruled_out([a], [b]) for a in (parted, alike) for b in (parted, alike)} == set(
        faults.RULED_OUT[1]
    )


@pytest.mark.parametrize("slow", range(4))
def test_who_waits_least_is_the_one_that_comes_last(slow):
    late = [1.0 * (rank == slow) for rank in range(4)]
    seconds = faults.inside(late)
    assert seconds[slow] < 0.02
    assert min(s for rank, s in enumerate(seconds) if rank != slow) > 0.99
    question = faults.who_is_slow(seconds)
    predict = Predict(*question, faults.slowest(late))
    assert predict.answer == f"rank {slow}"
    assert len(question[1]) == 3


def test_without_a_late_rank_it_is_the_rings_time():
    inside = faults.inside([0.0] * 4, elements=1000)
    assert np.allclose(inside, clocks(ring(4), 8000, Links.uniform(4, "10 GbE")))
