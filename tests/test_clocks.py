"""Modelled time against closed forms, and against a plain simulation message by message."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allreduce_edu import ALGORITHMS, COLLECTIVES, Round, Schedule, ring
from allreduce_edu.engine import cost
from allreduce_edu.engine.algorithms import (
    bidirectional_ring,
    gloo_ring,
    halving_doubling,
    hierarchical,
    naive,
    pairwise_exchange,
    parameter_server,
    recursive_doubling,
)
from allreduce_edu.engine.links import Link, Links

LAN = Link.of(10e-6, 12.5e9)


def plainly(schedule, sizes, links, late, *, barrier):
    """One message after the other, in plain Python: the model's definition."""
    n = links.ranks
    clock = list(late)
    for r in schedule:
        carried = {}
        for s, d, c in zip(r.src.tolist(), r.dst.tolist(), r.chunk.tolist(), strict=True):
            if s != d and sizes[c]:
                carried[s, d] = carried.get((s, d), 0) + int(sizes[c])
        reduced = [0] * n
        for d, c, adds in zip(r.dst.tolist(), r.chunk.tolist(), r.reduce.tolist(), strict=True):
            reduced[d] += int(sizes[c]) * adds
        after, ports, used = list(clock), {}, {}
        for (s, d), size in carried.items():
            far = links.node[s] != links.node[d]
            alpha, beta = (
                float(np.ravel(what(np.array([s]), np.array([d])))[0])
                for what in (links.alpha, links.beta)
            )
            for end, way in ((s, "out"), (d, "in")):
                key = (way, "nic", links.nic[end]) if far else (way, end)
                most, total = ports.get(key, (0, 0))
                ports[key] = max(most, alpha), total + beta * size
                used.setdefault(end, set()).add(key)
        for rank, mine in used.items():
            with_me = [max(clock[s], clock[d]) for s, d in carried if rank in (s, d)]
            start = max(clock) if barrier else max(with_me)
            slowest = max(sum(ports[key]) for key in mine)
            after[rank] = start + slowest + links.gamma * reduced[rank]
        clock = [max(after)] * n if barrier else after
    return clock


NETWORKS = {
    "uniform": lambda n, rng: Links.uniform(n, LAN, gamma=1e-10),
    "ports": lambda n, rng: Links.uniform(
        n, Link(rng.uniform(1e-6, 1e-5, n), rng.uniform(1e-11, 1e-10, n)), gamma=1e-11
    ),
    "slow": lambda n, rng: Links.uniform(n, LAN).with_slow(rank=n - 1, factor=3),
    "nodes": lambda n, rng: Links.two_tier(
        n // 2 or 1, 2 if n > 1 else 1, Link(1e-6, 1e-11), Link(1e-5, 1e-10), nics=1
    ),
}


@pytest.mark.parametrize("name", [*ALGORITHMS, *COLLECTIVES])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_clocks_and_time_equal_the_plain_simulation(name, network, n):
    rng = np.random.default_rng(n)
    s = (ALGORITHMS | COLLECTIVES)[name](n)
    links = NETWORKS[network](n, rng)
    for size in (0, 1, 1003, 840 * s.chunks):
        sizes, late = s.cut(size), rng.uniform(0, 1e-4, n)
        for barrier in (False, True):
            want = plainly(s, sizes, links, late, barrier=barrier)
            got = cost.clocks(s, sizes, links, late, barrier=barrier)
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=0)
        want = max(plainly(s, sizes, links, [0] * n, barrier=True))
        got = cost.time(s, sizes, links)
        assert got >= want * (1 - 1e-12)
        if size != 1003:
            assert got == pytest.approx(want, rel=1e-12)
        else:  # alike rounds count with their largest chunk: one byte too many for each
            slowest = np.max(links.beta(*np.divmod(np.arange(n * n), n))) + links.gamma
            alike = sum(times * r.span * len(r) for r, times in s.blocks() if times > 1)
            assert got <= want * (1 + 1e-12) + alike * slowest


@pytest.mark.parametrize("name", [*ALGORITHMS, *COLLECTIVES])
@pytest.mark.parametrize("network", [*NETWORKS, "wires"])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_many_sizes_at_once_take_as_long_as_one_by_one(name, network, n, monkeypatch):
    rng = np.random.default_rng(n)
    s = (ALGORITHMS | COLLECTIVES)[name](n)
    make = NETWORKS.get(network, lambda n, _: Links.uniform(n, LAN, own_wires=True))
    links = make(n, rng)
    sizes = [0, 1, 3, 1003, 840 * s.chunks, 10**9, np.arange(s.chunks), [*range(s.chunks)]]
    want = [cost.time(s, each, links) for each in sizes]
    np.testing.assert_allclose(cost.times(s, sizes, links), want, rtol=1e-12, atol=0)
    monkeypatch.setattr(cost, "_AT_ONCE", 20)
    np.testing.assert_allclose(cost.times(s, iter(sizes), links), want, rtol=1e-12, atol=0)
    assert cost.times(s, [], links).shape == (0,)


@given(st.integers(2, 40), st.integers(0, 10**6))
@settings(max_examples=40)
def test_a_ring_over_any_links_takes_as_long_free_running_as_with_barriers(n, seed):
    rng = np.random.default_rng(seed)
    links = Links.uniform(n, Link(rng.uniform(0, 1e-5, n), rng.uniform(0, 1e-9, n)))
    r = np.arange(n)
    slowest = (links.alpha(r, (r + 1) % n) + links.beta(r, (r + 1) % n) * 1000).max()
    want = pytest.approx(2 * (n - 1) * slowest, rel=1e-12)
    assert cost.clocks(ring(n), 1000 * n, links).max() == want
    assert cost.clocks(ring(n), 1000 * n, links, barrier=True).max() == want
    assert cost.time(ring(n), 1000 * n, links) == want


def test_sixty_five_thousand_ranks_are_reckoned_in_blocks():
    n = 65_536
    rng = np.random.default_rng(0)
    alpha, beta = rng.uniform(1e-6, 1e-5, n), rng.uniform(1e-11, 1e-10, n)
    links = Links.uniform(n, Link(alpha, beta))
    pair = np.maximum(alpha, np.roll(alpha, -1)) + 4096 * np.maximum(beta, np.roll(beta, -1))
    want = 2 * (n - 1) * pair.max()
    assert cost.time(ring(n), 4096 * n, links) == pytest.approx(want, rel=1e-12)
    assert (cost.sent_bytes(ring(n), 4096 * n) == 2 * (n - 1) * 4096).all()
    with pytest.raises(ValueError, match=r"8,589,803,520 transfers, .* use cost\.time"):
        cost.clocks(ring(n), 4096 * n, links)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("n", [5, 16, 33])
def test_blocks_and_rounds_one_by_one_take_equally_long(name, n):
    s = ALGORITHMS[name](n)
    plain = Schedule("plain", n, s.chunks, lambda: list(s))
    rng = np.random.default_rng(n)
    links = Links.uniform(n, Link(rng.uniform(0, 1e-5, n), rng.uniform(0, 1e-9, n)), gamma=1e-10)
    sizes = np.full(s.chunks, 1000)
    assert cost.time(s, sizes, links) == pytest.approx(cost.time(plain, sizes, links), rel=1e-12)


@pytest.mark.parametrize("make", [ring, gloo_ring, recursive_doubling, halving_doubling, naive])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_rank_that_starts_late_makes_everyone_late_by_as_much(make, n):
    links = Links.uniform(n, LAN)
    on_time = cost.clocks(make(n), 1 << 20, links)
    late = cost.clocks(make(n), 1 << 20, links, {n - 1: 0.05})
    assert late == pytest.approx(on_time + 0.05, rel=1e-12)


def test_one_link_three_times_slower_stretches_every_round():
    links = Links.uniform(4, LAN)
    slow = links.with_slow(link=(1, 2), factor=3)
    ratio = cost.time(ring(4), 64 * 10**6, slow) / cost.time(ring(4), 64 * 10**6, links)
    assert ratio == pytest.approx(2.98, abs=0.005)
    other_way = links.with_slow(link=(2, 1), factor=3)
    assert cost.time(ring(4), 64 * 10**6, other_way) == cost.time(ring(4), 64 * 10**6, links)


def test_seven_billion_parameters_over_ten_gigabits():
    for n, seconds in ((2, 22.4), (8, 39.2), (64, 44.1)):
        links = Links.uniform(n, Link.of(0, 10e9 / 8))
        assert cost.time(ring(n), 28 * 10**9, links) == pytest.approx(seconds, rel=1e-12)


def test_a_flag_of_four_bytes_over_64_ranks():
    links = Links.uniform(64, Link.of(10e-6, float("inf")))
    assert cost.time(ring(64), 4, links) == pytest.approx(1260e-6)
    assert cost.time(recursive_doubling(64), 4, links) == pytest.approx(60e-6)


def test_both_directions_gain_only_on_wires_of_their_own():
    shared, wires = (Links.uniform(8, Link.of(0, 1e9), own_wires=own) for own in (False, True))
    one, both = ring(8), bidirectional_ring(8)
    size = 16 * 10**6
    assert cost.time(both, size, shared) == pytest.approx(cost.time(one, size, shared))
    assert cost.time(both, size, wires) == pytest.approx(cost.time(one, size, wires) / 2)
    star = parameter_server(8)
    assert cost.time(star, size, wires) == pytest.approx(cost.time(star, size, shared) / 7)


def test_ranks_that_share_a_nic_wait_for_it():
    size = 8 * 10**6
    for nics in (1, 2, 4):
        links = Links.two_tier(2, 4, Link(0, 0), Link.of(0, 1e9), nics=nics)
        want = 2 * (size / 8) / 1e9 * 4 / nics  # each of four brings its quarter, halved, twice
        assert cost.time(hierarchical(8, 4), size, links) == pytest.approx(want)
    own = Links.two_tier(2, 4, Link(0, 0), Link.of(0, 1e9))
    assert cost.time(ring(8), size, own) == pytest.approx(14 * size / 8 / 1e9)


def test_a_ring_in_the_wrong_order_crosses_the_slow_links_more_often():
    links = Links.two_tier(4, 4, Link(0, 0), Link.of(0, 1e9), nics=1)
    size = 16 * 10**6
    there_and_back = ring(16).on(np.arange(16).reshape(4, 4).T.ravel())
    aware, unaware = (cost.time(s, size, links) for s in (ring(16), there_and_back))
    assert unaware == pytest.approx(4 * aware)


def test_the_timeline_says_who_waits_and_who_works():
    links = Links.uniform(4, Link(1.0, 0.0))
    busy = cost.timeline(ring(4), 4, links, {2: 10.0})
    assert busy.start[0].tolist() == [0, 10, 10, 10]  # only the neighbours of 2 wait for it
    assert busy.end[0].tolist() == [1, 11, 11, 11]
    assert busy.start[1].tolist() == [11, 11, 11, 11]
    assert np.array_equal(busy.end[-1], cost.clocks(ring(4), 4, links, {2: 10.0}))
    assert (busy.ready <= busy.start).all()
    assert (busy.start <= busy.end).all()
    assert repr(busy) == "Busy(6 rounds x 4 ranks, 16 s)"
    star = cost.timeline(parameter_server(3), 4, Links.uniform(3, Link(1.0, 0.0)), {2: 5.0})
    assert star.start[0].tolist() == [5, 0, 5]  # rank 1's message is through before 2 begins
    assert star.end.tolist() == [[6, 1, 6], [7, 7, 7]]
    lock_step = cost.timeline(ring(4), 4, links, {2: 10.0}, barrier=True)
    assert (lock_step.start == lock_step.start[:, :1]).all()
    assert cost.timeline(ring(1), 4, Links.uniform(1, LAN)).end.shape == (0, 1)


def test_an_idle_round_and_an_idle_rank_take_no_time():
    s = Schedule("s", 3, 1, lambda: [Round.of([], [], [], True), Round.of(0, 1, 0, True)])
    links = Links.uniform(3, Link(1.0, 0.0))
    assert cost.clocks(s, 4, links).tolist() == [1, 1, 0]
    assert cost.time(s, 4, links) == 1
    assert cost.rounds(s) == 2
    assert cost.time(pairwise_exchange(1), 4, Links.uniform(1, LAN)) == 0


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: cost.time(ring(4), 4, "10 GbE"), TypeError, "links must be Links such as"),
        (lambda: cost.time(ring(4), 4, Links.uniform(3, LAN)), ValueError, "for 3 ranks"),
        (lambda: cost.time(ring, 4, Links.uniform(3, LAN)), TypeError, "call it with a number"),
        (lambda: cost.clocks(ring(2), 4, Links.uniform(2, LAN), [1]), ValueError, "late must be"),
        (lambda: cost.clocks(ring(2), 4, Links.uniform(2, LAN), {2: 1}), ValueError, "late must"),
        (lambda: cost.clocks(ring(2), 4, Links.uniform(2, LAN), [0, -1]), ValueError, "late must"),
        (
            lambda: cost.time(
                Schedule("s", 2, 1, lambda: [Round.of(0, 5, 0, True)]), 1, Links.uniform(2, LAN)
            ),
            ValueError,
            "s: round 1: dst must be between 0 and 1, got 5",
        ),
        (
            lambda: cost.timeline(ring(4096), 4096, Links.uniform(4096, LAN)),
            ValueError,
            "too many to keep",
        ),
    ],
)
def test_bad_input_is_named(call, error, sentence):
    with pytest.raises(error) as caught:
        call()
    assert sentence in str(caught.value)
