"""Ranks that are forked from a process which has imported torch already (Linux)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from itertools import chain
from selectors import EVENT_READ, DefaultSelector
from typing import BinaryIO

from allreduce_edu.realdist import report
from allreduce_edu.realdist.group import PATIENCE, PREFIX, Group, let_go, private_pair, start

_REAPED = 1.0  # seconds from the end of a process's connections to its own
_TAIL = 2_000  # bytes of what it wrote


class Forked(Group):
    """Ranks forked by the zygote, under a keeper that outlives this kernel: see `zygote`."""

    _zygote: _Zygote | None = None
    _keeper: int | None = None
    _news = b""
    _over = False
    _left: frozenset[int] = frozenset()  # ranks not known to be dead

    def _launch(
        self, link: socket.socket, ends: Sequence[tuple[socket.socket, socket.socket]]
    ) -> None:
        self._left = frozenset(range(self.ranks))
        self._zygote = _Zygote.of_this_kernel()
        self._zygote.fork([link, *chain.from_iterable(ends)], self.mbits)

    def deaths(self) -> list[tuple[int, int | None]]:
        """Return (rank, exit code) of ranks that died since the last look; None: not known."""
        self._listen()
        dead: list[tuple[int, int | None]] = []
        *lines, self._news = self._news.split(b"\n")
        for news in map(json.loads, lines):
            self._keeper = news.get("keeper", self._keeper)
            self.folder = news.get("folder", self.folder)
            self.problem = news.get("problem", self.problem)
            if "rank" in news:
                dead.append((news["rank"], news["code"]))
        self._left -= {rank for rank, _ in dead}
        if self._over:
            if self._keeper is None and self._zygote is not None:
                self.problem = self.problem or self._zygote.last_words()
            dead += [(rank, None) for rank in sorted(self._left)]
            self._left = frozenset()
        return dead

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while not self._over:
                news = self.link.recv(4096)
                self._over = not news
                self._news += news

    def ask_where(self) -> None:
        """Ask each rank, through its keeper, to write down its stack."""
        with contextlib.suppress(OSError):
            self.link.send(b"?")

    def stop(self) -> None:
        """Let go of the link: the keeper kills the ranks."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_WR)

    def _end(self) -> None:
        self.stop()
        self.deaths()
        # Before its first word there may be no keeper: one that is born finds the link closed.
        end = time.monotonic() + PATIENCE
        with DefaultSelector() as news:
            news.register(self.link, EVENT_READ)
            while self._keeper and not self._over and time.monotonic() < end:
                news.select(0.1)
                self.deaths()
        if self._keeper and not self._over:  # somebody stopped it: its ranks die with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._keeper, signal.SIGKILL)


class _Zygote:
    """The kernel's end of the process that forks the ranks: one per kernel, from first use on."""

    _current: _Zygote | None = None
    _one_at_a_time = threading.Lock()

    def __init__(self) -> None:
        self.kernel = os.getpid()
        self.control, theirs = private_pair(socket.SOCK_SEQPACKET)
        self.errors = os.fdopen(os.memfd_create("errors"), "w+b")
        # Importing torch._dynamo makes the folder of its cache: let that be one which is there.
        no_folder = {"TORCHINDUCTOR_CACHE_DIR": tempfile.gettempdir()}
        with theirs:
            self.process = start(
                "zygote",
                str(theirs.fileno()),
                str(self.kernel),
                pass_fds=[theirs.fileno()],
                more=no_folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
            )
        weakref.finalize(self, _dismiss, self.process, self.control, self.errors, self.kernel)

    def __repr__(self) -> str:
        return "the process that forks the ranks"

    @classmethod
    def of_this_kernel(cls) -> _Zygote:
        """Return the zygote of this process, a new one if there is none alive."""
        with cls._one_at_a_time:
            current = cls._current
            if current is None or not current.is_ours_and_alive():
                current = cls._current = cls()
            return current

    def is_ours_and_alive(self) -> bool:
        """Whether this process, and not one that it was forked from, has it running."""
        return self.kernel == os.getpid() and self.process.poll() is None

    def last_words(self) -> str:
        """Return how this process ended and what it wrote at last; '' if it lives."""
        try:
            code = self.process.wait(_REAPED)
        except subprocess.TimeoutExpired:
            return ""
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - _TAIL))
        wrote = report.clean(self.errors.read().decode("utf-8", "replace"))
        how = f"ended with status {code}" if code >= 0 else report.death(code)
        return f"the process that starts them {how}" + (f": {wrote}" if wrote else "")

    def fork(self, sockets: Sequence[socket.socket], mbits: Sequence[float]) -> None:
        """Ask for a group; the sockets go to its keeper and its ranks."""
        request = {"under": tempfile.gettempdir(), "prefix": PREFIX, "mbits": mbits}
        files = [each.fileno() for each in sockets]
        socket.send_fds(self.control, [json.dumps(request).encode()], files)


def _dismiss(
    process: subprocess.Popen[bytes], control: socket.socket, errors: BinaryIO, kernel: int
) -> None:
    if os.getpid() != kernel:
        return
    let_go(control)
    errors.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
