from itertools import count

import numpy as np
import pytest

from allreduce_edu import Round, Schedule, explain, naive, parameter_server, ring
from allreduce_edu.lessons import checks
from allreduce_edu.lessons.checks import (
    Step,
    my_ring,
    rounds_until_finished,
    shares_that_sum_to,
    wrong,
)


def program(add, copy, *, more_add=0, more_copy=0, copies=False, to=1):
    """A ring from two pairs of formulas (send, into) of (r, k)."""

    def plan(n):
        r = np.arange(n)
        for k in range(n - 1 + more_add):
            yield Step(send=add[0](r, k) % n, into=add[1](r, k) % n, add=True)
        for k in range(n - 1 + more_copy):
            yield Step(send=copy[0](r, k) % n, into=copy[1](r, k) % n, add=copies, to=to)

    return plan


ADD = (lambda r, k: r - k, lambda r, k: r - k - 1)
COPY = (lambda r, k: r + 1 - k, lambda r, k: r - k)
REFERENCES = {
    "textbook": program(ADD, COPY),
    "second phase mirrored": program(ADD, (lambda r, k: r + 1 + k, lambda r, k: r + 2 + k), to=-1),
    "engine": ring,
}


def detour(n):
    """Between the phases a chunk is put into a wrong place, and overwritten later."""
    r, plan = np.arange(n), list(program(ADD, COPY)(n))
    middle = [Step(send=(r + 1) % n, into=(r + 2) % n, add=False)] * (n > 2)
    return plan[: n - 1] + middle + plan[n - 1 :]


def collide(n):
    """With two ranks its digits read like a sum: 11 + 11 in place of 22."""
    r = 0 * np.arange(n)
    return [
        Step(r, r, add=True),
        Step(r, r + 1 - (n == 1), add=False),
        Step(r, r + 1 - (n == 1), add=True),
    ]


WRONG = {
    "starter": (
        lambda n: (Step(send=..., into=..., add=...) for _ in range(n - 1)),
        "fill in `send`: it is still ...",
    ),
    "forwards the running sum": (
        program((lambda r, k: 0 * r, lambda r, k: 0 * r), COPY),
        "holds rank 1's share 3 times and rank 2's share 3 times; rank 0 ends with 1331",
    ),
    "into the slot just sent": (
        program((lambda r, k: r - k, lambda r, k: r - k), COPY),
        "chunk 3 arrives on rank 0, which puts it into chunk 0; rank 0 ends with 1000, 2, 30, 400",
    ),
    "adds in the second phase": (
        program(ADD, COPY, copies=True),
        "rank 0, chunk 0 holds rank 0's share twice",
    ),
    "turns the arrow only": (
        program(ADD, (COPY[0], lambda r, k: r + 2 - k), to=-1),
        "right for 2 ranks, wrong from 3 on",
    ),
    "one copying round too many": (
        program(ADD, COPY, more_copy=1),
        "there are 7 rounds and rank 0 sends 7 chunks; 6 rounds and 6 chunks are enough",
    ),
    "one adding round too many": (program(ADD, COPY, more_add=1), "there are 7 rounds"),
    "whole arrays": (naive, "rank 0 sends 3 S, whole arrays; 1.5 S are enough"),
    "a server": (parameter_server, "rank 0 sends 3 S, whole arrays"),
    "nothing": (lambda n: [], "rank 0, chunk 0 lacks the shares of ranks 1, 2, 3"),
    "forgets the modulo": (
        lambda n: [Step(send=np.arange(n) + 1, into=np.arange(n), add=True)],
        "send names chunk",
    ),
    "one number for all": (
        lambda n: [Step(send=0, into=np.arange(n), add=True)],
        "send must hold one chunk number for each of the",
    ),
    "yields something else": (lambda n: [3], "round 1: yield Step(send=..., into=..., add=...)"),
    "two to the right": (
        lambda n: [Step(np.arange(n), np.arange(n), add=True, to=2)],
        "to must be +1 or -1, got 2",
    ),
    "forgets to yield": (lambda n: None, "returns nothing: did you forget `yield`?"),
    "returns one step": (lambda n: Step(0, 0, add=True), "returns one Step; yield one for each"),
    "returns a number": (lambda n: 3, "must yield Steps, got int"),
    "never ends": (
        lambda n: (Step(np.arange(n), np.arange(n), add=False) for _ in count()),
        "there are more than 24 rounds; 6 are enough",
    ),
    "adds perhaps": (
        lambda n: [Step(np.arange(n), np.arange(n), add="yes")],
        "add must be True or False, got 'yes'",
    ),
    "sends lists of lists": (
        lambda n: [Step([[0], [1, 2]], np.arange(n), add=True)],
        "send must hold one chunk number",
    ),
    "always two ranks": (lambda n: ring(2), "the function returns a schedule of 2 ranks"),
    "a wrong schedule": (
        lambda n: Schedule("s", n, n, lambda: [Round.of(0, n, 0, reduce=True)]),
        "dst must be between 0 and 3, got 4",
    ),
    "doubles on one rank": (
        lambda n: [*(REFERENCES["textbook"](n)), *[Step([0], [0], add=True)] * (n == 1)],
        "right for 2 to 8 ranks. With 1 rank: one rank has nobody to send to, and ends with 2 in",
    ),
    "overwrites a detour": (detour, "every value is right. But with 4 ranks there are 7 rounds"),
    "digits that collide": (collide, "which puts it into chunk 1"),
}


def test_what_a_judge_says_is_broken_between_words():
    why = f"{'so many words ' * 20}\n{'    code = that(stays)' * 8}"
    first, *more, code = repr(wrong(why)).splitlines()
    assert first.startswith("✗ Not yet: so many words")
    assert all(len(line) <= 76 for line in [first, *more])
    assert f"{' '.join([first, *more])} \n{code}" == f"✗ Not yet: {why}"


@pytest.mark.parametrize("name", REFERENCES)
def test_right_rings_pass(name):
    verdict = my_ring(REFERENCES[name])
    assert verdict.ok, verdict
    assert repr(verdict).startswith("✓ Right: every share once and in its place for N = 1 to 8")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rings_are_told_what_is_wrong(name):
    plan, sentence = WRONG[name]
    verdict = my_ring(plan)
    assert not verdict.ok
    assert sentence in verdict.why, verdict


def test_formulas_become_a_schedule_that_can_be_played():
    s = checks.ring_schedule(REFERENCES["textbook"], 5)
    assert explain(s) == []
    assert str(s).splitlines()[1:] == str(ring(5)).splitlines()[1:]


def test_formulas_that_mix_up_places_become_no_schedule():
    with pytest.raises(ValueError, match="chunk 3 arrives on rank 0, which puts it into chunk 0"):
        checks.ring_schedule(WRONG["into the slot just sent"][0])


def test_linear_formulas_pass_exactly_when_they_are_a_ring():
    """Of all first phases r + b*k + c, only the textbook's survives (with the right copies)."""
    passed = set()
    for b in (-1, 0, 1):
        for c in range(-2, 3):
            for d in (-1, 0, 1):
                for e in range(-2, 3):
                    add = (
                        lambda r, k, b=b, c=c: r + b * k + c,
                        lambda r, k, d=d, e=e: r + d * k + e,
                    )
                    if my_ring(program(add, COPY)).ok:
                        passed.add((b, c, d, e))
    assert passed == {(-1, 0, -1, -1)}


@pytest.mark.parametrize("shares", [[1, 20, 300], [300, 20, 1], [321, 0, 0]])
def test_any_shares_with_the_right_sum_pass(shares):
    assert shares_that_sum_to(321, shares).ok


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ([321, 321, 321], "every rank holds 321 before the all-reduce, and 963 after it"),
        ([3, 2, 1], "3 + 2 + 1 = 6, and it should read 321"),
        ([1, 2], "three numbers, one for each rank, got 2"),
        ([1.9, 2.9, 3.9], "a share must be an integer between"),
        (["1", "20", "300"], "a share must be an integer between"),
        ([True, 20, 300], "a share must be an integer between"),
        (321, "three numbers, one for each rank, got 0"),
        (None, "three numbers, one for each rank, got 0"),
        ([..., ..., ...], "three numbers, one for each rank, got 0"),
    ],
)
def test_other_shares_hear_what_they_give(shares, sentence):
    verdict = shares_that_sum_to(321, shares)
    assert not verdict.ok
    assert sentence in verdict.why


def test_the_first_finished_chunk():
    assert rounds_until_finished(3).ok
    assert repr(rounds_until_finished(3)) == "✓ Right: after round 3 rank 0 holds chunk 1, finished"
    for answer, sentence in {
        1: "after round 1 no chunk on rank 0 holds all 4 shares yet",
        4: "after round 4 rank 0 has had a finished chunk for a while",
        6: "after round 6 every chunk is finished on every rank",
        9: "the number of rounds must be an integer between 0 and 6, got 9",
        "3": "must be an integer between 0 and 6, got '3'",
        ...: "replace the dots",
    }.items():
        assert sentence in rounds_until_finished(answer).why
        assert not rounds_until_finished(answer).ok


def test_a_learners_own_exception_comes_through():
    with pytest.raises(ZeroDivisionError):
        my_ring(lambda n: 1 // 0)
    assert not my_ring(3).ok
