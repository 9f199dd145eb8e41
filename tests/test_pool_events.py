"""Stop, restart and death of the process that owns a pool: no rank, no file is left behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="real ranks need torch")

from leftovers import marked, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

ROOT = str(Path(__file__).parents[1])
PRELUDE = """
import os, signal, sys, time
from allreduce_edu.realdist.pool import Pool, RankError

def total():
    import torch, torch.distributed as dist
    x = torch.ones(3)
    dist.all_reduce(x)
    return int(x[0])

def stuck(how):
    import torch, torch.distributed as dist
    print("stuck")
    if how == "in C with the GIL held":
        sum(range(10**12))
    if how == "in a collective" and dist.get_rank():
        dist.all_reduce(torch.ones(3))
    time.sleep(1000)

pool = Pool(3, backend="gloo")
"""


class Script:
    """A Python process that runs a text with a pool; all that stems from it can be found."""

    def __init__(self, folder, text):
        self.folder = folder / "temporary"
        self.folder.mkdir()
        self.mark = f"POOL_TEST={uuid.uuid4()}"
        path = folder / "script.py"
        path.write_text(PRELUDE + textwrap.dedent(text))
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(path)],
            env=os.environ | {name: value, "TMPDIR": str(self.folder), "PYTHONPATH": ROOT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.stdout.close()
        self.process.wait()

    def says(self, line):
        """Wait for a line of output; returns all up to it."""
        seen = []
        for each in self.process.stdout:
            seen.append(each.rstrip())
            if seen[-1] == line:
                return seen
        pytest.fail(f"{line!r} did not come, but {seen}")

    def signal(self, number):
        self.process.send_signal(number)

    def leaves_nothing(self):
        until(lambda: not marked(self.mark), "processes are left")
        assert list(self.folder.iterdir()) == []


@pytest.fixture
def script(tmp_path):
    return lambda text: Script(tmp_path, text)


@pytest.mark.parametrize("how", ["in a collective", "in C with the GIL held"])
def test_an_interrupt_ends_the_call_and_the_pool_works_on(script, how):
    text = f"""
    try:
        pool.run(stuck, {how!r})
    except KeyboardInterrupt:
        print("interrupted")
    print(pool)
    print(pool.run(total))
    """
    with script(text) as it:
        it.says("[rank 0] stuck")
        it.signal(signal.SIGINT)
        it.says("interrupted")
        it.says("Pool of 3 ranks, gloo, stopped")
        it.says("The ranks were started afresh: what they held in memory is lost.")
        it.says("[3, 3, 3]")
        it.leaves_nothing()


def test_many_quick_interrupts_are_as_good_as_one(script):
    text = """
    for _ in range(3):
        try:
            try:
                pool.run(stuck, "in a collective")
            except KeyboardInterrupt:
                print("interrupted")
            time.sleep(0.5)  # a late press is none of the pool's business
        except KeyboardInterrupt:
            pass
        print(pool.run(total))
    """
    with script(text) as it:
        for _ in range(3):
            it.says("[rank 0] stuck")
            for _ in range(4):
                it.signal(signal.SIGINT)
                time.sleep(0.005)
            it.says("interrupted")
            it.says("[3, 3, 3]")
        it.leaves_nothing()


def test_an_interrupt_ends_the_unpacking_of_a_result_and_the_ranks_live_on(script):
    text = """
    class Slow:
        def __reduce__(self):
            return eval, ("print('unpacking') or time.sleep(1000)", {"time": time})

    try:
        pool.run(Slow)
    except KeyboardInterrupt:
        print("interrupted")
    print(pool)
    """
    with script(text) as it:
        it.says("unpacking")
        it.signal(signal.SIGINT)
        it.says("interrupted")
        it.says("Pool of 3 ranks, gloo, ready")
        it.leaves_nothing()


def test_an_interrupt_is_not_lost_when_a_rank_fails_at_the_same_moment(script):
    text = """
    from allreduce_edu.realdist import report
    failure = report.failure
    report.failure = lambda fates: os.kill(os.getpid(), signal.SIGINT) or failure(fates)
    try:
        pool.run(lambda: 1 / 0)
    except KeyboardInterrupt as interrupt:
        print(type(interrupt.__context__).__name__)
    """
    with script(text) as it:
        it.says("RankError")
        it.leaves_nothing()


def test_an_interrupt_while_the_ranks_start_is_obeyed(script):
    text = """
    try:
        print("starting")
        pool.run(stuck, "in a collective")
    except KeyboardInterrupt:
        print("interrupted")
    print(pool.run(total))
    """
    with script(text) as it:
        it.says("starting")
        it.signal(signal.SIGINT)
        it.says("interrupted")
        it.says("[3, 3, 3]")
        it.leaves_nothing()


@pytest.mark.parametrize("how", ["in a collective", "in C with the GIL held"])
def test_a_killed_kernel_takes_its_ranks_with_it(script, how):
    with script(f"pool.run(stuck, {how!r})") as it:
        it.says("[rank 0] stuck")
        it.signal(signal.SIGKILL)
        it.leaves_nothing()


@pytest.mark.parametrize("word", ["starting", "idle"])
def test_a_kernel_may_die_at_any_moment(script, word):
    text = """
    print("starting")
    pool.run(total)
    print("idle")
    time.sleep(1000)
    """
    with script(text) as it:
        it.says(word)
        it.signal(signal.SIGKILL)
        it.leaves_nothing()


@pytest.mark.parametrize("processes", ["Forked", "Spawned"])
def test_a_killed_kernel_takes_its_ranks_with_it_though_a_copy_lives(script, processes):
    text = f"""
    from allreduce_edu.realdist import forked, spawned
    Pool._processes = getattr({processes.lower()}, {processes!r})
    pool.run(total)
    copy = os.fork()
    if not copy:
        time.sleep(1000)
    print(copy)
    print("ready")
    time.sleep(1000)
    """
    with script(text) as it:
        copy = int(it.says("ready")[-2])
        it.signal(signal.SIGKILL)
        until(lambda: marked(it.mark) == [copy], "more than the copy is left")
        os.kill(copy, signal.SIGKILL)
        it.leaves_nothing()


def test_spawned_ranks_end_with_a_killed_kernel_too(script):
    text = """
    from allreduce_edu.realdist.spawned import Spawned
    Pool._processes = Spawned
    pool.run(stuck, "in a collective")
    """
    with script(text) as it:
        it.says("[rank 0] stuck")
        it.signal(signal.SIGKILL)
        it.leaves_nothing()


def test_spawned_ranks_that_hold_the_gil_end_after_their_deadline(script):
    text = """
    from allreduce_edu.realdist.spawned import Spawned
    Pool._processes, Spawned.slack = Spawned, 0.1
    pool.run(stuck, "in C with the GIL held", timeout=3)
    """
    with script(text) as it:
        it.says("[rank 0] stuck")
        it.signal(signal.SIGKILL)
        until(lambda: not marked(it.mark), "processes are left")


def test_a_forked_copy_of_the_kernel_leaves_the_pool_alone(script):
    text = """
    pool.run(total)
    child = os.fork()
    if not child:
        try:
            pool.run(total)
        except RuntimeError as error:
            print(error)
        pool.close()
        sys.exit()
    os.waitpid(child, 0)
    print(pool.run(total), pool)
    """
    with script(text) as it:
        it.says("this pool belongs to the process that made it; make a new one here")
        it.says("[3, 3, 3] Pool of 3 ranks, gloo, ready")
        it.leaves_nothing()


def test_more_files_may_be_open_than_select_can_tell(script):
    text = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    files = [os.dup(0) for _ in range(1100)]
    print(pool.run(total))
    """
    with script(text) as it:
        it.says("[3, 3, 3]")
        it.leaves_nothing()


def test_the_kernel_never_imports_torch(script):
    text = """
    print(pool.run(total), pool.why)
    print("torch" in sys.modules)
    """
    with script(text) as it:
        it.says("[3, 3, 3] gloo, because it was asked for.")
        it.says("False")


@pytest.mark.parametrize(
    ("torch", "why"),
    [
        ("raise ImportError('a broken torch')", "ImportError: a broken torch"),
        (
            "import os; os.write(2, b'no such instruction'); os.abort()",
            "the process that starts them was aborted by a library (SIGABRT): no such instruction",
        ),
    ],
)
def test_a_torch_that_cannot_be_imported_is_told(script, torch, why):
    text = f"""
    folder = os.environ["TMPDIR"]
    os.mkdir(f"{{folder}}/torch")
    with open(f"{{folder}}/torch/__init__.py", "w") as file:
        file.write({torch!r})
    sys.path.insert(0, folder)
    for _ in range(2):
        try:
            pool.run(total)
        except RankError as error:
            print(error)
    """
    with script(text) as it:
        for _ in range(2):
            it.says(f"the ranks could not be started: {why}")


@pytest.mark.filterwarnings("ignore")  # what the libraries of Jupyter warn of is not the point here
def test_in_a_jupyter_kernel_stop_works_and_its_death_leaves_nothing(tmp_path):
    jupyter_client = pytest.importorskip("jupyter_client", reason="starts a kernel")
    mark, value = "POOL_TEST", str(uuid.uuid4())
    environment = os.environ | {mark: value, "TMPDIR": str(tmp_path), "PYTHONPATH": ROOT}
    kernel, client = jupyter_client.manager.start_new_kernel(env=environment)
    try:
        run(client, PRELUDE)
        request = client.execute("pool.run(stuck, 'in a collective')", stop_on_error=False)
        await_text(client, "[rank 0] stuck")
        kernel.interrupt_kernel()
        assert reply(client, request)["ename"] == "KeyboardInterrupt"
        run(client, "assert pool.run(total) == [3, 3, 3]")
        halve = "def halve():\n    return 1 / 0\npool.run(halve)"
        error = reply(client, client.execute(halve, stop_on_error=False))
        assert error["traceback"] == [f"RankError: {error['evalue']}"]
        assert error["evalue"].endswith("\n    line 2 of halve: return 1 / 0")
        client.execute("pool.run(stuck, 'in C with the GIL held')")
        await_text(client, "[rank 0] stuck")
        os.kill(kernel.provisioner.pid, signal.SIGKILL)
        until(lambda: not marked(f"{mark}={value}"), "processes are left")
        assert not list(tmp_path.glob("allreduce_edu*"))
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def reply(client, request):
    while True:
        message = client.get_shell_msg(timeout=30)
        if message["parent_header"].get("msg_id") == request:
            return message["content"]


def run(client, text):
    content = reply(client, client.execute(text))
    assert content["status"] == "ok", content


def await_text(client, text):
    for _ in range(100):
        try:
            content = client.get_iopub_msg(timeout=30)["content"]
        except queue.Empty:
            break
        if text in content.get("text", ""):
            return
    pytest.fail(f"{text!r} was not printed")
