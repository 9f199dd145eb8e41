"""Makes `.venv` in the project's folder, installs into it, and knows whether it is up to date.

Standard library only: this runs before anything is installed. A stamp in `.venv` says what the last
installation that ended well was for; without it the environment counts as unfinished and is made
anew, so that an interrupted set-up repairs itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from allreduce_edu.launcher.failures import Stop, diagnose, no_venv
from allreduce_edu.launcher.stages import Failed, Stages
from allreduce_edu.launcher.torch_build import lacks_torch, settle

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (3, 10)
PIP = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check")
QUIET = ("--progress-bar", "off", "--retries", "3")


@dataclass(frozen=True)
class Stamp:
    """What an environment was made for; `ready` only when its installation ended well."""

    root: str  # scripts in an environment carry its path, so that it cannot be moved
    ready: bool = False
    fingerprint: str = ""
    extras: tuple[str, ...] = ()
    torch: str = "auto"


class Environment:
    """The project's `.venv`: `prepare(["torch"])` makes it ready, and costs nothing once it is.

    `python` is where its Python is, existing or not.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.log = self.folder / "install.log"
        self.python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def __repr__(self) -> str:
        state = "ready" if self.ready else "not ready"
        return f"Environment({self.root.name}/.venv, {state})"

    @property
    def ready(self) -> bool:
        """Whether an installation ended well here, for whatever it was asked."""
        stamp = self._stamp()
        return stamp is not None and stamp.ready and self.python.exists()

    def prepare(self, extras: Iterable[str], torch: str | None = None) -> None:
        """Make or mend what is needed, so that everything asked for is installed.

        `torch` is "cpu", "cuda" or None: as last time, and at first "auto".
        """
        if not (self.root / "pyproject.toml").exists():
            raise Stop(f"{self.root} is not a clone of the project: run in one, or add --here")
        stages = Stages(self.log)
        with self._alone(stages):
            stamp = self._stamp() or Stamp(str(self.root))
            build = torch or stamp.torch
            version = self._standing(stages)
            if version is None:
                self._make(build, stages)
                stamp, version = Stamp(str(self.root), torch=build), sys.version_info[:2]
            wanted = replace(
                stamp,
                ready=True,
                fingerprint=fingerprint(self.root, version),
                extras=tuple(sorted({*stamp.extras, *extras})),
                torch=build,
            )
            if wanted != stamp:
                self._install(wanted, stages, switch=build != stamp.torch)

    def _standing(self, stages: Stages) -> tuple[int, int] | None:
        """Return the version of a Python that can be used as it stands, or None."""
        stamp, version = self._stamp(), version_of(self.python)
        if version is None:
            return None
        if stamp is None:
            stages.say(f"{self.folder} was not made by this command: adding what is missing")
        elif not stamp.ready or stamp.root != str(self.root):
            return None
        if version < OLDEST:
            have = f"{version[0]}.{version[1]}"
            raise Stop(f"{self.folder} has Python {have}: remove it and run this again")
        return version

    def environ(self) -> dict[str, str]:
        """Return variables for programs in here: its scripts first, nobody else's packages."""
        foreign = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_CONSTRAINT")
        environ = {k: v for k, v in os.environ.items() if k not in foreign}
        path = os.pathsep.join(filter(None, [str(self.python.parent), environ.get("PATH")]))
        return {**environ, "PATH": path, "VIRTUAL_ENV": str(self.folder), "PIP_USER": "0"}

    def _stamp(self) -> Stamp | None:
        """Return the stamp, or None where this class has not been at work."""
        try:
            said = json.loads((self.folder / "allreduce_edu.json").read_text(encoding="utf-8"))
            return Stamp(**{**said, "extras": tuple(said["extras"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _put(self, stamp: Stamp) -> None:
        """Write the stamp, whole or not at all."""
        self.folder.mkdir(exist_ok=True)
        fresh = self.folder / "allreduce_edu.json.new"
        fresh.write_text(json.dumps(asdict(stamp)), encoding="utf-8")
        fresh.replace(self.folder / "allreduce_edu.json")

    @contextmanager
    def _alone(self, stages: Stages) -> Iterator[None]:
        """Wait until no other set-up is at work in this folder."""
        try:
            import fcntl

            handle = os.open(self.root, os.O_RDONLY)
        except (ImportError, OSError):  # Windows has no such lock
            yield
            return
        try:
            os.set_inheritable(handle, True)  # a pip that outlives us still holds it
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stages.say("another set-up is at work in this folder: waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:  # some network file systems cannot lock a folder
                pass
            yield
        finally:
            os.close(handle)

    def _make(self, build: str, stages: Stages) -> None:
        """Make an empty environment, in place of one that is unfinished, broken or moved."""
        if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
            raise Stop(no_venv())
        if self.folder.is_dir() and any(self.folder.iterdir()):
            if not self._stamp() and not (self.folder / "pyvenv.cfg").exists():
                raise Stop(f"{self.folder} is no virtual environment: move it away, run this again")
            stages.say(f"{self.folder} is unfinished, broken or moved: making it anew")
            for entry in self.folder.iterdir():  # its contents, for the folder may be a link
                inside = entry.is_dir() and not entry.is_symlink()
                shutil.rmtree(entry) if inside else entry.unlink()
        self._put(Stamp(str(self.root), torch=build))
        # When .venv itself is active, the Python that made it makes it again.
        base = getattr(sys, "_base_executable", None) or sys.executable
        self._stage(stages, "making .venv", [base, "-m", "venv", str(self.folder)])

    def _install(self, wanted: Stamp, stages: Stages, *, switch: bool) -> None:
        self._put(replace(wanted, ready=False))
        if not any(self.folder.glob("[Ll]ib/**/site-packages/pip")):  # made by hand, or by uv
            self._stage(stages, "adding pip", [str(self.python), "-m", "ensurepip"])
        pip = [str(self.python), *PIP, *QUIET]
        if step := settle(wanted.torch, tested_torch(self.root), switch=switch):
            self._stage(stages, step.title, [*pip, *step.arguments], must=step.must)
        try:
            self._install_extras(wanted.extras, pip, stages)
        except Stop as stop:
            if not lacks_torch(stop.output):
                raise
            where = f"Python {platform.python_version()} on {platform.system()}"
            stages.say(
                f"there is no torch wheel for {where} {platform.machine()}: going on without"
            )
            self._install_extras([e for e in wanted.extras if e != "torch"], pip, stages)
        self._settle_jupyterlab()
        self._put(wanted)

    def _install_extras(self, extras: Sequence[str], pip: list[str], stages: Stages) -> None:
        what = f".[{','.join(extras)}]" if extras else "."
        self._stage(stages, "installing packages", [*pip, "-c", "constraints.txt", "-e", what])

    def _stage(self, stages: Stages, title: str, command: list[str], *, must: bool = True) -> None:
        try:
            stages.run(title, command, cwd=self.root, env=self.environ())
        except Failed as failed:
            if must:
                sentence = f"{diagnose(failed.output, self.root)} (log: {self.log})"
                raise Stop(sentence, failed.output) from None

    def _settle_jupyterlab(self) -> None:
        """Change two of JupyterLab's defaults, for this environment alone.

        Its question about news lies over the first notebook. And a notebook that was run, saved
        and opened again shows "model not found" unless the widgets' state is saved with it.
        """
        settings = self.folder / "share/jupyter/lab/settings"
        settings.mkdir(parents=True, exist_ok=True)
        said = {
            "@jupyterlab/apputils-extension:notification": {
                "fetchNews": "false",
                "checkForUpdates": False,
            },
            "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
        }
        text = json.dumps(said, indent=2)
        (settings / "overrides.json").write_text(text, encoding="utf-8")


def version_of(python: Path) -> tuple[int, int] | None:
    """Return (major, minor) of a Python, or None if it does not run."""
    question = "import sys; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-c", question], capture_output=True, text=True, timeout=60, check=True
        )
        major, minor = map(int, answer.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return major, minor


def fingerprint(root: Path, version: tuple[int, int]) -> str:
    """Return a hash that changes when what is installed no longer fits."""
    sources = ("pyproject.toml", "constraints.txt")
    parts = [repr(version), *((root / name).read_text(encoding="utf-8") for name in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def tested_torch(root: Path) -> str:
    """Return the requirement that pins torch in constraints.txt, as in `torch==2.13.0`."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def requirements(extras: Iterable[str] = (), root: Path = ROOT) -> list[str]:
    """Return pyproject.toml's requirements, as in `numpy>=2.0`; those of the extras after the core.

    A pattern instead of tomllib, which Python 3.10 does not have.
    """
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    found = []
    for name in ("dependencies", *extras):
        listed = re.search(rf"^{name} = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
        assert listed, f"pyproject.toml lists no {name}"
        found += re.findall(r'"([^"]+)"', listed[1])
    return found


def missing(extras: Iterable[str] = ()) -> list[str]:
    """Return the requirements that this very Python does not meet."""
    return [r for r in requirements(extras) if not _met(r)]


def _met(requirement: str) -> bool:
    name, _, floor = requirement.partition(">=")
    try:
        return _numbers(importlib.metadata.version(name)) >= _numbers(floor)
    except importlib.metadata.PackageNotFoundError:
        return False


def _numbers(version: str) -> list[int]:
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else []
