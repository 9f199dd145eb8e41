"""Where each rank writes what it waits for, so that a hang can be explained when it is over.

A file in shared memory with one row per rank. A rank writes its row before it blocks; the kernel
reads them after it has ended the ranks.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allreduce_edu.engine.spmd.comm import Comm, kind_of
from allreduce_edu.engine.spmd.sites import Site, site_of, stack_of
from allreduce_edu.engine.spmd.states import Call, Last, Need, Offer, Part, State

if TYPE_CHECKING:
    from allreduce_edu.realdist.comm import RealRequest

_ROW = 1 << 14  # bytes
_KEPT = 8  # collectives of each rank, the latest
_SIZE = struct.Struct("<I")


class Board:
    """The rows, mapped; `rank` is whose row is written."""

    def __init__(self, path: str, ranks: int, rank: int = -1) -> None:
        self._rank = rank
        self._last: list[Any] | None = None
        self._part: list[Any] = []  # in which collective this rank is
        self._calls: list[Any] = []  # those that it has completed
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if rank < 0:
                os.truncate(path, ranks * _ROW)
            self._rows = mmap.mmap(file, ranks * _ROW)
        finally:
            os.close(file)

    def __repr__(self) -> str:
        return f"Board of {len(self._rows) // _ROW} ranks"

    def close(self) -> None:
        """Give the memory back."""
        self._rows.close()

    # ------------------------------------------------------------- on a rank

    def waits(self, call: str, requests: Sequence[RealRequest]) -> None:
        """Note that this rank waits for messages."""
        needs = [[q.side, q.peer, q.tag, q.kind] for q in requests if not q.done]
        site = site_of(stack_of(sys._getframe()))  # noqa: SLF001
        offers = [[q.peer, q.tag, q.kind, site] for q in requests if q.side == "send"]
        limit = requests[0].comm.timeout if requests else None
        self._write(call=call, needs=needs, site=site, offers=offers, timeout=limit)

    def meets(
        self, comm: Comm, number: int, name: str, argument: Any, array: Any, site: Site
    ) -> None:
        """Note that this rank is in a collective."""
        kind = None if array is None else kind_of(array)
        self._part = [comm.group_number, comm.members, number, name, argument, kind]
        self._write(call=name, part=self._part, site=site, timeout=comm.timeout)

    def met(self, comm: Comm, number: int, name: str, site: Site) -> None:
        """Note that this rank has completed a collective."""
        self._last = [name, comm.group_number, number, site]
        self._calls = [*self._calls, [self._part, site]][-_KEPT:]
        self._write()

    def goes_on(self) -> None:
        """Note that this rank waits for nothing."""
        self._write()

    def returned(self) -> None:
        """Note that this rank's program has ended."""
        self._write(status="returned")

    def _write(self, **row: Any) -> None:
        text = json.dumps({**row, "last": self._last, "calls": self._calls}).encode()[
            : _ROW - _SIZE.size
        ]
        at = self._rank * _ROW
        self._rows[at : at + _SIZE.size + len(text)] = _SIZE.pack(len(text)) + text

    # ----------------------------------------------------------- in the kernel

    def states(self, status: dict[int, str]) -> list[State]:
        """Return where each rank is; `status` holds "returned" or "raised" of those that are."""
        return [self._state(rank, status.get(rank, "")) for rank in range(len(self._rows) // _ROW)]

    def _state(self, rank: int, status: str) -> State:
        row = self._read(rank)
        status = status or row.get("status", "")
        name, group, number, at = row.get("last") or ("", 0, 0, None)
        last = Last(name, group, number, Site(*at)) if at else None
        calls = tuple(Call(_part(*part), Site(*at), True) for part, at in _of(row, "calls"))
        if status or not row.get("call"):
            return State(rank, status or "runs", last=last, calls=calls)
        needs = tuple(Need(s, p, t, _kind(kind)) for s, p, t, kind in _of(row, "needs"))
        offers = tuple(Offer(p, t, _kind(kind), Site(*at)) for p, t, kind, at in _of(row, "offers"))
        part = _part(*row["part"]) if row.get("part") else None
        site, limit = Site(*row["site"]), row.get("timeout")
        calls += (Call(part, site, False),) if part else ()
        return State(rank, "waits", row["call"], needs, part, site, last, offers, calls, limit)

    def _read(self, rank: int) -> dict[str, Any]:
        (size,) = _SIZE.unpack_from(self._rows, rank * _ROW)
        start = rank * _ROW + _SIZE.size
        with contextlib.suppress(ValueError):  # a rank that died while it wrote
            return dict(json.loads(self._rows[start : start + size] or b"{}"))
        return {}


def remove(path: str) -> None:
    """Remove the file: who has mapped it keeps it."""
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _of(row: dict[str, Any], name: str) -> list[Any]:
    return list(row.get(name) or [])


def _kind(kind: Any) -> Any:
    return (kind[0], tuple(kind[1])) if kind else None


def _part(group: int, members: Any, number: int, name: str, argument: Any, kind: Any) -> Part:
    argument = tuple(argument) if isinstance(argument, list) else argument
    return Part(group, tuple(members), number, name, argument, _kind(kind))
