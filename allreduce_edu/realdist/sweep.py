"""Times a collective on real ranks over many sizes, as nccl-tests does.

In a notebook it is `Pool.sweep`. As a script it prints the same table for ranks on any machines::

    python -m torch.distributed.run --nproc-per-node 4 --local-addr 127.0.0.1 \
        --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 -m allreduce_edu.realdist.sweep
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine import bandwidth
from allreduce_edu.engine.check import integer, unknown
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.realdist.play import parts, play_rank
from allreduce_edu.realdist.report import RankError

SIZES = tuple(4**k for k in range(5, 12))  # 1 KiB to 4 MiB
REPEATS = 7
_WARM = 2  # calls before the first that counts
_ITEM = 4  # bytes: all is float32
_MOST = 1 << 31  # bytes

CALLS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")  # of torch.distributed


@dataclass(frozen=True)
class Point:
    """Seconds that one size took: of each call the slowest rank's; of the calls the median."""

    size: int  # bytes
    seconds: float
    fastest: float
    slowest: float
    sent: int | None = None  # bytes that the busiest rank sent, counted as they were sent

    @classmethod
    def of(cls, size: int, seconds: Sequence[float], sent: int | None = None) -> Point:
        """Make a point from the seconds of all calls."""
        return cls(size, statistics.median(seconds), min(seconds), max(seconds), sent)

    def __repr__(self) -> str:
        return f"Point of {in_bytes(self.size)}"


@dataclass(frozen=True, repr=False)
class Sweep:
    """What a sweep has measured: arrays of one length, in the order of the sizes.

    Attributes
    ----------
    what : str
        The collective, or the name of the schedule that was played.
    ranks, backend
        On what.
    collective : str
        What `busbw` goes by; of a "custom" one it is algbw.
    points : tuple of Point

    Examples
    --------
    ``fit(sweep.sizes, sweep.seconds, sweep.ranks)`` explains a ring's times by alpha and beta.
    """

    what: str
    ranks: int
    backend: str
    collective: str
    points: tuple[Point, ...]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes, of the largest buffer that a rank passes to the call."""
        return np.array([point.size for point in self.points], np.int64)

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """The median over the calls of the slowest rank's time."""
        return np.array([point.seconds for point in self.points])

    @property
    def algbw(self) -> npt.NDArray[np.float64]:
        """Bytes/s: the size by the time."""
        return np.asarray(bandwidth.algbw(self.sizes, self.seconds))

    @property
    def busbw(self) -> npt.NDArray[np.float64]:
        """Bytes/s through a port, as nccl-tests has it: comparable between numbers of ranks."""
        if self.collective not in bandwidth.BUSBW:
            return self.algbw
        return np.asarray(bandwidth.busbw(self.sizes, self.seconds, self.ranks, self.collective))

    def table(self) -> str:
        """Return the measurements as text, a line per size."""
        lines = [self._line("size", "median us", "fastest", "slowest", "algbw GB/s", "busbw GB/s")]
        for point, alg, bus in zip(self.points, self.algbw / 1e9, self.busbw / 1e9, strict=True):
            times = (point.seconds, point.fastest, point.slowest)
            cells = [f"{seconds * 1e6:.0f}" for seconds in times]
            lines.append(self._line(in_bytes(point.size), *cells, f"{alg:.3g}", f"{bus:.3g}"))
        return "\n".join(lines)

    @staticmethod
    def _line(*cells: str) -> str:
        return "  ".join(f"{cell:>10}" for cell in cells)

    def __repr__(self) -> str:
        count = f"{len(self.points)} size{'s' * (len(self.points) != 1)}"
        ends = dict.fromkeys(in_bytes(p.size) for p in (*self.points[:1], *self.points[-1:]))
        span = f", {' to '.join(ends)}" if ends else ""
        return f"Sweep of {self.what}, {self.ranks} ranks, {self.backend}: {count}{span}"


def in_bytes(size: int) -> str:
    """Return "4 MiB" for 4 * 2**20; what is no whole number of KiB in bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size % 1024 or not size or unit == "GiB":
            return f"{size} {unit}"
        size //= 1024
    raise AssertionError


class Plan:
    """What a sweep will do: checked, before anything runs."""

    def __init__(
        self, what: str | Schedule, sizes: Iterable[int], repeats: int, ranks: int
    ) -> None:
        self.schedule = what if isinstance(what, Schedule) else None
        if self.schedule is not None and self.schedule.ranks != ranks:
            raise ValueError(f"the schedule must be for {ranks} ranks, got {self.schedule!r}")
        self.collective = self.schedule.collective if self.schedule else str(what)
        if self.schedule is None and what not in CALLS:
            raise ValueError(unknown("collective", what, CALLS))
        self.repeats = integer("repeats", repeats, 1)
        self.sizes = [integer("a size, in bytes,", size, _ITEM, _MOST) for size in sizes]
        self.ranks = ranks

    def __repr__(self) -> str:
        return f"Plan of {len(self.sizes)} sizes"

    def elements(self, size: int) -> int:
        """Return how many numbers come next to `size` bytes, so many that all ranks get alike."""
        step = self.ranks if self.collective in ("reduce_scatter", "all_gather") else 1
        return max(1, round(size / _ITEM / step)) * step

    def jobs(self, elements: int) -> list[tuple[Any, ...]]:
        """Return each rank's arguments for `time_on_rank`."""
        if self.schedule is None:
            return [(self.collective, elements, self.repeats, None)] * self.ranks
        bounds = np.cumsum([0, *self.schedule.cut(elements, _ITEM)])
        self.schedule.check()
        parted = [parts(self.schedule, rank) for rank in range(self.ranks)]
        workers = self.schedule.workers
        return [("play", elements, self.repeats, (part, bounds, workers)) for part in parted]

    def result(self, backend: str, points: Iterable[Point]) -> Sweep:
        """Return what has been measured so far."""
        name = self.schedule.name if self.schedule else self.collective
        return Sweep(name, self.ranks, backend, self.collective, tuple(points))


def time_on_rank(job: tuple[Any, ...]) -> tuple[list[float], int | None]:
    """Run one size on this rank; return the slowest rank's seconds of each call, and bytes sent."""
    import torch
    import torch.distributed as dist

    what, elements, repeats, part = job
    cuda = dist.get_backend() == "nccl"
    device = torch.device("cuda" if cuda else "cpu")
    call = _call(what, elements, part, device)
    seconds, sent = [], None
    for _ in range(_WARM + repeats):
        dist.barrier()
        start = time.perf_counter()
        sent = call()
        if cuda:
            torch.cuda.synchronize()
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        seconds.append(slowest.item())
    return seconds[_WARM:], sent


def _call(what: str, elements: int, part: Any, device: Any) -> Callable[[], int | None]:
    """Return the call to time, its buffers made."""
    import torch
    import torch.distributed as dist

    whole = torch.ones(elements, device=device)
    piece = torch.ones(elements // dist.get_world_size(), device=device)
    if what == "play":
        work, bounds, workers = part
        return lambda: play_rank(work, bounds, whole, "max", workers)[1]  # max: ones stay ones
    scatter = (
        getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    )  # torch 2.13
    gather = (
        getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    )  # on, and before
    calls: dict[str, Callable[[], None]] = {
        "all_reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX),
        "reduce_scatter": lambda: scatter(piece, whole),
        "all_gather": lambda: gather(whole, piece),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    return calls[what]


def sweep(
    plan: Plan, run: Callable[[str, list[tuple[Any, ...]], float], list[Any]], seconds: float
) -> tuple[list[Point], str]:
    """Measure size after size by `run(note, jobs, seconds)`; return the points and why it ended.

    What was measured is kept when the reader stops it, or when its seconds are over.
    """
    points: list[Point] = []
    late = f"out of time ({seconds:g} s)"
    end = time.monotonic() + seconds
    for nth, size in enumerate(plan.sizes, 1):
        left = end - time.monotonic() if points else seconds
        if left <= 0:
            return points, late
        elements = plan.elements(size)
        note = f"size {nth} of {len(plan.sizes)}, {in_bytes(size)}"
        try:
            times, sent = zip(*run(note, plan.jobs(elements), left), strict=True)
        except KeyboardInterrupt:
            if not points:
                raise
            return points, "stopped"
        except RankError as error:
            if not points or any(fate.failed for fate in error.fates):
                raise
            return points, late
        counted = None if sent[0] is None else max(sent)
        points.append(Point.of(elements * _ITEM, times[0], counted))
    return points, ""


def main() -> None:
    """Measure on the ranks that torchrun has started; rank 0 prints the table."""
    import torch.distributed as dist

    from allreduce_edu.realdist.scripts import process_group

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--what", choices=CALLS, default="all_reduce")
    parser.add_argument("--from", dest="least", type=int, default=SIZES[0], help="bytes")
    parser.add_argument("--to", dest="most", type=int, default=SIZES[-1], help="bytes")
    parser.add_argument("--factor", type=int, default=4, help="from one size to the next")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--backend", choices=["gloo", "nccl"])
    asked = parser.parse_args()
    steps = math.log(asked.most / asked.least, asked.factor)
    sizes = [asked.least * asked.factor**k for k in range(int(steps + 1e-9) + 1)]
    with process_group(asked.backend):
        plan = Plan(asked.what, sizes, asked.repeats, dist.get_world_size())
        points = []
        for size in plan.sizes:
            elements = plan.elements(size)
            times, sent = time_on_rank(plan.jobs(elements)[dist.get_rank()])
            points.append(Point.of(elements * _ITEM, times, sent))
        if dist.get_rank() == 0:
            print(result := plan.result(dist.get_backend(), points))
            print(result.table())


if __name__ == "__main__":
    main()
