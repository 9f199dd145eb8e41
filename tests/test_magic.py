"""``%%ranks`` runs a cell on every rank, keeps its names, and is stopped like any other cell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="real ranks need torch")
pytest.importorskip("ipykernel", reason="needs a Jupyter kernel")

from kernels import ROOT, kernel
from leftovers import marked, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.filterwarnings("ignore"),  # what the libraries of Jupyter warn of
]
AFRESH = "The ranks were started afresh: what they held in memory is lost.\n"
ENDED = "The ranks of earlier cells were ended: what they held in memory is lost.\n"
STUCK = "%%ranks 3\nprint('stuck')\nif rank: dist.all_reduce(torch.ones(3))\nsum(range(10**12))"


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    with kernel(tmp_path_factory.mktemp("magic")) as it:
        it.run("%load_ext allreduce_edu\nfrom allreduce_edu import PerRank, Pool")
        yield it
        it.run("%unload_ext allreduce_edu")
        assert "UsageError: Cell magic `%%ranks` not found" in it.run("%%ranks 3\nrank").text
        it.manager.shutdown_kernel()
        it.leaves_nothing()


def test_it_runs_on_every_rank_and_prints_in_rank_order(shell):
    cell = "%%ranks 3\nx = torch.ones(2) * rank\ndist.all_reduce(x)\nprint(world_size)\nx"
    ranks = [f"[rank {r}] 3\n[rank {r}] tensor([3., 3.])\n" for r in range(3)]
    assert shell.run(cell).text.removeprefix(ENDED) == "".join(ranks)


def test_a_semicolon_silences_the_last_value(shell):
    assert shell.run("%%ranks 3\nrank;").text == ""


def test_names_stay_on_the_ranks_and_apart_from_the_notebook(shell):
    shell.run("kept = 'of the notebook'")
    shell.run("%%ranks 3\nkept = rank\ndef twice(n):\n    return 2 * n")
    assert shell.run("%%ranks\ntwice(kept)").text == "[rank 0] 0\n[rank 1] 2\n[rank 2] 4\n"
    assert shell.run("print(kept)").text == "of the notebook\n"


def test_values_go_in_and_come_out(shell):
    shell.run("same, own = 10, PerRank([1, 2, 3])")
    cell = shell.run("%%ranks 3 -i same,own --out both -o rank\nboth = torch.tensor(same + own)")
    assert cell.text == ""
    assert shell.run("print(both, rank)").text == (
        "[tensor(11), tensor(12), tensor(13)] [0, 1, 2]\n"
    )


def test_errors_name_the_lines_of_the_notebook(shell):
    cell = "%%time\n%%ranks 3\n\ndef halve(n):\n    return n / 0\n\nhalve(1)\n"
    told = "ranks 0, 1 and 2 raised ZeroDivisionError: division by zero"
    lines = ["    line 7: halve(1)", "    line 5 of halve: return n / 0"]
    assert shell.run(cell).error == "\n".join([f"RankError: {told}", *lines])
    assert shell.run("%%ranks\nrank;").text == AFRESH


def test_what_is_no_python_never_reaches_the_ranks(shell):
    shell.run("%%ranks 3\nheld = 1")
    cell = shell.run("%%ranks 3\n\nx =\n")
    assert cell.text == "UsageError: line 3: invalid syntax\n    x =\n       ^\n"
    assert shell.run("%%ranks 3\nheld;").text == ""


def test_the_ranks_of_a_pool_can_be_used_by_its_name(shell):
    shell.run("mine = Pool(2, backend='gloo')")
    assert shell.run("%%ranks mine\nworld_size").text == "[rank 0] 2\n[rank 1] 2\n"
    shell.run("mine.close()")


def test_another_number_ends_the_ranks_and_says_so(shell):
    shell.run("%%ranks 3\nx = 1")
    assert shell.run("%%ranks 2\nrank").text == f"{ENDED}[rank 0] 0\n[rank 1] 1\n"
    assert shell.run("%ranks").text == "Pool of 2 ranks, gloo, ready\n"
    assert shell.run("%ranks --close").text.startswith(
        "No ranks; a cell that begins with %%ranks 4"
    )
    assert len(marked(shell.mark)) == 2, "the kernel and the process that forks ranks"


BAD = {
    "%%ranks 17": "ranks must be an integer between 1 and 16, got 17",
    "%%ranks -1": "ranks must be an integer between 1 and 16, got -1",
    "%%ranks four": "ranks must be a number from 1 to 16 or the name of a Pool, got 'four'",
    "%%ranks 3 -i nobody": "--in asks for 'nobody', which the notebook does not have",
    "%%ranks 3 -o a, b": "%%ranks: unrecognized arguments: b; %%ranks? shows what it takes",
    "%%ranks 3 -o 2a": "names must have commas and no spaces between them, got '2a'",
    "%%ranks 3 -i shell": "'shell' cannot travel to the ranks: cannot pickle 'generator' object",
    "%%ranks 3 --backend mpi": "%%ranks: argument --backend: invalid choice: 'mpi'",
    "%%ranks 3 --timeout 0": "timeout must be a positive number of seconds, got 0.0",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_sentence(shell, line):
    shell.run("shell = (i for i in ())")
    assert shell.run(f"{line}\nrank").text.startswith(f"UsageError: {BAD[line]}")


def test_without_a_number_the_first_cell_asks_for_one(shell):
    shell.run("%ranks --close")
    told = shell.run("%%ranks\nrank").text
    assert told == "UsageError: say how many ranks, as in: %%ranks 4\n"


def test_a_long_cell_shows_what_the_ranks_do_and_leaves_no_output(shell):
    cell = shell.run("%%ranks 3\nimport time\ntime.sleep(1.5)")
    assert [list(data) for data in cell.shown] == [["application/vnd.jupyter.widget-view+json"]]
    assert cell.text.removeprefix(AFRESH) == ""
    held = "from ipywidgets.widgets.widget import _instances\nprint(len(_instances))"
    assert shell.run(held).text == "0\n"


@pytest.mark.parametrize("presses", [1, 3])
def test_stop_works_within_a_second_and_the_next_cell_runs(shell, presses):
    cell = shell.run(STUCK, stop_at="[rank 0] stuck", presses=presses)
    assert cell.name == "KeyboardInterrupt"
    assert cell.error == (
        "KeyboardInterrupt: stopped; the ranks were ended, and the next call starts new ones"
    )
    assert cell.seconds < 5, "nothing here waits for a deadline, which is at 60 s"
    assert shell.run("%%ranks 3\nrank").text == f"{AFRESH}[rank 0] 0\n[rank 1] 1\n[rank 2] 2\n"


def test_past_its_deadline_each_rank_names_its_line(shell):
    cell = shell.run(STUCK.replace("3\n", "3 --timeout 1\n", 1))
    assert cell.error.splitlines() == [
        "RankError: no result after 1 s, the deadline of this call",
        "rank 0 was at work",
        "    line 4: sum(range(10**12))",
        "ranks 1 and 2 were in all_reduce()",
        "    line 3: if rank: dist.all_reduce(torch.ones(3))",
    ]


@pytest.mark.parametrize("end", ["killed", "restarted", "shut down"])
def test_however_the_kernel_ends_nothing_is_left(tmp_path, end):
    with kernel(tmp_path) as it:
        it.run("%load_ext allreduce_edu")
        it.begin(STUCK, "[rank 0] stuck")
        if end == "killed":
            os.kill(it.manager.provisioner.pid, signal.SIGKILL)
        elif end == "restarted":
            it.manager.restart_kernel(now=False)
            until(lambda: len(marked(it.mark)) == 1, "more than the new kernel is left")
            it.manager.shutdown_kernel(now=True)
        else:
            it.manager.shutdown_kernel()
        it.leaves_nothing()


def test_strict_nbval_and_two_clean_runs_agree(tmp_path):
    """A cell long enough for the status, one that fails, one after it, and what goes in and out."""
    nbformat = pytest.importorskip("nbformat", reason="writes a notebook")
    pytest.importorskip("nbval", reason="compares outputs")
    slow = "import time\ntime.sleep(0.9)\n"
    fails = "get_ipython().run_cell_magic('ranks', '', 'y / (rank - 1)')"
    sources = [
        "%load_ext allreduce_edu\nx = 5",
        f"%%ranks 3 -i x -o y\n{slow}y = x + rank\nprint('hello')\ny",
        "y",
        f"try:\n    {fails}\nexcept RuntimeError as error:\n    print(error)",
        "%%ranks\nrank",
        "def nap():\n    import time\n    time.sleep(0.9)",
        "from allreduce_edu import Pool\nwith Pool(2, backend='gloo') as pool:\n    pool.run(nap)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    path = tmp_path / "book.ipynb"
    nbformat.write(book, path)
    clean = [sys.executable, "-m", "allreduce_edu", "clean", "--here", str(path)]
    env = os.environ | {"PYTHONPATH": ROOT}
    texts = []
    for _ in range(2):
        subprocess.run(clean, check=True, capture_output=True, env=env, cwd=ROOT)
        texts.append(path.read_text())
    assert texts[0] == texts[1]
    assert "widget" not in texts[0]
    strict = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
    ran = subprocess.run(
        [sys.executable, *strict, "-c", "/dev/null", str(path)],
        check=False,
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout
    assert f"{len(sources)} passed" in ran.stdout
