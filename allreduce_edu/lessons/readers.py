"""Small readings of a schedule for a lesson, as text that a screen reader can follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.execute import steps
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import expected


@dataclass(frozen=True, eq=False, repr=False)
class Board:
    """How many shares each chunk of each rank holds: counts[frame, rank, chunk], frame 0 first."""

    counts: npt.NDArray[np.int32]

    def __repr__(self) -> str:
        frames, ranks, chunks = self.counts.shape
        digits = len(str(ranks))
        width = max(chunks * (digits + 1) - 1, len(f"round {frames - 1}"))
        heads = ["start", *(f"round {k}" for k in range(1, frames))]
        lines = [" " * 9 + "   ".join(head.ljust(width) for head in heads)]
        for rank in range(ranks):
            rows = (" ".join(f"{c:{digits}}" for c in frame[rank]) for frame in self.counts)
            lines.append(f"rank {rank:<4}" + "   ".join(row.ljust(width) for row in rows))
        return "\n".join(line.rstrip() for line in lines)


def share_counts(schedule: Schedule) -> Board:
    """Count the shares in every chunk, at the start and after each round."""
    counts = expected(schedule).start
    frames = [counts.sum(-1), *(live.sum(-1) for _, live in steps(schedule.check(), counts))]
    return Board(np.stack(frames))
