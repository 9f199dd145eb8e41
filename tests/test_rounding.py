"""The judges of notebook 06: references pass, starters fail, wrong ways are told apart."""

import pytest

from allreduce_edu.engine.algorithms import (
    halving_doubling,
    one_shot,
    pairwise_exchange,
    ring,
    ring_reduce_scatter,
    sharded_server,
)
from allreduce_edu.lessons.rounding import keeps_digits, splits_equal_elements

RIGHT = {"wire": "bf16", "accumulate": "fp32", "round_owner": True}


@pytest.mark.parametrize("make", [pairwise_exchange, sharded_server])
def test_raw_shares_added_in_fp32_pass(make):
    verdict = keeps_digits(make(64), **RIGHT)
    assert verdict.ok
    assert "1.969 S" in verdict.why


@pytest.mark.parametrize(
    ("schedule", "changes", "said"),
    [
        (..., {}, "replace the dots"),
        (ring(64), {"accumulate": "bf16"}, "the error is 0.0095, not below 0.002: each of 63"),
        (ring(64), {}, "with a wider accumulator the ring is as bad as without"),
        (ring(64), {"wire": "fp32"}, "32 bits cross the wire"),
        (ring(64), {"wire": None, "accumulate": None}, "32 bits cross the wire"),
        (ring(64), {"wire": "tf32"}, "19 bits cross the wire"),
        (ring(64), {"round_owner": False}, "rank 1 differs from rank 0"),
        (pairwise_exchange(64), {"round_owner": False}, "there are 64 different results"),
        (pairwise_exchange(64), {"accumulate": "bf16"}, "each of 63 additions is rounded to 8"),
        (pairwise_exchange(64), {"wire": "fp16"}, "infinite or no numbers (fp16 sent"),
        (pairwise_exchange(64), {"wire": "fp8_e4m3"}, "infinite or no numbers"),
        (halving_doubling(64), {}, "partial sums cross the wire too often"),
        (one_shot(64), {}, "the busiest rank sends 63 S; 1.969 S are enough"),
        (ring(8), {}, "must have 64 ranks, got 8"),
        (ring_reduce_scatter(64), {}, "is no all-reduce"),
        ("ring", {}, "give a schedule such as ring(64), got str"),
        (ring(64), {"wire": "bf61"}, "unknown wire 'bf61'"),
        (ring(64), {"accumulate": ...}, "replace the dots"),
        (ring(64), {"round_owner": 1}, "round_owner must be True or False"),
    ],
)
def test_each_wrong_way_has_its_own_sentence(schedule, changes, said):
    verdict = keeps_digits(schedule, **RIGHT | changes)
    assert not verdict.ok
    assert said in verdict.why


@pytest.mark.parametrize("numbers", [[256, 1, 1, 1], [1, 1, 256, 1], (-256, -1, -1, -1)])
def test_a_large_one_among_ones_passes(numbers):
    verdict = splits_equal_elements(numbers)
    assert verdict.ok
    assert "another chunk" in verdict.why


def test_the_sums_are_shown():
    assert "256, 260, 260, 256, the exact sum is 259" in splits_equal_elements([256, 1, 1, 1]).why


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (..., "give a list of four numbers"),
        ([..., ..., ..., ...], "give a list of four numbers"),
        ([1, 2], "got 2"),
        ([1, 2, 3, float("nan")], "four finite numbers"),
        ([7, 7, 7, 7], "a rotation of equal addends changes nothing"),
        ([256] * 4, "all four elements end as 1024: a rotation"),
        ([1, 2, 3, 4], "exact in every order"),
        ([256, 2, 2, 2], "exact in every order"),
        ([256.5, 1, 1, 1], "256.5 is no bf16 number, the nearest is 256"),
        ([1000, 3, 5, 7], "every order rounds to the same number"),
    ],
)
def test_four_numbers_that_do_not_show_it(numbers, said):
    verdict = splits_equal_elements(numbers)
    assert not verdict.ok
    assert said in verdict.why
