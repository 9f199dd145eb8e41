"""`.venv`: made once, mended when it does not fit, never taken from anybody."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from allreduce_edu.launcher import environment
from allreduce_edu.launcher.environment import Environment, missing, requirements, version_of
from allreduce_edu.launcher.failures import Stop
from allreduce_edu.launcher.stages import Failed

ROOT = Path(__file__).resolve().parent.parent
MAKE, INSTALL = "making .venv", "installing packages"


class Workshop:
    """Stands in for the commands of set-up: makes what they make and remembers their names."""

    def __init__(self, root: Path) -> None:
        self.environment = Environment(root)
        self.done: list[str] = []
        self.commands: list[list[str]] = []
        self.said: list[str] = []
        self.trouble: dict[str, list[BaseException]] = {}

    def __call__(self, _: Path) -> Workshop:
        return self

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def run(self, title: str, command: list[str], **_: object) -> None:
        self.done.append(title)
        self.commands.append(command)
        if self.trouble.get(title):
            raise self.trouble[title].pop(0)
        if title == MAKE:
            pip = self.environment.folder / "lib/python3.11/site-packages/pip"
            for folder in (self.environment.python.parent, pip):
                folder.mkdir(parents=True)
            self.environment.python.touch()
            (self.environment.folder / "pyvenv.cfg").touch()

    def new(self) -> list[str]:
        """Return the names of the commands since the last call."""
        done, self.done = self.done, []
        return done


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    workshop = Workshop(tmp_path)
    monkeypatch.setattr(environment, "Stages", workshop)
    monkeypatch.setattr(environment, "settle", lambda *_, **__: None)
    monkeypatch.setattr(environment, "version_of", lambda p: (3, 11) if p.exists() else None)
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    return workshop


def test_the_first_run_makes_and_the_second_does_nothing(shop: Workshop) -> None:
    assert repr(shop.environment).endswith("/.venv, not ready)")
    shop.environment.prepare(["torch"])
    assert shop.new() == [MAKE, INSTALL]
    assert shop.commands[1][-2:] == ["-e", ".[torch]"]
    assert shop.environment.ready
    assert repr(shop.environment).endswith("/.venv, ready)")
    shop.environment.prepare(["torch"])
    assert shop.new() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_installs_again_into_the_same_environment(shop: Workshop, name: str) -> None:
    shop.environment.prepare(["torch"])
    shop.new()
    with (shop.environment.root / name).open("a") as file:
        file.write("# changed\n")
    shop.environment.prepare(["torch"])
    assert shop.new() == [INSTALL]


def test_extras_add_up(shop: Workshop) -> None:
    shop.environment.prepare(["torch"])
    shop.environment.prepare(["torch", "test"])
    assert shop.commands[-1][-1] == ".[test,torch]"
    shop.new()
    shop.environment.prepare(["torch"])
    assert shop.new() == []


@pytest.mark.parametrize("at", [MAKE, INSTALL])
@pytest.mark.parametrize("why", [KeyboardInterrupt(), Failed("broken pipe")])
def test_the_run_after_an_interrupted_one_starts_afresh_and_remembers_the_build(
    shop: Workshop, at: str, why: BaseException
) -> None:
    shop.trouble[at] = [why]
    with pytest.raises((KeyboardInterrupt, Stop)):
        shop.environment.prepare(["torch"], "cuda")
    assert not shop.environment.ready
    shop.new()
    shop.environment.prepare(["torch"])
    assert shop.new() == [MAKE, INSTALL]
    assert shop.environment._stamp().torch == "cuda"


def test_an_interrupted_change_counts_as_unfinished(shop: Workshop) -> None:
    shop.environment.prepare(["torch"])
    shop.trouble[INSTALL] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        shop.environment.prepare(["torch", "test"])
    shop.new()
    shop.environment.prepare(["torch"])
    assert shop.new() == [MAKE, INSTALL]


def test_a_python_that_has_gone_is_replaced(shop: Workshop) -> None:
    shop.environment.prepare(["torch"])
    shop.environment.python.unlink()
    shop.new()
    shop.environment.prepare(["torch"])
    assert shop.new() == [MAKE, INSTALL]


def test_another_python_under_the_same_name_installs_again(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.environment.prepare(["torch"])
    shop.new()
    monkeypatch.setattr(environment, "version_of", lambda _: (3, 12))
    shop.environment.prepare(["torch"])
    assert shop.new() == [INSTALL]


def test_a_clone_that_was_moved_gets_a_new_one(shop: Workshop, tmp_path: Path) -> None:
    shop.environment.prepare(["torch"])
    shop.new()
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("pyproject.toml", "constraints.txt", ".venv"):
        (tmp_path / name).rename(moved / name)
    shop.environment = Environment(moved)
    shop.environment.prepare(["torch"])
    assert shop.new() == [MAKE, INSTALL]


def test_a_build_that_was_chosen_stays_until_another_is(shop: Workshop) -> None:
    for build, expected in [(None, "auto"), ("cpu", "cpu"), (None, "cpu"), ("cuda", "cuda")]:
        shop.environment.prepare(["torch"], build)
        assert shop.environment._stamp().torch == expected


def test_without_a_torch_wheel_the_rest_is_installed_once(shop: Workshop) -> None:
    nowhere = Failed("ERROR: No matching distribution found for torch>=2.8; extra == 'torch'")
    shop.trouble[INSTALL] = [nowhere]
    shop.environment.prepare(["torch"])
    assert shop.new() == [MAKE, INSTALL, INSTALL]
    assert shop.commands[-1][-1] == "."
    assert "no torch wheel" in shop.said[-1]
    shop.environment.prepare(["torch"])
    assert shop.new() == []


def test_other_failures_stop_with_a_sentence_and_the_log(shop: Workshop) -> None:
    shop.trouble[INSTALL] = [Failed("OSError: [Errno 28] No space left on device")]
    with pytest.raises(Stop, match=r"the disk is full: .*\(log: .*install\.log\)$"):
        shop.environment.prepare(["torch"])


def test_jupyterlab_asks_no_question_and_keeps_what_widgets_show(shop: Workshop) -> None:
    shop.environment.prepare(["torch"])
    settings = shop.environment.folder / "share/jupyter/lab/settings/overrides.json"
    said = json.loads(settings.read_text(encoding="utf-8"))
    assert said["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    assert said["@jupyter-widgets/jupyterlab-manager:plugin"] == {"saveState": True}


def test_an_environment_made_by_hand_is_used_and_not_remade(shop: Workshop) -> None:
    shop.run(MAKE, [])
    shop.new()
    mine = shop.environment.folder / "mine"
    mine.touch()
    shop.environment.prepare(["torch"])
    assert shop.new() == [INSTALL]
    assert mine.exists()
    assert "was not made by this command" in shop.said[0]


def test_an_environment_without_pip_gets_it(shop: Workshop) -> None:
    shop.run(MAKE, [])
    (shop.environment.folder / "lib/python3.11/site-packages/pip").rmdir()
    shop.new()
    shop.environment.prepare(["torch"])
    assert shop.new() == ["adding pip", INSTALL]


def test_a_folder_of_somebody_else_is_left_alone(shop: Workshop) -> None:
    shop.environment.folder.mkdir()
    mine = shop.environment.folder / "thesis.txt"
    mine.touch()
    with pytest.raises(Stop, match="move it away"):
        shop.environment.prepare(["torch"])
    assert mine.exists()
    assert shop.done == []


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_link_to_another_disk_stays_a_link(shop: Workshop, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pyvenv.cfg").touch()
    shop.environment.folder.symlink_to(elsewhere)
    shop.environment.prepare(["torch"])
    assert shop.environment.folder.is_symlink()
    assert (elsewhere / "bin/python").exists()


def test_an_environment_of_an_old_python_is_refused(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(MAKE, [])
    monkeypatch.setattr(environment, "version_of", lambda _: (3, 8))
    with pytest.raises(Stop, match=r"has Python 3\.8"):
        shop.environment.prepare(["torch"])


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_is_told_what_to_install(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else real(name)
    )
    with pytest.raises(Stop, match="sudo apt install python3-venv"):
        shop.environment.prepare(["torch"])
    assert not shop.environment.folder.exists()


def test_outside_a_clone_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(Stop, match="--here"):
        Environment(tmp_path).prepare(["torch"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such lock")
def test_a_second_set_up_waits_for_the_first(shop: Workshop) -> None:
    import fcntl

    holder = os.open(shop.environment.root, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    real_say = shop.say

    def let_go(sentence: str) -> None:
        real_say(sentence)
        if "another set-up" in sentence:
            assert shop.done == []
            os.close(holder)

    shop.say = let_go  # type: ignore[method-assign]
    shop.environment.prepare(["torch"])
    assert "waiting" in shop.said[0]
    assert shop.new() == [MAKE, INSTALL]


def test_programs_in_it_see_its_scripts_and_nobody_elses_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET"):
        monkeypatch.setenv(name, "theirs")
    monkeypatch.setenv("PATH", "theirs")
    there = Environment(tmp_path)
    environ = there.environ()
    assert not {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET"} & environ.keys()
    assert environ["PATH"] == f"{there.python.parent}{os.pathsep}theirs"
    assert environ["VIRTUAL_ENV"] == str(tmp_path / ".venv")


def test_a_running_python_has_a_version_and_others_have_none(tmp_path: Path) -> None:
    assert version_of(Path(sys.executable)) == sys.version_info[:2]
    assert version_of(tmp_path / "nothing") is None
    (tmp_path / "no program").touch(mode=0o755)
    assert version_of(tmp_path / "no program") is None


def test_requirements_are_those_that_a_toml_parser_reads() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, listed in project["optional-dependencies"].items():
        assert requirements([extra]) == project["dependencies"] + listed
    assert requirements() == project["dependencies"]


@pytest.mark.parametrize(
    ("have", "met"),
    [("2.0", True), ("2.0.0", True), ("10.1", True), ("1.26.4", False), (None, False)],
)
def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, have: str | None, met: bool) -> None:
    def version(_: str) -> str:
        if have is None:
            raise importlib.metadata.PackageNotFoundError
        return have

    monkeypatch.setattr(environment, "requirements", lambda *_: ["numpy>=2.0"])
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert missing() == ([] if met else ["numpy>=2.0"])
