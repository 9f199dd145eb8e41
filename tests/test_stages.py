"""Commands of set-up: a line while they run, all they said when they fail, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from allreduce_edu.launcher.stages import Failed, Stages, doing

SAY = [sys.executable, "-c", "print('Collecting torch'); print('Grüße')"]
FAIL = [sys.executable, "-c", "print('why not'); raise SystemExit(3)"]


def test_plain_lines_tell_start_and_end_and_the_log_has_the_rest(tmp_path: Path) -> None:
    written: list[str] = []
    stages = Stages(tmp_path / "log", written.append, living=False)
    stages.run("at work", SAY, env={**os.environ, "PYTHONUTF8": "1"})
    assert written[0] == "  at work …\n"
    assert written[-1].startswith("  at work: done in ")
    assert (tmp_path / "log").read_text(encoding="utf-8") == "Collecting torch\nGrüße\n"
    assert repr(stages) == "Stages(log='log')"


def test_a_living_line_is_redrawn_within_the_terminals_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((30, 24)))
    written: list[str] = []
    Stages(tmp_path / "log", written.append, living=True).run("at work " * 9, SAY)
    assert len(written) >= 2
    assert written[-1] == "\n"
    assert all(line.startswith("\r") and len(line) == 30 for line in written[:-1])


def test_a_long_silence_gets_a_sign_of_life(tmp_path: Path) -> None:
    written: list[str] = []
    nap = [sys.executable, "-c", "import time; time.sleep(1)"]
    Stages(tmp_path / "log", written.append, living=False, beat=0.1).run("napping", nap)
    assert len(written) > 2


def test_a_failure_carries_what_was_said_even_without_room_for_a_log(tmp_path: Path) -> None:
    stages = Stages(tmp_path / "no folder" / "log", lambda _: None, living=False)
    with pytest.raises(Failed) as failed:
        stages.run("failing", FAIL)
    assert failed.value.output == "why not\n"


def test_a_reader_that_left_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    gone = os.fdopen(writing, "w", buffering=1, encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", gone)
    Stages(tmp_path / "log").run("at work", SAY)
    assert (tmp_path / "log").exists()
    with contextlib.suppress(OSError):
        gone.close()


@pytest.mark.skipif(os.name != "posix", reason="Windows has no process groups of this kind")
def test_an_interrupt_takes_children_of_children_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    grandchild = (
        f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"

    def interrupted(*_: object) -> None:
        while not (pid_file.exists() and pid_file.read_text()):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(Stages, "_show_until_done", interrupted)
    stages = Stages(tmp_path / "log", lambda _: None, living=False)
    with pytest.raises(KeyboardInterrupt):
        stages.run("hanging", [sys.executable, "-c", child])
    for _ in range(1500):
        try:
            os.kill(int(pid_file.read_text()), 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid_file.read_text()}/stat").exists():  # dead, and waited for by nobody
            stat = Path(f"/proc/{pid_file.read_text()}/stat").read_text()
            if stat.rsplit(")", 1)[1].split()[0] == "Z":
                return
        time.sleep(0.01)
    pytest.fail("the grandchild still runs")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], ""),
        (["nonsense\n"], ""),
        (["Collecting torch>=2.8\n", "noise\n"], "Collecting torch>=2.8"),
        (
            ["  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (192 MB)\n"],
            "Downloading torch-2.13.0 (192 MB)",
        ),
        (["Installing collected packages: a, b, c\n"], "unpacking 3 packages"),
    ],
)
def test_what_pip_is_doing(said: list[str], words: str) -> None:
    assert doing(said) == words
