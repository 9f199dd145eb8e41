"""A pool runs functions on real ranks, survives what they do, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import linecache
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from selectors import EVENT_READ

import cloudpickle
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real ranks need torch")
resource = pytest.importorskip("resource", reason="gloo on Windows is not promised")

import torch.distributed as dist  # noqa: E402
from leftovers import children, marked, until  # noqa: E402

from allreduce_edu.realdist import forked  # noqa: E402
from allreduce_edu.realdist.forked import Forked  # noqa: E402
from allreduce_edu.realdist.group import start  # noqa: E402
from allreduce_edu.realdist.interrupts import Interrupts  # noqa: E402
from allreduce_edu.realdist.pool import PerRank, Pool, RankError  # noqa: E402
from allreduce_edu.realdist.spawned import Spawned  # noqa: E402

# The functions of this file travel by value, as those of a notebook do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

N = 3
MARK = f"POOL_OF={os.getpid()}"
AFRESH = "The ranks were started afresh: what they held in memory is lost."


def left():
    """Return the processes that this one has; the zygote alone may outlive a pool."""
    zygote = forked._Zygote._current
    return set(children(os.getpid())) - {zygote.process.pid if zygote else 0}


def gone():
    """Wait until all processes but the zygote have left the process table."""
    until(lambda: not left(), "processes are left")


def sleepers():
    """Return the processes that run ``sleep`` for ranks of this process."""
    return [pid for pid in marked(MARK) if "sleep" in Path(f"/proc/{pid}/comm").read_text()]


def opened():
    gc.collect()
    return len(list(Path("/dev/fd").iterdir()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a pool keeps its temporary files; its ranks can be found by a mark."""
    monkeypatch.setenv(*MARK.split("="))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def pool(folder):
    """A pool of N ranks, of which nothing may be left in the end."""
    if Pool._processes is Forked:
        forked._Zygote.of_this_kernel()
    threads, descriptors = threading.active_count(), opened()
    with Pool(N, backend="gloo") as pool:
        yield pool
    assert list(folder.iterdir()) == []
    assert opened() == descriptors
    assert threading.active_count() == threads
    gone()


def total():
    x = torch.ones(3)
    dist.all_reduce(x)
    return x[0].item()


def meet():
    dist.all_reduce(torch.ones(3))


def on_rank_1(do):
    """Return a function that does `do` on rank 1, while the other ranks wait for it."""

    def fault():
        if dist.get_rank() == 1:
            return do()
        return meet()

    return fault


class TestRun:
    def test_results_come_in_rank_order(self, pool):
        assert pool.run(dist.get_rank) == [0, 1, 2]
        assert pool.run(total) == [3.0] * N

    def test_each_rank_gets_its_own_argument_or_the_same(self, pool):
        assert pool.run(pow, PerRank([1, 2, 3]), 2) == [1, 4, 9]

    def test_arrays_and_tensors_travel_both_ways(self, pool):
        tensors = [torch.full((2, 3), r, dtype=torch.bfloat16) for r in range(N)]
        arrays = np.arange(N * 1000.0).reshape(N, 1000)

        def both(tensor, array):
            dist.all_reduce(tensor)
            return tensor, array + dist.get_rank()

        for rank, (tensor, array) in enumerate(pool.run(both, PerRank(tensors), PerRank(arrays))):
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(tensor, torch.full((2, 3), 3.0).bfloat16())
            assert np.array_equal(array, arrays[rank] + rank)

    def test_megabytes_travel_to_all_ranks_at_once(self, pool):
        array = np.random.default_rng(0).random(2_000_000)
        for back in pool.run(np.copy, array):
            assert np.array_equal(back, array)

    def test_classes_of_a_notebook_come_back_as_themselves(self, pool):
        class Point:
            x = 3

        assert all(isinstance(back, Point) for back in pool.run(lambda: Point()))  # noqa: PLW0108

    def test_a_pool_of_one_rank_works(self, folder):
        with Pool(1, backend="gloo") as pool:
            assert pool.run(total) == [1.0]

    def test_pools_side_by_side_do_not_meet(self, folder):
        pools = [Pool(n, backend="gloo") for n in (1, 2, 3, 2, 4, 3)]
        for _ in range(2):
            assert [pool.run(total)[0] for pool in pools] == [1, 2, 3, 2, 4, 3]
        for pool in pools:
            pool.close()
        gone()

    def test_a_module_next_to_the_notebook_can_be_used(self, pool, tmp_path_factory, monkeypatch):
        here = tmp_path_factory.mktemp("course")
        (here / "helper_of_course.py").write_text("def double(x):\n    return 2 * x\n")
        monkeypatch.chdir(here)
        monkeypatch.syspath_prepend("")
        import helper_of_course

        assert pool.run(helper_of_course.double, 4) == [8] * N
        assert pool.run(os.getcwd) == [str(here)] * N

    def test_ranks_follow_to_another_folder_and_search_path(self, pool, folder, monkeypatch):
        pool.run(total)
        pool.run(os.chdir, "/")
        assert pool.run(os.getcwd) == ["/"] * N, "until this process moves"
        course = folder / "course"
        course.mkdir()
        (course / "later_helper_of_course.py").write_text("def double(x):\n    return 2 * x\n")
        monkeypatch.chdir(course)
        monkeypatch.syspath_prepend("")
        import later_helper_of_course

        assert pool.run(later_helper_of_course.double, 4) == [8] * N
        assert pool.run(os.getcwd) == [str(course)] * N
        shutil.rmtree(course)
        assert pool.run(total) == [3.0] * N
        pool._discard()
        assert pool.run(total) == [3.0] * N


class TestRanks:
    def test_they_forget_what_another_launcher_has_set(self, pool, monkeypatch):
        for name in ("MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
            monkeypatch.setenv(name, "7")
        monkeypatch.setenv("OF_LEARNER", "8")
        assert pool.run(total) == [3.0] * N
        assert pool.run(os.getenv, "RANK") == [None] * N
        assert pool.run(os.getenv, "OF_LEARNER") == ["8"] * N

    def test_no_signal_reaches_one_that_is_just_born(self, pool, monkeypatch):
        """Between its birth and its own session the stop button would end it."""
        popen, blocked = subprocess.Popen, []

        def born(*args, **options):
            blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            return popen(*args, **options)

        monkeypatch.setattr(subprocess, "Popen", born)
        start("output").wait()
        assert blocked == [{signal.SIGINT, signal.SIGUSR1}]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
        assert pool.run(signal.pthread_sigmask, signal.SIG_BLOCK, ()) == [set()] * N

    def test_they_use_one_thread(self, pool):
        assert pool.run(torch.get_num_threads) == [1] * N

    def test_they_draw_different_numbers_and_the_same_after_a_restart(self, pool):
        def draw():
            import random

            return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002

        first = pool.run(draw)
        assert len({number for rank in first for number in rank}) == 3 * N
        pool._discard()
        assert pool.run(draw) == first

    @pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
    def test_they_listen_on_the_loopback_interface_only(self, pool):
        def listening():
            mine = {os.path.realpath(fd).rpartition("/")[2] for fd in Path("/dev/fd").iterdir()}
            found = []
            for table in ("tcp", "tcp6"):
                rows = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
                each = [row.split() for row in rows]
                found += [r[1] for r in each if r[3] == "0A" and f"socket:[{r[9]}]" in mine]
            return [address.split(":")[0] for address in found]

        for addresses in pool.run(listening):
            assert set(addresses) == {"0100007F"}


class TestOutput:
    def test_it_is_printed_in_rank_order_with_a_label(self, pool, capsys):
        def speak():
            time.sleep(0.05 * (N - dist.get_rank()))
            print("hello")
            sys.stderr.write("warning\n")
            print("no newline", end="")

        pool.run(speak)
        lines = ("hello", "warning", "no newline")
        assert capsys.readouterr().out.splitlines() == [
            f"[rank {r}] {line}" for r in range(N) for line in lines
        ]

    @pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
    def test_what_a_rank_starts_gets_none_of_its_sockets_but_the_output(self, pool):
        def sockets():
            table = Path("/proc/net/unix").read_text().splitlines()
            ours = [line.split()[6] for line in table[1:]]
            links = {int(fd.name): os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()}
            mine = [fd for fd, to in links.items() if any(f"socket:[{i}]" in to for i in ours)]
            return len(mine), {fd for fd in mine if os.get_inheritable(fd)}

        assert pool.run(sockets) == [(3, {1, 2})] * N

    def test_text_of_c_code_and_of_child_processes_is_caught_too(self, pool, capsys):
        pool.run(lambda: os.system("echo from a child"))
        assert capsys.readouterr().out.count("from a child\n") == N

    def test_a_flood_ends_and_is_cut(self, pool, capsys):
        def flood():
            print("x" * 10_000_000)
            for i in range(20_000):
                print(i)
            return "dry"

        assert pool.run(flood) == ["dry"] * N
        out = capsys.readouterr().out
        assert out.count("more lines, not shown") == N
        assert len(out) < 1_000_000

    def test_what_a_rank_said_before_it_died_is_shown(self, pool, capsys):
        def last_words():
            print("last words", end="")
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(RankError):
            pool.run(on_rank_1(last_words))
        assert capsys.readouterr().out == "[rank 1] last words\n"


def divide():
    return 1 / 0


def crash():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def hide():
    os.closerange(3, 256)


class Mute(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


def mute():
    raise Mute


def shout():
    raise ValueError("x" * 10_000_000 + "\udc80")


def scribble():
    """Write into every socket and file that this rank has, as a stray os.write might."""
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(fd, b"\0\0\0\x10" * 2)
    time.sleep(1000)


FAILURES = {
    "raises": (divide, r"rank 1 raised ZeroDivisionError: division by zero$"),
    "raises what has no text": (mute, r"rank 1 raised Mute: \(its text cannot be had\)$"),
    "raises a long text": (shout, r"rank 1 raised ValueError: x{1000} \.\.\. x{999}\?$"),
    "calls sys.exit": (lambda: sys.exit(3), r"rank 1 called sys\.exit\(3\)$"),
    "ends its process": (lambda: os._exit(0), r"rank 1 ended its process with status 0 in the mid"),
    "is killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), r"rank 1 was killed \(SIGKILL; "),
    "crashes": (crash, r"rank 1 crashed \(SIGSEGV\)$"),
    "writes into its connection": (scribble, r"rank 1 cut its connection to the notebook$"),
    "closes its connections": (hide, r"rank 1 "),
    "returns what cannot travel": (
        lambda: (i for i in ()),
        r"rank 1 raised TypeError: the result cannot travel to the notebook: generator: ",
    ),
}
SILENCES = {
    "skips the call": (lambda: None, "rank 1 had returned"),
    "sleeps": (lambda: time.sleep(1000), "rank 1 was at work"),
    "loops in C": (lambda: sum(range(10**12)), "rank 1 was at work"),
    "is stopped": (lambda: os.kill(os.getpid(), signal.SIGSTOP), "rank 1 did not say where it was"),
}


class TestFaults:
    @pytest.mark.parametrize("name", FAILURES)
    def test_a_failure_is_told_and_the_next_call_works(self, pool, capsys, name):
        do, words = FAILURES[name]
        pool.run(total)
        with pytest.raises(RankError) as caught:
            pool.run(on_rank_1(do))
        assert re.match(words, str(caught.value).splitlines()[0])
        gone()
        assert repr(pool) == "Pool of 3 ranks, gloo, stopped"
        assert [pool.run(total) for _ in range(2)] == [[3.0] * N] * 2
        assert capsys.readouterr().out.count(AFRESH) == 1

    @pytest.mark.parametrize("name", SILENCES)
    def test_at_the_deadline_each_rank_names_its_line_and_call(self, pool, name):
        do, words = SILENCES[name]
        pool.run(total)
        with pytest.raises(RankError) as caught:
            pool.run(on_rank_1(do), timeout=3)
        lines = [line.strip() for line in str(caught.value).splitlines()]
        assert lines[0] == "no result after 3 s, the deadline of this call"
        assert lines[1] == "ranks 0 and 2 were in all_reduce()"
        assert re.fullmatch(r"test_pool\.py, line \d+ of fault: return meet\(\)", lines[2])
        assert lines[3].endswith("of meet: dist.all_reduce(torch.ones(3))")
        assert lines[4] == words
        gone()
        assert pool.run(total) == [3.0] * N

    def test_the_lines_of_an_exception_are_the_learners_own(self, pool):
        with pytest.raises(RankError) as caught:
            pool.run(on_rank_1(divide))
        lines = [line.strip() for line in str(caught.value).splitlines()]
        assert lines[1].endswith("of fault: return do()")
        assert lines[2].endswith("of divide: return 1 / 0")
        assert lines[3] == "The others:"
        assert lines[4] == "ranks 0 and 2 were in all_reduce()"
        assert caught.value.fates[1].traceback.endswith("ZeroDivisionError: division by zero\n")

    def test_a_death_is_the_cause_and_lost_connections_are_consequences(self, pool):
        with pytest.raises(RankError) as caught:
            pool.run(on_rank_1(lambda: os._exit(0)))
        lines = [line.strip() for line in str(caught.value).splitlines()]
        assert lines[1] == "The others:"
        assert lines[2] == "ranks 0 and 2 lost the connection to another rank, a consequence"

    def test_the_cause_that_came_first_stands_first(self, pool):
        def fail():
            time.sleep(dist.get_rank() == 0)
            raise ValueError("later" if dist.get_rank() == 0 else "first")

        with pytest.raises(
            RankError, match=r"^ranks 1 and 2 raised ValueError: first\n[^R]*rank 0"
        ):
            pool.run(fail)

    def test_what_a_rank_answered_before_it_died_is_told(self, pool, monkeypatch):
        def fail():
            threading.Timer(0.1, os._exit, [3]).start()
            raise KeyError("the cause")

        def without_answers(self, selector, timeout):
            found = select_(self, selector, timeout)
            calls = pool._group.calls
            return [(k, e) for k, e in found if k.fileobj not in calls or e != EVENT_READ]

        pool.run(total)
        select_ = Interrupts.select
        monkeypatch.setattr(Interrupts, "select", without_answers)
        with pytest.raises(RankError, match=r"^rank 1 raised KeyError: 'the cause'"):
            pool.run(on_rank_1(fail))

    def test_ranks_that_fail_alike_are_told_once(self, pool):
        with pytest.raises(RankError, match=r"^ranks 0, 1 and 2 raised ZeroDivisionError"):
            pool.run(divide)

    @pytest.mark.parametrize("what", ["dtype", "shape"])
    def test_tensors_that_differ_abort_a_rank_and_not_the_kernel(self, folder, what):
        def mismatch():
            kinds, sizes = (torch.float32, torch.bfloat16), (16, 8)
            x = torch.ones(8, dtype=kinds[dist.get_rank()])
            if what == "shape":
                x = torch.ones(sizes[dist.get_rank()])
            dist.all_reduce(x)

        with Pool(2, backend="gloo") as pool:
            with pytest.raises(RankError) as caught:
                pool.run(mismatch)
            first, second = str(caught.value).splitlines()[:2]
            assert first.startswith("rank 1 was aborted by a library (SIGABRT)")
            assert "mismatch" in first
            assert second.endswith("of mismatch: dist.all_reduce(x)")
            assert pool.run(total) == [2.0] * 2

    def test_what_no_rank_can_see_ends_the_call_and_not_the_pool(self, pool):
        """Calls in another order, and another operation: gloo says nothing, the sums are wrong."""

        def crossed():
            a, b = torch.tensor([1.0]), torch.tensor([100.0])
            for x in (a, b) if dist.get_rank() else (b, a):
                dist.all_reduce(x)
            return a.item(), b.item()

        assert (3.0, 300.0) not in pool.run(crossed)
        assert pool.run(total) == [3.0] * N

    def test_groups_that_a_rank_does_not_destroy_are_no_obstacle(self, pool):
        def more():
            groups = [dist.new_group() for _ in range(3)]
            x = torch.ones(1)
            dist.all_reduce(x, group=groups[-1])
            return x.item()

        assert [pool.run(more) for _ in range(2)] == [[3.0] * N] * 2
        assert pool.run(total) == [3.0] * N

    def test_messages_hold_nothing_that_differs_between_runs(self, pool):
        def told(do):
            with pytest.raises(RankError) as caught:
                pool.run(on_rank_1(do))
            return str(caught.value)

        first, again = (told(do) for do in [lambda: {}[object()]] * 2)
        assert first == again
        assert "KeyError: <object object at 0x…>" in first
        first, again = (told(do) for do in [lambda: os._exit(0)] * 2)
        assert first == again

    @pytest.mark.skipif(sys.platform != "linux", reason="only a keeper reports such a death")
    def test_a_rank_that_died_between_two_calls_is_replaced(self, pool, capsys):
        pids = pool.run(os.getpid)
        os.kill(pids[1], signal.SIGKILL)
        until(lambda: select.select([pool._group.link], [], [], 0)[0], "no death was reported")
        assert pool.run(total) == [3.0] * N
        assert AFRESH in capsys.readouterr().out

    @pytest.mark.skipif(sys.platform != "linux", reason="there is no zygote")
    def test_a_killed_zygote_is_replaced(self, pool):
        pool.run(total)
        zygote = forked._Zygote._current.process
        zygote.kill()
        zygote.wait()
        gone()
        assert pool.run(total) == [3.0] * N

    def test_what_the_debug_level_of_torch_finds_is_told(self, pool, monkeypatch):
        def mismatch():
            dist.all_reduce(torch.ones(3 + dist.get_rank()))

        monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
        with pytest.raises(RankError, match="Detected mismatch between collectives on ranks"):
            pool.run(mismatch)

    @pytest.mark.skipif(sys.platform != "linux", reason="only a keeper adopts processes")
    def test_processes_that_left_their_ranks_session_go_too(self, pool):
        def start():
            stray = ["setsid", "sh", "-c", "sleep 1000 & sleep 1000"]
            parent = subprocess.Popen(["sh", "-c", '"$@" & echo $!', "sh", *stray])
            return parent.wait()

        assert pool.run(start) == [0] * N
        until(lambda: len(sleepers()) == 2 * N, "the processes did not start")
        pool.close()
        assert not sleepers()

    def test_pools_that_a_rank_started_go_too(self, pool, folder):
        def start(folder):
            import tempfile

            tempfile.tempdir = folder
            tempfile.kept = Pool(1, backend="gloo")
            return tempfile.kept.run(os.getpid)

        pids = {pid for (pid,) in pool.run(start, str(folder))}
        assert len(pids) == N
        pool.close()
        assert not pids & set(marked(MARK))

    def test_processes_that_a_rank_started_go_with_it(self, pool):
        def start():
            return subprocess.Popen(["sleep", "1000"]).pid

        pids = pool.run(start)
        if sys.platform == "linux":
            assert set(pids) <= left()
        pool.close()
        gone()


def cell(text, name="/tmp/ipykernel_1234/5678.py"):
    """Run `text` as a cell of a notebook is run, and return its names."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    return names


class TestNotebook:
    def test_an_error_shows_the_line_of_the_cell_and_not_its_file(self, pool):
        step = cell("def step(x):\n    y = x + 1\n    return y / 0  # here\n")["step"]
        with pytest.raises(RankError) as caught:
            pool.run(step, 1)
        assert str(caught.value) == (
            "ranks 0, 1 and 2 raised ZeroDivisionError: division by zero\n"
            "    line 3 of step: return y / 0  # here"
        )

    def test_tracebacks_in_the_ranks_have_the_source_too(self, pool):
        def caught(step):
            try:
                step()
            except ZeroDivisionError:
                return traceback.format_exc()

        for _ in range(2):  # a changed cell replaces the old text
            text = "def step():\n    return 2 / 0  # there\n"
            step = cell(text)["step"]
            assert all("return 2 / 0  # there" in each for each in pool.run(caught, step))
            linecache.cache.clear()

    def test_ipython_shows_the_message_alone(self):
        assert RankError("rank 1 raised").__class__.__name__ == "RankError"
        assert RankError("rank 1 raised")._render_traceback_() == ["RankError: rank 1 raised"]


class TestLife:
    def test_the_representation_is_a_sentence(self, folder):
        pool = Pool(4, backend="gloo")
        assert repr(pool) == "Pool of 4 ranks, gloo, not started"
        with pool:
            pool.run(len, ())
            assert repr(pool) == "Pool of 4 ranks, gloo, ready"
        assert repr(pool) == "Pool of 4 ranks, gloo, closed"

    def test_a_closed_pool_refuses_and_can_be_closed_again(self, pool):
        pool.run(total)
        pool.close()
        gone()
        pool.close()
        with pytest.raises(RuntimeError, match="this pool is closed; make a new one"):
            pool.run(total)

    def test_an_exception_in_the_with_block_ends_it(self, folder):
        with pytest.raises(KeyError), Pool(2, backend="gloo") as pool:  # noqa: PT012
            pool.run(total)
            raise KeyError
        gone()

    def test_a_forgotten_pool_ends_with_its_name(self, folder):
        pool = Pool(2, backend="gloo")
        pool.run(total)
        del pool
        gc.collect()
        gone()
        assert list(folder.iterdir()) == []

    def test_an_interrupt_while_a_forgotten_pool_ends_comes_after_that(self, folder):
        pool = Pool(2, backend="gloo")
        pool.run(total)
        pool._group._undo.callback(os.kill, os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            del pool
            time.sleep(15)
        gone()

    def test_one_call_at_a_time(self, pool):
        pool.run(total)
        caller = threading.Thread(target=pool.run, args=(time.sleep, 1))
        caller.start()
        until(pool._busy.locked, "the call did not begin")
        assert repr(pool).endswith("running")
        with pytest.raises(RuntimeError, match="busy with another call"):
            pool.run(total)
        caller.join()
        assert pool.run(total) == [3.0] * N

    def test_closing_ends_the_call_of_another_thread(self, pool):
        pool.run(total)
        caught = []

        def call():
            with pytest.raises(RankError) as error:
                pool.run(time.sleep, 1000)
            caught.append(str(error.value))

        caller = threading.Thread(target=call)
        caller.start()
        until(pool._busy.locked, "the call did not begin")
        pool.close()
        caller.join(15)
        assert caught == ["the pool was closed during this call"]
        gone()

    def test_closing_while_another_thread_starts_the_ranks_ends_them(self, pool):
        start = pool._start

        def close_first(*args):
            closer.start()
            until(lambda: pool._closed, "the pool was not closed")
            start(*args)

        closer = threading.Thread(target=pool.close)
        pool._start = close_first
        with pytest.raises(RankError, match=r"^the pool was closed during this call$"):
            pool.run(time.sleep, 1000)
        closer.join(15)
        gone()

    def test_a_copy_that_a_rank_forks_does_not_answer(self, pool):
        assert pool.run(lambda: os.fork() and 7) == [7] * N
        assert pool.run(total) == [3.0] * N

    def test_without_a_temporary_folder_it_says_so(self, pool, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr("tempfile.tempdir", "/nowhere")
            with pytest.raises(RankError, match="could not be started: No such file or directory"):
                pool.run(total)
        assert pool.run(total) == [3.0] * N

    def test_without_free_descriptors_it_says_so(self, pool):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened() + 5, hard))
        try:
            with pytest.raises(RankError, match="could not be started: Too many open files"):
                pool.run(total)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert pool.run(total) == [3.0] * N


class TestSpawned:
    """The way of systems that do not fork; slow to start, so all in few pools."""

    @pytest.fixture
    def pool(self, folder, monkeypatch):
        monkeypatch.setattr(Pool, "_processes", Spawned)
        with Pool(2, backend="gloo") as pool:
            yield pool
        assert list(folder.iterdir()) == []
        gone()

    def test_it_runs_prints_and_fails_as_the_other_does(self, pool, capsys):
        assert pool.run(lambda: print("hello") or total()) == [2.0] * 2
        assert capsys.readouterr().out == "[rank 0] hello\n[rank 1] hello\n"
        with pytest.raises(RankError) as caught:
            pool.run(on_rank_1(lambda: sum(range(10**12))), timeout=3)
        lines = [line.strip() for line in str(caught.value).splitlines()]
        assert lines[1] == "rank 0 was in all_reduce()"
        assert lines[4] == "rank 1 was at work"
        gone()

        def leave():
            subprocess.Popen(["sleep", "1000"])
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(RankError, match=r"^rank 1 was killed"):
            pool.run(on_rank_1(leave))
        until(lambda: not sleepers(), "what the rank has started is left")


class TestBadInput:
    @pytest.mark.parametrize(
        ("ranks", "error"), [(0, ValueError), (17, ValueError), (True, TypeError), (2.0, TypeError)]
    )
    def test_ranks(self, ranks, error):
        with pytest.raises(error, match="ranks must be an integer between 1 and 16, got"):
            Pool(ranks)

    @pytest.mark.parametrize(
        ("timeout", "error"),
        [(0, ValueError), (-1, ValueError), (float("inf"), ValueError), ("9", TypeError)],
    )
    def test_timeout(self, timeout, error):
        with pytest.raises(error, match="timeout must be a positive number of seconds, got"):
            Pool(2, timeout=timeout)
        with pytest.raises(error, match="timeout must be a positive number of seconds, got"):
            Pool(2).run(len, (), timeout=timeout)

    def test_a_timeout_of_numpy_is_one(self):
        assert Pool(2, timeout=np.int64(9)).timeout == 9.0
        assert Pool(2, timeout=np.float32(0.5)).timeout == 0.5

    def test_no_function(self):
        with pytest.raises(TypeError, match=r"got <object object at 0x…> \(object\)"):
            Pool(2).run(object())
        with pytest.raises(TypeError, match=r"fn must be callable, got 3 \(int\)"):
            Pool(2).run(3)

    def test_one_value_too_few(self):
        with pytest.raises(ValueError, match="one value for each of 2 ranks, got 1"):
            Pool(2).run(len, PerRank([()]))

    def test_what_cannot_travel_is_named(self):
        with pytest.raises(TypeError, match=r"argument 2 \(generator\) cannot travel to the ranks"):
            Pool(2).run(max, 1, (i for i in ()))
        pool = Pool(2)
        with pytest.raises(TypeError, match="uses, cannot travel to the ranks: a Pool stays"):
            pool.run(lambda: pool)
