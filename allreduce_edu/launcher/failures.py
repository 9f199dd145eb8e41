"""Turns what went wrong during set-up into one sentence that says what to do."""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from pathlib import Path

DISK = re.compile(r"No space left on device|Errno 28\b|disk quota exceeded", re.IGNORECASE)
NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|"
    r"ConnectionError|Temporary failure in name resolution|Network is unreachable|"
    r"Connection (refused|reset|aborted|broken)",
    re.IGNORECASE,
)
MISSING = re.compile(r"No matching distribution found for (\S+)")
RIGHTS = re.compile(r"Permission denied|Errno 13\b|Read-only file system", re.IGNORECASE)


class Stop(Exception):  # noqa: N818 - not an error of the program: a sentence for the user
    """One sentence that says what the user can do; `output` is what led to it."""

    def __init__(self, sentence: str, output: str = "") -> None:
        super().__init__(sentence)
        self.output = output


def diagnose(output: str, root: Path) -> str:
    """Say what to do about a command of set-up that failed, from what it printed."""
    if DISK.search(output):
        return full_disk(root)
    if NETWORK.search(output):
        return (
            "the network does not answer: connect, or set HTTPS_PROXY, and run this again "
            "(only the first set-up needs it)"
        )
    if missing := MISSING.search(output):
        return (
            f"pip finds no {missing[1]}: if it is kept offline (PIP_NO_INDEX) or has an index of "
            "its own, that must offer it; then run this again"
        )
    if RIGHTS.search(output):
        return f"{root} cannot be written: make it yours and run this again"
    if "ensurepip is not available" in output:
        return no_venv()
    return f"set-up failed with `{_last_error(output)}`: see the log, then run this again"


def full_disk(root: Path) -> str:
    """Say how much room set-up needs, and where."""
    folders = dict.fromkeys([str(root), tempfile.gettempdir()])
    room = " and ".join(f"{shutil.disk_usage(f).free / 1e9:.1f} GB in {f}" for f in folders)
    return f"the disk is full: set-up needs about 2 GB, free are {room}; make room, run this again"


def no_venv() -> str:
    """Say how to get what makes virtual environments."""
    return (
        "this Python cannot make virtual environments: on Debian and Ubuntu run "
        "`sudo apt install python3-venv`, then this again"
    )


def in_words(error: OSError, root: Path) -> str | None:
    """Say what to do about a file that cannot be written; None if that is not what happened."""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        return full_disk(root)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or root} cannot be written: make it yours and run this again"
    return None


def _last_error(output: str) -> str:
    lines = output.strip().splitlines() or ["no word at all"]
    errors = [line for line in lines if re.match(r"\s*(error|\w*Error)\b", line, re.IGNORECASE)]
    return (errors or lines)[-1].strip()
