"""Ranks that are processes of their own, where forking is not safe: slower to start, any system.

Its tests run on Linux. It is written for macOS and Windows too, and was not tested there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from allreduce_edu.realdist.group import PATIENCE, PREFIX, Group, start


class Spawned(Group):
    """Ranks started one by one, children of this kernel.

    Each ends itself when the link closes; one that holds the GIL in C at that moment does so
    `slack` seconds after the deadline of its call.
    """

    tick = 0.05
    slack = 10.0

    def __init__(self, ranks: int, mbits: Sequence[float] = ()) -> None:
        assert not mbits, "a network of their own is for forked ranks: see `shaped.speeds`"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._told: set[int] = set()
        super().__init__(ranks)

    def _launch(
        self, link: socket.socket, ends: Sequence[tuple[socket.socket, socket.socket]]
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix=PREFIX)
        for calls, output in ends:
            self._processes.append(self._spawn((calls, output, link)))

    def _spawn(self, sockets: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
        windows = sys.platform == "win32"
        fds = [] if windows else [each.fileno() for each in sockets]
        process = start(
            "worker",
            self.folder,
            *map(str, fds),
            pass_fds=fds,
            stdin=subprocess.PIPE if windows else subprocess.DEVNULL,
        )
        if sys.platform == "win32":
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write("\n".join(each.share(process.pid).hex() for each in sockets).encode())
        return process

    def deaths(self) -> list[tuple[int, int | None]]:
        """Return (rank, exit code) of ranks that died since the last look."""
        codes = [(rank, _ended(process)) for rank, process in enumerate(self._processes)]
        dead = [(r, code) for r, code in codes if code is not None and r not in self._told]
        self._told |= {rank for rank, _ in dead}
        return [*dead]

    def ask_where(self) -> None:
        """Ask each rank to write down its stack; Windows has no way to ask."""
        if sys.platform != "win32":
            for process in self._processes:
                process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """Kill the ranks, and where process groups exist what they started themselves."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if sys.platform != "win32" and process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()

    def _end(self) -> None:
        self.stop()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code, if there is one, and kill first what the process left in its group.

    In this order, because until a process is reaped its number belongs to nobody else.
    """
    if sys.platform == "linux" and process.returncode is None:  # macOS has no waitid in old Pythons
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if os.waitid(os.P_PID, process.pid, look):
                os.killpg(process.pid, signal.SIGKILL)
    return process.poll()
