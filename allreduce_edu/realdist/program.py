"""Runs a learner's program of messages on the ranks of a pool, and explains its hangs."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce_edu.engine.spmd.errors import Deadlock
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.engine.spmd.simulate import shares_of
from allreduce_edu.engine.spmd.trace import Bytes, Counted
from allreduce_edu.realdist import board as boards
from allreduce_edu.realdist.arguments import PerRank
from allreduce_edu.realdist.board import Board
from allreduce_edu.realdist.comm import RealWorld
from allreduce_edu.realdist.report import RankError

if TYPE_CHECKING:
    from allreduce_edu.realdist.pool import Pool

_numbers = itertools.count(1)


class RealRun(Counted):
    """What a run on real ranks gave.

    Attributes
    ----------
    results : list
        What each rank returned; where it returned nothing, its own array as it left it.
    """

    def __init__(self, results: Sequence[Any], sent: Sequence[Bytes]) -> None:
        self.results = list(results)
        self._traffic = np.array(sent)

    def __repr__(self) -> str:
        ranks = f"{len(self.results)} real rank{'s' * (len(self.results) > 1)}"
        return f"RealRun: {ranks}, {int(self._traffic.sum()):,} bytes"

    def traffic(self) -> Bytes:
        """Return bytes[src, dst]."""
        return self._traffic


def run_program(
    pool: Pool, fn: Callable[..., Any], x: Any = None, timeout: float | None = None
) -> RealRun:
    """Call ``fn(comm, x[rank])`` on every rank of `pool`."""
    if pool.backend != "gloo":
        raise ValueError(f"programs run on gloo, and this pool has {pool.backend}")
    shares = shares_of(fn, x, pool.ranks)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "board")  # noqa: PTH118 - it travels as text
        board = Board(path, pool.ranks)
        try:
            plan = path, next(_numbers), x is not None
            answers = pool.run(_run_rank, fn, PerRank(shares), plan, timeout=timeout)
        except RankError as error:
            _explain(error, board)
            raise
        finally:
            board.close()
    results, sent = zip(*answers, strict=True)
    return RealRun(results, sent)


def _explain(error: RankError, board: Board) -> None:
    """Raise Deadlock in its place if no rank failed and all that are left wait."""
    if not error.fates or any(fate.failed for fate in error.fates):
        return
    ended = {fate.rank: "returned" for fate in error.fates if fate.kind == "returned"}
    states = board.states(ended)
    if all(s.status in ("waits", "returned") for s in states):
        raise Deadlock(Hang(states)) from None


def _run_rank(fn: Callable[..., Any], share: Any, plan: tuple[str, int, bool]) -> tuple[Any, Bytes]:
    """Be one rank; return its result and the bytes that it sent to each other rank."""
    import torch.distributed as dist

    path, number, takes_x = plan
    world = RealWorld(Board(path, dist.get_world_size(), dist.get_rank()), number)
    dist.barrier()
    if dist.get_rank() == 0:
        boards.remove(path)  # all have it open: nothing is left when the kernel is killed
    comm = world.comm()
    result = fn(comm, share) if takes_x else fn(comm)
    world.close()
    return (share if result is None else result), world.sent
