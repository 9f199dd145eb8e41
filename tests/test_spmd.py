"""Simulated ranks: what messages and collectives give, and that it is the same every time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import spmd_programs as programs

from allreduce_edu import gloo_ring, spmd
from allreduce_edu import run as play

DTYPES = ("float64", "float32", "float16", "int32", "int8", "bool", "complex64")
SIZES = (0, 1, 3, 8, 61)


def shares(ranks, size, dtype="float64"):
    """Position-dependent numbers, exact in every dtype."""
    x = np.random.default_rng(100 * ranks + size).integers(-3, 4, (ranks, size))
    return x.astype(dtype)


def bits(results):
    return [np.asarray(each).tobytes() for each in results]


def caught(kind, fn, *args, **keys):
    with pytest.raises(kind) as info:
        spmd.run(fn, *args, **keys)
    return info.value


@pytest.mark.parametrize("program", programs.LINEAR, ids=lambda f: f.__name__)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 16])
def test_right_programs_give_the_sum(program, ranks):
    for size in SIZES:
        x = shares(ranks, size)
        before = x.copy()
        results = spmd.run(program, x).results
        assert all((each == x.sum(0)).all() for each in results)
        assert (x == before).all(), "the caller's arrays never change"


@pytest.mark.parametrize("program", programs.POWERS_OF_TWO, ids=lambda f: f.__name__)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_programs_for_powers_of_two_give_the_sum(program, ranks):
    for size in SIZES:
        x = shares(ranks, size)
        assert all((each == x.sum(0)).all() for each in spmd.run(program, x).results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_travels(dtype):
    x = shares(3, 7, dtype)
    results = spmd.run(programs.server_with_a_list, x).results
    assert all(each.dtype == x.dtype for each in results)
    total = (x[0] + x[1] + x[2]) if dtype != "bool" else x.any(0)
    assert all((each == total).all() for each in results)


def test_torch_tensors_travel_and_grad_mode_is_a_ranks_own():
    torch = pytest.importorskip("torch")

    def grads(comm, x):
        if comm.rank == 0:
            with torch.no_grad():
                came = comm.recv(1)
                return came, torch.is_grad_enabled()
        comm.send(x, 0)
        return x, torch.is_grad_enabled()

    x = torch.arange(6.0).reshape(2, 3).to(torch.bfloat16)
    (came, off), (_, on) = spmd.run(grads, x).results
    assert torch.equal(came, x[1])
    assert (off, on) == (False, True)


def test_a_hundred_runs_are_one():
    def program(comm, x):
        print("rank", comm.rank, "begins")
        programs.ring(comm, x)
        return comm.rng.normal(size=2) + x[:2]

    x = np.random.default_rng(0).normal(size=(5, 13))
    seen = set()
    for _ in range(100):
        done = spmd.run(program, x, show=False)
        trace = [
            (e.kind, e.rank, [(q.side, q.rank, q.peer, q.nbytes) for q in e.requests])
            for e in done.trace
        ]
        seen.add((repr(trace), b"".join(bits(done.results))))
    assert len(seen) == 1


def test_32_ranks_take_less_than_a_second():
    x = shares(32, 64)
    spmd.run(programs.ring, x)
    start = time.process_time()
    spmd.run(programs.ring, x)
    assert time.process_time() - start < 1


# ------------------------------------------------------------------------ messages


def test_a_send_waits_for_its_receive_at_every_size_unless_the_network_holds_it():
    def both_send(comm, x):
        comm.send(x, 1 - comm.rank)
        return comm.recv(1 - comm.rank)

    for size in (0, 1, 1000):
        x = shares(2, size)
        caught(spmd.Deadlock, both_send, x)
        assert bits(spmd.run(both_send, x, buffered=True).results) == bits(x[::-1])
    small, large = shares(2, 16), shares(2, 17)
    assert bits(spmd.run(both_send, small, buffered=128).results) == bits(small[::-1])
    caught(spmd.Deadlock, both_send, large, buffered=128)


def test_messages_of_one_pair_and_tag_stay_in_order_and_tags_pick():
    def program(comm):
        if comm.rank == 0:
            sent = [comm.isend(np.array([k]), 1, tag=k % 2) for k in range(6)]
            return [each.wait() for each in sent]
        return [int(comm.recv(0, tag=tag)[0]) for tag in (1, 1, 0, 1, 0, 0)]

    assert spmd.run(program, ranks=2).results[1] == [1, 3, 0, 5, 2, 4]


def test_a_receive_from_anybody_takes_who_is_there():
    def program(comm, x):
        if comm.rank:
            comm.send(x, 0)
            return None
        return [int(comm.recv()[0]) for _ in range(comm.size - 1)]

    assert sorted(spmd.run(program, np.arange(4).reshape(4, 1)).results[0]) == [1, 2, 3]


def test_what_is_received_belongs_to_the_receiver():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x, 1)
            comm.recv(1)
            return x
        came = comm.recv(0)
        came += 100
        comm.send(came, 0)
        return came

    x = shares(2, 4)
    sender, receiver = spmd.run(program, x).results
    assert (sender == x[0]).all()
    assert (receiver == x[0] + 100).all()


def test_strided_and_reversed_views_are_sent_and_filled():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x[::-2], 1)
            return None
        room = np.zeros((3, 2))
        return comm.recv(0, out=room[:, 1]).tolist(), room[:, 0].tolist()

    assert spmd.run(program, np.arange(12.0).reshape(2, 6)).results[1] == ([5, 3, 1], [0, 0, 0])


def test_a_poll_lets_the_others_go_on():
    def program(comm, x):
        if comm.rank == 0:
            room = np.zeros(2)
            request = comm.irecv(1, room)
            while not request.is_completed():
                pass
            return request.wait()
        comm.send(x, 0)
        return x

    x = shares(2, 2)
    assert (spmd.run(program, x).results[0] == x[1]).all()


def test_groups_have_their_own_numbers_and_messages():
    def program(comm, x):
        even = comm.group([0, 2])
        odd = comm.group([1, 3])
        mine = even or odd
        mine.all_reduce(x)
        other = 1 - mine.rank
        return mine.rank, mine.size, x, mine.sendrecv(np.array([comm.rank]), other, other)

    x = shares(4, 3)
    for rank, (own, size, total, came) in enumerate(spmd.run(program, x).results):
        assert (own, size, came.tolist()) == (rank // 2, 2, [(rank + 2) % 4])
        assert (total == x[rank % 2] + x[rank % 2 + 2]).all()


# --------------------------------------------------------------------- collectives


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_collectives_against_numpy(ranks):
    def program(comm, x):
        n, root = comm.size, comm.size - 1
        return {
            "sum": comm.all_reduce(x.copy()),
            "max": comm.all_reduce(x.copy(), "max"),
            "avg": comm.all_reduce(x.copy(), "avg"),
            "reduce": comm.reduce(x.copy(), root),
            "broadcast": comm.broadcast(x.copy(), root),
            "gather": comm.all_gather(x),
            "scatter": comm.reduce_scatter(x),
            "to root": comm.gather(x, root),
            "from root": comm.scatter(x, root),
            "all to all": comm.all_to_all(np.tile(x, (n, 1)) + np.arange(n)[:, None]),
        }

    x = shares(ranks, 7)
    for rank, got in enumerate(spmd.run(program, x).results):
        assert (got["sum"] == x.sum(0)).all()
        assert (got["max"] == x.max(0)).all()
        assert np.allclose(got["avg"], x.mean(0))
        assert rank < ranks - 1 or (got["reduce"] == x.sum(0)).all()
        assert (got["broadcast"] == x[-1]).all()
        assert all((a == b).all() for a, b in zip(got["gather"], x, strict=True))
        assert (got["scatter"] == np.array_split(x.sum(0), ranks)[rank]).all()
        assert (got["to root"] is None) == (rank < ranks - 1)
        assert rank < ranks - 1 or (np.array(got["to root"]) == x).all()
        assert (got["from root"] == np.array_split(x[-1], ranks)[rank]).all()
        assert (got["all to all"] == x + rank).all()


def test_an_all_reduce_has_the_bits_of_gloos_ring():
    x = np.random.default_rng(3).normal(0, 100, (5, 1003)).astype("float32")
    results = spmd.run(programs.library, x).results
    assert bits(results) == bits(play(gloo_ring(5), x))
    assert bits(results) != bits([x.sum(0)] * 5), "so the comparison can fail"


# ------------------------------------------------------------------------- a rank


def test_what_ranks_print_has_their_number_and_comes_in_order(capsys):
    def program(comm):
        print("a", end="")
        comm.barrier()
        print("b\nc", end="")

    spmd.run(program, ranks=2)
    assert capsys.readouterr().out == "[rank 1] ab\n[rank 0] ab\n[rank 0] c\n[rank 1] c\n"


def test_printing_without_end_is_cut(capsys):
    def program(comm):
        for k in range(5000):
            print(k)

    spmd.run(program, ranks=1)
    out = capsys.readouterr().out.splitlines()
    assert out[1999:] == ["[rank 0] 1999", "... and 3,000 more lines"]


def test_ranks_without_x_get_no_array():
    assert spmd.run(lambda comm: (comm.rank, comm.size), ranks=2).results == [(0, 2), (1, 2)]
    assert spmd.run(lambda comm, x: x, lambda rank: rank * 10, ranks=3).results == [0, 10, 20]


def test_a_rank_has_random_numbers_of_its_own():
    def program(comm):
        return comm.rng.random()

    first, second = (spmd.run(program, ranks=3).results for _ in range(2))
    assert first == second
    assert len(set(first)) == 3


def test_nothing_is_left_of_a_run():
    threads = threading.enumerate()
    spmd.run(programs.ring, shares(8, 16))
    assert threading.enumerate() == threads


def test_what_a_run_held_is_free_at_once():
    import gc
    import weakref

    held = []

    def program(comm, x):
        programs.ring(comm, x)
        group = comm.group([0, 1])
        if group:
            group.barrier()
        held.append(weakref.ref(x))

    gc.disable()
    try:
        done = spmd.run(program, shares(3, 9))
        assert all(ref() is not None for ref in held), "the results are these arrays"
        messages = [weakref.ref(e.requests[0]) for e in done.trace if e.requests]
        del done
        assert not [ref for ref in held + messages if ref() is not None]
    finally:
        gc.enable()


def test_large_payloads_are_not_kept_and_still_arrive():
    def program(comm, x):
        y = comm.sendrecv(x, 1 - comm.rank, 1 - comm.rank)
        y += 1
        return comm.sendrecv(y, 1 - comm.rank, 1 - comm.rank)

    x = np.ones((2, 3 << 20)) * [[1], [2]]
    done = spmd.run(program, x)
    assert [each[[0, -1]].tolist() for each in done.results] == [[2, 2], [3, 3]]
    kept = [e.requests[0].sent for e in done.trace if e.kind == "match"]
    assert [each is None for each in kept] == [False, False, True, True]
    assert done.sent_bytes().tolist() == [2 * 8 * (3 << 20)] * 2


def test_a_comm_of_a_run_that_is_over_says_so():
    kept = []
    spmd.run(kept.append, ranks=2)
    with pytest.raises(RuntimeError, match="this comm is of a run that is over"):
        kept[0].barrier()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: spmd.run(3, shares(2, 2)), TypeError, "fn must be a function of comm"),
        (lambda: spmd.run(programs.ring), TypeError, "ranks must be given where x does not say"),
        (lambda: spmd.run(programs.ring, 3), TypeError, "x must be an array or a list of arrays"),
        (lambda: spmd.run(programs.ring, shares(2, 2), 3), ValueError, "one array per rank (3)"),
        (lambda: spmd.run(programs.ring, ranks=65), ValueError, "between 1 and 64, got 65"),
    ],
)
def test_bad_calls_are_told_in_a_sentence(call, error, says):
    with pytest.raises(error) as info:
        call()
    assert says in str(info.value)


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (lambda c: c.send(3, 1), TypeError, "x must be an array, got int; try np.array(3)"),
        (lambda c: c.send(np.ones(2), c.rank), ValueError, "dst must be another rank, got"),
        (lambda c: c.send(np.ones(2), 2), ValueError, "dst must be an integer between 0 and 1"),
        (lambda c: c.recv(-1), ValueError, "src must be an integer between 0 and 1, got -1"),
        (lambda c: c.recv(1.5), TypeError, "src must be an integer between 0 and 1, got 1.5"),
        (lambda c: c.irecv(1 - c.rank, None), TypeError, "out must be an array, got NoneType"),
        (lambda c: c.send(np.array(["a"]), 1 - c.rank), TypeError, "unsupported dtype"),
        (lambda c: c.send(np.ones(1), 1 - c.rank, tag=-1), ValueError, "tag must be an integer"),
        (lambda c: c.all_reduce(np.ones(2), "mean"), ValueError, "unknown op 'mean'"),
        (lambda c: c.broadcast(np.ones(2), 2), ValueError, "root must be an integer between 0"),
        (lambda c: c.group([0, 0]), ValueError, "none of them twice, got [0, 0]"),
        (lambda c: c.all_to_all(np.ones(3)), ValueError, "x must have a multiple of 2 rows, got 3"),
        (lambda c: c.scatter(np.array(3)), ValueError, "x must have at least one axis to be cut"),
        (lambda c: c.work(-1), ValueError, "seconds must be a number >= 0, got -1"),
    ],
)
def test_bad_calls_of_a_rank_are_told_in_a_sentence(body, error, says):
    assert says in str(caught(error, body, ranks=2))


def test_an_array_cannot_be_sent_and_overwritten_at_once():
    def program(comm, x):
        comm.sendrecv(x[:2], 1 - comm.rank, 1 - comm.rank, out=x[1:3])

    assert "out must not share memory with x" in str(caught(ValueError, program, shares(2, 3)))


def test_reprs_are_sentences_without_addresses():
    def program(comm, x):
        return repr(comm), repr(comm.isend(x, 1) if comm.rank == 0 else comm.irecv(0, x))

    done = spmd.run(program, shares(2, 2), strict=False)
    assert done.results[0] == ("Comm of rank 0 of 2", "send of rank 0 to rank 1, not done")
    assert done.results[1] == ("Comm of rank 1 of 2", "recv of rank 1 from rank 0")
    assert repr(done) == "Run: 2 ranks, 1 message, 16 bytes"
