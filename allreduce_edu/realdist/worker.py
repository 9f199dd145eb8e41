"""One rank: a process that takes calls from the kernel, runs them and answers."""

from __future__ import annotations

import contextlib
import datetime as dt
import faulthandler
import io
import linecache
import os
import random
import shutil
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed

from allreduce_edu.realdist import places, wire

dist: Any = torch.distributed  # Any, because its stubs hide half of what it exports
# The kernel keeps the deadlines. torch's own must never be first: it is no deadline (connecting has
# been seen to wait five times as long), and what it says names no rank.
_TEXT, _TRACEBACK = 2_000, 100_000  # characters of an exception that are told
_NEVER = dt.timedelta(days=1)


def main(calls: socket.socket, output: socket.socket, folder: str) -> None:
    """Be a rank until the kernel lets go: first the plan, then one call after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the stop button is the kernel's business
    for sock in (calls, output):
        sock.setblocking(True)
        sock.set_inheritable(False)  # of what a rank starts none shall write into its answers
    _redirect(output)
    with contextlib.suppress(EOFError, ConnectionError):
        plan = wire.header_of(wire.to_end(wire.receive(calls)))
        wire.to_end(wire.send(calls, join(plan, Path(folder))))
        process = os.getpid()
        while True:
            result = answer(wire.to_end(wire.receive(calls)))
            if os.getpid() != process:
                os._exit(0)  # a copy that the learner's code has forked: it must not answer too
            wire.to_end(wire.send(calls, result))


def _redirect(output: socket.socket) -> None:
    """Send all that this process prints to `output`, unbuffered, so that a crash loses no text."""
    if sys.platform == "win32":  # a socket is no file descriptor there: text of C code is lost
        raw: io.RawIOBase = output.makefile("wb", buffering=0)
    else:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        output.close()
        raw = io.FileIO(1, "w", closefd=False)
    text = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)
    sys.stdout = sys.stderr = text


def join(plan: dict[str, Any], folder: Path) -> list[memoryview]:
    """Become the rank that the plan describes and meet the others; returns the answer to it."""
    rank, size = plan["rank"], plan["ranks"]
    try:
        _settle(plan, (folder / f"where.{rank}").open("wb"))
        store = dist.FileStore(str(folder / "store"), size)
        if plan["backend"] == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(
            plan["backend"], store=store, rank=rank, world_size=size, timeout=_NEVER
        )
    except Exception as error:  # noqa: BLE001 - told to the kernel
        return [_raised(error)]
    return [wire.header(kind="returned", thread=threading.get_ident()), *wire.dumps(None)]


def _settle(plan: dict[str, Any], where: Any) -> None:
    """Take the kernel's environment, folder and search path; one thread, random state by rank."""
    faulthandler.enable(where)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, where)
    if sys.platform != "win32":  # blocked by `group.start` until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGUSR1})
    os.environ.clear()
    os.environ.update(plan["environment"])
    _move(**plan["place"])
    sys.argv = [""]
    torch.set_num_threads(1)
    dist.set_debug_level_from_env()
    random.seed(plan["rank"])
    np.random.seed(plan["rank"])  # noqa: NPY002 - learners use the old interface too
    torch.manual_seed(plan["rank"])


def _move(folder: str, path: list[str]) -> None:
    with contextlib.suppress(OSError):
        os.chdir(folder)
    sys.path[:] = path


def answer(message: list[memoryview]) -> list[memoryview]:
    """Run one call and return its answer; whatever the call raises is an answer too."""
    request, call = wire.header_of(message), message[1:]
    try:
        _learn(request["sources"])
        if request["place"]:
            _move(**request["place"])
        if request["limit"]:  # in C: ends this process even when the learner's code holds the GIL
            faulthandler.dump_traceback_later(request["limit"], exit=True)
        function, arguments = _unpack(call)
        return [wire.header(kind="returned"), *_pack(function(*arguments))]
    except BaseException as error:  # noqa: BLE001 - sys.exit() of a learner ends the call only
        return [_raised(error)]
    finally:
        faulthandler.cancel_dump_traceback_later()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


def _unpack(call: list[memoryview]) -> tuple[Callable[..., object], tuple[object, ...]]:
    try:
        return wire.loads(call)  # type: ignore[no-any-return]
    except Exception as error:
        raise ImportError(f"the call cannot be read on this rank: {_words(error)}") from error


def _pack(value: object) -> list[memoryview]:
    try:
        return wire.dumps(value)
    except Exception as error:
        kind = type(value).__name__
        raise TypeError(
            f"the result cannot travel to the notebook: {kind}: {_words(error)}"
        ) from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text(error)}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is the learner's code
        return "(its text cannot be had)"


def _cut(text: str, most: int) -> str:
    """Return `text`, of which the middle is left out if it is long, as what can be printed."""
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return text.encode("utf-8", "replace").decode()


def _learn(sources: dict[str, str]) -> None:
    """Keep the text of notebook cells, so that tracebacks here show the learner's lines."""
    for name, text in sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _raised(error: BaseException) -> memoryview:
    """Return the header that tells the kernel of an exception: text only, nothing to unpickle."""
    return wire.header(
        kind="raised",
        error=type(error).__name__,
        text=_cut(_text(error), _TEXT),
        frames=places.of_exception(error.__traceback__),
        traceback=_cut("".join(traceback.format_exception(error)), _TRACEBACK),
    )


def spawned() -> None:
    """Start as a process of its own, where forking is no way: macOS, Windows (not tested there)."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    folder, *handles = sys.argv[1:]
    calls, output, life = _sockets(handles)
    life.set_inheritable(False)
    threading.Thread(target=_end_with, args=(life, folder), daemon=True).start()
    main(calls, output, folder)
    _end(folder)


def _sockets(handles: list[str]) -> list[socket.socket]:
    if sys.platform == "win32":  # descriptors are not inherited there, but sockets can be shared
        return [socket.fromshare(bytes.fromhex(line)) for line in sys.stdin.read().split()]
    return [socket.socket(fileno=int(handle)) for handle in handles]


def _end_with(life: socket.socket, folder: str) -> None:
    """End this process when the kernel closes `life` or dies."""
    kernel = os.getppid()
    life.settimeout(1.0)
    with contextlib.suppress(OSError):
        while os.getppid() == kernel:
            with contextlib.suppress(TimeoutError):
                life.recv(1)
                break
    _end(folder)


def _end(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    spawned()
