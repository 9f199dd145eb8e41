"""The clock view of notebook 03: when each rank of a ring works, waits, and is done."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.cost import Busy, timeline
from allreduce_edu.engine.links import Links
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.show.axes import Axis, number
from allreduce_edu.show.explorers import Control, Explorer, View, slider, switch
from allreduce_edu.show.gantt import Bar, Gantt

SIZE = 64_000_000  # bytes on each rank
LINK = "100 GbE"
RANKS = (3, 4, 5, 6, 7, 8, 12, 16)
FACTORS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
LATE = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # ms
_WHO = {0: "rank 0", 1: "rank 1", 2: "rank 2", -1: "the last rank"}
_FROM = {0: "rank 0 to 1", 1: "rank 1 to 2", 2: "rank 2 to the next", -1: "the last rank to rank 0"}


def bars(schedule: Schedule, busy: Busy, *, barrier: bool = False) -> Iterator[Bar]:
    """Yield what each rank does, in milliseconds: late, waiting, adding, copying.

    With a `barrier` all wait for the last one in the end, too.
    """
    for rank, begins in enumerate(busy.ready[0] * 1e3):
        if begins:
            yield Bar(rank, 0.0, float(begins), "late")
    free = busy.ready[0]
    for k, (r, start, end) in enumerate(zip(schedule, busy.start, busy.end, strict=True)):
        for rank in np.flatnonzero(end > start).tolist():
            begins, ends, since = (float(t[rank]) * 1e3 for t in (start, end, free))
            if begins - since > 1e-9:
                yield Bar(rank, since, begins, "waits")
            yield Bar(rank, begins, ends, "adds" if r.phase == "add" else "copies", str(k + 1))
        free = end
    for rank in np.flatnonzero((free < free.max()) & barrier).tolist():
        yield Bar(rank, float(free[rank]) * 1e3, float(free.max()) * 1e3, "waits")


def gantt(schedule: Schedule, busy: Busy, title: str, *, barrier: bool = False) -> Gantt:
    """Return who works when, as a picture."""
    axis = Axis("time since the others were ready, ms, modelled")
    return Gantt(title, axis, schedule.ranks, list(bars(schedule, busy, barrier=barrier)))


def _view(links: Links, late: dict[int, float], title: str, *, barrier: bool = False) -> View:
    """Draw a ring over these links, and say how much later its ranks are done."""
    schedule = ring(links.ranks)
    plain = timeline(schedule, SIZE, Links.uniform(links.ranks, LINK)).end[-1]
    busy = timeline(schedule, SIZE, links, late, barrier=barrier)
    done = busy.end[-1] * 1e3
    if barrier:
        done = np.full(links.ranks, done.max())
    words = (
        f"Modelled, {SIZE / 1e6:.0f} MB on each of {links.ranks} ranks, {LINK}. Undisturbed: "
        f"{number(plain.max() * 1e3)} ms. Now the last rank is done after "
        f"{number(done.max())} ms: {number(done.max() / (plain.max() * 1e3))} times as long. "
        f"{_later(done - plain * 1e3)}"
    )
    return View([gantt(schedule, busy, title, barrier=barrier)], words)


def _later(by: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    least, most = (number(round(float(each), 6)) for each in (by.min(), by.max()))
    if least == most:
        return f"All ranks are {most} ms later." if by.max() > 1e-9 else "Nobody is later."
    return f"The ranks are {least} to {most} ms later."


def _slow(factor: float, link: int, ranks: int) -> View:
    src = link % ranks
    links = Links.uniform(ranks, LINK)
    if factor > 1:
        links = links.with_slow(link=(src, (src + 1) % ranks), factor=factor)
    return _view(links, {}, "A ring with one slow link" if factor > 1 else "A ring, undisturbed")


def slow_link() -> Explorer:
    """Show a ring of which one link is slow."""
    return Explorer(
        "One slow link",
        _slow,
        Control("factor", "That link takes", _times(), 3.0, "slider"),
        Control("link", "The slow link", _FROM, start=1),
        slider("ranks", "Ranks", RANKS, start=4),
    )


def _late(late: float, rank: int, ranks: int, barrier: bool, factor: float) -> View:
    """Draw a late rank, and perhaps a slow link on the far side of the ring."""
    first, links = rank % ranks, Links.uniform(ranks, LINK)
    if factor > 1:
        far = first + ranks // 2
        links = links.with_slow(link=(far % ranks, (far + 1) % ranks), factor=factor)
    return _view(links, {first: late / 1e3}, "A ring with a late rank", barrier=barrier)


def late_rank() -> Explorer:
    """Show a ring of which one rank begins late, with or without a slow link besides."""
    return Explorer(
        "One late rank",
        _late,
        Control("late", "That rank is late by", {ms: f"{ms:g} ms" for ms in LATE}, 5.0, "slider"),
        Control("rank", "The late rank", _WHO, start=2),
        slider("ranks", "Ranks", RANKS, start=8),
        switch("barrier", "All wait for all after each round (a barrier)"),
        Control("factor", "Besides, a link half round the ring takes", _times(), 1.0, "slider"),
    )


def _times() -> dict[float, str]:
    return {f: f"{f:g} times as long" if f > 1 else "as long as all" for f in FACTORS}
