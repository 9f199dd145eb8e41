"""What four all-reduces cost, counted; the judges of the two exercises say what is wrong."""

import numpy as np
import pytest

from allreduce_edu import (
    ALGORITHMS,
    Links,
    Round,
    Schedule,
    binomial_tree,
    busiest_port,
    closed_form,
    halving_doubling,
    messages,
    naive,
    parameter_server,
    recursive_doubling,
    ring,
    sent_bytes,
)
from allreduce_edu.lessons.counting import (
    FOUR,
    counted,
    for_a_flag,
    least_sent,
    messages_sent,
    sent_exactly,
)


@pytest.mark.parametrize("key", FOUR)
@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_counts_are_those_of_the_closed_forms(key, n):
    elements = 64 * 3
    c = counted(FOUR[key][1](n), elements, 4)
    form = closed_form(key, n, 4 * elements, Links.uniform(n, "100 GbE"))
    assert (c.rounds, c.messages) == (form.rounds, form.messages)
    assert (c.total, c.most, c.port) == pytest.approx((form.total, form.sent, form.port))


def test_no_number_is_torn():
    c = counted(ring(4), 10, 8)
    assert (c.most, c.least, c.total) == (16 * 8, 14 * 8, 60 * 8)
    assert counted(ring(4), 1, 4).messages < counted(ring(4), 4, 4).messages


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_no_algorithm_is_below_the_bound_and_the_ring_meets_it(n):
    for make in ALGORITHMS.values():
        assert busiest_port(make(n), 5040) >= least_sent(n, 5040)
    assert busiest_port(ring(n), 5040) == least_sent(n, 5040)


@pytest.mark.parametrize("make", [ring, naive, parameter_server, recursive_doubling])
@pytest.mark.parametrize("elements", [1, 6, 61])
def test_messages_of_the_ranks_add_up_to_those_of_the_schedule(make, elements):
    schedule = make(6)
    sizes = np.asarray(schedule.cut(elements, 4)) * 4
    assert messages_sent(schedule, elements).sum() == messages(schedule, sizes)


# ------------------------------------------------------------------ sent(n, elements, rank)


def reference(n, elements, rank):
    size = ring(n).cut(elements)
    return 2 * elements - size[(rank + 1) % n] - size[(rank + 2) % n]


def from_the_engine(n, elements, rank):
    return sent_bytes(ring(n), ring(n).cut(elements))[rank]


@pytest.mark.parametrize("sent", [reference, from_the_engine, lambda *a: float(reference(*a))])
def test_exact_counts_pass(sent):
    verdict = sent_exactly(sent)
    assert verdict.ok
    assert "for 1 to 8 ranks and 0, 1, 3, 10, 1003 elements" in verdict.why


WRONG = {
    "the formula": (
        lambda n, e, r: 2 * (n - 1) * e / n,
        "sent(4, 10, 1) is 15.0, but rank 1 sends 16. 2(N-1)S/N is the mean over the ranks",
    ),
    "ceil": (
        lambda n, e, r: 2 * (n - 1) * -(-e // n),
        "sent(4, 10, 0) is 18, but rank 0 sends 15. Not every chunk is as large as the largest",
    ),
    "divides by zero": (
        lambda n, e, r: int(reference(n, e, r)) * (n - 1) / (n - 1),
        "sent(1, 10, 0) divides by zero; with 1 rank there is nobody to send to: 0",
    ),
    "one rank sends": (
        lambda n, e, r: reference(n, e, r) if n > 1 else e,
        "sent(1, 10, 0) is 10, but rank 0 sends 0. With 1 rank there is nobody to send to",
    ),
    "always divides by zero": (lambda n, e, r: e / 0, "divides by zero; no count needs that"),
    "forgets which": (
        lambda n, e, r: 2 * e - sum(ring(n).cut(e)[:2]),
        "but rank 0 sends 15. It sends every chunk twice, but for two of them: which?",
    ),
    "returns nothing": (lambda n, e, r: None, "is None: return a number of elements"),
    "starter": (lambda n, e, r: ..., "is Ellipsis: return a number of elements"),
    "a text": (lambda n, e, r: "15", "is '15', but rank 0 sends 15"),
    "an array": (lambda n, e, r: np.arange(3), "but rank 0 sends 15"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_counts_hear_why(name):
    sent, why = WRONG[name]
    verdict = sent_exactly(sent)
    assert not verdict.ok
    assert why in verdict.why


def test_what_is_no_function_is_refused_and_a_learners_own_error_comes_through():
    assert "got int" in sent_exactly(15).why
    with pytest.raises(KeyError):
        sent_exactly(lambda n, e, r: {}[n])


# ------------------------------------------------------------------------ for_a_flag(...)


def in_groups(*radices):
    """Swap with all of a group at once, then with those of the next larger one."""
    n, r = int(np.prod(radices)), np.arange(np.prod(radices))

    def rounds():
        stride = 1
        for radix in radices:
            digit = r // stride % radix
            to = [r + ((digit + k) % radix - digit) * stride for k in range(1, radix)]
            yield Round.of(np.tile(r, radix - 1), np.concatenate(to), 0, reduce=True)
            stride *= radix

    return Schedule("in groups", n, 1, rounds)


def test_few_rounds_and_messages_pass():
    assert for_a_flag(recursive_doubling).why.startswith("6 rounds, and rank 0 sends 6 messages")
    assert for_a_flag(recursive_doubling(64)).ok
    groups = for_a_flag(in_groups(4, 4, 2, 2))
    assert groups.ok
    assert "4 rounds, and rank 0 sends 8 messages" in groups.why


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (ring, "126 rounds, and rank"),
        (ring, "At most 8 rounds: each is a latency to wait for"),
        (parameter_server, "2 rounds, and rank 0 sends 63 messages. The others do not."),
        (naive, "1 round, and rank 0 sends 63 messages. Every rank does. At most 8 messages"),
        (binomial_tree, "12 rounds"),
        (halving_doubling, "12 rounds"),
        (in_groups(4, 4, 4), "3 rounds, and rank 0 sends 9 messages. Every rank does."),
        (recursive_doubling(8), "must be for 64 ranks, got 8"),
        (in_groups(4, 16), "sends 18 messages"),
        (Schedule("idle", 64, 1, list), "it does not all-reduce: rank 0, chunk 0 lacks"),
        (Schedule("off", 64, 1, lambda: [Round.of(0, 64, 0, True)]), "dst must be between 0 and"),
        (..., "choose a schedule, or write one"),
        (6, "must be a schedule, or a function that returns one, got 6"),
        (lambda n: n, "got 64"),
    ],
)
def test_too_many_rounds_or_messages_hear_how_many(schedule, why):
    verdict = for_a_flag(schedule)
    assert not verdict.ok
    assert why in verdict.why
