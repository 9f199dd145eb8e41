"""A Jupyter kernel as a learner's notebook has it, all of whose processes can be found."""

from __future__ import annotations

import os
import queue
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from leftovers import marked, until

ROOT = str(Path(__file__).parents[1])


@dataclass
class Cell:
    """What running a cell gave."""

    text: str = ""
    error: str = ""
    name: str = ""  # of the error
    shown: list[Any] = field(default_factory=list)
    seconds: float = 0.0  # from the last stop, or from the start


class Kernel:
    """Runs cells; `stop` is the square button."""

    def __init__(self, folder: Path) -> None:
        jupyter_client = pytest.importorskip("jupyter_client", reason="starts a kernel")
        self.folder = folder
        self.mark = f"KERNEL_OF_TEST={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        more = {name: value, "TMPDIR": str(folder), "PYTHONPATH": ROOT}
        start = jupyter_client.manager.start_new_kernel
        self.manager, self.client = start(env=os.environ | more)

    def run(self, source: str, *, stop_at: str = "", presses: int = 1) -> Cell:
        """Run a cell to its end; press stop when it has printed `stop_at`."""
        return self.wait(self.client.execute(source), stop_at, presses)

    def begin(self, source: str, until: str) -> None:
        """Start a cell and return when it has printed `until`."""
        request = self.client.execute(source)
        seen = ""
        while until not in seen:
            message = self._message()
            if message["parent_header"].get("msg_id") == request:
                seen += message["content"].get("text", "")

    def wait(self, request: str, stop_at: str, presses: int) -> Cell:
        cell, start = Cell(), time.monotonic()
        while True:
            message = self._message()
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                cell.text += content["text"]
            elif kind == "display_data":
                cell.shown.append(content["data"])
            elif kind == "error":
                cell.name, cell.error = content["ename"], "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                cell.seconds = time.monotonic() - start
                return cell
            if stop_at and stop_at in cell.text:
                stop_at = ""
                start = time.monotonic()
                for _ in range(presses):
                    self.manager.interrupt_kernel()
                    time.sleep(0.01)

    def leaves_nothing(self) -> None:
        until(lambda: not marked(self.mark), "processes are left")
        assert list(self.folder.glob("allreduce_edu*")) == []

    def _message(self) -> Any:
        try:
            return self.client.get_iopub_msg(timeout=60)
        except queue.Empty:
            pytest.fail("the kernel says nothing")


@contextmanager
def kernel(folder: Path) -> Any:
    """Start a kernel and end it."""
    it = Kernel(folder)
    try:
        yield it
    finally:
        it.client.stop_channels()
        if it.manager.has_kernel:
            it.manager.shutdown_kernel(now=True)
