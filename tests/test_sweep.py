"""A sweep times collectives on real ranks; what it counts is exact, what it times is plausible."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real ranks need torch")


from allreduce_edu.engine.algorithms import parameter_server, ring  # noqa: E402
from allreduce_edu.engine.cost import busiest_port  # noqa: E402
from allreduce_edu.realdist.pool import Pool, RankError  # noqa: E402
from allreduce_edu.realdist.report import Fate  # noqa: E402
from allreduce_edu.realdist.scripts import ONE_MACHINE  # noqa: E402
from allreduce_edu.realdist.sweep import CALLS, Plan, Point, Sweep, in_bytes, sweep  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")


@pytest.fixture(scope="module")
def pool():
    with Pool(3, backend="gloo") as pool:
        yield pool


@pytest.mark.parametrize("what", CALLS)
def test_each_collective_is_timed_for_each_size(pool, capsys, what):
    found = pool.sweep(what, [1000, 120_000], repeats=3)
    assert (found.what, found.ranks, found.backend) == (what, 3, "gloo")
    step = 12 if what in ("reduce_scatter", "all_gather") else 4  # so that all ranks get alike
    assert (found.sizes % step == 0).all()
    assert (abs(found.sizes - [1000, 120_000]) < step).all()
    assert all(0 < p.fastest <= p.seconds <= p.slowest for p in found.points)
    assert [p.sent for p in found.points] == [None, None]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("make", [ring, parameter_server])
def test_the_bytes_of_a_schedule_are_counted(pool, make):
    schedule = make(3)
    found = pool.sweep(schedule, [4, 1200, 1204], repeats=2)
    sizes = [schedule.cut(size // 4, 4) * 4 for size in (4, 1200, 1204)]
    assert [p.sent for p in found.points] == [busiest_port(schedule, each) for each in sizes]
    assert found.what == schedule.name


def test_bandwidths_follow_nccl_tests():
    points = (Point(3000, 1.0, 0.5, 2.0), Point(6000, 1.5, 1.0, 2.0))
    found = Plan("all_reduce", [], 1, 4).result("gloo", points)
    assert found.algbw.tolist() == [3000, 4000]
    assert found.busbw.tolist() == [4500, 6000]
    found = Plan(ring(4) | ring(4), [], 1, 4).result("gloo", points)
    assert (found.collective, found.busbw.tolist()) == ("custom", [3000, 4000])


def test_of_all_calls_the_median_counts():
    assert Point.of(8, [5.0, 1.0, 2.0]) == Point(8, 2.0, 1.0, 5.0)


def test_it_reads_the_same_whatever_was_measured():
    point = Point(4096, 0.25, 0.125, 0.5)
    found = Sweep("ring", 4, "gloo", "all_reduce", (point, Point(1 << 20, 1.0, 1.0, 1.0)))
    assert repr(found) == "Sweep of ring, 4 ranks, gloo: 2 sizes, 4 KiB to 1 MiB"
    assert repr(Sweep("ring", 4, "gloo", "all_reduce", (point,))).endswith("gloo: 1 size, 4 KiB")
    assert repr(Sweep("ring", 4, "gloo", "all_reduce", ())).endswith("gloo: 0 sizes")
    assert repr(point) == "Point of 4 KiB"
    head, first, _ = found.table().splitlines()
    assert head.split()[:4] == ["size", "median", "us", "fastest"]
    assert first.split() == ["4", "KiB", "250000", "125000", "500000", "1.64e-05", "2.46e-05"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1000, "1000 B"), (1024, "1 KiB"), (3 << 20, "3 MiB"), (4096 << 30, "4096 GiB")],
)
def test_sizes_in_words(size, text):
    assert in_bytes(size) == text


def ended_in(nth, error):
    """Run a sweep of three sizes that `error` ends in the `nth`; return what `sweep` gives."""
    calls = []

    def run(note, jobs, seconds):
        calls.append(note)
        if len(calls) == nth:
            raise error
        return [([1.0, 2.0, 3.0], None)] * 3

    points, why = sweep(Plan("all_reduce", [4, 8, 12], 3, 3), run, 1000)
    return [point.size for point in points], why


def test_what_was_measured_before_a_stop_or_the_deadline_is_kept():
    late = RankError("no result", [Fate(0, "busy")])
    assert ended_in(3, KeyboardInterrupt()) == ([4, 8], "stopped")
    assert ended_in(2, late) == ([4], "out of time (1000 s)")
    for error in (KeyboardInterrupt(), late):
        with pytest.raises(type(error)):
            ended_in(1, error)
    with pytest.raises(RankError):
        ended_in(3, RankError("rank 0 raised", [Fate(0, "raised")]))


@pytest.fixture
def stop_button():
    """Let SIGINT be what it is in a kernel: a shell may have started the tests deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_stop_button_ends_it_and_the_pool_works_on(pool, capsys, monkeypatch, stop_button):
    call, done = pool._call, []

    def press_stop_in_the_second_size(*args):
        done.append(args)
        if len(done) == 2:
            threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        return call(*args)

    monkeypatch.setattr(pool, "_call", press_stop_in_the_second_size)
    found = pool.sweep(sizes=[4, 1 << 24], repeats=150)
    assert found.sizes.tolist() == [4]
    assert capsys.readouterr().out == "stopped: 1 of 2 sizes were measured\n"
    assert pool.run(torch.get_num_threads) == [1] * 3


def test_at_its_deadline_what_was_measured_is_kept(pool, capsys):
    start = time.monotonic()
    found = pool.sweep(sizes=[1024, 1 << 27], repeats=20, timeout=2)
    assert found.sizes.tolist() == [1024]
    assert capsys.readouterr().out.endswith("out of time (2 s): 1 of 2 sizes were measured\n")
    assert time.monotonic() - start < 60
    with pytest.raises(RankError, match=r"^no result after 0\.2 s, the deadline"):
        pool.sweep(sizes=[1 << 20], repeats=10_000, timeout=0.2)


BAD = {
    "what": ({"what": "all_redcue"}, "unknown collective 'all_redcue'; did you mean 'all_reduce'?"),
    "ranks": ({"what": ring(4)}, "the schedule must be for 3 ranks, got Schedule"),
    "size": ({"sizes": [1024, 3]}, "a size, in bytes, must be an integer between 4 and 2147483648"),
    "repeats": ({"repeats": 0}, "repeats must be an integer >= 1, got 0"),
    "timeout": ({"timeout": 0}, "timeout must be a positive number of seconds, got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(pool, name):
    wrong, told = BAD[name]
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        pool.sweep(**wrong)


def test_as_a_script_it_prints_the_same_table():
    command = ONE_MACHINE.replace("--nproc-per-node 4", "--nproc-per-node 2").split()
    script = ["-m", "allreduce_edu.realdist.sweep", "--to", "4096", "--repeats", "3"]
    ran = subprocess.run(
        [sys.executable, *command[1:], *script],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    title, head, *lines = ran.stdout.splitlines()
    assert title == "Sweep of all_reduce, 2 ranks, gloo: 2 sizes, 1 KiB to 4 KiB"
    assert head.split()[0] == "size"
    assert [line.split()[:2] for line in lines] == [["1", "KiB"], ["4", "KiB"]]
    for line in lines:
        *_, alg, bus = map(float, line.split()[2:])
        assert math.isclose(alg, bus, rel_tol=0.02), "with two ranks they are the same"
    assert np.isfinite(alg)


def test_a_script_without_ranks_says_how_to_start_it():
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    ran = subprocess.run(
        [sys.executable, "-m", "allreduce_edu.realdist.sweep"],
        check=False,
        capture_output=True,
        text=True,
        env=env,
        timeout=100,
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[0] == "this script wants ranks; start it by"
    assert ONE_MACHINE in ran.stderr
