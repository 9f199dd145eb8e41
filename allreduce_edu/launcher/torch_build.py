"""Which build of torch to take, and from where.

With CUDA torch takes 3 GB, without it 0.2: on Linux without an NVIDIA driver PyTorch's own index of
CPU builds is preferred, if it answers.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import threading
import urllib.request
from contextlib import suppress
from dataclasses import dataclass

from allreduce_edu.launcher.failures import NETWORK, Stop

# Only torch is taken from here, alone and by --index-url: a second index beside pip's own would let
# either of them answer for any package.
INDEX = "https://download.pytorch.org/whl/"

# What the index that pip asks anyway does not offer, by system and --cpu/--cuda: the part of
# PyTorch's index that does. (cu130 is what torch 2.13 is built with on Linux.)
ELSEWHERE = {("Linux", "cpu"): "cpu", ("Windows", "cuda"): "cu130"}


@dataclass(frozen=True)
class Step:
    """A call of pip that settles torch's build before all else is installed."""

    title: str
    arguments: list[str]
    must: bool  # succeed; otherwise set-up goes on with what pip finds by itself


def settle(build: str, pinned: str, *, switch: bool) -> Step | None:
    """Return the step that makes `pinned` (`torch==2.13.0`) the build asked for, if one is needed.

    `build` is "cpu", "cuda" or "auto"; `switch` says that another build may be installed, which
    pip would take for the same version.
    """
    system = platform.system()
    if build == "cuda" and system == "Darwin":
        raise Stop("there is no CUDA on macOS: leave out --cuda")
    must = build != "auto"
    if not must:
        if system != "Linux" or has_nvidia_driver() or pip_has_orders():
            return None
        build = "cpu"
    title = "taking torch with CUDA" if build == "cuda" else "taking torch's CPU build"
    local = ELSEWHERE.get((system, build))
    if local is None:
        again = ["--force-reinstall", "--no-deps", pinned]
        return Step(title, again, must) if switch and system != "Darwin" else None
    if answers(INDEX + local):
        return Step(title, ["--index-url", INDEX + local, "--no-deps", f"{pinned}+{local}"], must)
    return Step(title, ["--no-deps", f"{pinned}+{local}"], must) if must else None


def has_nvidia_driver() -> bool:
    """Say whether an NVIDIA driver is here, also under WSL."""
    places = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/nvidia-smi")
    return shutil.which("nvidia-smi") is not None or any(map(os.path.exists, places))


def pip_has_orders() -> bool:
    """Say whether pip was told where to look; then nobody else is asked for torch."""
    return any(os.environ.get(f"PIP_{name}") for name in ("NO_INDEX", "INDEX_URL", "FIND_LINKS"))


def answers(url: str, seconds: float = 2.0) -> bool:
    """Say whether an index answers in time, asked in a thread: a name's look-up has no time-out."""
    heard = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(f"{url}/torch/", method="HEAD")  # noqa: S310 - https only
        with suppress(OSError, ValueError), urllib.request.urlopen(request, timeout=seconds):  # noqa: S310
            heard.set()

    threading.Thread(target=ask, daemon=True).start()
    return heard.wait(seconds)


def lacks_torch(output: str) -> bool:
    """Say whether pip heard that torch has no fitting wheel here, and not just nothing at all.

    It says so in one way where there is none at all, in another where there are only old ones.
    """
    none = r"(satisfies the requirement|distribution found for) torch\b"
    old = r"conflict is caused by:\s+\S+ \S+ depends on torch\b"
    return bool(re.search(f"{none}|{old}", output)) and not NETWORK.search(output)
