"""The training script, started by torchrun as its first lines say, and a rank killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="real ranks need torch")

from leftovers import marked, until  # noqa: E402

from allreduce_edu.realdist import train_ddp  # noqa: E402
from allreduce_edu.realdist.pool import Pool  # noqa: E402
from allreduce_edu.realdist.train import fingerprint  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
ROOT = str(Path(__file__).parents[1])
EPOCHS = 12
PATIENCE = 240  # seconds for a run


def documented(after):
    """Return the command line that follows `after` in the script's own text, in words."""
    _, _, rest = train_ddp.__doc__.partition(after)
    command = rest.partition("::\n\n")[2].partition("\n\n")[0]
    return command.replace("\\\n", " ").split()


class Job:
    """A run of the script; all its processes can be found."""

    def __init__(self, folder, words, wrap=()):
        self.mark = f"TORCHRUN_OF_TEST={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [*wrap, sys.executable, *words[1:]],
            cwd=folder,
            env=os.environ | {name: value, "PYTHONPATH": ROOT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.watchdog = threading.Timer(PATIENCE, self.kill)
        self.watchdog.start()

    def kill(self):
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def reads(self, pattern):
        """Return the text up to a line that fits."""
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if re.search(pattern, line):
                return "".join(seen)
        self.watchdog.cancel()
        pytest.fail(f"no {pattern!r} in {''.join(seen)}")

    def pid_of(self, rank):
        def is_rank(pid):
            return f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text()

        (pid,) = [pid for pid in marked(self.mark) if is_rank(pid)]
        return pid

    def end(self):
        rest, _ = self.process.communicate()
        self.watchdog.cancel()
        until(lambda: not marked(self.mark), "processes are left")
        return rest


def test_a_killed_rank_costs_an_epoch_and_not_a_bit(tmp_path):
    """The weights are those of the same code in a notebook, where nobody was killed."""
    words = documented("Four ranks on this machine")
    words[words.index("--nproc-per-node") + 1] = "2"
    job = Job(tmp_path, [*words, "--epochs", str(EPOCHS)])
    job.reads(r"epoch 3 of 12: ")
    os.kill(job.pid_of(1), signal.SIGKILL)
    text = job.reads(r"goes on after epoch \d+, from digits.pt") + job.end()
    assert job.process.returncode == 0, text
    weights = re.findall(r"rank (\d): weights (\w+)", text)
    assert sorted(rank for rank, _ in weights) == ["0", "1"]

    def train():
        return train_ddp.train(torch.device("cpu"), EPOCHS, 16, None)

    with Pool(2, backend="gloo") as pool:
        models = pool.run(train)
    assert {each for _, each in weights} == {fingerprint(m.parameters()) for m in models}

    logs = {str(p.relative_to(tmp_path / "logs")): p for p in tmp_path.glob("logs/*/*/*/*")}
    last = [p.read_text() for name, p in sorted(logs.items()) if "attempt_1" in name]
    assert sum("weights" in each for each in last) == 2, "each rank has a file of its own"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["digits.pt"]


def test_it_starts_where_the_name_of_the_machine_cannot_be_looked_up(tmp_path):
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Ur", "-u", "true"], check=False).returncode:
        pytest.skip("user namespaces are refused here")
    words = documented("Four ranks on this machine")
    words[words.index("--nproc-per-node") + 1] = "1"
    renamed = [unshare, "-Ur", "-u", "sh", "-c", 'hostname nobody-knows-17 && "$@"', "sh"]
    job = Job(tmp_path, [*words, "--epochs", "1"], renamed)
    assert "rank 0: weights" in job.end()
    assert job.process.returncode == 0


def test_the_lines_for_one_and_for_two_machines_run_the_same_script():
    one, two = documented("Four ranks on this machine"), documented("On two machines")
    for words in (one, two):
        assert words[:3] == ["python", "-m", "torch.distributed.run"]
        assert words[words.index("-m", 3) + 1] == "allreduce_edu.realdist.train_ddp"
    assert one[one.index("--local-addr") + 1] == "127.0.0.1"
    assert one[one.index("--rdzv-endpoint") + 1].startswith("127.0.0.1:")
    assert two[two.index("--nnodes") + 1] == "2"


def test_a_checkpoint_is_replaced_whole(tmp_path, monkeypatch):
    model = train_ddp.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "digits.pt"
    train_ddp.save(model, optimizer, path, 1)

    def dies(state, file):
        Path(file).write_bytes(b"half of")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        train_ddp.save(model, optimizer, path, 2)
    assert torch.load(path, weights_only=True)["epochs"] == 1
