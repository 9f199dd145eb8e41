"""Judges of notebook 02: references pass, starters fail, each wrong one gets its own sentence."""

from __future__ import annotations

import numpy as np
import pytest

from allreduce_edu.lessons import solutions
from allreduce_edu.lessons.composing import accuracy_of_all, builds_all_reduce


def joined_in_rank_order(comm, x):
    return np.concatenate(comm.all_gather(comm.reduce_scatter(x)))


def reduce_and_broadcast(comm, x):
    comm.reduce(x)
    return comm.broadcast(x)


def own_share_first(comm, x):
    shares = comm.all_gather(x)
    total = x.copy()
    for k in range(1, comm.size):
        total += shares[(comm.rank + k) % comm.size]
    return total


def in_rank_order(comm, x):
    return sum(comm.all_gather(x))


def only_reduced(comm, x):
    return comm.reduce(x)


def not_called_by_all(comm, x):
    if comm.rank != 2:
        comm.reduce(x)
    return comm.broadcast(x)


def test_the_reference_builds_an_all_reduce():
    verdict = builds_all_reduce(solutions.my_all_reduce)
    assert verdict.ok, verdict
    assert "no rank sends more than 2 S" in verdict.why


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda comm, x: ..., "with 4 ranks: my_all_reduce returned Ellipsis"),
        (lambda comm, x: None, "my_all_reduce returned None; return the array with the sum"),
        (
            joined_in_rank_order,
            "with 4 ranks: rank 0 ends with 2222, 3333, 4444, 1111: all pieces are there, rolled",
        ),
        (
            reduce_and_broadcast,
            "with 8 ranks: every value is right. But rank 0 sends 7 S; 2 S are allowed",
        ),
        (own_share_first, "with 4 ranks: right up to rounding, but there are 4 different results"),
        (own_share_first, "And a rank sends 3 S"),
        (in_rank_order, "with 8 ranks: every value is right. But rank 0 sends 7 S"),
        (only_reduced, "rank 1 ends with 1110, 2220, 3333, 4444, and it should hold 1111, 2222"),
        (
            lambda comm, x: comm.reduce_scatter(x),
            "return an array of shape (4,), as x is, got (1,)",
        ),
        (lambda comm, x: comm.all_gather(comm.reduce_scatter(x)), "it returns a list of pieces"),
        (not_called_by_all, "with 4 ranks: it hangs: all 4 ranks wait, in a circle"),
        (lambda comm, x: x, "rank 0 ends with 1, 2, 3, 4, and it should hold"),
        (3, "give the function itself, my_all_reduce, got int"),
    ],
)
def test_wrong_all_reduces_are_told_apart(program, why):
    verdict = builds_all_reduce(program)
    assert not verdict.ok
    assert why in verdict.why


def test_ones_would_not_have_seen_the_rolled_pieces():
    from allreduce_edu.lessons.composing import _on_ranks

    results, _ = _on_ranks(joined_in_rank_order, np.ones((4, 8)))
    assert all((each == 4).all() for each in results)


def test_what_the_learners_code_raises_is_let_through():
    def broken(comm, x):
        return x / undefined  # noqa: F821

    with pytest.raises(NameError, match="undefined"):
        builds_all_reduce(broken)


def mean_of_accuracies(comm, correct, count):
    return comm.all_reduce(np.array([correct / count]), op="avg")[0]


def sum_of_accuracies(comm, correct, count):
    return comm.all_reduce(np.array([correct / count]))[0]


def reduced(comm, correct, count):
    total = comm.reduce(np.array([correct, count]))
    return total[0] / total[1]


def in_a_byte(comm, correct, count):
    total = comm.all_reduce(np.array([correct, count], np.uint8))
    return total[0] / total[1]


def test_the_reference_is_the_accuracy_of_all():
    assert accuracy_of_all(solutions.accuracy).ok


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda comm, correct, count: ..., "rank 0 returned Ellipsis"),
        (
            mean_of_accuracies,
            "for 8 of 8, 1 of 4, 1 of 4, 0 of 1: 0.375 is the mean of the ranks' accuracies",
        ),
        (sum_of_accuracies, "1.500 is the sum of the ranks' accuracies"),
        (reduced, "rank 0 has 0.588, rank 1 has 0.222: `reduce` gives the sum to rank 0 alone"),
        (in_a_byte, "the counters have wrapped around: in a byte 400 reads 144"),
        (lambda comm, correct, count: correct / count, "every rank still has its own accuracy"),
        (lambda comm, correct, count: 0.5, "rank 0 has 0.500; 10 of 17 is 0.588"),
        (0.588, "give the function itself"),
    ],
)
def test_wrong_accuracies_are_told_apart(program, why):
    verdict = accuracy_of_all(program)
    assert not verdict.ok
    assert why in verdict.why


def test_every_listed_mistake_has_a_sentence_of_its_own():
    wrong = [joined_in_rank_order, reduce_and_broadcast, own_share_first, only_reduced]
    assert len({builds_all_reduce(program).why for program in wrong}) == len(wrong)
    wrong = [mean_of_accuracies, sum_of_accuracies, reduced, in_a_byte]
    assert len({accuracy_of_all(program).why for program in wrong}) == len(wrong)
