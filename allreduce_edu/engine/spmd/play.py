"""Plays a schedule as messages between ranks: the way back from `lift`."""

from __future__ import annotations

from typing import Any

import numpy as np

from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule, schedule_of
from allreduce_edu.engine.spmd.comm import Comm, copy_of, write


def play(schedule: Schedule, comm: Comm, x: Any) -> Any:
    """Do this rank's part of a schedule on its array `x`, in place; return it.

    On simulated ranks and on real ones, with the bits of `run`. A rank begins its next round when
    its own messages of the last are through, as libraries do: rounds are no barriers. If a rank
    does not take part, the others wait as long as it does.

    Parameters
    ----------
    schedule : Schedule
        Of ``comm.size`` ranks. It adds; other ops are for `run`.
    comm : Comm
    x : array
    """
    if schedule_of(schedule).ranks != comm.size:
        raise ValueError(f"{schedule.name} is for {schedule.ranks} ranks, there are {comm.size}")
    flat = x.reshape(-1)
    ends = np.cumsum(schedule.cut(len(flat), x.itemsize)).tolist()
    pieces = [flat[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
    for each in schedule:
        _round(each, comm, pieces)
    write(x, flat.reshape(x.shape))  # a reshape may have been a copy
    return x


def _round(r: Round, comm: Comm, pieces: list[Any]) -> None:
    """Send and receive all at once, then write in the order of the round."""
    me, requests, arrived = comm.rank, [], []
    moves = zip(*(part.tolist() for part in (r.src, r.dst, r.chunk, r.reduce)), strict=True)
    for src, dst, chunk, adds in moves:
        here = copy_of(pieces[chunk]) if me in (src, dst) else None
        if src == me != dst:
            requests.append(comm.isend(here, dst, chunk))
        elif dst == me:
            requests += [comm.irecv(src, here, chunk)] if src != me else []
            arrived.append((chunk, adds, here))
    comm.wait_for(requests, "wait")
    for chunk, adds, here in arrived:
        pieces[chunk][...] = pieces[chunk] + here if adds else here
