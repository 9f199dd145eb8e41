"""The tree behind one element has the values of `run`; the pictures show what it holds."""

import re

import numpy as np
import pytest

from allreduce_edu.engine.algorithms import (
    binomial_tree,
    gloo_ring,
    halving_doubling,
    one_shot,
    pairwise_exchange,
    recursive_doubling,
    ring,
)
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.precision import rounded
from allreduce_edu.lessons.additions import WAYS, Node, additions, lamps, total_error
from allreduce_edu.show.additions import Additions, Lamps, places, written

MAKERS = (ring, gloo_ring, binomial_tree, recursive_doubling, pairwise_exchange, one_shot)
LARGE = [256.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("wire_keep", [("bf16", "bf16"), ("bf16", "fp32"), ("fp8_e4m3", "bf16")])
@pytest.mark.parametrize("make", [*MAKERS, halving_doubling])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_the_root_has_the_value_of_run(n, make, wire_keep):
    wire, keep = wire_keep
    schedule = make(n)
    x = rounded(np.random.default_rng(n).normal(0, 3, n).astype("f4"), wire)
    elements = 16 * n
    first = np.cumsum([0, *schedule.cut(elements, 4)])  # of each chunk
    ends = run(schedule, np.repeat(x[:, None], elements, 1), wire=wire, accumulate=keep)
    for chunk in range(schedule.chunks):
        assert first[chunk + 1] > first[chunk]
        want = ends[:, first[chunk]]
        root = additions(schedule, x.tolist(), wire, keep, chunk=chunk)
        assert np.float32(root.value) in want
        shares = [node for node in root.nodes() if not node.parts]
        assert sorted(node.rank for node in shares) == list(range(n))


def test_a_sum_is_what_its_parts_add_up_to_and_what_was_lost():
    root = additions(ring(8), [256.0, *[1.0] * 7], "bf16", "bf16")
    sums = [node for node in root.nodes() if len(node.parts) == 2]
    assert len(sums) == 7
    for node in sums:
        assert node.value == 256
        assert node.lost == -0.5
        assert node.crossed is not None
        assert node.sent_lost == 0
    assert [node.hop for node in sums] == list(range(1, 8))
    assert total_error(root, [256.0, *[1.0] * 7], "bf16") == -3.5


def test_a_wide_accumulator_moves_the_roundings_to_the_edges():
    root = additions(ring(4), LARGE, "bf16", "fp32")
    sums = [node for node in root.nodes() if len(node.parts) == 2]
    assert [node.value for node in sums] == [257, 257, 257]
    assert [node.lost for node in sums] == [0, 0, 0]
    assert [node.sent_lost for node in sums[1:]] == [-0.5, -0.5]
    assert (root.value, root.lost) == (256, -0.5)


def test_of_raw_shares_only_shares_cross_and_the_result():
    root = additions(pairwise_exchange(4), LARGE, "bf16", "fp32")
    for node in root.nodes():
        if len(node.parts) == 2:
            assert not node.parts[node.crossed].parts
    assert root.value == 260
    assert "Node(copy 260 on rank" in repr(root)


def test_what_does_not_fit_is_too_large():
    root = additions(ring(2), [40000.0, 40000.0], "fp16", "fp16")
    assert root.value == float("inf")
    assert places(root.parts[0].lost) == "too large"
    assert written(root.value) == "∞"


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="chunk must be an integer between 0 and 3, got 4"):
        additions(ring(4), LARGE, "bf16", "bf16", chunk=4)
    with pytest.raises(ValueError, match=r"numbers must be one per rank \(5\), got 4"):
        additions(ring(5), LARGE, "bf16", "bf16")


# ---------------------------------------------------------------------------------- lamps


def lit(name, x):
    return lamps(WAYS[name], x)


def test_the_lamps_tell_the_ways_of_adding_apart():
    x = np.random.default_rng(0).normal(size=(5, 400)).astype("f4")
    rows = {name: lit(name, x) for name in WAYS}
    assert rows == {
        "ring": (True, True, False),
        "ring, bucket cut in two": (True, True, False),
        "recursive doubling": (True, True, False),
        "one-shot, in rank order": (True, True, True),
        "each rank adds its own first": (False, True, False),
        "server, in order of arrival": (True, False, False),
        "ring, bf16 wire, fp32 kept": (False, True, False),
        "the same, owner rounds too": (True, True, False),
    }


def test_two_numbers_have_one_order_and_whole_ones_no_rounding():
    x = np.random.default_rng(0).normal(size=(2, 400)).astype("f4")
    for name in ("ring", "each rank adds its own first", "server, in order of arrival"):
        assert lit(name, x) == (True, True, True)
    whole = np.random.default_rng(0).integers(-8, 9, (6, 100)).astype("f4")
    assert all(lit(name, whole) == (True, True, True) for name in WAYS)


# -------------------------------------------------------------------------------- pictures


def test_a_tree_shows_the_hops_so_far():
    root = additions(ring(4), LARGE, "bf16", "bf16")
    start, two, end = (Additions("A ring", root, hop) for hop in (0, 2, 4))
    assert "nothing added yet" in start.alt
    assert "4 still to come" in start.alt
    assert two.alt.count("256 + 1 = 256, −0.5 ulp") == 2
    assert "256 is copied as 256" in end.alt
    svg = two.svg()
    assert svg.count(">−0.5 ulp<") == 2
    assert svg.count('class="ar-copy"') == 2  # what is still to come
    assert all(f">rank {r}<" in svg for r in range(4))
    assert svg.count('class="ar-thick"') == 1 + 4  # key, three partial sums, the copy
    assert (
        "−0.5 ulp on the wire before"
        in Additions("wide", additions(ring(4), LARGE, "bf16", "fp32"), 4).alt
    )


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_no_box_covers_another(n, live):
    for make in (ring, binomial_tree, halving_doubling, pairwise_exchange):
        root = additions(make(n), [1.0] * n, "bf16", "fp32")
        svg = Additions("t", root, 9).svg(live=live)
        at = [
            (float(x), float(y))
            for x, y in re.findall(r'<rect class="ar-done"[^>]* x="([\d.-]+)" y="([\d.-]+)"', svg)
        ]
        assert len(at) == sum(1 for _ in root.nodes())
        for i, (x, y) in enumerate(at):
            assert all(abs(x - a) >= 78 or abs(y - b) >= 40 for a, b in at[:i])


def test_lamps_are_drawn_and_said():
    chart = Lamps("Bits", {"ring": (True, True, False)})
    assert chart.alt == "Bits. ring: on all ranks yes, from run to run yes, as one process no."
    svg = chart.svg()
    assert svg.count(">same<") == 2
    assert svg.count(">other<") == 1
    assert svg.count('class="ar-cross"') == 1


def test_a_share_says_what_it_is():
    assert repr(Node(1.0, 0, 0.0, 3)) == "Node(share 1 on rank 3, hop 0)"
