"""A program becomes a schedule with its bytes, bits and mistakes; what cannot is refused."""

from __future__ import annotations

import numpy as np
import pytest
import spmd_programs as programs

from allreduce_edu import (
    Link,
    Links,
    binomial_tree,
    contributions,
    cost,
    explain,
    frames,
    halving_doubling,
    parameter_server,
    recursive_doubling,
    ring,
    sent_bytes,
    spmd,
)
from allreduce_edu import run as play

RIGHT = [(f, n) for f in programs.LINEAR for n in (1, 2, 3, 4, 5, 8)]
RIGHT += [(f, n) for f in programs.POWERS_OF_TWO for n in (1, 2, 4, 8)]


def ident(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("fn", "ranks"), RIGHT, ids=ident)
def test_a_right_program_is_proved_and_plays_back_with_its_bytes_and_bits(fn, ranks):
    made = spmd.schedule(fn, ranks)
    assert (contributions(made) == 1).all()
    assert not [line for line in explain(made) if "not needed" not in line]
    x = np.random.default_rng(ranks).normal(size=(ranks, 4 * ranks))
    done = spmd.run(fn, x)
    sizes = made.cut(4 * ranks, 8) * 8
    assert sent_bytes(made, sizes).tolist() == done.sent_bytes().tolist()
    played = play(made, x)
    assert np.allclose(played, done.results, rtol=1e-12)
    if fn is not programs.ring_with_strides:  # its pieces are in other places
        assert [a.tobytes() for a in played] == [np.asarray(b).tobytes() for b in done.results]


def server_of_requests(comm, x):
    """Everything at once, so that it is two rounds as in the library."""
    if comm.rank:
        comm.send(x, 0)
        comm.recv(0, out=x)
        return
    others = range(1, comm.size)
    rooms = [np.empty_like(x) for _ in others]
    arriving = [comm.irecv(src, room) for src, room in zip(others, rooms, strict=True)]
    for each, room in zip(arriving, rooms, strict=True):
        each.wait()
        x += room
    for each in [comm.isend(x, dst) for dst in others]:
        each.wait()


@pytest.mark.parametrize(
    ("fn", "known", "ranks"),
    [
        (programs.ring, ring, 4),
        (programs.ring_in_a_list, ring, 5),
        (programs.ring_with_requests, ring, 3),
        (server_of_requests, parameter_server, 5),
        (programs.tree, binomial_tree, 8),
        (programs.doubling, recursive_doubling, 8),
        (programs.halving, halving_doubling, 8),
    ],
    ids=ident,
)
def test_it_has_the_rounds_of_the_library(fn, known, ranks):
    made, wanted = spmd.schedule(fn, ranks), known(ranks)

    def moves(schedule):
        return [
            sorted(zip(r.src.tolist(), r.dst.tolist(), r.reduce.tolist(), strict=True))
            for r in schedule
        ]

    assert moves(made) == moves(wanted)
    assert made.chunks == wanted.chunks
    assert made.name == fn.__name__


def test_who_waits_for_one_message_after_the_other_needs_more_rounds():
    assert len(list(spmd.schedule(programs.ring_by_turns, 4))) == 12
    assert len(list(spmd.schedule(programs.server, 4))) == 6


def test_a_player_draws_it():
    shown = frames(spmd.schedule(programs.ring, 4))
    assert len(shown["steps"]) == 6
    assert shown["name"] == "ring"
    assert shown["steps"][-1]["say"].endswith("16 of 16 cells are complete.")


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (
            programs.adds_in_the_gather,
            "rank 0, chunk 0 holds rank 0's share twice (from round 4 on",
        ),
        (programs.one_round_too_few, "rank 0, chunk 2 lacks rank 1's share"),
        (programs.one_round_too_many, "every value is right, but round 7 is not needed"),
    ],
    ids=ident,
)
def test_a_wrong_program_becomes_a_wrong_schedule(fn, says):
    assert explain(spmd.schedule(fn, 4))[0].startswith(says)


def maximum(comm, x):
    if comm.rank:
        comm.send(x, 0)
        return comm.recv(0)
    for src in range(1, comm.size):
        np.maximum(x, comm.recv(src), out=x)
    for dst in range(1, comm.size):
        comm.send(x, dst)
    return x


def by_value(comm, x):
    if comm.rank == 0:
        return x + comm.recv(1) if comm.recv(1)[0] > 0 else x
    if comm.rank == 1:
        comm.send(np.array([x.sum()]), 0)
        if x.sum() > 0:
            comm.send(x, 0)
    return x


def forgets(comm, x):
    if comm.rank == 0:
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(0)


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (maximum, "is no sum of shares: a maximum, a clip, a choice?"),
        (by_value, "takes another path when its numbers change|mixes different places of x"),
        (programs.rebinds, r"its result is without it. `part = ...` gives the name another array"),
        (programs.whole_arrays, "it keeps two versions of the piece, and a schedule knows one"),
        (programs.shifts, r"what rank 0 sends \(spmd_programs.py, line \d+ of shifts: comm.send"),
        (programs.library, "the program calls a collective, whose messages are the library's own"),
        (forgets, r"rank 1 never uses what it received \(test_spmd_schedule.py, line \d+ of forg"),
    ],
    ids=ident,
)
def test_what_no_schedule_can_say_is_refused_with_the_reason(fn, says):
    with pytest.raises(spmd.NotASchedule, match=says):
        spmd.schedule(fn, 4)


def mean_after(comm, x):
    programs.ring(comm, x)
    x /= comm.size


def mean_before(comm, x):
    x /= comm.size
    programs.ring(comm, x)


def mean_before_at_a_server(comm, x):
    x /= comm.size
    programs.server(comm, x)


def in_half_precision(comm, x):
    y = x.astype("float16")
    programs.ring(comm, y)
    return y.astype(x.dtype)


def length_first(comm, x):
    if comm.rank:
        comm.send(np.array([len(x)]), 0)
        comm.send(x, 0)
        return comm.recv(0)
    for src in range(1, comm.size):
        x += comm.recv(src, out=np.empty(int(comm.recv(src)[0])))
    for dst in range(1, comm.size):
        comm.send(x, dst)
    return x


def collects_then_adds(comm, x):
    """Everyone sends to everyone, one after the other, and adds at the end: still one round."""
    n, r = comm.size, comm.rank
    came = [comm.sendrecv(x, (r + k) % n, (r - k) % n) for k in range(1, n)]
    return sum(came, x)


@pytest.mark.parametrize(
    ("fn", "rounds"),
    [
        (mean_after, 6),
        (mean_before, 6),
        (mean_before_at_a_server, 6),
        (in_half_precision, 6),
        (length_first, 6),
        (collects_then_adds, 1),
    ],
    ids=ident,
)
def test_scaling_casts_headers_and_late_additions_are_seen_through(fn, rounds):
    made = spmd.schedule(fn, 4)
    assert (contributions(made) == 1).all()
    assert len(list(made)) == rounds


def test_torch_programs_become_schedules_too():
    torch = pytest.importorskip("torch")

    def program(comm, x):
        parts = list(x.tensor_split(comm.size))
        n, r = comm.size, comm.rank
        for k in range(n - 1):
            parts[(r - k - 1) % n] += programs.pass_on(comm, parts[(r - k) % n])
        for k in range(n - 1):
            parts[(r - k) % n].copy_(programs.pass_on(comm, parts[(r + 1 - k) % n]))

    made = spmd.schedule(program, x=torch.zeros(4, 10))
    assert (contributions(made) == 1).all()
    assert made.cut(10).tolist() == [3, 3, 2, 2]


def test_uneven_pieces_keep_their_proportions():
    def program(comm, x):
        other = 1 - comm.rank
        x[:3] += comm.sendrecv(x[:3], other, other)
        x[3:] += comm.sendrecv(x[3:], other, other)

    made = spmd.schedule(program, x=np.zeros((2, 12)))
    assert made.cut(12).tolist() == [3, 9]
    assert made.cut(120).tolist() == [30, 90]


def test_a_program_of_many_ranks_or_no_elements_is_refused():
    with pytest.raises(ValueError, match="ranks must be an integer between 1 and 16, got 17"):
        spmd.schedule(programs.ring, 17)
    with pytest.raises(ValueError, match="arrays of one shape and at least one element"):
        spmd.schedule(programs.ring, x=np.zeros((2, 0)))


# -------------------------------------------------------------- counts against closed forms


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_bytes_and_clocks_of_programs_against_closed_forms(n):
    alpha, beta, size = 5e-6, 1e-9, 8 * 12 * n
    x = np.zeros((n, 12 * n))
    log = int(np.ceil(np.log2(n)))

    def measured(fn):
        done = spmd.run(fn, x)
        return done.sent_bytes().max(), done.busiest_port(), done.clocks(Link(alpha, beta)).max()

    wire, rounds = 2 * (n - 1) * size // n, 2 * (n - 1)
    for fn, factor in ((programs.ring, 1), (programs.ring_with_requests, 1)):
        sent, port, time = measured(fn)
        assert (sent, port) == (wire, wire)
        assert time == pytest.approx(factor * rounds * (alpha + beta * size / n))
    if n % 2 == 0:
        time = measured(programs.ring_by_turns)[2]
        assert time == pytest.approx(2 * rounds * (alpha + beta * size / n))
    sent, port, time = measured(programs.server)
    assert (sent, port) == ((n - 1) * size, (n - 1) * size)
    assert time == pytest.approx(rounds * (alpha + beta * size))
    sent, port, time = measured(programs.tree)
    assert sent == log * size
    assert time == pytest.approx(2 * log * (alpha + beta * size))


def test_a_straggler_delays_who_waits_for_it():
    def program(comm, x):
        if comm.rank == 1:
            comm.work(3.0)
        programs.ring(comm, x)

    x = np.zeros((4, 8))
    late = spmd.run(program, x).clocks(Link(0.5, 0))
    assert late.max() == pytest.approx(spmd.run(programs.ring, x).clocks(Link(0.5, 0)).max() + 3)


def test_a_buffered_send_costs_its_sender_no_time():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            comm.work(2.0)
            comm.recv(0)

    x = np.zeros((2, 8))
    assert spmd.run(program, x).clocks(Link(1.0, 0)).tolist() == [3.0, 3.0]
    assert spmd.run(program, x, buffered=True).clocks(Link(1.0, 0)).tolist() == [0.0, 2.0]


def test_clocks_of_a_ring_are_those_of_the_schedule_on_any_network():
    x = np.zeros((8, 80))
    done, made = spmd.run(programs.ring, x), spmd.schedule(programs.ring, 8)
    networks = [
        Links.uniform(8, "100 GbE"),
        Links.uniform(8, "NVLink 4").with_slow(rank=3, factor=9),
    ]
    networks.append(Links.two_tier(2, 4, "NVLink 4", "InfiniBand NDR"))
    for links in networks:
        assert done.clocks(links) == pytest.approx(cost.clocks(made, made.cut(80, 8) * 8, links))
    assert done.clocks("100 GbE").tolist() == done.clocks(networks[0]).tolist()
    with pytest.raises(ValueError, match=r"links must be for 8 ranks, got Links\(4 ranks"):
        done.clocks(Links.uniform(4, "100 GbE"))
