import numpy as np
import pytest

from allreduce_edu import (
    ALGORITHMS,
    Round,
    Schedule,
    contributions,
    explain,
    gloo_ring,
    place_values,
    recursive_doubling,
    ring,
    ring_all_gather,
    ring_reduce_scatter,
    run,
    summation_order,
)
from allreduce_edu.engine.verify import expected, spoiled


def two_phases(n, add, copy):
    """A ring from two phases of (rounds, direction, first chunk, chunk per round, reduce)."""
    r = np.arange(n)

    def rounds():
        for count, way, first, back, reduce in (add, copy):
            for k in range(count):
                yield Round.of(r, (r + way) % n, (r + first - back * k) % n, reduce)

    return Schedule("mutant", n, n, rounds)


ADD, COPY = (3, 1, 0, 1, True), (3, 1, 1, 1, False)
EVERY = np.arange(4)


def whole_tensors():
    src, chunk = np.repeat(EVERY, 4), np.tile(EVERY, 4)
    return Schedule(
        "mutant", 4, 4, lambda: [Round.of(src, (src + 1) % 4, chunk, True) for _ in range(3)]
    )


MUTANTS = {
    "wrong offset": (
        two_phases(4, ADD, (3, 1, 0, 1, False)),
        "rank 0, chunk 3 lacks the shares of ranks 0, 1, 2",
    ),
    "arrow turned": (
        two_phases(4, ADD, (3, -1, 1, 1, False)),
        "rank 0, chunk 3 lacks the shares of ranks 1, 2",
    ),
    "add for copy": (
        two_phases(4, ADD, (3, 1, 1, 1, True)),
        "rank 0, chunk 0 holds rank 0's share twice (from round 4 on)",
    ),
    "one chunk all the time": (
        two_phases(4, (3, 1, 0, 0, True), COPY),
        "rank 0, chunk 0 lacks the shares of ranks 0, 1, 2",
    ),
    "forwards the running sum": (
        whole_tensors(),
        "rank 0, chunk 0 holds rank 2's share 3 times and rank 3's share 3 times",
    ),
    "no last adding round": (
        two_phases(4, (2, 1, 0, 1, True), COPY),
        "rank 0, chunk 0 lacks the shares of ranks 0, 1, 2",
    ),
    "no last copying round": (
        two_phases(4, ADD, (2, 1, 1, 1, False)),
        "rank 0, chunk 2 lacks rank 1's share",
    ),
    "copy for add": (
        two_phases(4, (3, 1, 0, 1, False), COPY),
        "rank 0, chunk 1 lacks the shares of ranks 0, 2, 3 (last written in round 3)",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_ring_are_caught_with_rank_and_chunk(name):
    mutant, sentence = MUTANTS[name]
    said = explain(mutant)
    assert said[0].startswith(sentence), said
    assert (contributions(mutant) != 1).any()


def test_running_sums_write_a_row_of_pascals_triangle():
    assert contributions(whole_tensors())[3, 0].tolist() == [1, 3, 3, 1]
    assert run(whole_tensors(), place_values(4, 4))[3, 0] == 1331


@pytest.mark.parametrize(
    ("mutant", "round_"),
    [
        (two_phases(4, (4, 1, 0, 1, True), COPY), 4),
        (two_phases(4, ADD, (4, 1, 1, 1, False)), 7),
    ],
)
def test_a_surplus_round_is_caught_by_volume_and_round(mutant, round_):
    assert (contributions(mutant) == 1).all()
    (sentence,) = explain(mutant)
    assert sentence.startswith(f"every value is right, but round {round_} is not needed: ")
    assert sentence.endswith("rank 0 sends 7 chunks where 6 are enough")


@pytest.mark.parametrize("n", range(2, 9))
def test_a_mirrored_second_phase_is_right(n):
    mirrored = two_phases(n, (n - 1, 1, 0, 1, True), (n - 1, -1, 1, -1, False))
    assert explain(mirrored) == []
    x = np.random.default_rng(0).normal(size=(n, 37)).astype("f4")
    assert run(mirrored, x).tobytes() == run(ring(n), x).tobytes()


def test_two_ranks_hide_the_turned_arrow():
    turned = two_phases(2, (1, 1, 0, 1, True), (1, -1, 1, 1, False))
    assert explain(turned) == []


def test_a_cell_that_nothing_reaches_is_said_to_be_so():
    s = Schedule("half", 2, 1, lambda: [Round.of(0, 1, 0, True)])
    assert explain(s) == ["rank 0, chunk 0 lacks rank 1's share (nothing ever arrives there)"]


def test_an_unplayable_schedule_is_explained_by_its_problems():
    s = Schedule("bad", 2, 1, lambda: [Round.of(0, 7, 0, True)])
    assert explain(s) == ["round 1: dst must be between 0 and 1, got 7"]


def test_many_wrong_cells_are_counted_not_listed():
    assert explain(MUTANTS["wrong offset"][0])[-1] == "and 10 more of the 16 wrong cells"


def test_spoiled_names_the_round_and_forgives_what_is_mended():
    surplus = two_phases(4, (4, 1, 0, 1, True), COPY)
    assert (spoiled(surplus) == -1).all()
    added = spoiled(MUTANTS["add for copy"][0])
    assert set(np.unique(added)) == {-1, 3, 4, 5}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_summation_order_recomputes_the_result_bit_for_bit(name, n):
    s = ALGORITHMS[name](n)
    x = np.random.default_rng(n).normal(size=(n, s.chunks)).astype("f4")
    out = run(s, x)
    sizes = np.cumsum(s.cut(s.chunks, 4))
    for rank in range(n):
        for element in range(s.chunks):
            chunk = int(np.searchsorted(sizes, element, side="right"))
            tree = summation_order(s, rank, chunk)
            assert total_of(tree, x, element).tobytes() == out[rank, element].tobytes()


def total_of(tree, x, element):
    if isinstance(tree, int):
        return x[tree, element]
    return total_of(tree[0], x, element) + total_of(tree[1], x, element)


def test_each_chunk_of_a_ring_is_added_in_its_own_order():
    assert repr(summation_order(ring(4), 0, 0)) == "(3 + (2 + (1 + 0)))"
    assert repr(summation_order(ring(4), 2, 1)) == "(0 + (3 + (2 + 1)))"
    assert repr(summation_order(gloo_ring(3), 0, 1)) == "(1 + (2 + 0))"


def test_recursive_doubling_adds_in_a_balanced_tree():
    assert repr(summation_order(recursive_doubling(4))) == "((0 + 1) + (2 + 3))"


def test_a_promise_must_be_one():
    with pytest.raises(ValueError, match="root must be an integer between 0 and 3, got 9"):
        Schedule("s", 4, 4, list, collective="reduce", root=9)
    with pytest.raises(TypeError, match="root must be an integer"):
        Schedule("s", 4, 4, list, collective="broadcast")
    with pytest.raises(ValueError, match="owner must be an integer between 0 and 3, got 9"):
        Schedule("s", 4, 4, list, collective="reduce_scatter", owner=(9, 9, 9, 9))
    with pytest.raises(ValueError, match="owner must name a rank for each of 4 chunks, got 1"):
        Schedule("s", 4, 4, list, collective="all_gather", owner=(0,))


def test_a_foreign_share_that_stays_is_dated_by_its_last_write():
    gather = ring_all_gather(5)
    rounds = list(gather)
    last = rounds[2]
    flipped = Round(last.src, last.dst, last.chunk, np.arange(5) == 4)
    bad = Schedule(
        "bad", 5, 5, lambda: [*rounds[:2], flipped, rounds[3]], "all_gather", owner=gather.owner
    )
    assert explain(bad)[0].startswith("rank 0, chunk 3 should not hold rank 0's share")
    assert "nothing ever arrives" not in " ".join(explain(bad))


def test_counts_never_wrap_around_to_a_false_proof():
    there, back = Round.of(0, 1, 0, True), Round.of(1, 0, 0, True)
    s = Schedule("snowball", 2, 1, lambda: [there, back] * 40)
    assert explain(s)[0].startswith("rank 0, chunk 0 holds rank 0's share very many times")


def test_an_idle_round_is_said_to_be_idle():
    idle = Schedule("idle", 2, 1, lambda: [*recursive_doubling(2), Round.of([], [], [], [])])
    assert explain(idle) == ["every value is right, but nothing is sent in round 2"]


def test_deep_trees_can_be_printed():
    assert repr(summation_order(ring(1500))).count("(") == 1499


def test_place_values_read_like_the_ranks():
    assert run(ring(4), place_values(4, 4))[2].tolist() == [1111, 2222, 3333, 4444]


def test_a_custom_schedule_promises_nothing():
    half = (ring_reduce_scatter(4) >> ring_reduce_scatter(4)).named("twice")
    with pytest.raises(ValueError, match="does not say which collective it is"):
        expected(half)


def test_too_many_counts_are_refused_before_they_are_made():
    with pytest.raises(ValueError, match=r"4,096 ranks x 4,096 chunks would need"):
        contributions(ring(4096))


def test_arguments_are_named():
    with pytest.raises(ValueError, match="rank must be an integer between 0 and 3, got 4"):
        summation_order(ring(4), rank=4)
    with pytest.raises(ValueError, match="ranks must be an integer between 1 and 16, got 17"):
        place_values(17, 2)
