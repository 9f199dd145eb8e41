import numpy as np
import pytest

from allreduce_edu import (
    ALGORITHMS,
    COLLECTIVES,
    busiest_port,
    contributions,
    expected,
    explain,
    messages,
    ring,
    run,
    sent_bytes,
)
from allreduce_edu.engine.algorithms import (
    binomial_broadcast,
    binomial_reduce,
    gloo_ring,
    halving_doubling,
    naive,
    parameter_server,
    recursive_doubling,
)

RANKS = range(1, 17)
SIZES = (0, 1, 3, 10, 1003)
everything = pytest.mark.parametrize(
    ("name", "n"), [(name, n) for name in ALGORITHMS for n in RANKS]
)


@everything
def test_every_share_arrives_exactly_once_everywhere(name, n):
    assert (contributions(ALGORITHMS[name](n)) == 1).all()


@everything
def test_the_sum_is_numpys_for_awkward_sizes(name, n):
    for size in SIZES:
        x = np.arange(n * size, dtype=np.int64).reshape(n, size) ** 2 - 7
        assert np.array_equal(run(ALGORITHMS[name](n), x), np.broadcast_to(x.sum(0), x.shape))


@everything
def test_no_round_is_too_many(name, n):
    assert explain(ALGORITHMS[name](n)) == []


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("n", RANKS)
def test_the_other_collectives_keep_their_promise(name, n):
    s = COLLECTIVES[name](n)
    promise = expected(s)
    assert np.array_equal(contributions(s)[promise.meaning], promise.end[promise.meaning])
    assert explain(s) == []


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("root", [0, 1])
def test_reduce_and_broadcast_for_any_root(n, root):
    x = np.arange(n * 3).reshape(n, 3)
    assert np.array_equal(run(binomial_reduce(n, root), x)[root], x.sum(0))
    assert (run(binomial_broadcast(n, root), x) == x[root]).all()


def test_the_ring_finishes_block_r_plus_1_on_rank_r():
    counts = contributions(COLLECTIVES["ring_reduce_scatter"](5))
    complete = [np.flatnonzero((counts[r] == 1).all(1)).tolist() for r in range(5)]
    assert complete == [[1], [2], [3], [4], [0]]


@pytest.mark.parametrize("n", range(2, 17))
def test_counted_volumes_equal_the_closed_forms(n):
    size = 16 * 9 * 5 * 7 * 11 * 13 * 17  # every n divides it, except where a case says so
    size *= n
    p = 1 << (n.bit_length() - 1)
    ring_bytes = 2 * (n - 1) * size // n
    assert (sent_bytes(ring(n), size) == ring_bytes).all()
    assert messages(ring(n)) == 2 * n * (n - 1)
    assert (sent_bytes(naive(n), size) == (n - 1) * size).all()
    assert messages(naive(n)) == n * (n - 1)
    star = sent_bytes(parameter_server(n), size)
    assert star[0] == (n - 1) * size
    assert (star[1:] == size).all()
    assert star.sum() == sent_bytes(ring(n), size).sum()
    tree = sent_bytes(ALGORITHMS["binomial_tree"](n), size)
    assert tree.sum() == 2 * (n - 1) * size
    assert busiest_port(ALGORITHMS["binomial_tree"](n), size) == (n - 1).bit_length() * size
    doubling = p.bit_length() - 1
    folded = size if n > p else 0
    assert busiest_port(recursive_doubling(n), size) == doubling * size + folded
    assert busiest_port(halving_doubling(n), size) == 2 * (p - 1) * size // p + folded
    assert len(list(halving_doubling(n))) == 2 * doubling + 2 * (n > p)


@pytest.mark.parametrize("n", [2, 3, 6, 7])
@pytest.mark.parametrize("size", [0, 1, 5, 1003])
def test_a_size_that_n_does_not_divide_costs_all_but_two_chunks_twice(n, size):
    s = ring(n)
    chunk = s.cut(size)
    sent = sent_bytes(s, size)
    for r in range(n):
        assert sent[r] == 2 * size - chunk[(r + 1) % n] - chunk[(r + 2) % n]


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_more_chunks_than_ranks_change_neither_bytes_nor_rounds(pieces):
    s = ring(4, 4 * pieces)
    assert (contributions(s) == 1).all()
    assert (sent_bytes(s, 4000) == 6000).all()
    assert len(list(s)) == 6


def test_chunks_must_be_a_multiple_of_ranks():
    with pytest.raises(ValueError, match=r"multiple of the number of ranks \(4\), got 6"):
        ring(4, 6)


@pytest.mark.parametrize("make", list(ALGORITHMS.values()))
def test_bad_numbers_of_ranks(make):
    with pytest.raises(ValueError, match="must be an integer >= 1, got 0"):
        make(0)
    with pytest.raises(TypeError, match=r"must be an integer >= 1, got 2\.5"):
        make(2.5)


def test_an_unknown_algorithm_gets_the_nearest_name():
    with pytest.raises(ValueError, match="unknown algorithm 'rign'; did you mean 'ring'"):
        ALGORITHMS["rign"]


def test_a_root_outside_is_refused():
    with pytest.raises(ValueError, match="root must be an integer between 0 and 3, got 4"):
        binomial_reduce(4, root=4)


@pytest.mark.parametrize("elements", [0, 1, 5, 1003, 400_001, 3_000_017])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_gloos_cut_covers_everything_in_order(elements, n):
    sizes = gloo_ring(n).cut(elements, 4)
    assert sizes.sum() == elements
    assert (np.diff(sizes) <= 0).all()
