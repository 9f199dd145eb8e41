"""The bug hunt: every ring is what it is said to be, and every wrong answer hears why."""

import numpy as np
import pytest

from allreduce_edu import explain, place_values, ring, run, sent_bytes
from allreduce_edu.lessons.hunt import first_fault, hunt
from allreduce_edu.lessons.rings import (
    HUNTED,
    always_adding,
    forwards_the_sum,
    one_copy_more,
    turned_arrow,
    turned_round,
    two_steps_back,
)

FOUND = {"A": 2, "B": 5, "C": 4, "D": "right", "E": 7, "F": 3}


@pytest.mark.parametrize(
    ("make", "first", "how"),
    [
        (ring, None, ""),
        (turned_round, None, ""),
        (forwards_the_sum, 2, "share is in rank"),
        (turned_arrow, 5, "not finished"),
        (always_adding, 4, "share is in rank"),
        (one_copy_more, 7, "a round too many"),
        (two_steps_back, 3, "share is in rank"),
    ],
)
def test_the_first_wrong_round_is_found_on_contributions(make, first, how):
    fault = first_fault(make(4))
    assert (fault and fault[0]) == first
    assert how in (fault or (0, ""))[1]


@pytest.mark.parametrize("n", range(2, 9))
def test_one_ring_is_right_for_every_number_of_ranks(n):
    right = [letter for letter, make in HUNTED.items() if not explain(make(n))]
    assert "D" in right
    assert right == (["A", "B", "D", "F"] if n == 2 else ["D"])
    assert [letter for letter, make in HUNTED.items() if first_fault(make(n)) is None] == right


def test_names_give_nothing_away():
    assert [make(4).name for make in HUNTED.values()] == [f"ring {c}" for c in "ABCDEF"]


def test_a_forwarded_sum_ends_with_a_row_of_pascals_triangle():
    assert run(forwards_the_sum(4), place_values(4, 4))[3, 0] == 1331


def test_a_surplus_copy_costs_bytes_only():
    x = place_values(4, 4)
    np.testing.assert_array_equal(run(one_copy_more(4), x), run(ring(4), x))
    assert sent_bytes(one_copy_more(4), 400).tolist() == [700] * 4


def test_the_hunter_who_is_right_passes():
    verdict = hunt(FOUND)
    assert verdict.ok
    assert "the other 5 go wrong where you say" in verdict.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"D": 4}, "all of them wrong? One is right"),
        ({"D": 4, "C": "right"}, "ring C: not right, for rank 0, chunk 0 holds rank 0's share tw"),
        ({"D": 4, "E": "right"}, "ring D: every share is in its place once"),
        ({"E": "right"}, "ring E: right sums, but each port sends 7 chunks and 6 are enough"),
        ({"C": 6}, "ring C: round 6 is where it shows as well; go back"),
        ({"B": 1}, "ring B: in round 1 nothing has gone wrong"),
        ({"B": 6, "F": 6}, "where it begins (1 more to mend)"),
        ({"A": ...}, "ring A: replace the dots"),
        ({"A": 0}, "the round must be an integer between 1 and 3, got 0"),
        ({"A": True}, "ring A: the round must be an integer"),
        ({"A": "wrong"}, "got 'wrong' (str); or say \"right\""),
        ({"G": 1}, "give one answer for each of the rings A, B, C, D, E, F"),
    ],
)
def test_a_wrong_answer_hears_why(change, why):
    verdict = hunt(FOUND | change)
    assert not verdict.ok
    assert why in verdict.why


@pytest.mark.parametrize("answer", [..., None, [], "right", {"A": 1}])
def test_what_is_no_answer_is_told_what_to_give(answer):
    assert hunt(answer).why.startswith("give one answer for each")
