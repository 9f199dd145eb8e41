import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allreduce_edu import (
    ALGORITHMS,
    COLLECTIVES,
    Round,
    Schedule,
    contributions,
    gloo_ring,
    messages,
    ring,
    ring_reduce_scatter,
    run,
)
from allreduce_edu.engine.algorithms import binomial_reduce, halving_doubling
from allreduce_edu.engine.rounds import Alike


def pairs(*rounds, ranks=4, chunks=4):
    return Schedule("test", ranks, chunks, lambda: [Round.of(*each) for each in rounds])


def test_a_round_broadcasts_and_keeps_integers():
    r = Round.of([0, 1], 2, 0, True)
    assert [r.src.tolist(), r.dst.tolist(), r.chunk.tolist()] == [[0, 1], [2, 2], [0, 0]]
    assert r.reduce.tolist() == [True, True]
    with pytest.raises(TypeError, match="dst must hold integers, got dtype float64"):
        Round.of(0, 0.5, 0, True)


def test_a_schedule_can_be_read_again_and_again():
    s = ring(3)
    assert len(list(s)) == len(list(s)) == 4


def test_print_shows_rounds_from_one():
    lines = str(ring(3)).splitlines()
    assert lines[0] == "ring all-reduce: 3 ranks, 3 chunks"
    assert lines[1] == "round 1  0→1:c0  1→2:c1  2→0:c2  add"
    assert lines[4].endswith("copy")
    assert repr(ring(3)) == "Schedule('ring all-reduce', ranks=3, chunks=3)"


def test_print_stays_short_for_many_ranks_and_rounds():
    text = str(ring(64))
    assert "52 more" in text
    assert text.endswith("…")
    assert len(text) < 5000


@pytest.mark.parametrize("value", [0, -1])
def test_ranks_below_one(value):
    with pytest.raises(ValueError, match=f"ranks must be an integer >= 1, got {value}"):
        Schedule("x", value, 1, list)


@pytest.mark.parametrize("value", [True, 2.5, "4", None])
def test_ranks_of_another_kind(value):
    with pytest.raises(TypeError, match="ranks must be an integer >= 1, got"):
        Schedule("x", value, 1, list)


def test_numpy_integers_are_integers():
    assert ring(np.int64(4)).ranks == 4


def test_an_unknown_collective_gets_a_hint():
    with pytest.raises(ValueError, match="did you mean 'all_reduce'"):
        Schedule("x", 2, 1, list, collective="allreduce")


@given(st.integers(0, 300), st.integers(1, 40))
def test_the_default_cut_is_array_split(elements, chunks):
    sizes = Schedule("x", 1, chunks, list).cut(elements)
    assert sizes.tolist() == [len(part) for part in np.array_split(np.zeros(elements), chunks)]


def test_then_needs_equal_ranks_and_chunks():
    with pytest.raises(ValueError, match="got 4 ranks, 4 chunks and 3 ranks, 3 chunks"):
        ring(4) >> ring(3)


@pytest.mark.parametrize("n", range(1, 9))
def test_a_reduce_scatter_and_its_mirror_image_are_an_all_reduce(n):
    rs = ring_reduce_scatter(n)
    both = rs >> rs.mirrored()
    assert both.collective == "all_reduce"
    assert (contributions(both) == 1).all()


def test_a_schedule_that_copies_has_no_mirror_image():
    with pytest.raises(ValueError, match="also copies"):
        ring(3).mirrored()


def test_two_at_the_same_time_on_other_ranks():
    left, right = ring(2).on([0, 2], [0, 1]), ring(2).on([3, 1], [2, 3])
    both = (left | right).named("two rings", collective="custom")
    counts = contributions(both)
    assert counts[0, 0].tolist() == counts[2, 1].tolist() == [1, 0, 1, 0]
    assert counts[1, 3].tolist() == counts[3, 2].tolist() == [0, 1, 0, 1]
    assert counts[0, 2].tolist() == [1, 0, 0, 0]


def test_rounds_of_unequal_number_are_zipped_to_the_longer():
    assert len(list(ring(4) | binomial_reduce(2).on([0, 1], [4]))) == 6


def test_colliding_writes_are_refused_by_name():
    with pytest.raises(ValueError, match="both write rank 0, chunk 0 in round 1"):
        list(binomial_reduce(2) | binomial_reduce(2).on([0, 2]))


def test_labels_must_be_as_many_and_different():
    with pytest.raises(ValueError, match="ranks must be 2 different numbers"):
        ring(2).on([0, 0])
    with pytest.raises(ValueError, match="chunks must be 2 different numbers"):
        ring(2).on([0, 1], [0, 1, 2])


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ((0, 4, 0, True), "round 1: dst must be between 0 and 3, got 4"),
        ((-1, 0, 0, True), "round 1: src must be between 0 and 3, got -1"),
        ((0, 1, 9, True), "round 1: chunk must be between 0 and 3, got 9"),
        ((2, 2, 0, True), "round 1: rank 2 sends to itself"),
        (([0, 1], 2, 3, [True, False]), "round 1: rank 2, chunk 3 is written and replaced at once"),
        (([0, 1], 2, 3, False), "round 1: rank 2, chunk 3 is written and replaced at once"),
        (([0, 2], 2, 3, True), "round 1: rank 2 sends to itself"),
        (([2, 0], 2, 3, [False, True]), "round 1: rank 2 sends to itself"),
    ],
)
def test_problems_name_round_and_value(bad, sentence):
    s = pairs(bad)
    assert s.problems()[0].startswith(sentence)
    with pytest.raises(ValueError, match=f"test: {sentence}"):
        s.check()


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_algorithms_have_no_problems(n):
    for s in (ring(n), halving_doubling(n)):
        assert s.problems() == []
        assert s.check() is s


def test_one_iterator_for_all_readings_is_refused():
    used_up = iter(list(ring(4)))
    s = Schedule("s", 4, 4, lambda: used_up)
    with pytest.raises(ValueError, match="s: rounds must return new rounds at every call"):
        contributions(s)


def test_what_is_no_round_is_named():
    with pytest.raises(TypeError, match=r"s: round 1 must be a Round, got \(0, 1, 0, True\)"):
        list(Schedule("s", 2, 1, lambda: [(0, 1, 0, True)]))
    with pytest.raises(TypeError, match="rounds must be a function that returns the rounds"):
        Schedule("s", 2, 1, [])
    with pytest.raises(TypeError, match="name must be a str, got 3"):
        ring(2).named(3)


@pytest.mark.parametrize(
    ("parts", "error", "sentence"),
    [
        (([0, 1, 2], [1, 2], 0, True), ValueError, "must have one length, got 3, 2, 1, 1"),
        (([0, [1, 2]], 1, 0, True), ValueError, "must have one length"),
        ((0, 1, 0, "no"), TypeError, "reduce must hold True or False, got dtype <U2"),
        ((0, 1, 0, 1), TypeError, "reduce must hold True or False, got dtype int64"),
    ],
)
def test_rounds_of_odd_parts(parts, error, sentence):
    with pytest.raises(error) as caught:
        Round.of(*parts)
    assert sentence in str(caught.value)


def test_a_round_made_by_hand_is_checked():
    one = np.zeros(1, int)
    with pytest.raises(TypeError, match=r"src must be an int array, got .* try Round\.of"):
        Round([0], one, one, one == 0)
    with pytest.raises(ValueError, match=r"chunk must have one entry per transfer \(1\)"):
        Round(one, one, np.zeros(2, int), one == 0)


def test_combining_with_something_else_is_a_type_error():
    for combine in (lambda: ring(4) >> ring, lambda: ring(4) | 3):
        with pytest.raises(TypeError, match="unsupported operand"):
            combine()
    with pytest.raises(ValueError, match="cut an array in different ways"):
        ring(4) | gloo_ring(4)


def test_a_cutter_must_cut_everything():
    s = ring(2).named("odd", cutter=lambda elements, itemsize, chunks: np.array([1, 1]))
    assert s.cut(2).tolist() == [1, 1]
    with pytest.raises(ValueError, match="odd: its cutter must cut 3 elements into 2 chunks"):
        s.cut(3)


def test_huge_numbers_of_ranks_are_refused_at_once():
    with pytest.raises(ValueError, match="n must be at most 1,048,576"):
        ring(2**63)
    assert gloo_ring(100_000).ranks == 100_000


def test_one_of_a_kind_is_singular():
    assert str(ring(1)) == "ring all-reduce: 1 rank, 1 chunk"


def test_rounds_are_lazy():
    def endless():
        for k in itertools.count():
            yield Round.of(k % 2, (k + 1) % 2, 0, True)

    s = Schedule("endless", 2, 1, endless)
    assert next(iter(s)).src.tolist() == [0]
    assert "endless" in str(s)


def as_tuples(schedule):
    return [
        list(zip(*(part.tolist() for part in (r.src, r.dst, r.chunk, r.reduce)), strict=True))
        for r in schedule
    ]


@pytest.mark.parametrize("name", [*ALGORITHMS, *COLLECTIVES])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 7, 8, 16])
def test_blocks_tell_of_every_round_and_transfer(name, n):
    s = (ALGORITHMS | COLLECTIVES)[name](n)
    plain = list(s)
    assert sum(times for _, times in s.blocks()) == len(plain)
    assert s.transfers() == sum(map(len, plain))
    k = 0
    for block, times in s.blocks():
        for each in plain[k : k + times]:
            assert np.array_equal(each.src, block.expanded().src)
            assert np.array_equal(each.dst, block.expanded().dst)
        k += times


@pytest.mark.parametrize("n", [2, 3, 64, 65_536])
def test_a_ring_is_two_blocks_however_large(n):
    assert [times for _, times in ring(n).blocks()] == [n - 1, n - 1]
    assert ring(n).transfers() == 2 * n * (n - 1)


def test_rounds_that_are_not_alike_are_refused():
    s = Schedule("s", 3, 1, lambda: [Alike(2, lambda i: Round.of(0, 1 + i, 0, True))])
    with pytest.raises(ValueError, match="must differ in their chunks alone, got 0→1:c0  add and"):
        list(s)
    assert len(list(Schedule("s", 3, 1, lambda: [Alike(0, lambda i: 1 / i)]))) == 0


def test_a_span_is_so_many_chunks_in_a_row():
    s = Schedule("s", 2, 6, lambda: [Round.of([0, 1], [1, 0], [0, 3], True, span=3)])
    to_right, to_left = [(0, 1, c, True) for c in (0, 1, 2)], [(1, 0, c, True) for c in (3, 4, 5)]
    assert as_tuples(s) == [[*to_right, *to_left]]
    over = Schedule("s", 2, 6, lambda: [Round.of(0, 1, 4, True, span=3)])
    assert over.problems() == ["round 1: chunk must be between 0 and 5, got 6"]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_cutting_chunks_finer_changes_rounds_and_links_in_nothing(name, k):
    s = ALGORITHMS[name](6)
    fine = s.split(k)
    assert fine.chunks == k * s.chunks
    assert (contributions(fine) == 1).all()
    for coarse, each in zip(s, fine, strict=True):
        assert np.array_equal(each.src[::k], coarse.src)
        assert np.array_equal(np.unique(each.chunk // k), np.unique(coarse.chunk))


def test_a_row_of_labels_is_a_copy_and_all_play_at_once():
    nodes = np.arange(12).reshape(3, 4)
    rings = ring(4).on(nodes)
    one_by_one = ring(4).on(nodes[0]) | ring(4).on(nodes[1]) | ring(4).on(nodes[2])
    assert as_tuples(rings) == as_tuples(one_by_one)
    assert len(list(rings.blocks())) == 2
    own = ring(4).on(nodes, np.arange(12).reshape(3, 4)[::-1])
    assert own.chunks == 12
    assert set(next(iter(own)).chunk[:4].tolist()) == {8, 9, 10, 11}


@pytest.mark.parametrize(
    ("ranks", "chunks", "sentence"),
    [
        ([[0, 1], [1, 2]], None, "ranks must be different numbers in every copy"),
        ([[0, 1], [2, 3]], [[0, 1]] * 3, "one for each of 2 copies, got 3"),
        ([0, 1], [0, 0], "chunks must be 2 different numbers"),
        ([0, -1], None, "ranks must be integers >= 0, got -1"),
        ([0.5, 1], None, "ranks must be 2 different numbers, got [0.5, 1]"),
        ([[0], [1, 2]], None, "ranks must be 2 different numbers"),
        ("ab", None, "ranks must be 2 different numbers"),
    ],
)
def test_labels_that_do_not_fit(ranks, chunks, sentence):
    with pytest.raises(ValueError) as caught:
        ring(2).on(ranks, chunks)
    assert sentence in str(caught.value)


@given(st.permutations(range(5)), st.permutations(range(5)))
def test_a_relabelled_all_reduce_is_one(ranks, chunks):
    for make in (ring, gloo_ring, halving_doubling):
        s = make(5)
        labels = chunks[: s.chunks] if s.chunks < 5 else chunks
        if sorted(labels) == list(range(s.chunks)):
            assert (contributions(s.on(ranks, labels)) == 1).all()


@given(st.integers(1, 6), st.data())
def test_two_that_write_the_same_place_are_always_refused(n, data):
    """Against sets of what each writes, round by round."""
    a, b = (
        ring(n).on(data.draw(st.permutations(range(n))), data.draw(st.permutations(range(n))))
        for _ in range(2)
    )
    meet = any(
        {(d, c) for _, d, c, _ in one} & {(d, c) for _, d, c, _ in other}
        for one, other in zip(as_tuples(a), as_tuples(b), strict=True)
    )
    if meet:
        with pytest.raises(ValueError, match="both write rank"):
            list(a | b)
    else:
        assert len(list(a | b)) == 2 * (n - 1)


def test_what_is_too_long_to_read_says_so_before_anything_is_allocated():
    s = ring(65_536)
    for read in (contributions, lambda s: run(s, np.zeros((65_536, 1))), lambda s: messages(s, 5)):
        with pytest.raises(ValueError, match="65,536 ranks"):
            read(s)
    with pytest.raises(ValueError, match=r"transfers, too many to read one by one .* cost\.time"):
        run(s, np.zeros((65_536, 1), np.int8))
