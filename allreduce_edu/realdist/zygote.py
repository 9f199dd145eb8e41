"""The process that imports torch once and then forks every rank of this kernel (Linux).

Run by the kernel as ``python -m allreduce_edu.realdist.zygote FD PID``. It never runs an operation
of torch, so it has one thread and forking it is safe. For each group it forks a keeper, and the
keeper forks the ranks:

    kernel --control--> zygote --forks--> keeper --forks--> ranks
    kernel ---link----------------------> keeper

A keeper may build a network of its own for its ranks: see `namespaces`.

A group lives as long as the kernel holds its end of the link. When that closes, because the pool
was closed or because the kernel died, however it died, the keeper kills the ranks with SIGKILL,
which also ends one that holds the GIL in C, and whatever they have started. A rank whose keeper
dies is killed by the system.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from selectors import EVENT_READ, PollSelector
from typing import Any, TypeAlias

Pair: TypeAlias = tuple[socket.socket, socket.socket]  # of a rank: its calls, its output
_PATIENCE = 1.0  # seconds between two looks at the parent, and for strays to end by themselves
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NEEDED = ("allreduce_edu.realdist.worker", "allreduce_edu.realdist.play")
_USEFUL = "torch._dynamo"  # which DDP's constructor imports: 1.4 s and 80 MB that ranks share so


def main() -> None:
    """Serve the kernel until it closes the control socket or dies."""
    sys.modules["__main__"] = types.ModuleType("__main__")  # what a notebook calls __main__
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the keepers
    control, kernel = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    problem = preload()
    while os.getppid() == kernel:
        if _readable(control):
            request, fds, _, _ = socket.recv_fds(control, 4096, 253)
            if not request:
                break
            problem = problem and preload()  # what was missing may be installed by now
            serve(control, json.loads(request), fds, problem)
    with contextlib.suppress(ChildProcessError):
        while os.getppid() == kernel:  # keepers clean up; without a kernel they do so by themselves
            os.wait()


def preload() -> str:
    """Import what every rank needs; returns what went wrong, or ''."""
    gc.disable()  # nothing to collect in imports, and the ranks share untouched pages
    try:
        for name in _NEEDED:
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - told to the kernel
        return f"{type(error).__name__}: {error}"
    with contextlib.suppress(Exception):
        importlib.import_module(_USEFUL)
    gc.freeze()
    gc.enable()
    return ""


def serve(control: socket.socket, request: dict[str, Any], fds: list[int], problem: str) -> None:
    """Fork a keeper for the group whose link and rank sockets came with the request."""
    link, *ends = [socket.socket(fileno=fd) for fd in fds]
    try:
        if not problem and os.fork() == 0:
            control.close()
            keep(link, ends, request)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        _tell(link, problem=problem)
    for end in (link, *ends):
        end.close()


def keep(link: socket.socket, ends: list[socket.socket], request: dict[str, Any]) -> None:
    """Start one group, report its deaths, end it when the kernel lets go. Never returns."""
    pids: dict[int, int] = {}
    folder = ""
    try:
        folder = tempfile.mkdtemp(dir=request["under"], prefix=request["prefix"])
        _tell(link, keeper=os.getpid(), folder=folder)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whatever ranks leave becomes a child of this process
        wake, write = _wake_on_death()
        networks = _networks(request["mbits"])
        for rank in range(len(ends) // 2):
            mine = ends[2 * rank], ends[2 * rank + 1]
            others = [end for end in (link, wake, write, *ends) if end not in mine]
            pids[_fork_rank(mine, others, folder, networks.get(rank))] = rank
        for end in ends:
            end.close()
        for each in networks.values():
            os.close(each)
        _watch(link, wake, pids)
    except OSError as error:
        _tell(link, problem=error.strerror)
    finally:
        for pid in pids:
            _kill(pid)
        _report(link, pids, os.WEXITED)
        _end_strays()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _networks(mbits: list[float]) -> dict[int, int]:
    """Return a namespace for each rank, joined by links of these speeds; none for none."""
    if not mbits:
        return {}
    from allreduce_edu.realdist import namespaces

    return dict(enumerate(namespaces.build(mbits)))


def _watch(link: socket.socket, wake: socket.socket, pids: dict[int, int]) -> None:
    """Return when all ranks are dead or the group is to end."""
    zygote = os.getppid()
    while pids and os.getppid() == zygote:
        ready = _readable(link, wake)
        if link in ready:
            if not link.recv(1):
                return
            for pid in pids:  # the kernel asks where the ranks are: faulthandler answers
                os.kill(pid, signal.SIGUSR1)
        if wake in ready:
            wake.recv(4096)
        _report(link, pids, os.WEXITED | os.WNOHANG)


def _readable(*ends: socket.socket) -> list[object]:
    """Wait a little; return those of `ends` that can be read, however high their numbers."""
    with PollSelector() as selector:
        for end in ends:
            selector.register(end, EVENT_READ)
        return [key.fileobj for key, _ in selector.select(_PATIENCE)]


def _report(link: socket.socket, pids: dict[int, int], options: int) -> None:
    """Reap dead ranks and tell the kernel, but first kill what they left in their process groups.

    In this order, because until a process is reaped its number belongs to nobody else.
    """
    while pids:
        found = os.waitid(os.P_ALL, 0, options | os.WNOWAIT)
        if found is None:
            return
        if found.si_pid in pids:
            _kill(found.si_pid)
        _, status = os.waitpid(found.si_pid, 0)
        if found.si_pid in pids:
            _tell(link, rank=pids.pop(found.si_pid), code=os.waitstatus_to_exitcode(status))


def _end_strays() -> None:
    """Kill what has left its rank's process group, and leave no child.

    Not at once: pools that a rank has started end by themselves, and remove their folders.
    """
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    end = time.monotonic() + _PATIENCE
    with contextlib.suppress(OSError):  # no child, or a system that does not tell
        while True:
            for pid in children.read_text().split() if time.monotonic() > end else ():
                _kill(int(pid))
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is None:
                time.sleep(0.01)


def _kill(pid: int) -> None:
    for kill in (os.kill, os.killpg):  # a rank that was just forked leads no process group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _fork_rank(mine: Pair, others: list[socket.socket], folder: str, network: int | None) -> int:
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        from allreduce_edu.realdist import namespaces, worker

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _die_with(keeper)
        for each in others:
            each.close()
        if network is not None:
            namespaces.enter(network)
        worker.main(*mine, folder)
    except BaseException:  # noqa: BLE001 - nothing of this process may run on in the keeper's code
        traceback.print_exc()
    finally:
        os._exit(1)


def _die_with(parent: int) -> None:
    """Ask the system to kill this process when its parent dies; the parent has one thread."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value)


def _wake_on_death() -> Pair:
    """Return a socket that becomes readable when a child dies, and the one that makes it so."""
    wake, write = socket.socketpair()
    wake.setblocking(False)
    write.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    return wake, write


def _tell(link: socket.socket, **news: object) -> None:
    with contextlib.suppress(OSError):  # the kernel may be gone: the next look at the link says so
        link.sendall(json.dumps(news).encode() + b"\n")


if __name__ == "__main__":
    main()
