"""Helpers that look for what a pool might leave behind: processes, wherever their parents went."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_PATIENCE = 15  # seconds to poll for what happens soon


def until(holds: Callable[[], object], message: str) -> None:
    """Wait until `holds()`, or fail with `message`."""
    end = time.monotonic() + _PATIENCE
    while not holds():
        assert time.monotonic() < end, message
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Return the living processes below `pid`; none where there is no /proc."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            below.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += below.get(each, [])
    return found[1:]


def marked(mark: str) -> list[int]:
    """Return the living processes that were started with `mark` in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found
