"""The explorers of notebook 06 show what the lessons compute, at every position."""

import numpy as np
import pytest

pytest.importorskip("anywidget")

from allreduce_edu.lessons import precision
from allreduce_edu.lessons.policies import fate, late_gradient, trained
from allreduce_edu.show import drift
from allreduce_edu.show.additions import Additions, Lamps
from allreduce_edu.show.drift import (
    growing,
    histogram,
    hop_by_hop,
    loss_scaling,
    nine_combinations,
    policies,
    three_lamps,
)


def test_a_ring_stalls_hop_by_hop_and_a_tree_does_not():
    explorer = hop_by_hop()
    assert explorer.opened is False
    assert "After hop 0 of 4. The exact sum is 259." in explorer.shown.words
    explorer.turn(hop=8, ranks=8)
    assert "the result is 256, off by −3.5 ulp of bf16" in explorer.shown.words
    explorer.turn(algorithm="binomial_tree")
    assert "the result is 262" in explorer.shown.words
    explorer.turn(algorithm="ring", chunk=1)
    assert "the result is 264, off by +0.5 ulp" in explorer.shown.words
    tree, three = explorer.shown.charts
    assert isinstance(tree, Additions)
    assert isinstance(three, Lamps)
    assert list(three.rows.values()) == [(True, True, False)]


@pytest.mark.parametrize("algorithm", drift._ALGORITHMS)
@pytest.mark.parametrize("numbers", drift._NUMBERS)
def test_every_position_of_the_tree_draws(algorithm, numbers):
    explorer = hop_by_hop()
    for ranks in range(2, 9):
        for rounding in drift._ROUNDINGS:
            explorer.turn(
                algorithm=algorithm, numbers=numbers, ranks=ranks, rounding=rounding, hop=ranks
            )
            assert explorer.problem == ""
            assert "<svg" in explorer.view["charts"][0]


def test_curves_are_those_of_the_lesson():
    explorer = growing()
    orders, formats = explorer.shown.charts
    chain = precision.curve("same sign", "bf16", "ring")
    assert orders.lines[0].y == chain.error
    assert [line.name for line in orders.lines[4:]] == ["theory: ring", "theory: balanced tree"]
    assert orders.lines[4].y[8] == precision.theory("ring", "same sign", "bf16", 512)
    assert formats.lines[2].y == chain.error
    assert "ring 0.875" in explorer.shown.words
    explorer.turn(kind="fp8_e4m3")
    assert "balanced tree ∞" in explorer.shown.words


def test_nine_combinations_are_those_of_the_lesson():
    explorer = nine_combinations()
    explorer.turn(ranks=8)
    error, results = explorer.shown.charts
    table = {(w, k): o for w, k, o in precision.combinations("ring", 8)}
    kinds = list(error.rows)
    for i, wire in enumerate(kinds):
        for j, keep in enumerate(kinds):
            assert error.values[i][j] == table[wire, keep].error
            assert results.values[i][j] == table[wire, keep].replicas
    assert "bf16 sent, fp32 kept" in explorer.shown.words
    explorer.turn(round_owner=True)
    assert explorer.shown.words == "All ranks hold the same bits in all nine."


def test_lamps_follow_ranks_and_numbers():
    explorer = three_lamps()
    (chart,) = explorer.shown.charts
    assert chart.rows["server, in order of arrival"][1] is False
    explorer.turn(numbers="whole")
    assert explorer.shown.words == "All three lamps are lit in 8 of 8 rows."
    for ranks in range(2, 9):
        for numbers in drift._BUCKETS:
            explorer.turn(ranks=ranks, numbers=numbers)
            assert explorer.problem == ""


def test_the_heap_moves_with_the_scale():
    explorer = loss_scaling()
    (before,) = explorer.shown.charts
    explorer.turn(power=10)
    (after,) = explorer.shown.charts
    (a, b) = (max(zip(c.lines[0].y, c.lines[0].x, strict=True)) for c in (before, after))
    assert b == (a[0], pytest.approx(1024 * a[1]))  # the top is as high, and 1,024 times as far
    assert sum(after.lines[0].y) == len(late_gradient())
    lost = fate(late_gradient(), "fp16", 1024)
    assert f"{100 * lost.subnormal:.1f} % keep fewer digits" in explorer.shown.words
    for kind in ("fp16", "bf16", "fp8_e5m2"):
        for power in range(0, 37, 2):
            explorer.turn(kind=kind, power=power)
            assert explorer.problem == ""


def test_a_histogram_counts_every_number_once():
    x = np.array([1.0, 1.5, -3.9, 0.25, 0.3, 5e-13, 1e-30], "f4")
    middles, counts = histogram(x)
    assert sum(counts) == len(x)
    of = dict(zip(middles, counts, strict=True))
    assert (of[2.0**0.5], of[2.0**1.5], of[2.0**-1.5]) == (2, 1, 2)


def test_policies_are_compared_with_another_seed(monkeypatch):
    monkeypatch.setattr(drift, "SEEDS", 2)
    explorer = policies()
    curves, bars = explorer.shown.charts
    assert [line.name for line in curves.lines] == list(drift.POLICIES)
    want = trained("all in fp32").loss[:10].mean()
    assert curves.lines[0].y[0] == pytest.approx(want, rel=1e-5)
    lengths = dict(zip(bars.names, bars.totals, strict=True))
    assert lengths["bf16 ring against fp32"] < lengths["another seed, fp32"] / 4
