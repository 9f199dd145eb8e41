"""A group: the processes of one set of ranks, and all that has to go when they go."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import allreduce_edu

ROOT = str(Path(allreduce_edu.__file__).parents[1])
PATIENCE = 5.0  # seconds for killed processes to be gone
PREFIX = "allreduce_edu-"  # of the temporary folder
_private: set[socket.socket] = set()  # not a weak one: its callbacks would swallow interrupts
_STRIPPED = ("MASTER_", "LOCAL_", "TORCHELASTIC_", "GROUP_RANK", "ROLE_", "RANK", "WORLD_SIZE")


class Group(ABC):
    """Processes that wait for messages: ``calls[r]`` leads to rank r, ``outputs[r]`` from it.

    All its processes end when `link` closes, which happens at the latest when this process dies.
    With `mbits`, a number per rank, the ranks get a network of their own with links of that speed.
    """

    tick = 1.0  # seconds after which one who waits should look at `deaths` again
    slack: float | None = None  # seconds after a deadline at which a rank ends itself

    def __init__(self, ranks: int, mbits: Sequence[float] = ()) -> None:
        self.ranks = ranks
        self.mbits = list(mbits)
        self.kernel = os.getpid()
        self.problem = ""  # why the processes could not start
        self.sources: dict[str, object] = {}  # what the ranks have of this kernel's cells
        self.place: dict[str, object] = {}  # where the ranks were told that this kernel is
        self.threads: list[int] = []  # each rank's main thread, as faulthandler names it
        self.folder = ""  # with the store where the ranks meet; made by whoever outlives the kernel
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as always:
            undo.callback(self._remove_folder)
            pairs = [_pair(undo, always) for _ in range(2 * ranks + 1)]
            (self.link, *ours), (link, *theirs) = zip(*pairs, strict=True)
            self.calls, self.outputs = ours[::2], ours[1::2]
            undo.callback(self._end)
            self._launch(link, list(zip(theirs[::2], theirs[1::2], strict=True)))
            self._undo = undo.pop_all()

    def __repr__(self) -> str:
        return f"{type(self).__name__} group of {self.ranks} ranks"

    @abstractmethod
    def _launch(
        self, link: socket.socket, ends: Sequence[tuple[socket.socket, socket.socket]]
    ) -> None:
        """Start the processes: each gets the other end of `link`, and rank r of its two sockets."""

    @abstractmethod
    def deaths(self) -> list[tuple[int, int | None]]:
        """Return (rank, exit code) of ranks that died since the last look; None: not known."""

    @abstractmethod
    def ask_where(self) -> None:
        """Ask each rank to write its stack to its file, which it does even in C and without GIL."""

    @abstractmethod
    def stop(self) -> None:
        """Have all processes killed, without waiting for it."""

    @abstractmethod
    def _end(self) -> None:
        """Stop, and wait until all processes are gone; may be called before any has started."""

    def where(self, rank: int) -> str:
        """Return what `rank` has written about its stack so far."""
        with contextlib.suppress(OSError):
            return Path(self.folder, f"where.{rank}").read_text("utf-8", "replace")
        return ""

    def _remove_folder(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End the group; returns when no process and no file of it is left.

        Those that are not born yet find their link closed, and end without a trace, a little later.
        """
        if os.getpid() == self.kernel:  # a forked copy of the kernel owns nothing here
            self._undo.close()


def environment() -> dict[str, str]:
    """Return the environment of a rank: this one, without what another launcher left in it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_STRIPPED)}
    kept.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if device := loopback():
        kept["GLOO_SOCKET_IFNAME"] = kept["NCCL_SOCKET_IFNAME"] = device
    one = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return kept | dict.fromkeys(one, "1")


def start(
    module: str, *arguments: str, more: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Run a module of this package in an interpreter that imports what this one can.

    It begins in a session of its own, because the stop button signals the kernel's process group,
    and with these signals blocked: until it is in that session, and has handlers.
    """
    path = os.pathsep.join([ROOT, *filter(None, sys.path)])
    command = [sys.executable, "-m", f"allreduce_edu.realdist.{module}", *arguments]
    options |= {"cwd": ROOT, "env": environment() | {"PYTHONPATH": path} | (more or {})}
    if sys.platform == "win32":
        return subprocess.Popen(command, **options)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
    try:
        return subprocess.Popen(command, start_new_session=True, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def loopback() -> str:
    """Return the name of the loopback interface: the ranks shall listen there and nowhere else."""
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    return next((name for name in names if name in ("lo", "lo0")), "")


def private_pair(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Return two sockets: no copy of this process keeps the first one open when this one dies."""
    ours, theirs = socket.socketpair(type=kind)
    _private.add(ours)
    return ours, theirs


def let_go(ours: socket.socket) -> None:
    """Close a private socket."""
    ours.close()
    _private.discard(ours)


def _close_copies() -> None:
    for each in _private:
        each.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_copies)


def _pair(undo: contextlib.ExitStack, always: contextlib.ExitStack) -> tuple[socket.socket, ...]:
    ours, theirs = private_pair()
    undo.callback(let_go, ours)
    always.callback(theirs.close)
    ours.setblocking(False)
    return ours, theirs
