"""Chooses the backend of a pool, and says why in a sentence; never imports torch."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from allreduce_edu.engine.check import unknown

BACKENDS = ("gloo", "nccl")


def choose(ranks: int, backend: str | None = None) -> tuple[str, str]:
    """Return the backend for `ranks` ranks on this machine and the reason, as one sentence.

    NCCL wants a GPU for each rank; two ranks on one GPU are refused by NCCL itself, much later.
    """
    if backend not in (None, *BACKENDS):
        raise ValueError(unknown("backend", backend, BACKENDS))
    if backend == "gloo":
        return "gloo", "gloo, because it was asked for."
    obstacle = _obstacle(ranks)
    if obstacle is None:
        return "nccl", "NCCL, because there is a GPU for every rank."
    if backend == "nccl":
        raise ValueError(f'backend="nccl" cannot be used, because {obstacle}; use "gloo"')
    return "gloo", f"gloo, because {obstacle}."


def _obstacle(ranks: int) -> str | None:
    """Return what stands against NCCL here, or None."""
    found = gpus()
    if found == 0:
        return "no NVIDIA GPU was found"
    if found < ranks:
        return f"NCCL wants one GPU for each rank, and there are {found} for {ranks} ranks"
    if not torch_has_cuda():
        return "this torch was built without CUDA"
    return None


def gpus() -> int:
    """Count the NVIDIA GPUs that this process may use, without opening any of them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = len(re.findall(r"^GPU \d+:", listed.stdout, re.MULTILINE))
    return found if visible is None else min(found, len(_usable(visible)))


def _usable(visible: str) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES that count: all before the first invalid one."""
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    stop = entries.index("-1") if "-1" in entries else len(entries)
    return entries[:stop]


def torch_has_cuda() -> bool:
    """Say whether the installed torch was built for CUDA, by reading its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None
