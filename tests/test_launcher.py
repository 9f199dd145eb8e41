"""The command line: one sentence on old Pythons, what each command starts, what its errors say."""

from __future__ import annotations

import ast
import errno
import os
import platform
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from allreduce_edu import __main__ as entry
from allreduce_edu.launcher import commands
from allreduce_edu.launcher.environment import Environment
from allreduce_edu.launcher.failures import Stop

ROOT = Path(__file__).resolve().parent.parent
READ_BY_OLD_PYTHONS = ("allreduce_edu/__init__.py", "allreduce_edu/__main__.py")
NEWER_SYNTAX = (
    *(ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef, ast.Await, ast.Nonlocal),
    *(ast.YieldFrom, ast.MatMult, ast.Match),
)


def newer_syntax(source: str) -> list[str]:
    """Return what Python 2.7 cannot parse in `source`, as far as anybody would write it."""
    found = [] if source.isascii() else ["a letter outside ASCII"]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, NEWER_SYNTAX):
            found.append(f"line {node.lineno}: {type(node).__name__}")
        if isinstance(node, ast.arg | ast.FunctionDef):
            annotated = node.annotation if isinstance(node, ast.arg) else node.returns
            if annotated:
                found.append(f"line {node.lineno}: an annotation")
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            found += [f"line {e.lineno}: a star" for e in node.elts if isinstance(e, ast.Starred)]
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            found += [
                f"line {node.lineno}: {a.name}" for a in node.names if a.name == "annotations"
            ]
        if isinstance(node, ast.Raise) and node.cause:
            found.append(f"line {node.lineno}: raise from")
    return found


@pytest.mark.parametrize("name", READ_BY_OLD_PYTHONS)
def test_what_an_old_python_reads_parses_there(name: str) -> None:
    assert newer_syntax((ROOT / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source", ["f'{x}'", "def f(x: int): pass", "[*x]", "x: int", "'é'", "raise x from y"]
)
def test_newer_syntax_is_seen(source: str) -> None:
    assert newer_syntax(source)


def old_pythons() -> list[str]:
    """Return Pythons on this machine that are too old, if pyenv keeps some."""
    homes = Path("~/.pyenv/versions").expanduser().glob("*/bin/python")
    return sorted(str(p) for p in homes if p.parts[-3].startswith(("2.7", "3.6", "3.9")))


@pytest.mark.skipif(not old_pythons(), reason="no old Python is here")
def test_old_pythons_print_one_sentence_that_says_what_to_do() -> None:
    for python in old_pythons():
        command = [python, "-B", "-m", "allreduce_edu", "lab"]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert child.stdout == ""
        assert len(child.stderr.splitlines()) == 1, child.stderr
        assert "needs Python 3.10 or newer" in child.stderr
        assert "-m allreduce_edu lab`" in child.stderr


def test_a_newer_python_on_the_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install a newer one" in entry.too_old(["lab"])
    for name in ("python3.9", "python3.10", "python3.12"):
        (tmp_path / name).touch(mode=0o755)
    if os.name == "posix":
        assert "run `python3.12 -m allreduce_edu test`" in entry.too_old(["test"])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record what is started instead of starting it; the environment counts as ready."""
    commands_seen: list[list[str]] = []

    def instead(command: list[str], _: object) -> int:
        commands_seen.append(command)
        return 0

    def execve(_: str, command: list[str], __: object) -> None:
        commands_seen.append(command)
        raise SystemExit(0)  # a process that was replaced does not go on

    monkeypatch.setattr(commands, "call", instead)
    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setattr(commands, "runs", lambda *_: True)
    monkeypatch.setattr(Environment, "prepare", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return commands_seen


def start(argv: list[str]) -> int:
    try:
        return commands.main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_lab_opens_the_map_and_passes_arguments_on(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "some-browser")
    assert start(["lab", "--", "--port=9999"]) == 0
    (command,) = started
    assert command[:3] == [str(Environment().python), "-m", "jupyterlab"]
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in command
    assert "-y" in command
    assert command[-1] == "--port=9999"
    assert "--no-browser" not in command


@pytest.mark.skipif(os.name != "posix", reason="Windows has no root")
@pytest.mark.parametrize("user", [0, 1000])
def test_root_is_allowed_and_told(
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    user: int,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    start(["lab"])
    assert ("--allow-root" in started[0]) == (user == 0)
    assert ("--allow-root is added" in capsys.readouterr().out) == (user == 0)


def test_without_a_display_the_tunnel_is_told(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "has_display", lambda _: False)
    monkeypatch.setattr(commands, "free_port", lambda: 8891)
    start(["lab"])
    assert {"--no-browser", "--port=8891"} <= set(started[0])
    assert "ssh -N -L 8891:localhost:8891 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("system", "environ", "seen"),
    [
        ("Linux", {}, False),
        ("Linux", {"DISPLAY": ":0"}, True),
        ("Linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("Linux", {"DISPLAY": ":10", "SSH_CONNECTION": "a b"}, False),
        ("Linux", {"BROWSER": "code", "SSH_CONNECTION": "a b"}, True),
        ("Darwin", {}, True),
        ("Darwin", {"SSH_CONNECTION": "a b"}, False),
        ("Windows", {}, True),
    ],
)
def test_displays(
    monkeypatch: pytest.MonkeyPatch, system: str, environ: dict[str, str], seen: bool
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    assert commands.has_display(environ) is seen


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < commands.free_port(port) <= port + 100


def test_test_runs_tests_and_notebooks(started: list[list[str]]) -> None:
    assert start(["test"]) == 0
    tests, notebooks = started
    assert tests[1:] == ["-m", "pytest"]
    assert notebooks[-1] == "notebooks"
    assert {"--nbval-current-env", "--nbval-cell-timeout=120"} <= set(notebooks)


@pytest.mark.parametrize("failing", ["tests", "notebooks", "browser"])
def test_test_fails_if_one_part_does_and_runs_the_others(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    ran = []

    def titled(name: str, *_: object) -> int:
        ran.append(name)
        return 2 if name == failing else 0

    monkeypatch.setattr(commands, "_titled", titled)
    assert start(["test", "--browser"]) == 1
    assert ran == ["tests", "notebooks", "browser"]


def test_arguments_for_pytest_run_pytest_alone(started: list[list[str]]) -> None:
    start(["test", "--", "-k", "ring", "--", "x"])
    assert [c[1:] for c in started] == [["-m", "pytest", "-k", "ring", "--", "x"]]


def test_without_torch_its_notebooks_are_passed_over_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notebooks").mkdir()
    for name, source in [("03", "import numpy"), ("05", "import torch\\n")]:
        text = f'{{"source": ["{source}"]}}'
        (tmp_path / f"notebooks/{name}.ipynb").write_text(text, encoding="utf-8")
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    for there, ignored in [(True, []), (False, [f"--ignore={tmp_path / 'notebooks/05.ipynb'}"])]:
        monkeypatch.setattr(commands, "runs", lambda *_, there=there: there)
        assert commands.without_torch("python", {}) == ignored
    assert "05.ipynb is passed over" in capsys.readouterr().out


def test_a_statement_runs_or_not() -> None:
    assert commands.runs(sys.executable, "import os", os.environ)
    assert not commands.runs(sys.executable, "import nothing_of_that_name", os.environ)


@pytest.mark.parametrize(
    ("system", "machine", "mode"),
    [
        ("Linux", "x86_64", "--nbval"),
        ("Linux", "aarch64", "--nbval-lax"),
        ("Darwin", "arm64", "--nbval-lax"),
        ("Windows", "AMD64", "--nbval-lax"),
    ],
)
def test_outputs_are_compared_where_they_were_made(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, mode: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert commands.nbval_mode() == mode


def test_the_users_settings_do_not_reach_the_notebooks() -> None:
    user = {"JUPYTER_PATH": "theirs", "MPLBACKEND": "agg", "HOME": "kept", "IPYTHONDIR": "theirs"}
    with commands.sealed(sys.executable, {**os.environ, **user}) as environ:
        assert not {"JUPYTER_PATH", "MPLBACKEND"} & environ.keys()
        assert environ["HOME"] == "kept"
        folder = Path(environ["JUPYTER_CONFIG_DIR"]).parent
        assert Path(environ["IPYTHONDIR"]).parent == folder
        assert folder.is_dir()
    assert not folder.exists()


def test_here_says_what_is_missing_and_changes_nothing(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "missing", lambda extras: ["numpy>=2.0"] if extras else [])
    assert start(["test", "--here"]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "lacks numpy>=2.0" in sentence
    assert f'{sys.executable} -m pip install -c constraints.txt -e ".[test,torch]"' in sentence
    assert started == []
    assert start(["lab", "--here"]) == 0
    assert started[0][0] == sys.executable


def test_check_installs_nothing(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Environment, "prepare", pytest.fail)
    for ready, here, python in [
        (False, [], sys.executable),
        (True, [], str(Environment().python)),
        (True, ["--here"], sys.executable),
    ]:
        monkeypatch.setattr(Environment, "ready", ready)
        start(["check", *here])
        assert started.pop()[0] == python


@pytest.mark.parametrize("verb", ["clean", "check"])
def test_words_for_nobody_are_refused(
    verb: str, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        commands.main([verb, "--here", "--", "foo.ipynb"])
    assert "`--` passes words on for lab and test only" in capsys.readouterr().err
    assert started == []


def test_clean_gets_absolute_paths_and_flags(started: list[list[str]]) -> None:
    start(["clean", "--check", "notebooks/a.ipynb"])
    (command,) = started
    assert command[1:] == [
        "-m",
        "allreduce_edu.clean",
        "--check",
        str(Path("notebooks/a.ipynb").resolve()),
    ]


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Stop("do this"), 1, "allreduce_edu: do this"),
        (OSError(errno.ENOSPC, "x"), 1, "the disk is full"),
        (PermissionError(errno.EACCES, "x", "some/file"), 1, "some/file cannot be written"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_errors_are_sentences(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    words: str,
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setitem(commands.VERBS, "lab", fail)
    assert commands.main(["lab"]) == status
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert words in sentence


def test_an_error_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise FileNotFoundError(errno.ENOENT, "x")

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setitem(commands.VERBS, "lab", fail)
    with pytest.raises(FileNotFoundError):
        commands.main(["lab"])
