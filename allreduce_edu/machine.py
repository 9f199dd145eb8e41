"""Says what works on this machine, one line each, in seconds.

In a notebook: `from allreduce_edu.machine import check; check()`. Nothing measured is printed, but
versions and cores differ from machine to machine: tag such a cell `nbval-ignore-output`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from allreduce_edu.launcher.environment import OLDEST
from allreduce_edu.launcher.torch_build import has_nvidia_driver

MARKS = {"works": "✓ works  ", "without": "– without", "broken": "✗ broken "}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "firefox")

# In a child, because importing torch may fail in ways that take the process along.
ASK_TORCH = """
import json, torch, torch.distributed as dist
there = dist.is_available()
print(json.dumps({
    "version": torch.__version__,
    "gloo": there and dist.is_gloo_available(),
    "nccl": there and dist.is_nccl_available(),
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
}))
"""


@dataclass(frozen=True)
class Line:
    """One thing looked at: `state` is works, without (an optional thing is not here) or broken."""

    what: str
    state: str
    words: str

    def __str__(self) -> str:
        return f"{MARKS[self.state]}  {self.what:<10}  {self.words}"


class Report:
    """The verdict on a machine; true if everything that the core needs works."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines

    def __bool__(self) -> bool:
        return not any(line.state == "broken" for line in self.lines)

    def __repr__(self) -> str:
        broken = [line.what for line in self.lines if line.state == "broken"]
        without = [line.what for line in self.lines if line.state == "without"]
        verdict = f"not working: {', '.join(broken)}" if broken else "everything needed works here"
        return f"{verdict}; without {', '.join(without)}" if without else verdict


def check() -> Report:
    """Print one line per thing as soon as it is known, and return the verdict."""
    lines = []
    for line in look():
        print(line, flush=True)
        lines.append(line)
    return Report(lines)


def look() -> Iterator[Line]:
    """Yield the lines, quick ones first."""
    yield _python()
    yield Line("machine", "works", f"{_cores()}, {_memory()}")
    yield _packages("numpy", "numpy")
    yield _packages("figures", "matplotlib")
    yield _packages("JupyterLab", "jupyterlab")
    yield _packages("widgets", "ipywidgets", "anywidget")
    yield _browser()
    yield from _torch()


def _python() -> Line:
    fits = sys.version_info >= OLDEST
    words = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not fits:
        words += f"; {OLDEST[0]}.{OLDEST[1]} or newer is needed"
    return Line("Python", "works" if fits else "broken", words)


def _cores() -> str:
    with suppress(AttributeError):  # Linux: those that this process may use
        count = len(os.sched_getaffinity(0))
        return f"{count} core{'s' * (count != 1)}"
    return f"{os.cpu_count()} cores"


def _memory() -> str:
    with suppress(ImportError):
        import psutil

        return f"{psutil.virtual_memory().total / 2**30:.0f} GiB of memory"
    with suppress(AttributeError, ValueError, OSError):
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return f"{pages / 2**30:.0f} GiB of memory"
    return "memory unknown"


def _packages(what: str, *names: str) -> Line:
    """Look packages up without importing them."""
    have, lack = [], []
    for name in names:
        try:
            have.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lack.append(name)
    if lack:
        words = f"{', '.join(lack)} not installed: `python3 -m allreduce_edu lab` does it"
        return Line(what, "broken", words)
    return Line(what, "works", ", ".join(have).removeprefix(f"{what} "))


def _browser() -> Line:
    found = [name for name in BROWSERS if shutil.which(name)]
    if found:
        return Line("browser", "works", ", ".join(found))
    with suppress(webbrowser.Error):
        webbrowser.get()
        return Line("browser", "works", "the system's own")
    return Line("browser", "without", "none here: open JupyterLab's address from another machine")


def _torch() -> Iterator[Line]:
    """Yield the lines about torch, real processes and GPUs."""
    if not _installed("torch"):
        yield Line("torch", "without", "not installed: cells that need it say what they skip")
        return
    said = _asked(ASK_TORCH)
    if isinstance(said, str):
        yield Line("torch", "broken", f"installed, but `import torch` fails: {said}")
        return
    yield Line("torch", "works", said["version"])
    yield _gloo() if said["gloo"] else Line("gloo", "without", "not in this build of torch")
    yield from _gpus(said["gpus"], nccl=said["nccl"])


def _gpus(gpus: list[str], *, nccl: bool) -> Iterator[Line]:
    names = ", ".join(gpus) or "no GPU that torch can use"
    if not gpus and has_nvidia_driver():
        names += "; an NVIDIA driver is here: try `python3 -m allreduce_edu lab --cuda`"
    yield Line("GPUs", "works" if gpus else "without", f"{len(gpus)}: {names}" if gpus else names)
    if nccl and gpus:
        yield Line("NCCL", "works", "in this build of torch")
    else:
        where = "in this build of torch, but there is no GPU"
        yield Line("NCCL", "without", where if nccl else "not in this build of torch")


def _installed(name: str) -> bool:
    with suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(name))
    return False


def _asked(question: str) -> dict[str, Any] | str:
    """Return what a child Python answers in JSON, or the last line of its complaint."""
    command, patience = [sys.executable, "-c", question], 120
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer after {patience} s"
    if child.returncode:
        return (child.stderr.strip().splitlines() or [f"status {child.returncode}"])[-1]
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def _gloo() -> Line:
    """Let two real processes add two numbers."""
    try:
        answer = _two_processes(_sum_over_ranks)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this line's answer
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Line("gloo", "broken", f"two real processes failed: {words}")
    if answer != [3.0, 3.0]:
        return Line("gloo", "broken", f"two real processes should have 3.0 each, and have {answer}")
    return Line("gloo", "works", "two real processes all-reduced 1 and 2 to 3 each")


def _two_processes(function: Callable[[], float]) -> list[float]:
    from allreduce_edu.realdist.pool import Pool

    with Pool(2, backend="gloo") as pool:
        return list(pool.run(function))


def _sum_over_ranks() -> float:
    """Run on every rank: all-reduce rank + 1."""
    import torch
    import torch.distributed as dist

    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    return float(x.item())


def main() -> int:
    """Check, print the verdict, and return an exit status."""
    report = check()
    print(report)
    return 0 if report else 1
