"""Properties of random schedules, and of every small change to a good one."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allreduce_edu import (
    ALGORITHMS,
    COLLECTIVES,
    Round,
    Schedule,
    contributions,
    expected,
    explain,
    received_bytes,
    run,
    sent_bytes,
    steps,
)
from allreduce_edu.engine import algorithms
from allreduce_edu.engine.cost import rounds

EVERY = {**ALGORITHMS, **COLLECTIVES}
prove = settings(deadline=None, max_examples=60, derandomize=bool(os.environ.get("CI")))


# Mutants: a schedule with one thing changed


def with_round(schedule, k, changed):
    """Return a schedule whose round k is replaced by a list of rounds."""
    good = list(schedule)
    return replace(schedule, rounds=lambda: good[:k] + changed + good[k + 1 :])


def without(r, i):
    keep = np.arange(len(r)) != i
    return Round(r.src[keep], r.dst[keep], r.chunk[keep], r.reduce[keep])


def other(r, i, part, value):
    array = getattr(r, part).copy()
    array[i] = value
    return replace(r, **{part: array})


def mutants(schedule):
    """Yield (kind, mutant): each transfer and each round changed in every way, one at a time."""
    n, c, good = schedule.ranks, schedule.chunks, list(schedule)
    for k, r in enumerate(good):
        yield "round dropped", with_round(schedule, k, [])
        yield "round doubled", with_round(schedule, k, [r, r])
        if k + 1 < len(good):
            swapped = [*good[:k], good[k + 1], r, *good[k + 2 :]]
            yield "rounds swapped", replace(schedule, rounds=lambda s=swapped: s)
        for i in range(len(r)):
            yield "transfer dropped", with_round(schedule, k, [without(r, i)])
            yield (
                "add for copy, or copy for add",
                with_round(schedule, k, [other(r, i, "reduce", not r.reduce[i])]),
            )
            for part, count in (("src", n), ("dst", n), ("chunk", c)):
                for away in {1, count - 1} if count > 1 else ():
                    value = (getattr(r, part)[i] + away) % count
                    yield f"wrong {part}", with_round(schedule, k, [other(r, i, part, value)])


def fits(schedule, mutant):
    """Whether a mutant's numbers are right: numpy's, not the engine's, say what right is."""
    if mutant.problems():
        return False
    rng = np.random.default_rng(1)
    buf = rng.integers(0, 1 << 40, (schedule.ranks, schedule.chunks, 1))
    want = buf.copy()
    for _ in steps(schedule, want):
        pass
    for _ in steps(mutant, buf):
        pass
    meaning = expected(schedule).meaning
    return np.array_equal(buf[meaning], want[meaning])


def same_bill(schedule, mutant):
    one = np.ones(schedule.chunks, np.int64)
    return rounds(schedule) == rounds(mutant) and all(
        np.array_equal(count(schedule, one), count(mutant, one))
        for count in (sent_bytes, received_bytes)
    )


@cache
def survey(name, n):
    """Return how many mutants there are, and how many of each kind nothing catches."""
    schedule, total, survivors = EVERY[name](n), 0, Counter()
    for kind, mutant in mutants(schedule):
        total += 1
        said = explain(mutant)
        assert said or fits(schedule, mutant), f"{kind} of {name}({n}) is wrong, and not found"
        survivors[kind] += not said and same_bill(schedule, mutant)
    return total, +survivors


# Two rounds in a row that touch different cells, or only add to the same ones, may change places:
# the sums and the bytes are the same, and so is the number of rounds. How often that is so:
COMMUTE = {
    ("pairwise_exchange", 3): 2,
    ("pairwise_exchange", 4): 4,
    ("pairwise_reduce_scatter", 3): 1,
    ("pairwise_reduce_scatter", 4): 2,
    ("binomial_tree", 3): 2,
    ("binomial_reduce", 3): 1,
    ("binomial_broadcast", 3): 1,
    ("recursive_doubling", 4): 1,
    ("all_to_all", 3): 1,
    ("all_to_all", 4): 2,
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("n", [3, 4])
def test_a_mutant_is_found_unless_it_does_the_same_for_the_same_bytes(name, n):
    _, survivors = survey(name, n)
    commuting = COMMUTE.get((name, n), 0)
    assert survivors == +Counter({"rounds swapped": commuting})


def test_more_than_99_of_100_mutants_are_found():
    surveys = [survey(name, n) for name in EVERY for n in (3, 4)]
    total, survivors = sum(count for count, _ in surveys), sum(left.total() for _, left in surveys)
    assert total > 4000
    assert survivors == sum(COMMUTE.values())
    assert survivors / total < 0.005


# Random schedules


@st.composite
def trees(draw, least=1):
    """Return (ranks, chunks, for each chunk the moves (src, dst) that bring it to its owner).

    Each chunk is reduced along a random tree, in a random order: a rank sends once it has heard
    from all below it, and never again.
    """
    n, chunks = draw(st.integers(least, 7)), draw(st.integers(1, 5))
    rng = draw(st.randoms(use_true_random=False))
    moves = []
    for _ in range(chunks):
        alive, mine = list(range(n)), []
        while len(alive) > 1:
            rng.shuffle(alive)
            mine.append((alive.pop(), rng.choice(alive)))
        moves.append((alive[0], mine))
    return n, chunks, moves, rng


def reduce_scatter(n, chunks, moves, rng):
    """Deal the moves out to rounds at random, those of one chunk in their order."""
    left = [[(src, dst, c) for src, dst in mine] for c, (_, mine) in enumerate(moves)]
    made = []
    while any(left):
        now = [queue.pop(0) for queue in left if queue and rng.random() < 0.7]
        if now:
            made.append(Round.of(*zip(*now, strict=True), True))
    owner = [root for root, _ in moves]
    return Schedule("random", n, chunks, lambda: made, "reduce_scatter", owner=owner)


@prove
@given(trees())
def test_a_random_reduce_scatter_and_its_mirror_image_are_proved(drawn):
    n, chunks, *_ = drawn
    scatter = reduce_scatter(*drawn)
    assert explain(scatter) == []
    both = scatter >> scatter.mirrored()
    assert both.collective == "all_reduce"
    assert explain(both) == []
    assert (contributions(both) == 1).all()
    x = np.random.default_rng(n).integers(-9, 9, (n, chunks * 2 + 1))
    assert (run(both, x) == x.sum(0)).all()
    assert sent_bytes(both, np.ones(chunks, int)).sum() == 2 * (n - 1) * chunks


@prove
@given(trees(least=2), st.data())
def test_a_random_mutant_of_a_random_schedule_is_found_or_is_right(drawn, data):
    scatter = reduce_scatter(*drawn)
    both = scatter >> scatter.mirrored()
    kind, mutant = data.draw(st.sampled_from(list(mutants(both))))
    found = bool(explain(mutant)) or not same_bill(both, mutant)
    assert found or fits(both, mutant), kind
    if not fits(both, mutant):
        assert explain(mutant), kind


REDUCE_SCATTERS = {
    "ring": COLLECTIVES["ring_reduce_scatter"],
    "ring in pieces": lambda n: COLLECTIVES["ring_reduce_scatter"](n, 3 * n),
    "pairwise": COLLECTIVES["pairwise_reduce_scatter"],
    "halving": lambda n: algorithms._halving(1 << (n.bit_length() - 1)),
}


@pytest.mark.parametrize("name", REDUCE_SCATTERS)
@pytest.mark.parametrize("n", range(1, 18))
def test_every_reduce_scatter_and_its_mirror_image_are_an_all_reduce(name, n):
    scatter = REDUCE_SCATTERS[name](n)
    both = scatter >> scatter.mirrored()
    assert both.collective == "all_reduce"
    assert (contributions(both) == 1).all()
    assert explain(both) == []


@prove
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 9), st.data())
def test_other_names_for_ranks_and_chunks_change_nothing_but_the_names(name, n, data):
    schedule = ALGORITHMS[name](n)
    ranks = data.draw(st.permutations(range(schedule.ranks)))
    chunks = data.draw(st.permutations(range(schedule.chunks)))
    renamed = schedule.on(ranks, chunks).named("renamed", "all_reduce")
    assert explain(renamed) == []
    sizes = np.arange(1, schedule.chunks + 1)
    there = np.empty_like(sizes)
    there[chunks] = sizes
    assert np.array_equal(sent_bytes(renamed, there)[ranks], sent_bytes(schedule, sizes))


@prove
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 4), st.integers(1, 5), st.data())
def test_a_copy_for_each_row_of_ranks_sums_each_row(name, copies, n, data):
    rows = np.array(data.draw(st.permutations(range(copies * n)))).reshape(copies, n)
    several = ALGORITHMS[name](n).on(rows)
    x = np.random.default_rng(n).integers(-9, 9, (copies * n, several.chunks))
    out = run(several, x)
    for row in rows:
        assert (out[row] == x[row].sum(0)).all()


@prove
@given(st.sampled_from(sorted(ALGORITHMS)), st.sampled_from(sorted(ALGORITHMS)), st.data())
def test_sums_within_and_then_across_are_sums_of_all(inside, across, data):
    nodes, gpus = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    grid = np.arange(nodes * gpus).reshape(nodes, gpus)
    one, two = ALGORITHMS[inside](gpus), ALGORITHMS[across](nodes)
    k, m = one.chunks, two.chunks
    within, between = one.split(m).on(grid), two.split(k).on(grid.T)
    both = (within >> between).named("both", "all_reduce")
    assert explain(both) == []
    assert (contributions(both) == 1).all()
