"""Rounds of each with each, as their ends, against the same transfers one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allreduce_edu import Round, Schedule
from allreduce_edu.engine import cost
from allreduce_edu.engine.algorithms import naive, one_shot, ring, sharded_server
from allreduce_edu.engine.links import Link, Links
from allreduce_edu.engine.mesh import Mesh

ALL = (naive, one_shot, sharded_server)


def any_link(rng, n, by_rank):
    return Link(*(top * rng.random(n if by_rank else None) for top in (1e-5, 1e-9)))


def any_links(rng, nodes, gpus):
    """Return links of any kind: by rank or not, in tiers or not, with some of them slow."""
    n, by_rank = nodes * gpus, rng.random(3) < 0.5
    gamma = float(rng.choice([0, 1e-10]))
    if rng.random() < 0.4:
        links = Links.uniform(
            n, any_link(rng, n, by_rank[0]), gamma, own_wires=bool(rng.random() < 0.3)
        )
    else:
        nics = rng.choice([k for k in range(1, gpus + 1) if gpus % k == 0])
        ends = (any_link(rng, n, each) for each in by_rank[:2])
        links = Links.two_tier(nodes, gpus, *ends, nics=int(nics), gamma=gamma)
    if by_rank[2]:
        links = links.with_slow(rank=int(rng.integers(n)), factor=3)
        links = links.with_slow(link=tuple(rng.integers(n, size=2).tolist()), factor=0.3)
    return links


def any_mesh(rng, n, chunks):
    """Return a mesh between some ranks and some, in any order, a column and a row or reversed."""
    src, dst = (rng.permutation(n)[: rng.integers(1, n + 1)] for _ in range(2))
    with_own = rng.random() < 0.5
    chunk = rng.integers(chunks, size=[(1, 1), (len(src), 1), (1, len(dst))][rng.integers(3)])
    reduce = rng.random([(1, 1), (len(src), 1), (1, len(dst))][rng.integers(3)]) < 0.5

    def listed():
        parts = np.broadcast_arrays(src[:, None], dst, chunk, reduce)
        s, d, c, adds = (part.ravel() for part in parts)
        order = rng.permutation(len(s))
        order = order[(s != d)[order] | with_own]
        return Round(s[order], d[order], c[order], adds[order])

    mesh = Mesh.between(src, dst, chunk, reduce, listed, len(listed()))
    backwards = rng.random() < 0.5
    return mesh.changed(lambda r: replace(r, src=r.dst, dst=r.src)) if backwards else mesh


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6))
@settings(max_examples=300)
def test_any_mesh_over_any_links_costs_what_its_transfers_do(nodes, gpus, seed):
    rng = np.random.default_rng(seed)
    n, chunks = nodes * gpus, int(rng.integers(1, 4))
    links, mesh = any_links(rng, nodes, gpus), any_mesh(rng, n, chunks)
    size = rng.integers(0, 3, chunks) * 1000
    plain = mesh.listed()
    got = links.cost(mesh, size[mesh.chunk])
    np.testing.assert_allclose(got, links.cost(plain, size[plain.chunk]), rtol=1e-12, atol=0)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=150)
def test_a_schedule_of_meshes_counts_as_its_rounds_do(nodes, gpus, seed):
    rng = np.random.default_rng(seed)
    n, chunks = nodes * gpus, int(rng.integers(1, 4))
    meshes, links = [any_mesh(rng, n, chunks) for _ in range(3)], any_links(rng, nodes, gpus)
    short = Schedule("short", n, chunks, lambda: meshes)
    plain = Schedule("plain", n, chunks, lambda: [each.listed() for each in meshes])
    size, late = np.full(chunks, rng.integers(0, 3) * 1000), rng.uniform(0, 1e-5, n)
    assert short.transfers() == plain.transfers()
    for count in (cost.sent_bytes, cost.received_bytes, cost.busiest_port, cost.messages):
        assert np.array_equal(count(short, size), count(plain, size))
    want = cost.time(plain, size, links)
    assert cost.time(short, size, links) == pytest.approx(want, rel=1e-12)
    for barrier in (False, True):
        want = cost.clocks(plain, size, links, late, barrier=barrier)
        got = cost.clocks(short, size, links, late, barrier=barrier)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=0)


def moves(schedule):
    return [r.moves for r in schedule]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_what_is_made_of_meshes_has_the_same_transfers(make, n):
    s = make(n)
    plain = Schedule("plain", n, s.chunks, lambda: list(s))
    assert all(type(r) is Mesh and len(r) == len(r.listed()) for r, _ in s.blocks())
    assert all(type(r) is Round for r in [*s, *s.spans()])
    other, far = np.arange(n)[::-1], np.arange(2 * n).reshape(2, n)
    for change, stays in (
        (lambda a: a.on(other), True),
        (lambda a: a.split(3), True),
        (lambda a: a.split(3).on(other, np.arange(3 * s.chunks)[::-1]), False),
        (lambda a: a.on(far), False),
        (lambda a: a | ring(n).on(other + n), False),
        (lambda a: a >> a, True),
    ):
        assert moves(change(s)) == moves(change(plain))
        assert all((type(r) is Mesh) == stays for r, _ in change(s).blocks())


@pytest.mark.parametrize("make", ALL)
def test_nothing_is_listed_to_reckon_bytes_and_time(make, monkeypatch):
    n = 48
    s, links = make(n), Links.two_tier(6, 8, "NVLink 4", "100 GbE", nics=2).with_slow(rank=3)
    want = cost.clocks(Schedule("plain", n, s.chunks, lambda: list(s)), 48_000, links).max()
    monkeypatch.setattr(Mesh, "listed", lambda _: pytest.fail("it was listed"))
    assert cost.time(s, 48_000, links) == pytest.approx(want, rel=1e-12)
    assert cost.clocks(s, 48_000, links).max() == pytest.approx(want, rel=1e-12)
    assert cost.sent_bytes(s, 48_000).sum() == cost.received_bytes(s, 48_000).sum()
    assert cost.messages(s, 48_000) == cost.rounds(s) * n * (n - 1)


def test_a_mesh_says_what_it_is():
    (one,) = (r for r, _ in naive(1000).blocks())
    assert repr(one) == "1,000 ranks → 1,000 ranks  add"
    assert len(one) == 999_000
    assert one.crossing().src.size == 999_000
    assert one.expanded().phase == "add"


@pytest.mark.parametrize(
    ("ends", "chunk", "sentence"),
    [
        ((np.zeros((2, 2), int), np.zeros((1, 2), int)), 0, "src and dst must be a column and"),
        ((np.zeros(2, int), np.zeros((1, 2), int)), 0, "src and dst must be a column and a row"),
        ((np.zeros((3, 1), int), np.zeros((1, 2), int)), np.zeros((3, 2)), r"chunk .* \(3, 2\)"),
    ],
)
def test_bad_meshes(ends, chunk, sentence):
    with pytest.raises(ValueError, match=sentence):
        Mesh(*ends, np.atleast_2d(chunk), np.array([[True]]), make=list, transfers=1)


def test_a_rank_is_named_once():
    for src, dst in ((np.array([0, 0]), np.arange(2)), (np.arange(2), np.array([1, 1]))):
        with pytest.raises(ValueError, match="must be different ranks, got one twice"):
            Mesh.between(src, dst, 0, True, list, 4)
