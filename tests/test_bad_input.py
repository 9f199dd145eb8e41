"""What a hostile user, or a tired one, gets from the engine: a sentence, and soon."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from allreduce_edu import (
    ALGORITHMS,
    COLLECTIVES,
    Link,
    Links,
    Player,
    Round,
    Schedule,
    busbw,
    clocks,
    closed_form,
    contributions,
    explain,
    fit,
    frames,
    messages,
    parameter_server,
    received_bytes,
    ring,
    run,
    sent_bytes,
    steps,
    summation_order,
    timeline,
)
from allreduce_edu.engine import cost
from allreduce_edu.engine.rounds import Alike

LAN = Links.uniform(4, "100 GbE")
of = Round.of


def mine(*rounds, **more):
    return Schedule("mine", 4, 4, lambda: list(rounds), **more)


SENTENCES = {
    "a schedule too large to list": (
        lambda: Schedule("x", 10**20, 1, list),
        "ranks must be at most 67,108,864, got 100,000,000,000,000,000,000",
    ),
    "chunks too many to list": (
        lambda: ring(4, 4 * 10**18),
        "chunks must be at most 67,108,864, got 4,000,000,000,000,000,000",
    ),
    "pieces too many to list": (
        lambda: ring(2).split(10**18),
        "chunks must be at most 67,108,864, got 2,000,000,000,000,000,000",
    ),
    "links too many to list": (
        lambda: Links.uniform(10**12, "1 GbE"),
        "ranks must be at most 67,108,864",
    ),
    "every pair of very many": (
        lambda: ALGORITHMS["pairwise_exchange"](1 << 20),
        "needs 1,099,511,627,776 transfers of their own, at most 16,777,216",
    ),
    "rounds that are none": (
        lambda: list(Schedule("x", 1, 1, lambda: None)),
        "x: rounds must return the rounds, got None (NoneType)",
    ),
    "a cutter that is none": (
        lambda: mine(cutter=3),
        "cutter must be a function, got 3 (int)",
    ),
    "a cutter that tears elements": (
        lambda: Schedule("x", 1, 2, list, cutter=lambda e, i, c: [1.5, e - 1.5]).cut(4),
        "its cutter must cut 4 elements into 2 chunks, got [1.5, 2.5]",
    ),
    "an owner between two": (
        lambda: Schedule("x", 2, 2, list, owner=[0.5, 1]),
        "owner must hold integers, got dtype float64",
    ),
    "a rank beyond int64": (
        lambda: of(np.array([2**63], np.uint64), 0, 0, True),
        "src must be at most 9223372036854775807, got 9223372036854775808",
    ),
    "a round without a length": (
        lambda: Round(np.array(0), np.array(1), np.array(0), np.array(True)),
        "src must have one entry per transfer (1), got shape ()",
    ),
    "a span of nothing": (
        lambda: replace(of(0, 1, 0, True), span=0),
        "span must be an integer >= 1, got 0",
    ),
    "times that are no number": (
        lambda: Alike(1.5, list),
        "times must be an integer >= 0, got 1.5",
    ),
    "times below 0": (lambda: Alike(-3, list), "times must be an integer >= 0, got -3"),
    "an Alike without a function": (lambda: Alike(2, 3), "at must be a function"),
    "labels for a rank that is not": (
        lambda: list(mine(of(-1, 0, 0, True)).on([3, 2, 1, 0])),
        "mine: src must be between 0 and 3, got -1",
    ),
    "bytes that wrap around": (
        lambda: sent_bytes(ALGORITHMS["naive"](1024), 1 << 50),
        "everyone to everyone sends more than 4,611,686,018,427,387,904 bytes in all",
    ),
    "chunks that wrap around together": (
        lambda: sent_bytes(ring(4096), [1 << 50] * 4096),
        "sizes must be at most 1,125,899,906,842,624 bytes, got 4,611,686,018,427,387,904",
    ),
    "late by a word": (
        lambda: clocks(ring(4), 9, LAN, "late"),
        "late must be a number or an array",
    ),
    "late by a word, on one rank": (
        lambda: clocks(ring(4), 9, LAN, {1: "x"}),
        "late must be a number or an array, got 'x' (str)",
    ),
    "bandwidth in words": (lambda: Link.of(0, "fast"), "bandwidth must be a number or an array"),
    "gamma by rank": (
        lambda: Links.uniform(4, "1 GbE", gamma=np.ones(4)),
        "gamma must be one number",
    ),
    "a slow link of three": (lambda: LAN.with_slow(link=(0, 1, 2)), "link must be two ranks"),
    "a slow link of one": (
        lambda: LAN.with_slow(link=3),
        "link must be two ranks (src, dst), got 3",
    ),
    "factors": (lambda: LAN.with_slow(1, factor=np.ones(2)), "factor must be one number"),
    "a size in words": (lambda: busbw("a", 1, 4), "size must be a number or an array"),
    "sizes in words": (lambda: fit("ab", [1, 2], 4), "sizes must be a number or an array"),
    "a size below 0": (lambda: closed_form("ring", 4, -1, LAN), "size must be bytes >= 0, got -1"),
    "no links": (lambda: closed_form("ring", 4, 1, None), "links must be Links such as"),
    "an option of another": (
        lambda: closed_form("ring", 4, 1, LAN, chunks=3),
        "ring has no option 'chunks'; it has none",
    ),
    "a node that does not divide": (
        lambda: closed_form("hierarchical", 8, 1, LAN, node=3),
        "node must divide the number of ranks (8), got 3",
    ),
    "a buffer that is none": (
        lambda: steps(ring(4), [[1]]),
        "buf must be a numpy array",
    ),
}


@pytest.mark.parametrize("what", SENTENCES)
def test_bad_input_gets_a_sentence(what):
    call, sentence = SENTENCES[what]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert sentence in str(caught.value)


# Learners' schedules that do not keep what their shorthands promise

LIES = {
    "a span past the last chunk": (mine(of(0, 1, 3, True, 2)), "chunk must be between 0 and"),
    "a span of a quintillion": (mine(of(0, 1, 0, True, 10**18)), "span must be between 1 and 4"),
    "no rank of that number": (mine(of(9, 1, 0, True)), "src must be between 0 and 3, got 9"),
    "a later round outside": (mine(Alike(2, lambda i: of(0, 1, 9 * i, True))), "got 9"),
    "other ranks": (mine(Alike(2, lambda i: of(i, i + 1, 0, True))), "in their chunks alone"),
    "another length": (
        mine(Alike(2, lambda i: of([0] * (i + 1), [1, 2][: i + 1], 0, True))),
        "in their chunks alone",
    ),
    "another span": (mine(Alike(2, lambda i: of(0, 1, 0, True, 1 + i))), "in their chunks alone"),
    "no rounds": (mine(Alike(2, lambda i: None)), "must be Rounds, got None (NoneType)"),
}
READERS = {
    "run": lambda s: run(s, np.ones((4, 8))),
    "steps": lambda s: list(steps(s, np.ones((4, 4, 2)))),
    "steps in large chunks": lambda s: list(steps(s, np.ones((4, 4, 9000)))),
    "clocks": lambda s: clocks(s, 17, LAN),
    "frames": frames,
    "contributions": contributions,
    "summation_order": summation_order,
    "check": lambda s: s.check(),
    "twice": lambda s: (s >> s).check(),
    "beside another": lambda s: (s.on([3, 2, 1, 0]) | ring(4).on([4, 5, 6, 7])).check(),
    "under other names": lambda s: s.on([3, 2, 1, 0]).check(),
    "in pieces": lambda s: s.split(2).check(),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("reader", READERS)
def test_a_shorthand_that_lies_is_found_by_every_reader(lie, reader):
    schedule, sentence = LIES[lie]
    if reader in (
        "in pieces",
        "beside another",
    ):  # says other numbers
        sentence = "Round" if lie == "no rounds" else "mine"
    with pytest.raises((TypeError, ValueError)) as caught:
        READERS[reader](schedule)
    assert sentence in str(caught.value)


def test_explain_says_the_same_as_a_list():
    assert explain(mine(of(0, 1, 0, True, 10**18))) == [
        "round 1: span must be between 1 and 4, got 1000000000000000000"
    ]


# Arrays of every kind


def test_a_buffer_may_have_holes_and_any_number_of_axes():
    whole = np.arange(8 * 8 * 6 * 2, dtype=float).reshape(8, 8, 6, 2)
    part = whole[::2, ::-2, ::3]
    want = np.broadcast_to(part.sum(0), part.shape).copy()
    kept = whole[1::2].copy()
    list(steps(ring(4), part))
    assert np.array_equal(part, want)
    assert np.array_equal(whole[1::2], kept)
    assert [b.shape for _, b in steps(ring(4), np.ones((4, 4, 2, 0, 3)))][-1] == (4, 4, 2, 0, 3)


@pytest.mark.parametrize("name", [*ALGORITHMS, *COLLECTIVES])
def test_nothing_can_be_reduced_too(name):
    n = 3
    schedule = {**ALGORITHMS, **COLLECTIVES}[name](n)
    assert run(schedule, np.empty((n, 0), np.float32)).shape == (n, 0)
    assert cost.time(schedule, 0, Links.uniform(n, "1 GbE")) == 0
    assert clocks(schedule, 0, Links.uniform(n, "1 GbE")).max() == 0
    assert messages(schedule, 0) == 0


def test_torch_refuses_what_it_cannot_add():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="torch does not add in float8_e4m3fn"):
        run(ring(4), torch.ones(4, 3).to(torch.float8_e4m3fn))
    with pytest.raises(TypeError, match="x must be dense, got torch"):
        run(ring(4), torch.ones(4, 3).to_sparse())
    with pytest.raises(ValueError, match="same device; rank 0 has cpu, rank 1 has meta"):
        run(ring(2), [torch.ones(3), torch.ones(3, device="meta")])


def test_torch_buffers_need_no_history():
    torch = pytest.importorskip("torch")
    buf = torch.ones(4, 4, 2, requires_grad=True)
    list(steps(ring(4), buf))
    assert (buf.detach() == 4).all()


# Ranks that only serve, and copies for each row of ranks, with every reader

SERVED = {"two servers": parameter_server(4, servers=2), "one": parameter_server(3, servers=1)}


@pytest.mark.parametrize("name", SERVED)
def test_servers_suit_every_reader(name):
    s = SERVED[name]
    links = Links.uniform(s.ranks, "1 GbE", gamma=1e-9)
    x = np.arange(s.workers * 7.0).reshape(s.workers, 7)
    assert (run(s, x) == x.sum(0)).all()
    assert explain(s) == []
    assert (contributions(s)[: s.workers, :, : s.workers] == 1).all()
    assert len(frames(s)["steps"]) == len(frames(s, x)["steps"]) == 2
    assert frames(s)["ranks"] == s.ranks
    assert "<svg" in Player(s).still()
    assert sent_bytes(s, 700).sum() == received_bytes(s, 700).sum() == 2 * 700 * s.workers
    busy = timeline(s, 7 * s.servers, links)
    assert busy.end.max() == clocks(s, 7 * s.servers, links).max() > 0
    assert busy.end.max() == pytest.approx(cost.time(s, 7 * s.servers, links), rel=1e-12)
    with pytest.raises(ValueError, match=f"one array per worker \\({s.workers}\\), got {s.ranks}"):
        run(s, np.ones((s.ranks, 7)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_copies_for_each_row_suit_every_reader(name):
    rows = np.array([[5, 0, 3], [1, 4, 2]])
    one = ALGORITHMS[name](3)
    both = one.on(rows).named("both", collective="custom")
    links = Links.uniform(6, "1 GbE")
    sizes = np.arange(1, one.chunks + 1)
    for row in rows:
        assert np.array_equal(sent_bytes(both, sizes)[row], sent_bytes(one, sizes))
        assert clocks(both, sizes, links)[row] == pytest.approx(
            clocks(one, sizes, Links.uniform(3, "1 GbE")), rel=1e-12
        )
    late = dict.fromkeys(rows[0].tolist(), 1.0)
    assert (clocks(both, sizes, links, late)[rows[1]] < 1).all()
    busy = timeline(both, sizes, links)
    assert np.array_equal(busy.end[-1], clocks(both, sizes, links))
    with pytest.raises(ValueError, match="does not say which collective it is"):
        frames(both)
