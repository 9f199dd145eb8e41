"""A pool on machines that lack something, and what a machine's own counters say of it (Linux).

Each test is a process in namespaces of its own, in which it may mount and count as it likes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="real ranks need torch")

from leftovers import marked, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are a thing of Linux")
ROOT = str(Path(__file__).parents[1])
PRELUDE = """
import os, sys
from pathlib import Path
import numpy as np
from allreduce_edu import PerRank, Pool, RankError, ring

def total():
    import torch, torch.distributed as dist
    x = torch.ones(1_000_000)
    dist.all_reduce(x)
    return int(x[-1])
"""


def says(folder, namespaces, prepare, text):
    """Run `text` where the shell commands `prepare` have been run; return what it prints."""
    unshare = shutil.which("unshare")
    outer = [str(unshare), "--map-root-user", *namespaces]
    if not unshare or subprocess.run([*outer, "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces are refused here")
    mark = str(uuid.uuid4())
    ran = subprocess.run(
        [*outer, "sh", "-ec", f'{prepare}\nexec "$@"', "sh", sys.executable, "-"],
        input=PRELUDE + textwrap.dedent(text),
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"POOL_TEST": mark, "PYTHONPATH": ROOT, "TMPDIR": str(folder)},
    )
    assert ran.returncode == 0, ran.stderr
    until(lambda: not marked(f"POOL_TEST={mark}"), "processes are left")
    assert list(folder.glob("allreduce_edu*")) == []
    return ran.stdout.splitlines()


def test_without_shared_memory_it_works(tmp_path):
    prepare = "mount -t tmpfs -o size=4k none /dev/shm; ! head -c 9999 /dev/zero > /dev/shm/x"
    text = """
    with Pool(3, backend="gloo") as pool:
        array = np.arange(2_000_000.0)
        print(pool.run(total), all(np.array_equal(a, array) for a in pool.run(np.copy, array)))
    """
    assert says(tmp_path, ["--mount"], prepare, text) == ["[3, 3, 3] True"]


def test_without_space_for_temporary_files_it_says_so_and_works_when_there_is(tmp_path):
    prepare = f"mount -t tmpfs -o size=16k none {tmp_path}"
    text = f"""
    import tempfile
    tempfile.gettempdir()  # before it is full: Python would look for another
    os.system("head -c 99999 /dev/zero > {tmp_path}/full 2> /dev/null")
    with Pool(2, backend="gloo", timeout=10) as pool:
        try:
            pool.run(total)
        except RankError as error:
            print(error)
        Path({str(tmp_path)!r}, 'full').unlink()
        print(pool.run(total))
    """
    first, *_, last = says(tmp_path, ["--mount"], prepare, text)
    assert first.startswith("the ranks could not be started: ")
    assert "No space left on device" in first
    assert last == "[2, 2]"


COUNT = """
def lo():
    rows = Path("/proc/net/dev").read_text().splitlines()
    return int(next(row for row in rows if row.strip().startswith("lo:")).split()[1])

S, n = 8 << 20, 3
with Pool(n, backend="gloo") as pool:
    pool.run(total)
    x = np.ones((n, S // 4), np.float32)
    DO
"""


def test_the_bytes_counted_in_the_ranks_are_those_that_the_system_counts(tmp_path):
    """Within 1 %: the system counts headers and acknowledgements too."""
    do = """
    before = lo()
    _, sent = pool.play(ring(n), x, count=True)
    print((lo() - before) / sent.sum(), sent.sum() / (2 * (n - 1) * S))
    """
    prepare = "ip link set lo up"
    text = COUNT.replace("    DO\n", textwrap.indent(textwrap.dedent(do), "    "))
    (line,) = says(tmp_path, ["--net"], prepare, text)
    system, formula = map(float, line.split())
    assert system == pytest.approx(1, abs=0.01)
    assert formula == pytest.approx(1, abs=1e-6)


def test_the_librarys_all_reduce_moves_the_bytes_of_the_ring(tmp_path):
    do = """
    def all_reduce(x):
        import torch, torch.distributed as dist
        dist.all_reduce(torch.from_numpy(x))
    before = lo()
    pool.run(all_reduce, PerRank(list(x)))
    print((lo() - before) / (2 * (n - 1) * S))
    """
    text = COUNT.replace("    DO\n", textwrap.indent(textwrap.dedent(do), "    "))
    (line,) = says(tmp_path, ["--net"], "ip link set lo up", text)
    assert float(line) == pytest.approx(1, abs=0.01)


def test_kernels_side_by_side_do_not_meet(tmp_path):
    """Learners of one class on one machine, with numbers of ranks that differ and do not."""
    user = """
    import sys

    def total(x):
        import torch, torch.distributed as dist
        t = torch.tensor([float(x)])
        for _ in range(20):
            dist.all_reduce(t.fill_(x))
        return t.item()

    x, n = int(sys.argv[1]), 1 + int(sys.argv[1]) % 3
    with Pool(n, backend="gloo", timeout=90) as pool:
        assert pool.run(total, x) == [float(x * n)] * n
        assert pool.run(total, x + 100) == [float((x + 100) * n)] * n
    """
    text = f"""
    import subprocess
    command = [sys.executable, "-c", {PRELUDE + textwrap.dedent(user)!r}]
    users = [subprocess.Popen([*command, str(x)]) for x in range(6)]
    print([user.wait() for user in users])
    """
    assert says(tmp_path, ["--mount"], ":", text) == ["[0, 0, 0, 0, 0, 0]"]


def test_thirty_pools_at_once_do_not_meet(tmp_path):
    text = """
    from concurrent.futures import ThreadPoolExecutor

    def ranks(x):
        import torch, torch.distributed as dist
        t = torch.tensor([float(x)])
        dist.all_reduce(t)
        return t.item()

    pools = [Pool(2, backend="gloo") for _ in range(30)]
    with ThreadPoolExecutor(30) as threads:
        for add in (0, 100):
            found = list(threads.map(lambda x: pools[x].run(ranks, x + add), range(30)))
            assert found == [[2.0 * (x + add)] * 2 for x in range(30)], found
    for pool in pools:
        pool.close()
    print("none met another")
    """
    assert says(tmp_path, ["--mount"], ":", text) == ["none met another"]
