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
    summation_order,
)
from allreduce_edu.engine.algorithms import (
    all_to_all,
    bidirectional_ring,
    binomial_broadcast,
    binomial_reduce,
    double_binary_tree,
    gather,
    gloo_ring,
    halving_doubling,
    hierarchical,
    hierarchical_leader,
    naive,
    one_shot,
    pairwise_exchange,
    parameter_server,
    pipelined_tree,
    recursive_doubling,
    scatter,
    sharded_server,
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


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_one_shot_adds_in_rank_order_everywhere_and_naive_in_n_orders(n):
    assert len({repr(summation_order(one_shot(n), r)).translate(_FLAT) for r in range(n)}) == 1
    assert repr(summation_order(one_shot(3), 2)) == "((0 + 1) + 2)"
    assert len({repr(summation_order(naive(n), r)) for r in range(n)}) == n


_FLAT = {ord(each): None for each in "()"}


@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_whoever_adds_in_one_place_or_one_order_leaves_equal_bits(n, kind):
    x = np.random.default_rng(n).normal(0, 9, (n, 500)).astype(kind)
    for name, make in ALGORITHMS.items():
        replicas = {each.tobytes() for each in run(make(n), x)}
        assert len(replicas) == (n if name == "naive" else 1), name


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_raw_shares_arrive_in_the_same_order_in_one_round_as_in_many(n):
    for c in range(n):
        orders = [repr(summation_order(s, c, c)) for s in (pairwise_exchange(n), sharded_server(n))]
        assert orders[0] == orders[1]
        start = repr(summation_order(pairwise_exchange(n), c, c)).lstrip("(")
        assert start.startswith(f"{c} + {(c + 1) % n}")


@pytest.mark.parametrize("n", range(1, 65))
def test_no_rank_is_inside_both_of_the_two_trees(n):
    parent = [{}, {}]
    for r in double_binary_tree(n, 4):
        for src, dst, chunk in zip(
            *(part[r.reduce] for part in (r.src, r.dst, r.chunk)), strict=True
        ):
            assert parent[chunk % 2].setdefault(int(src), int(dst)) == dst
    inside = [set(tree) & set(tree.values()) for tree in parent]
    assert not inside[0] & inside[1]
    assert all(len(tree) == n - 1 for tree in parent)
    size = 4 * n
    assert busiest_port(double_binary_tree(n, 4), size) <= 2 * size
    if n > 4:
        assert busiest_port(pipelined_tree(n, 4), size) == 3 * size
        assert busiest_port(double_binary_tree(n, 4), size) == 2 * size


@pytest.mark.parametrize("n", [1, 2, 3, 9, 16])
@pytest.mark.parametrize("chunks", [1, 2, 3, 30])
def test_pipelined_trees_for_any_number_of_chunks(n, chunks):
    for make in (pipelined_tree, double_binary_tree):
        if chunks == 1 and make is double_binary_tree:
            continue
        s = make(n, chunks)
        assert (contributions(s) == 1).all()
        assert sent_bytes(s, 30 * n).sum() == 2 * (n - 1) * 30 * n
        assert len(list(s.blocks())) <= 4 * max(n - 1, 0).bit_length() + 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 12, 16])
def test_hierarchical_for_every_node_size_inside_and_across(n):
    for node in (g for g in range(1, n + 1) if n % g == 0):
        for across in ("ring", "halving_doubling"):
            for inside in ("ring", "halving_doubling")[: 1 + (node & (node - 1) == 0)]:
                s = hierarchical(n, node, inside, across)
                assert (contributions(s) == 1).all(), (node, inside, across)
                assert explain(s) == []
        assert (contributions(hierarchical_leader(n, node)) == 1).all()


@pytest.mark.parametrize(("m", "g"), [(2, 2), (2, 8), (4, 4), (8, 2), (3, 5)])
def test_only_a_share_of_the_bytes_leaves_the_node(m, g):
    n, size = m * g, 16 * 9 * 5 * 7 * m * g
    for s, each, ranks in (
        (hierarchical(n, g), 2 * (m - 1) * size // (m * g), n),
        (hierarchical_leader(n, g), 2 * (m - 1) * size // m, m),
    ):
        part = s.cut(size)
        leaving = np.zeros(n, int)
        for r in s:
            out = r.src // g != r.dst // g
            np.add.at(leaving, r.src[out], part[r.chunk[out]])
        assert leaving[leaving > 0].tolist() == [each] * ranks
    assert (sent_bytes(hierarchical(n, g), size) == 2 * (n - 1) * size // n).all()
    assert len(list(hierarchical(n, g))) == 2 * (g - 1) + 2 * (m - 1)


def test_half_of_a_bidirectional_ring_goes_each_way():
    for n in (3, 4, 8):
        size, right = 16 * 9 * 5 * 7 * n, np.zeros(n, int)
        s = bidirectional_ring(n)
        assert messages(s) == 4 * n * (n - 1)
        part = s.cut(size)
        for r in s:
            on = r.dst == (r.src + 1) % n
            np.add.at(right, r.src[on], part[r.chunk[on]])
        assert (right == (n - 1) * size // n).all()
        assert (sent_bytes(s, size) == 2 * right).all()


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_servers_without_a_share_of_their_own(n, k):
    s = parameter_server(n, servers=k)
    assert (s.ranks, s.workers) == (n + k, n)
    assert n == 1 or explain(s) == []
    x = np.arange(n * 12).reshape(n, 12)
    assert np.array_equal(run(s, x), np.broadcast_to(x.sum(0), x.shape))
    assert np.array_equal(run(s, x / 4, "avg"), np.broadcast_to(x.sum(0) / 4 / n, x.shape))
    size = 12 * k
    assert sent_bytes(s, size).tolist() == [size] * n + [n * size // k] * k
    with pytest.raises(ValueError, match=rf"one array per worker \({n}\), got {n + k}"):
        run(s, np.ones((n + k, 12)))


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_what_only_moves_against_its_definition(n):
    x = np.arange(n * n).reshape(n, n) * 10 + 1
    for root in range(n):
        assert np.array_equal(run(gather(n, root), x)[root], np.diag(x))
        assert np.array_equal(np.diag(run(scatter(n, root), x)), x[root])
    blocks = np.arange(n * n * n).reshape(n, n * n)
    got = run(all_to_all(n), blocks)
    for i in range(n):
        for j in range(n):
            assert got[j, i * n + j] == blocks[i, i * n + j]


def test_more_pairs_than_a_round_can_hold_are_refused_at_once():
    for make in (naive, one_shot, sharded_server, all_to_all):
        with pytest.raises(ValueError, match="over 65,536 ranks needs 4,294,967,296 transfers"):
            make(65_536)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: hierarchical(8, 3), r"node must divide the number of ranks \(8\), got 3"),
        (lambda: hierarchical(8, 0), "node must be an integer >= 1, got 0"),
        (lambda: hierarchical(6, 3, "halving_doubling"), "power of two ranks per node, got 3"),
        (lambda: hierarchical(8, inside="rign"), "unknown inside 'rign'; did you mean 'ring'"),
        (lambda: double_binary_tree(4, 1), "chunks must be an integer >= 2, got 1"),
        (lambda: parameter_server(4, servers=0), "servers must be an integer >= 1, got 0"),
        (lambda: gather(4, 4), "root must be an integer between 0 and 3, got 4"),
    ],
)
def test_arguments_that_do_not_fit(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize("elements", [0, 1, 5, 1003, 400_001, 3_000_017])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_gloos_cut_covers_everything_in_order(elements, n):
    sizes = gloo_ring(n).cut(elements, 4)
    assert sizes.sum() == elements
    assert (np.diff(sizes) <= 0).all()
