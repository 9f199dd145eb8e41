"""The same `Comm` over torch.distributed: what a learner's program calls on a real rank.

A payload travels as bytes, so every dtype does, after a header of 128 bytes that says dtype and
shape: a receive without ``out`` learns its size from it. Headers are not counted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from allreduce_edu.engine.spmd.collectives import parts
from allreduce_edu.engine.spmd.comm import Comm, Kind, Request, copy_of, kind_of, whole, write
from allreduce_edu.engine.spmd.errors import Mismatch
from allreduce_edu.engine.spmd.sites import site_of, stack_of
from allreduce_edu.engine.spmd.words import kind_text
from allreduce_edu.realdist.board import Board
from allreduce_edu.realdist.payload import (
    HEADER,
    as_bytes,
    as_tensor,
    empty,
    header_of,
    padded,
    read,
)

_TAGS = 1 << 16  # of one program: header and payload of each of the learner's tags
_left_over: list[Any] = []  # what a program never waited for: gloo wants it alive


class RealRequest(Request):
    """One half of a message under way; a receive whose size is not known begins in `wait`."""

    kind: Kind | None = None
    room: Any = None  # the array to receive in, contiguous
    header: Any = None
    _watch: threading.Thread | None = None

    def __init__(self, comm: Comm, side: str, call: str, peer: int | None, tag: int) -> None:
        super().__init__(comm)
        self.side, self.call, self.rank, self.peer, self.tag = side, call, comm.me, peer, tag
        self.works: list[Any] = []

    def finish(self) -> None:
        """Wait for what is under way; gloo lets that be done only once."""
        if self._watch:
            self._watch.join()
        elif not self.done:
            self._wait()

    def has_finished(self) -> bool:
        """Tell whether it is; a thread waits for it, because gloo's ``is_completed`` never is."""
        if not self.done and self._watch is None:
            self._watch = threading.Thread(target=self._wait, daemon=True)
            self._watch.start()
        if self._watch:
            self._watch.join(0.001)
        return self.done

    def _wait(self) -> None:
        for work in self.works:
            work.wait()
        self.done = True


class RealWorld:
    """The other processes, as this one sees them; leftovers of another `program` do not match."""

    def __init__(self, board: Board | None = None, program: int = 0) -> None:
        import torch.distributed as dist

        self._dist: Any = dist
        self._board = board
        self._first_tag = program % (1 << 14) * _TAGS
        self._processes: dict[int, Any] = {0: None}  # process groups by number; None is everybody
        self._calls: dict[int, int] = {}
        self._under_way: list[RealRequest] = []
        self.sent = np.zeros(dist.get_world_size(), np.int64)  # bytes by destination

    def __repr__(self) -> str:
        return f"world of {len(self.sent)} processes"

    def comm(self) -> Comm:
        """Return the comm of this rank among all."""
        return Comm(self, self._dist.get_rank(), range(self._dist.get_world_size()))

    def close(self) -> None:
        """Give up the groups of a program that has ended on this rank."""
        if self._board:
            self._board.returned()
        _left_over.extend(each for each in self._under_way if not each.done)
        if len(self._processes) > 1:
            self._dist.barrier()  # others may still be in one of the groups
        for process_group in filter(None, self._processes.values()):
            self._dist.destroy_process_group(process_group)

    # ------------------------------------------------------------------ messages

    def post(
        self, comm: Comm, side: str, call: str, peer: int | None, tag: int, array: Any
    ) -> RealRequest:
        """Begin one half of a message, as far as it can begin without knowing the other."""
        request = RealRequest(comm, side, call, peer, tag)
        request.array = array
        request.kind = None if array is None else kind_of(array)
        if side == "send":
            self._send(request)
        elif call == "irecv":
            self._begin_receive(request)
        if call in ("isend", "irecv"):
            self._under_way.append(request)
        return request

    def _send(self, request: RealRequest) -> None:
        payload = whole(request.array)
        request.header, request.room = header_of(payload), payload
        request.works.append(self._over("isend", request, request.header, 0))
        if payload.nbytes:
            request.works.append(self._over("isend", request, as_bytes(payload), 1))
        self.sent[request.peer] += payload.nbytes

    def _begin_receive(self, request: RealRequest) -> None:
        request.header, request.room = as_bytes(np.zeros(HEADER, np.uint8)), whole(request.array)
        request.works.append(self._over("irecv", request, request.header, 0))
        if request.room.nbytes:
            request.works.append(self._over("irecv", request, as_bytes(request.room), 1))

    def _over(self, call: str, request: RealRequest, data: Any, part: int) -> Any:
        """Call isend, irecv or recv of torch.distributed; tags come in pairs."""
        tag = self._first_tag + 2 * request.tag + part
        group = self._processes[request.comm.group_number]
        return getattr(self._dist, call)(data, request.peer, group=group, tag=tag)

    def wait(self, comm: Comm, requests: Sequence[RealRequest], call: str) -> None:  # noqa: ARG002
        """Return when all requests are done: receives first, since sends go on by themselves."""
        if self._board:
            self._board.waits(call, requests)
        for request in sorted(requests, key=lambda each: each.side):
            self._finish(request)
        if self._board:
            self._board.goes_on()

    def _finish(self, request: RealRequest) -> None:
        if request.side == "recv" and not request.works:
            self._receive(request)
        else:
            request.finish()
            if request.side == "recv":
                self._check(request, *read(request.header), request.peer)
                if request.room is not request.array:
                    write(request.array, request.room)

    def _receive(self, request: RealRequest) -> None:
        """Receive a header, then a payload into room of the right size."""
        request.header = as_bytes(np.zeros(HEADER, np.uint8))
        asked = request.peer
        request.peer = self._over("recv", request, request.header, 0)
        library, kind = read(request.header)
        self._check(request, library, kind, request.peer)
        room = empty(library, kind) if request.array is None else whole(request.array)
        if room.nbytes:
            self._over("recv", request, as_bytes(room), 1)
        if request.array is None:
            request.array = room
        elif room is not request.array:
            write(request.array, room)
        request.peer, request.done = asked, True

    def _check(self, request: RealRequest, _: str, kind: Kind, src: int | None) -> None:
        if request.kind is not None and kind != request.kind:
            raise Mismatch(
                f"rank {request.rank} made room for {kind_text(request.kind)}, "
                f"rank {src} sent {kind_text(kind)}"
            )

    def poll(self, request: RealRequest) -> bool:
        """Tell whether a request is done."""
        return request.has_finished()

    def work(self, comm: Comm, seconds: float) -> None:
        """Do nothing: modelled time is a matter of the simulation."""

    # --------------------------------------------------------------- collectives

    def collective(self, comm: Comm, name: str, array: Any, argument: Any) -> Any:
        """Do this rank's part in a collective of torch.distributed."""
        number = self._calls[comm.group_number] = self._calls.get(comm.group_number, 0) + 1
        site = site_of(stack_of(sys._getframe()))  # noqa: SLF001
        if self._board:
            self._board.meets(comm, number, name, argument, array, site)
        result = getattr(self, f"_{name}")(comm, array, argument)
        if self._board:
            self._board.met(comm, number, name, site)
        return result

    def _barrier(self, comm: Comm, _: None, __: None) -> None:
        self._dist.barrier(group=self._processes[comm.group_number])

    def _all_reduce(self, comm: Comm, array: Any, op: str) -> Any:
        held = whole(array)
        self._dist.all_reduce(as_tensor(held), self._op(op), self._processes[comm.group_number])
        return _given_back(array, held, comm.size if op == "avg" else 1)

    def _reduce(self, comm: Comm, array: Any, argument: tuple[str, int]) -> Any:
        op, root = argument
        held, group = whole(array), self._processes[comm.group_number]
        self._dist.reduce(as_tensor(held), root, self._op(op), group)
        return _given_back(array, held, comm.size if op == "avg" else 1)

    def _op(self, op: str) -> Any:
        names = {"sum": "SUM", "avg": "SUM", "max": "MAX", "min": "MIN", "prod": "PRODUCT"}
        return getattr(self._dist.ReduceOp, names[op])

    def _broadcast(self, comm: Comm, array: Any, root: int) -> Any:
        held = whole(array)
        if held.nbytes:
            self._dist.broadcast(as_bytes(held), root, self._processes[comm.group_number])
        return _given_back(array, held)

    def _all_gather(self, comm: Comm, array: Any, _: None) -> list[Any]:
        found = [copy_of(array) for _ in range(comm.size)]
        if array.nbytes:
            out, own = [as_bytes(each) for each in found], as_bytes(whole(array))
            self._dist.all_gather(out, own, self._processes[comm.group_number])
        return found

    def _gather(self, comm: Comm, array: Any, root: int) -> list[Any] | None:
        found = [copy_of(array) for _ in range(comm.size)] if comm.me == root else None
        if array.nbytes:
            rooms = [as_bytes(each) for each in found] if found else None
            group = self._processes[comm.group_number]
            self._dist.gather(as_bytes(whole(array)), rooms, root, group)
        return found

    def _scatter(self, comm: Comm, array: Any, root: int) -> Any:
        pieces = [copy_of(each) for each in parts(array, comm.size)]
        mine, group = pieces[comm.rank], self._processes[comm.group_number]
        if array.nbytes:  # padded, because gloo's parts are of one size
            size = max(each.nbytes for each in pieces)
            room, sent = padded(mine, size), [padded(each, size) for each in pieces]
            self._dist.scatter(room, sent if comm.me == root else None, root, group)
            as_bytes(mine).copy_(room[: mine.nbytes])
        return mine

    def _all_to_all(self, comm: Comm, array: Any, _: None) -> Any:
        result = copy_of(array)
        if array.nbytes:
            group = self._processes[comm.group_number]
            self._dist.all_to_all_single(as_bytes(result), as_bytes(whole(array)), group=group)
        return result

    def _reduce_scatter(self, comm: Comm, array: Any, op: str) -> Any:
        return copy_of(parts(self._all_reduce(comm, copy_of(array), op), comm.size)[comm.rank])

    def _group(self, comm: Comm, _: None, members: tuple[int, ...]) -> Comm | None:
        number = len(self._processes)
        nested = comm.group_number > 0  # then only its members call
        made = self._dist.new_group(list(members), use_local_synchronization=nested)
        inside = comm.me in members
        self._processes[number] = made if inside else None
        return Comm(self, comm.me, members, number) if inside else None


def _given_back(array: Any, held: Any, divisor: int = 1) -> Any:
    if divisor > 1:
        held /= divisor
    if held is not array:
        write(array, held)
    return array
