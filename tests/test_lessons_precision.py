"""The errors of notebook 06: orders against the schedules, sizes against what is known of them."""

import numpy as np
import pytest

from allreduce_edu.engine.algorithms import binomial_tree, halving_doubling, one_shot, ring
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.precision import exact_sum, format_of, rounded
from allreduce_edu.engine.verify import summation_order
from allreduce_edu.lessons import precision
from allreduce_edu.lessons.precision import (
    DATA,
    FORMATS_SHOWN,
    ORDERS,
    combinations,
    curve,
    exact,
    means_in_fp16,
    outcome,
    shares,
    theory,
)

X = np.random.default_rng(0).normal(size=(16, 48)).astype("f4")
KINDS = ("fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2")
SCHEDULES = {
    "ring": ring,
    "balanced tree": binomial_tree,
    "halving-doubling": halving_doubling,
    "one-shot, fp32 inside": one_shot,
}


def added(order, x):
    """Add x in the order that `summation_order` gives, without rounding to less than float64."""
    if isinstance(order, tuple):
        return added(order[0], x) + added(order[1], x)
    return x[order]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", SCHEDULES)
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_an_order_has_the_bits_of_its_schedule(order, n, kind):
    x = rounded(X[:n], kind)
    mine = ORDERS[order](x, kind)[n]
    keep = "fp32" if order.startswith("one-shot") else kind
    full = run(SCHEDULES[order](n), x, wire=kind, accumulate=keep)
    first = full[0] if keep == kind else rounded(full[0], kind)
    chunk = 48 // n if order == "ring" else 48  # of a ring, chunk 0 starts on rank 0
    assert mine[:chunk].tobytes() == first[:chunk].tobytes()


@pytest.mark.parametrize("n", [3, 4, 8])
def test_a_ring_s_other_chunks_are_chains_that_start_elsewhere(n):
    x = rounded(X[:n], "bf16")
    whole = run(ring(n), x, wire="bf16", accumulate="bf16")[0].reshape(n, -1)
    for c in range(n):
        total = x[c]
        for k in range(1, n):
            total = rounded(total + x[(c + k) % n], "bf16")
        assert (whole[c] == total.reshape(n, -1)[c]).all()


def test_in_float64_an_order_is_the_one_that_is_proved():
    x = np.random.default_rng(1).random((8, 1))
    for order, make in SCHEDULES.items():
        if order == "one-shot, fp32 inside":
            continue
        want = added(summation_order(make(8), 0, 0), x)
        assert ORDERS[order](x, "fp64")[8] == want


def test_exact_sums_are_exact():
    sums = exact(X)
    for n in (2, 4, 8, 16):
        np.testing.assert_allclose(sums[n], exact_sum(X[:n]), rtol=1e-12)


# Measured with another program: relative rms of sums of U(0.5, 1.5), every addition rounded.
KNOWN = {
    ("fp32", 8): (4.7e-8, 4.1e-8),
    ("fp32", 4096): (8.3e-7, 4.1e-8),
    ("fp16", 64): (9.1e-4, 3.6e-4),
    ("fp16", 4096): (7.1e-3, 3.4e-4),
    ("bf16", 8): (3.1e-3, 2.6e-3),
    ("bf16", 64): (7.3e-3, 2.8e-3),
    ("bf16", 512): (2.0e-2, 2.9e-3),
    ("bf16", 1024): (0.50, 2.9e-3),
    ("bf16", 4096): (0.875, 2.8e-3),
    ("fp8_e4m3", 64): (0.50, None),
    ("fp8_e5m2", 32): (0.50, None),
}


@pytest.mark.parametrize(("kind", "n"), KNOWN)
def test_errors_are_those_that_are_known(kind, n):
    for order, want in zip(("ring", "balanced tree"), KNOWN[kind, n], strict=True):
        if want:
            c = curve("same sign", kind, order)
            assert c.error[c.ranks.index(n)] == pytest.approx(want, rel=0.12)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
def test_a_chain_grows_like_the_root_of_n_and_a_tree_hardly(data, kind):
    chain, tree = (curve(data, kind, order) for order in ("ring", "balanced tree"))
    to = chain.ranks.index(256)  # bf16 stalls later
    slope = np.polyfit(np.log(chain.ranks[:to]), np.log(chain.error[:to]), 1)[0]
    assert 0.35 < slope < 0.55
    assert tree.error[-1] < 4 * tree.error[0]
    for c in (chain, tree):
        n, error = c.ranks[4], c.error[4]
        assert theory(c.order, data, kind, n) == pytest.approx(error, rel=0.25)
        worst = (n - 1 if c is chain else np.log2(n)) * format_of(kind).unit
        if data == "same sign":
            assert error < worst


def test_the_theory_has_the_closed_forms():
    u = format_of("bf16").unit
    big = 4096
    assert theory("ring", "same sign", "bf16", big) == pytest.approx(
        u * (big / 21) ** 0.5, rel=0.01
    )
    assert theory("ring", "zero mean", "bf16", big) == pytest.approx(
        u * (big / 14) ** 0.5, rel=0.01
    )
    assert theory("balanced tree", "same sign", "bf16", big) == pytest.approx(0.645 * u, rel=0.02)
    assert theory("balanced tree", "zero mean", "bf16", big) == pytest.approx(
        u * (12 / 7) ** 0.5, rel=0.01
    )
    with pytest.raises(ValueError, match="unknown order"):
        theory("one-shot, fp32 inside", "same sign", "bf16", 8)


def test_accumulating_wide_is_flat_and_what_does_not_fit_is_infinite():
    flat = curve("same sign", "bf16", "one-shot, fp32 inside")
    assert max(flat.error[2:]) < 2e-3
    lost = curve("same sign", "fp8_e4m3", "balanced tree")
    assert np.isfinite(lost.error[lost.ranks.index(256)])
    assert np.isinf(lost.error[lost.ranks.index(512)])  # above 448


def test_halving_doubling_errs_as_a_balanced_tree_does():
    for data in DATA:
        a, b = (curve(data, "bf16", order) for order in ("balanced tree", "halving-doubling"))
        np.testing.assert_allclose(a.error, b.error, rtol=0.15)


def test_gradients_are_real_ones():
    g = shares("real gradients", 64, 4096)
    assert g.shape == (64, 4096)
    assert 0.4 < g.std() < 1.5
    assert len({row.tobytes() for row in g}) == 64
    assert not g.flags.writeable


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: shares("ones"), "unknown data 'ones'"),
        (lambda: shares("same sign", 0), "ranks must be an integer between 1 and 4096, got 0"),
        (lambda: curve("same sign", "bf16", "star"), "unknown order 'star'"),
        (lambda: curve("same sign", "bf17", "ring"), "unknown format 'bf17'; did you mean 'bf16'"),
        (lambda: means_in_fp16(1, 7), "ranks must be an integer between 2 and 4096, got 1"),
    ],
)
def test_bad_input_gets_a_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# ------------------------------------------------------------- wire against accumulator


def test_the_nine_combinations_on_a_ring():
    table = {(w, k): o for w, k, o in combinations("ring", 64)}
    assert len(table) == 9
    assert table["bf16", "bf16"].error == pytest.approx(0.0096, rel=0.05)
    assert table["fp32", "fp32"].error < 1e-6
    apart = {pair for pair, o in table.items() if not o.identical}
    assert apart == {("bf16", "fp32"), ("bf16", "fp16"), ("fp16", "fp32")}  # narrower wires
    assert {table[pair].replicas for pair in apart} == {64}
    owner = {(w, k): o for w, k, o in combinations("ring", 64, round_owner=True)}
    assert all(o.identical for o in owner.values())


def test_a_wider_accumulator_changes_not_one_bit_on_a_ring():
    x = rounded(X[:8], "bf16")
    for n in (2, 4, 8):
        narrow = run(ring(n), x[:n], wire="bf16", accumulate="bf16")
        wide = run(ring(n), x[:n], wire="bf16", accumulate="fp32", round_owner=True)
        assert narrow.tobytes() == wide.tobytes()


def test_raw_shares_cost_the_same_bytes_and_keep_the_digits():
    pairwise = {(w, k): o for w, k, o in combinations("pairwise_exchange", 64, round_owner=True)}
    assert pairwise["bf16", "fp32"].error == pytest.approx(0.0017, abs=1e-4)
    assert pairwise["bf16", "fp32"].identical


def test_without_rounding_an_outcome_is_that_of_run():
    o = outcome(ring(8), X[:8])
    assert o.identical
    assert 0 < o.error < 1e-6


@pytest.mark.parametrize(
    ("ranks", "value", "want"),
    [
        (4, 20000, (np.inf, 20000, 20000)),
        (8, 10000, (np.inf, 9992, 10000)),
        (64, 1500, (np.inf, 1493, 1493)),
        (1024, 3e-5, (3.046e-5, 0, 3.05e-5)),
    ],
)
def test_means_in_fp16_overflow_or_underflow(ranks, value, want):
    got = means_in_fp16(ranks, value)
    assert list(got.values()) == pytest.approx(want, rel=2e-3)


def test_means_in_fp16_are_those_of_numpy_s_float16():
    x = np.full(12, 3.3, np.float16)
    total = np.float16(0)
    for each in x:
        total += each
    assert means_in_fp16(12, 3.3)["sum, then divide"] == total / np.float16(12)


def test_every_position_of_the_figure_has_a_curve():
    assert set(SCHEDULES) == set(ORDERS)
    assert precision.RANKS[-1] == precision.MOST
    assert len(FORMATS_SHOWN) == 5
