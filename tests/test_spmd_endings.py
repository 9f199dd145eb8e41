"""However a program of simulated ranks ends, the run ends, says why, and leaves nothing behind."""
# ruff: noqa: B012, BLE001, E722, N818, PT012, PT017 - code that catches everything is what is tested

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import spmd_programs as programs

from allreduce_edu import spmd

PYTHON_310 = sys.version_info < (3, 11)  # there a loop without calls may never give up the GIL


@pytest.fixture(autouse=True)
def nothing_left():
    before = threading.enumerate()
    stdout, handler, tracer = sys.stdout, signal.getsignal(signal.SIGINT), sys.gettrace()
    yield
    end = time.monotonic() + 10
    while threading.enumerate() != before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.enumerate() == before
    assert sys.stdout is stdout
    assert signal.getsignal(signal.SIGINT) is handler
    assert sys.gettrace() is tracer


# ------------------------------------------------------------------ loops without end


def spins(comm):
    while True:
        pass


def spins_and_excepts(comm):
    while True:
        try:
            while True:
                len([])
        except:
            pass


def spins_in_finally(comm):
    while True:
        try:
            len([])
        finally:
            continue


def spins_thrice(comm):
    while True:
        try:
            while True:
                try:
                    while True:
                        try:
                            len([])
                        except BaseException:
                            continue
                except BaseException:
                    continue
        except BaseException:
            continue


def suppresses(comm):
    while True:
        with contextlib.suppress(BaseException):
            while True:
                len([])


def tries_again(comm):
    while True:
        try:
            comm.recv(1 - comm.rank)
            comm.barrier()
        except BaseException:
            pass


def polls(comm):
    request = comm.irecv(1 - comm.rank, np.zeros(1))
    while not request.is_completed():
        pass


def prints(comm):
    while True:
        print("and again")


def ping_pong(comm):
    while True:
        comm.sendrecv(np.zeros(1), 1 - comm.rank, 1 - comm.rank)


@pytest.mark.parametrize(
    "program",
    [
        spins,
        pytest.param(spins_and_excepts, marks=pytest.mark.skipif(PYTHON_310, reason="holds GIL")),
        spins_in_finally,
        pytest.param(spins_thrice, marks=pytest.mark.skipif(PYTHON_310, reason="holds GIL")),
        suppresses,
        polls,
        prints,
        ping_pong,
    ],
    ids=lambda f: f.__name__,
)
def test_an_endless_loop_is_ended_and_its_line_told(program, capfd):
    start = time.monotonic()
    with pytest.raises(spmd.Endless) as info:
        spmd.run(program, ranks=2, seconds=0.3, show=False)
    assert time.monotonic() - start < 30, "busy machines included"
    assert f"of {program.__name__}" in str(info.value)
    assert "still running after 0.3 s" in str(info.value)
    assert capfd.readouterr().err == ""


def test_trying_again_does_not_help_a_deadlock():
    with pytest.raises(spmd.Deadlock):
        spmd.run(tries_again, ranks=2)


def test_endless_messages_are_ended_by_their_number():
    with pytest.raises(spmd.Endless, match="after more than 500 messages"):
        spmd.run(ping_pong, ranks=2, messages=500)


def test_the_line_of_an_endless_loop_and_the_places_of_the_others():
    def program(comm):
        if comm.rank == 1:
            while True:
                pass
        comm.barrier()

    with pytest.raises(spmd.Endless) as info:
        spmd.run(program, ranks=3, seconds=0.2)
    first, _, *where = str(info.value).splitlines()
    assert first == "rank 1 was still running after 0.2 s."
    assert any("rank 1: " in line and "of program: " in line for line in where)
    assert any("rank 0: in barrier, " in line and "comm.barrier()" in line for line in where)
    assert "  rank 2: could go on" in where


def test_a_rank_in_c_code_is_named_and_ends_by_itself():
    def program(comm):
        time.sleep(3)

    with pytest.raises(spmd.Endless, match=r"rank 0 could not be ended yet: it is in code"):
        spmd.run(program, ranks=1, wall=0.2)


# ----------------------------------------------------------------------- exceptions


def test_an_exception_comes_with_its_rank_and_the_places_of_the_others():
    def program(comm, x):
        if comm.rank == 1:
            x.reshape(3, 3)
        comm.all_reduce(x)

    with pytest.raises(ValueError, match="cannot reshape") as info:
        spmd.run(program, np.ones((3, 4)))
    lines = [entry.frame.code.name for entry in info.traceback]
    assert lines[-1] == "program"
    if not PYTHON_310:
        (note,) = info.value.__notes__
        assert note.startswith("(on rank 1 of 3)\n  rank 0: in all_reduce, test_spmd_endings.py")
        assert note.endswith("comm.all_reduce(x)\n  rank 2: could go on")


@pytest.mark.parametrize("leave", [sys.exit, exit, lambda: os.kill(os.getpid(), 0) or sys.exit(3)])
def test_a_rank_cannot_end_the_notebook(leave):
    def program(comm):
        leave()

    with pytest.raises(RuntimeError, match="rank 0 called for the end of the program: SystemExit"):
        spmd.run(program, ranks=2)


def test_exceptions_that_refuse_attributes_come_too():
    class Odd(Exception):
        __slots__ = ()

        def __setattr__(self, name, value):
            raise TypeError("no")

        def __str__(self):
            raise ValueError("no text")

    def program(comm):
        raise Odd

    with pytest.raises(Odd):
        spmd.run(program, ranks=2)


def test_a_run_inside_a_run_is_refused():
    def program(comm):
        spmd.run(programs.ring, np.ones((2, 2)))

    with pytest.raises(RuntimeError, match="cannot be called inside a rank"):
        spmd.run(program, ranks=2)
    assert spmd.run(programs.ring, np.ones((2, 2))).results[0].tolist() == [2, 2]


# ------------------------------------------------------------------------ hazards


def test_an_array_changed_on_its_way_is_found_with_both_lines():
    def program(comm, x):
        if comm.rank:
            return comm.recv(0)
        request = comm.isend(x, 1)
        x += 1
        request.wait()
        return x

    with pytest.raises(spmd.Hazard) as info:
        spmd.run(program, np.ones((2, 3)))
    text = str(info.value)
    assert "rank 0 changed an array that was still on its way (isend to rank 1)" in text
    assert "request = comm.isend(x, 1)" in text
    assert "request.wait()" in text
    run = spmd.run(program, np.ones((2, 3)), strict=False)
    assert [each.kind for each in run.hazards] == ["changed before wait"]


def test_a_request_that_nobody_waits_for_is_found():
    def program(comm, x):
        if comm.rank:
            return comm.recv(0)
        comm.isend(x, 1)
        return x

    with pytest.raises(spmd.Hazard, match="rank 0 returned without waiting for its isend to rank"):
        spmd.run(program, np.ones((2, 3)))


# -------------------------------------------------------------------- the stop button


def press_after(seconds, times=1):
    def press():
        time.sleep(seconds)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)

    return threading.Thread(target=press)


@pytest.mark.skipif(sys.platform == "win32", reason="signals there are another matter")
@pytest.mark.parametrize("times", [1, 4])
def test_the_stop_button_ends_a_run_and_says_where_it_was(times):
    later = []
    before = signal.signal(signal.SIGINT, lambda *_: later.append(1))
    try:
        presser = press_after(0.2, times)
        presser.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt) as info:
            spmd.run(spins, ranks=2)
        assert time.monotonic() - start < 8, "far below the 10 s of an endless loop"
        presser.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(later) < times
    assert "rank 0 was still running" in str(info.value)


@pytest.mark.skipif(sys.platform == "win32", reason="signals there are another matter")
def test_the_stop_button_at_any_moment_ends_a_loop_of_runs():
    rng, x = np.random.default_rng(0), np.ones((4, 8))
    for _ in range(40):
        presser = press_after(rng.uniform(0.001, 0.03))
        with pytest.raises(KeyboardInterrupt):
            presser.start()
            while True:
                spmd.run(programs.ring, x)
        presser.join()


# ---------------------------------------------------------------- programs at random


def random_program(seed):
    """A short program of random calls: most of them hang, mismatch, raise or loop."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice([1, 2, 2, 3, 4]))
    kinds = ["send", "recv", "any", "sendrecv", "isend", "irecv", "barrier", "all_reduce", "max"]
    kinds += ["broadcast", "group", "raise", "exit", "loop", "return", "swallow", "poll"]
    weights = np.array([6, 6, 2, 6, 3, 3, 6, 6, 3, 3, 1, 0.6, 0.2, 0.6, 1, 0.3, 0.5])
    plans = [
        [
            (str(rng.choice(kinds, p=weights / weights.sum())), *rng.integers(0, 4, 3).tolist())
            for _ in range(rng.integers(0, 7))
        ]
        for _ in range(ranks)
    ]
    if rng.random() < 0.5:
        plans = [plans[0]] * ranks  # the same calls, so that some get further

    def program(comm, x):
        requests = []
        for kind, a, tag, size in plans[comm.rank]:
            away = 1 + a % max(1, comm.size - 1)
            peer = (comm.rank + away) % (comm.size + (a + tag + size == 9))
            piece = np.zeros(1 + size // 3)
            if kind == "send":
                comm.send(piece, peer, tag=tag // 3)
            elif kind == "recv":
                comm.recv(peer, out=piece if size == 0 else None, tag=tag // 3)
            elif kind == "any":
                comm.recv()
            elif kind == "sendrecv":
                x += comm.sendrecv(piece, peer, (comm.rank - away) % comm.size)[0]
            elif kind == "isend":
                requests.append(comm.isend(piece, peer))
            elif kind == "irecv":
                requests.append(comm.irecv(peer, piece))
            elif kind == "barrier":
                comm.barrier()
            elif kind in ("all_reduce", "max"):
                comm.all_reduce(piece, "max" if kind == "max" else "sum")
            elif kind == "broadcast":
                comm.broadcast(x, a % comm.size)
            elif kind == "group":
                comm.group([0])
            elif kind == "raise":
                raise LookupError(comm.rank)
            elif kind == "exit":
                sys.exit(a)
            elif kind == "loop":
                while True:
                    len([])
            elif kind == "return":
                return x
            elif kind == "poll":
                for each in requests:
                    each.is_completed()
            elif kind == "swallow":
                try:
                    comm.barrier()
                except:
                    comm.recv(peer)
        for each in requests:
            each.wait()
        return x

    return program, np.ones((ranks, 3))


def outcome_of(seed):
    program, x = random_program(seed)
    try:
        return "done", b"".join(r.tobytes() for r in spmd.run(program, x, seconds=0.1).results)
    except spmd.Endless:
        return "Endless", ""  # at which line of its loop it was is chance
    except spmd.ProgramError as error:
        assert str(error).strip()
        return type(error).__name__, str(error)
    except (LookupError, ValueError, RuntimeError) as error:
        return type(error).__name__, str(error)


def test_500_random_programs_end_alike_twice_and_leak_nothing(capfd):
    threads = threading.enumerate()
    kinds = {}
    for seed in range(500):
        first = outcome_of(seed)
        assert outcome_of(seed) == first
        assert threading.enumerate() == threads
        kinds[first[0]] = kinds.get(first[0], 0) + 1
    assert capfd.readouterr().err == ""
    for kind in ("done", "Deadlock", "Mismatch", "Hazard", "Endless", "LookupError"):
        assert kinds.get(kind, 0) >= 3, kinds
