"""One message to every rank of a group, and what became of it."""

from __future__ import annotations

import contextlib
import math
import numbers
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, DefaultSelector
from typing import Any

from allreduce_edu.realdist import places, report, wire
from allreduce_edu.realdist.group import Group
from allreduce_edu.realdist.interrupts import Interrupts
from allreduce_edu.realdist.output import Printer
from allreduce_edu.realdist.places import Frame
from allreduce_edu.realdist.report import Fate
from allreduce_edu.realdist.status import Status

_GRACE = 1.5  # seconds that the others get after a first failure, to say what they know of it
_LATE = 0.3  # seconds after the first failure; before that, which is first is chance
_TOLD = 1.0  # seconds for the ranks to write down where they are
_CHUNK = 1 << 16  # bytes of output read at once
_REST = 1 << 20  # bytes: more than a socket holds
_TAIL = 4096  # bytes of output in which to look for the last words of a rank that died


class Call:
    """Sends `messages[r]` to rank r and waits for the answers; never longer than it was told."""

    def __init__(
        self, group: Group, messages: Sequence[Sequence[memoryview]], status: Status
    ) -> None:
        self._group = group
        self._status = status
        self._ranks = range(group.ranks)
        self._printer = Printer(group.ranks)
        self._fates: dict[int, Fate] = {}
        self._answers: dict[int, list[memoryview]] = {}
        self._failing = math.inf  # when the first rank failed
        self._cut: set[int] = set()  # connection gone: a death will be reported, mostly
        self._tails = [b""] * group.ranks
        self._talks = [wire.ask(group.calls[r], messages[r]) for r in self._ranks]

    def __repr__(self) -> str:
        return f"Call, answered by {len(self._fates)} of {self._group.ranks} ranks"

    def wait(self, seconds: float, interrupts: Interrupts) -> list[list[memoryview]]:
        """Return the answers in rank order, or raise RankError; print what the ranks print."""
        with DefaultSelector() as self._selector:
            self._register(self._selector)
            try:
                self._loop(seconds, interrupts)
            finally:
                for rank in self._ranks:
                    self._finish(rank)
                self._printer.flush()
            fates = [self._fates[rank] for rank in self._ranks]
        if any(fate.failed for fate in fates):
            raise report.failure(fates)
        if any(fate.kind != "returned" for fate in fates):
            raise report.past_deadline(fates, seconds)
        return [self._answers[rank] for rank in self._ranks]

    def _register(self, selector: BaseSelector) -> None:
        selector.register(self._group.link, EVENT_READ, lambda: None)  # read by group.deaths()
        for rank in self._ranks:
            talk, hear = partial(self._talk, rank), partial(self._hear, rank)
            selector.register(self._group.calls[rank], EVENT_WRITE, talk)
            selector.register(self._group.outputs[rank], EVENT_READ, hear)

    def _loop(self, seconds: float, interrupts: Interrupts) -> None:
        start = time.monotonic()
        end = start + seconds
        failing = False
        while len(self._fates) < self._group.ranks and (now := time.monotonic()) < end:
            self._status.show(self._states(), now - start, seconds)
            nap = min(end - now, self._group.tick, self._status.rest())
            for key, _ in interrupts.select(self._selector, nap):
                key.data()
            for rank, code in self._group.deaths():
                self._died(rank, code)
            if not failing and (self._cut or any(f.failed for f in self._fates.values())):
                failing, end = True, min(end, time.monotonic() + _GRACE)
            self._printer.flush()
        self._locate()

    def _states(self) -> list[str]:
        """Return a word for each rank, or what befell it."""
        at_work, over = ("running", "done") if self._group.threads else ("starting", "ready")
        return [
            (fate.what if fate.failed else over) if (fate := self._fates.get(rank)) else at_work
            for rank in self._ranks
        ]

    def _locate(self) -> None:
        """Find out where the ranks are that have not answered."""
        silent = [rank for rank in self._ranks if rank not in self._fates]
        where: dict[int, list[Frame]] = {}
        if silent and self._group.threads:  # before, they do not listen
            self._group.ask_where()
            end = time.monotonic() + _TOLD
            while len(where) < len(silent) and time.monotonic() < end:
                time.sleep(0.01)
                where |= {r: found for r in silent if (found := self._where(r)) is not None}
        for rank in silent:
            lost = Fate(rank, "lost", "cut its connection to the notebook")
            self._fates[rank] = lost if rank in self._cut else report.busy(rank, where.get(rank))

    def _where(self, rank: int) -> list[Frame] | None:
        if rank >= len(self._group.threads):
            return None
        return places.of_dump(self._group.where(rank), self._group.threads[rank])

    def _talk(self, rank: int) -> None:
        """Move one rank's message or answer on by as much as its socket allows."""
        sock = self._group.calls[rank]
        try:
            self._selector.modify(sock, next(self._talks[rank]), partial(self._talk, rank))
        except StopIteration as end:
            self._selector.unregister(sock)
            self._answered(rank, end.value)
        except (EOFError, ConnectionError):
            self._selector.unregister(sock)
            self._cut.add(rank)

    def _answered(self, rank: int, answer: list[memoryview]) -> None:
        head = wire.header_of(answer)
        if head["kind"] == "returned":
            self._settle(Fate(rank, "returned", "had returned"))
            self._answers[rank] = answer
        else:
            at = [Frame(*frame) for frame in head["frames"]]
            self._settle(report.raised(rank, head["error"], head["text"], at, head["traceback"]))

    def _died(self, rank: int, code: int | None) -> None:
        if rank not in self._fates and rank not in self._cut:
            self._talk(rank)  # its answer may have come meanwhile
        if rank in self._fates and self._fates[rank].kind == "raised":
            return
        self._hear(rank, _REST)
        wrote = self._tails[rank].decode("utf-8", "replace")
        self._settle(report.died(rank, code, self._where(rank) or (), wrote))

    def _settle(self, fate: Fate) -> None:
        late = fate.failed and time.monotonic() > self._failing + _LATE
        self._fates[fate.rank] = replace(fate, late=late)
        if fate.failed:
            self._failing = min(self._failing, time.monotonic())
        self._finish(fate.rank)

    def _finish(self, rank: int) -> None:
        """Take what is left of the output of a rank that writes no more in this call."""
        self._hear(rank, _REST)
        self._deaf(rank)
        self._printer.finish(rank)

    def _hear(self, rank: int, most: int = _CHUNK) -> None:
        """Read up to about `most` bytes of what a rank has printed."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while most > 0:
                data = self._group.outputs[rank].recv(_CHUNK)
                if not data:
                    self._deaf(rank)
                    return
                self._printer.feed(rank, data)
                self._tails[rank] = (self._tails[rank] + data)[-_TAIL:]
                most -= len(data)

    def _deaf(self, rank: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._group.outputs[rank])


def deadline(timeout: Any) -> float:
    """Return the seconds that a call may take, or say what a deadline is."""
    allowed = "timeout must be a positive number of seconds"
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"{allowed}, got {timeout!r} ({type(timeout).__name__})")
    if not 0 < float(timeout) < math.inf:
        raise ValueError(f"{allowed}, got {timeout!r}")
    return float(timeout)
