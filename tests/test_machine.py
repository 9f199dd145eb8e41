"""The machine check: right about what is here, about what is not, and about real processes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys

import pytest

from allreduce_edu import machine
from allreduce_edu.machine import Line, Report, check, look

TORCH = {"version": "2.13.0", "gloo": True, "nccl": False, "gpus": []}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let every package be here, torch answer at once, and two processes add right."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.0")
    monkeypatch.setattr(machine, "_asked", lambda _: TORCH)
    monkeypatch.setattr(machine, "_two_processes", lambda _: [3.0, 3.0])
    monkeypatch.setattr(machine, "has_nvidia_driver", lambda: False)
    return monkeypatch


def states() -> dict[str, str]:
    return {line.what: line.state for line in look()}


def words(what: str) -> str:
    return next(line.words for line in look() if line.what == what)


def test_check_prints_its_lines_and_returns_a_verdict(
    fake: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check()
    printed = capsys.readouterr().out.splitlines()
    assert printed == [str(line) for line in report.lines]
    assert report
    assert "everything needed works here" in repr(report)
    assert "\n" not in repr(report)
    assert check().lines == report.lines


def test_marks_and_words_say_the_same() -> None:
    assert str(Line("gloo", "works", "fine")) == "✓ works    gloo        fine"
    assert str(Line("NCCL", "without", "no GPU")).startswith("– without")
    assert str(Line("torch", "broken", "no")).startswith("✗ broken")


def test_a_verdict_names_what_is_broken_first() -> None:
    lines = [Line("a", "works", ""), Line("b", "without", ""), Line("c", "broken", "")]
    assert repr(Report(lines)) == "not working: c; without b"
    assert not Report(lines)
    assert Report(lines[:2])


def test_a_missing_package_of_the_core_is_broken(fake: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "anywidget":
            raise importlib.metadata.PackageNotFoundError
        return "1.0"

    fake.setattr(importlib.metadata, "version", version)
    assert states()["widgets"] == "broken"
    assert "anywidget not installed" in words("widgets")


def test_without_torch_the_core_works(fake: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError
        return "1.0"

    fake.setattr(importlib.metadata, "version", version)
    assert states()["torch"] == "without"
    assert "gloo" not in states()
    assert Report(list(look()))


def test_a_torch_that_cannot_be_imported_is_broken(fake: pytest.MonkeyPatch) -> None:
    fake.setattr(machine, "_asked", lambda _: "ImportError: libgomp.so.1: cannot open")
    assert states()["torch"] == "broken"
    assert "libgomp" in words("torch")


@pytest.mark.parametrize("answer", [[3.0, 1.0], [], RuntimeError("rank 1 died\nand more")])
def test_gloo_that_adds_wrong_or_fails_is_broken(
    fake: pytest.MonkeyPatch, answer: list[float] | Exception
) -> None:
    def two(_: object) -> list[float]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    fake.setattr(machine, "_two_processes", two)
    assert states()["gloo"] == "broken"
    assert "\n" not in words("gloo")


@pytest.mark.parametrize(
    ("gpus", "nccl", "driver", "expected"),
    [
        ([], False, False, ("without", "without")),
        ([], True, True, ("without", "without")),
        (["H200", "H200"], True, True, ("works", "works")),
        (["H200"], False, True, ("works", "without")),
    ],
)
def test_gpus_and_nccl(
    fake: pytest.MonkeyPatch, gpus: list[str], nccl: bool, driver: bool, expected: tuple[str, str]
) -> None:
    fake.setattr(machine, "_asked", lambda _: {**TORCH, "gpus": gpus, "nccl": nccl})
    fake.setattr(machine, "has_nvidia_driver", lambda: driver)
    seen = states()
    assert (seen["GPUs"], seen["NCCL"]) == expected
    assert ("lab --cuda" in words("GPUs")) == (driver and not gpus)


def test_a_child_answers_or_its_last_complaint_does() -> None:
    assert machine._asked("import json; print(json.dumps({'a': 1}))") == {"a": 1}
    assert machine._asked("raise ImportError('no libgomp')") == "ImportError: no libgomp"
    assert machine._asked("raise SystemExit(3)") == "status 3"


def test_the_question_to_torch_is_answered() -> None:
    torch = pytest.importorskip("torch")
    said = machine._asked(machine.ASK_TORCH)
    assert isinstance(said, dict)
    assert said["version"] == torch.__version__
    assert json.dumps(said)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_two_real_processes_add() -> None:
    """In a Python of its own, as `check` runs: the function must be found by the ranks."""
    ask = "from allreduce_edu import machine; print(machine._gloo())"
    child = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=120
    )
    assert child.stdout.startswith("✓ works    gloo"), child.stdout
