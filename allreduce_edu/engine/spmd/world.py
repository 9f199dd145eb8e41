"""Simulated ranks: which message meets which, who can go on, and the trace of it all."""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from allreduce_edu.engine.dtypes import is_torch
from allreduce_edu.engine.spmd.baton import Baton
from allreduce_edu.engine.spmd.collectives import RESULTS
from allreduce_edu.engine.spmd.comm import (
    Comm,
    NoWorld,
    copy_of,
    kind_of,
    raw,
    write,
)
from allreduce_edu.engine.spmd.events import Event, Outcome, Posted, Waiting
from allreduce_edu.engine.spmd.sites import Stack, stack_of
from allreduce_edu.engine.spmd.stop import Stop

Way = tuple[int, int | None, int, int]  # to whom, from whom, group, tag
_KEEP = 1 << 26  # bytes of payloads that a trace keeps; beyond, only their sizes


class SimulatedWorld:
    """The ranks of one run. What a rank calls runs in its own thread, which holds the baton."""

    def __init__(self, size: int, *, buffered: bool | int, most: int, strict: bool) -> None:
        self.size, self.buffered, self.most, self.strict = size, buffered, most, strict
        self.trace: list[Event] = []
        self.hazards: list[Outcome] = []
        self.results: list[Any] = [None] * size
        self.groups: list[tuple[int, ...]] = [tuple(range(size))]
        self.waiting: dict[int, Waiting] = {}
        self.live = set(range(size))
        self.running: int | None = None
        self.outcome: Outcome | None = None
        self.last: dict[int, Posted] = {}  # the last collective that each rank completed
        self.sends: dict[Way, deque[Posted]] = defaultdict(deque)
        self.recvs: dict[Way, deque[Posted]] = defaultdict(deque)
        self._events = self._kept = 0
        self._comms: list[Comm] = []
        self._unwaited: dict[int, list[Posted]] = defaultdict(list)
        self._calls: dict[tuple[int, int], int] = defaultdict(int)  # by group and rank
        self._meetings: dict[tuple[int, int], dict[int, Posted]] = defaultdict(dict)

    def __repr__(self) -> str:
        return f"world of {self.size} ranks, {len(self.trace)} events"

    # ----------------------------------------------------------------- the baton

    def begin(self, fn: Callable[..., Any], shares: Sequence[Any]) -> Baton:
        """Return the baton among ranks that call ``fn(comm, shares[rank])``."""
        self._fn, self.shares = fn, shares
        self.baton = Baton(self.size, self._body)
        return self.baton

    def close(self) -> None:
        """Let go of what is only needed while ranks run, so that memory is free at once."""
        for comm in self._comms:
            comm.world = NoWorld()
        self._comms.clear()
        del self.baton, self._fn

    def _comm(self, rank: int, members: tuple[int, ...], number: int) -> Comm:
        self._comms.append(Comm(self, rank, members, number))
        return self._comms[-1]

    def _body(self, rank: int) -> None:
        self.running = rank
        try:
            self._check()
            result = self._fn(self._comm(rank, self.groups[0], 0), self.shares[rank])
            self._check()
            self.results[rank] = self.shares[rank] if result is None else result
            self.live.discard(rank)
            for request in self._unwaited[rank]:
                self._hazard(Outcome("never waited for", (request,), rank))
        except BaseException as error:  # noqa: BLE001 - told to the caller
            if isinstance(error, Stop) or self.outcome:
                return
            self.live.discard(rank)
            self.outcome, self.running = Outcome("raised", rank=rank, error=error), None
            self.baton.give(self.size)
            return
        self._pass_on(rank)

    def _check(self) -> None:
        if self.outcome:
            raise Stop

    def _can_go(self, rank: int) -> bool:
        if rank not in self.live:
            return False
        waiting = self.waiting.get(rank)
        return waiting is None or all(each.done for each in waiting.requests)

    def _following(self, me: int) -> int:
        """Return the next rank in cyclic order that can go on; the caller's place if none can."""
        while True:
            for k in range(1, self.size + 1):
                if self._can_go((me + k) % self.size):
                    return (me + k) % self.size
            if not self._settle():
                return self.size

    def _settle(self) -> bool:
        """Decide something that was left open, when nobody can go on; return whether there was."""
        return False

    def _pass_on(self, me: int) -> None:
        to = self._following(me)
        if to == self.size:
            self.outcome = Outcome("deadlock" if self.live else "done")
        self.running = to if to < self.size else None
        self.baton.give(to)

    def _let_others(self, me: int) -> None:
        """Hand over the baton and wait for it."""
        to = self._following(me)
        if to != me:
            self._pass_on(me)
            self.baton.take(me)
        self.running = me
        self._check()

    def fail(self, outcome: Outcome) -> None:
        """End the run from inside a rank."""
        self.outcome, self.running = outcome, None
        self.baton.give(self.size)
        raise Stop

    def _hazard(self, outcome: Outcome) -> None:
        self.hazards.append(outcome)
        if self.strict:
            self.fail(outcome)

    # ------------------------------------------------------------------ messages

    def post(
        self, comm: Comm, side: str, call: str, peer: int | None, tag: int, array: Any
    ) -> Posted:
        """Begin one half of a message; it is done at once if the other half is there."""
        self._check()
        request = Posted(comm, side, call, peer, stack_of(sys._getframe()))  # noqa: SLF001
        request.tag, request.array = tag, array
        request.kind = None if array is None else kind_of(array)
        self._note(Event("post", comm.me, (request,)))
        if call in ("isend", "irecv"):
            self._unwaited[comm.me].append(request)
        if side == "send":
            request.nbytes = int(array.nbytes)
            if call == "isend":
                request.checksum = _checksum(array)
            self._send(request)
        else:
            self._receive(request)
        return request

    def _send(self, send: Posted) -> None:
        if self.buffered is True or (self.buffered is not False and send.nbytes <= self.buffered):
            send.sent, send.done = copy_of(send.array), True
        if (recv := self._receiver_of(send)) is not None:
            self._match(send, recv)
        else:
            self._queue(self.sends, send, send.rank).append(send)

    def _receiver_of(self, send: Posted) -> Posted | None:
        """Take the receive that waits for this send, if there is one."""
        recv = self._next(self.recvs, send, send.rank)
        return recv or self._next(self.recvs, send, None)

    def _receive(self, recv: Posted) -> None:
        if (send := self._sender_for(recv)) is not None:
            self._match(send, recv)
        else:
            self._queue(self.recvs, recv, recv.peer).append(recv)

    def _sender_for(self, recv: Posted) -> Posted | None:
        """Take the send that this receive waits for, if there is one."""
        for src in range(self.size) if recv.peer is None else [recv.peer]:
            if (send := self._next(self.sends, recv, src)) is not None:
                return send
        return None

    def _queue(
        self, queues: dict[Way, deque[Posted]], request: Posted, src: int | None
    ) -> deque[Posted]:
        """Return who waits on the way that a request takes from `src`."""
        dst = request.peer if request.side == "send" else request.rank
        assert dst is not None
        return queues[dst, src, request.group, request.tag]

    def _next(
        self, queues: dict[Way, deque[Posted]], request: Posted, src: int | None
    ) -> Posted | None:
        waiting = self._queue(queues, request, src)
        return waiting.popleft() if waiting else None

    def _match(self, send: Posted, recv: Posted) -> None:
        """Hand over the data: gloo reads the buffer of an isend here, too."""
        if send.sent is None:
            send.sent = copy_of(send.array)
        self._kept += send.nbytes
        keep = self._kept <= _KEEP
        if recv.array is None:
            recv.array = copy_of(send.sent) if keep else send.sent
        elif recv.kind != send.kind:
            self.fail(Outcome("mismatch", (recv, send)))
        else:
            write(recv.array, send.sent)
        send.done = recv.done = True
        if not keep:
            send.sent = None
        self._note(Event("match", send.rank, (send, recv)))

    def wait(self, comm: Comm, requests: Sequence[Posted], call: str) -> None:
        """Return when all requests are done; the other ranks go on meanwhile."""
        self._check()
        stack = stack_of(sys._getframe())  # noqa: SLF001
        self._block(comm.me, Waiting(requests, call, stack))
        for request in requests:
            self._waited(request, stack)
        self._note(Event("wait", comm.me, tuple(requests)))

    def _block(self, me: int, waiting: Waiting) -> None:
        self.waiting[me] = waiting
        while not all(each.done for each in waiting.requests):
            self._let_others(me)
        del self.waiting[me]

    def _waited(self, request: Posted, stack: Stack) -> None:
        first, request.waited = not request.waited, True
        if not first or request.call not in ("isend", "irecv"):
            return
        self._unwaited[request.rank].remove(request)
        if request.checksum is not None and _checksum(request.array) != request.checksum:
            self._hazard(Outcome("changed before wait", (request,), request.rank, where=stack))

    def poll(self, request: Posted) -> bool:
        """Let the others go on, else ``while not q.is_completed()`` would never end."""
        self._check()
        self._note(Event("poll", request.rank))
        if self._following(request.rank) == request.rank:
            self._settle()
        self._let_others(request.rank)
        return request.done

    def work(self, comm: Comm, seconds: float) -> None:
        """Note that a rank computes."""
        self._check()
        self._note(Event("work", comm.me, seconds=seconds))

    def _note(self, event: Event) -> None:
        self.trace.append(event)
        self._events += 1
        if self._events > 4 * self.most:
            stack = stack_of(sys._getframe())  # noqa: SLF001
            self.fail(Outcome("too many", rank=event.rank, where=stack))

    # --------------------------------------------------------------- collectives

    def collective(self, comm: Comm, name: str, array: Any, argument: Any) -> Any:
        """Wait until every member is in its collective of the same number; return the result."""
        self._check()
        group, me = comm.group_number, comm.me
        stack = stack_of(sys._getframe())  # noqa: SLF001
        part = Posted(comm, "all", name, None, stack)
        self._calls[group, me] += 1
        part.number, part.argument = self._calls[group, me], argument
        part.array, part.kind = array, None if array is None else kind_of(array)
        part.nbytes = 0 if array is None else int(array.nbytes)
        self._note(Event("post", me, (part,)))
        meeting = self._meetings[group, part.number]
        meeting[me] = part
        if len(meeting) == comm.size and len({each.call for each in meeting.values()}) == 1:
            self._meet(name, argument, [meeting[each] for each in comm.members])
        self._block(me, Waiting([part], name, stack))
        self.last[me] = part
        self._note(Event("wait", me, (part,)))
        return part.sent

    def _meet(self, name: str, argument: Any, together: list[Posted]) -> None:
        if len({(each.argument, each.kind) for each in together}) > 1:
            self.fail(Outcome("mismatch", tuple(together)))
        comm = together[0].comm
        if name == "group":
            results = self._new_group(argument, together)
        else:
            arrays = [each.array for each in together]
            results = RESULTS[name](arrays, _within(argument, comm.members))
        for each, result in zip(together, results, strict=True):
            each.sent, each.done = result, True
        self._note(Event("all", together[-1].rank, tuple(together)))

    def _new_group(self, members: tuple[int, ...], together: list[Posted]) -> list[Comm | None]:
        self.groups.append(members)
        number = len(self.groups) - 1
        ranks = [each.rank for each in together]
        return [self._comm(r, members, number) if r in members else None for r in ranks]


def _within(argument: Any, members: Sequence[int]) -> Any:
    """Return a collective's argument with its root as a place in the group."""
    if isinstance(argument, tuple):
        return argument[0], members.index(argument[1])
    return members.index(argument) if isinstance(argument, int) else argument


def _checksum(array: Any) -> int:
    flat = raw(array)
    return zlib.crc32(flat.cpu().numpy() if is_torch(flat) else flat)
