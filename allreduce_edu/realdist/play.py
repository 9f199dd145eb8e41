"""Plays a schedule on real ranks: its rounds as messages, its additions in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.dtypes import combiner, is_torch
from allreduce_edu.engine.execute import as_call, warn_of_overflow
from allreduce_edu.engine.rounds import Ints, Round
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.realdist.arguments import PerRank

if TYPE_CHECKING:
    from allreduce_edu.realdist.pool import Pool


class Part(NamedTuple):
    """What one rank does in one round, transfer by transfer, in the order of the schedule."""

    to: Ints  # transfer i of those that leave goes to rank to[i] and carries chunk out[i]
    out: Ints
    by: Ints  # transfer i of those that arrive comes from rank by[i] and carries chunk into[i]
    into: Ints
    reduce: npt.NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"Part of {len(self.to)} transfers out and {len(self.by)} in"


def parts(schedule: Schedule, rank: int) -> list[Part]:
    """Return the part of `rank` in each round; plain arrays, since a lambda does not travel."""
    return [_part(r, rank) for r in schedule]


def _part(r: Round, rank: int) -> Part:
    leaves, arrives = r.src == rank, r.dst == rank
    return Part(r.dst[leaves], r.chunk[leaves], r.src[arrives], r.chunk[arrives], r.reduce[arrives])


def play(
    pool: Pool, schedule: Schedule, x: Any, op: str, timeout: float | None = None
) -> tuple[Any, npt.NDArray[np.int64]]:
    """Play `schedule` on the ranks of `pool`; return what `run` would, and bytes sent per rank."""
    if schedule.ranks != pool.ranks:
        raise ValueError(
            f"schedule must be for the {pool.ranks} ranks of this pool, got {schedule!r}"
        )
    shares = as_call(schedule, x, op)
    shares += [shares[0] * 0] * schedule.servers
    elements = int(np.prod(shares[0].shape, dtype=np.int64))
    bounds = np.cumsum([0, *schedule.cut(elements, shares[0].dtype.itemsize)])
    work = [parts(schedule, rank) for rank in range(pool.ranks)]
    played = pool.run(
        play_rank, PerRank(work), bounds, PerRank(shares), op, schedule.workers, timeout=timeout
    )
    warn_of_overflow(schedule, shares[: schedule.workers], op, stacklevel=4)
    results, sent = zip(*played, strict=True)
    return _like(x, results[: schedule.workers]), np.array(sent)


def _like(x: Any, results: Sequence[Any]) -> Any:
    """Return one result per rank in the container that `x` is."""
    if not is_torch(results[0]):
        return list(results) if isinstance(x, (list, tuple)) else np.stack(results)
    import torch

    home = [result.to(share.device) for result, share in zip(results, x, strict=True)]
    return home if isinstance(x, (list, tuple)) else torch.stack(home)


def play_rank(
    work: Iterable[Part], bounds: Ints, share: Any, op: str, workers: int
) -> tuple[Any, int]:
    """Do one rank's part, on that rank; return what it holds at the end and the bytes it sent."""
    flat = share.reshape(-1).clone() if is_torch(share) else np.array(share).reshape(-1)
    chunks = [flat[start:stop] for start, stop in pairwise(bounds)]
    combine = combiner(op, flat)
    sent = 0
    for part in work:
        came, moved = _exchange(part, chunks)
        sent += moved
        for chunk, reduce, piece in zip(part.into, part.reduce, came, strict=True):
            _write(chunks[chunk], piece, combine if reduce else None)
    if op == "avg":
        flat /= workers
    return flat.reshape(share.shape), sent


def _write(held: Any, came: Any, combine: Callable[..., Any] | None) -> None:
    if combine:
        combine(held, came, out=held)
    else:
        held[...] = came


def _exchange(part: Part, chunks: Sequence[Any]) -> tuple[list[Any], int]:
    """Send and receive one round; return what came, in the order of `part`, and the bytes sent.

    All receives are posted before any send: in the other order gloo needs twice the time for two
    ranks. One message per pair of ranks, none where there are no bytes, or to a rank itself.
    """
    import torch
    import torch.distributed as dist

    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    arriving = {
        src: torch.empty(size, dtype=torch.uint8, device=device)
        for src in np.unique(part.by).tolist()
        if (size := sum(chunks[c].nbytes for c in part.into[part.by == src]))
    }
    leaving = {
        dst: torch.cat(pieces).to(device)
        for dst in np.unique(part.to).tolist()
        if (pieces := [_raw(chunks[c]) for c in part.out[part.to == dst] if chunks[c].nbytes])
    }
    own = {rank: leaving.pop(rank) for rank in (dist.get_rank(),) if rank in leaving}
    arriving = {src: message for src, message in arriving.items() if src not in own}
    posts = [dist.P2POp(dist.irecv, message, src) for src, message in arriving.items()]
    posts += [dist.P2POp(dist.isend, message, dst) for dst, message in leaving.items()]
    for post in dist.batch_isend_irecv(posts) if posts else []:
        post.wait()
    came = _unpack(part, chunks, arriving | own)
    return came, sum(message.numel() for message in leaving.values())


def _unpack(part: Part, chunks: Sequence[Any], arriving: dict[int, Any]) -> list[Any]:
    """Cut the messages back into chunks; those of one pair lie in it in the order of `part`."""
    read = dict.fromkeys(arriving, 0)
    came = []
    for src, chunk in zip(part.by.tolist(), part.into, strict=True):
        like = chunks[chunk]
        if not like.nbytes:
            came.append(like)
            continue
        piece = arriving[src][read[src] : read[src] + like.nbytes].cpu()
        read[src] += like.nbytes
        came.append(piece.view(like.dtype) if is_torch(like) else piece.numpy().view(like.dtype))
    return came


def _raw(array: Any) -> Any:
    """Return the bytes of a one-dimensional array as a tensor: so every dtype travels."""
    import torch

    return array.view(torch.uint8) if is_torch(array) else torch.from_numpy(array.view(np.uint8))
