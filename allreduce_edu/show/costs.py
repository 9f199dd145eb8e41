"""The explorers of notebook 04: what four all-reduces send, and how long that takes in a model."""

from __future__ import annotations

import numpy as np

from allreduce_edu.engine import cost
from allreduce_edu.engine.formulas import closed_form
from allreduce_edu.engine.links import LINKS, Link, Links
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.lessons.counting import FOUR, Count, counted, least_sent
from allreduce_edu.lessons.measuring import Exam
from allreduce_edu.show.axes import Axis, number, si
from allreduce_edu.show.charts import BarChart, Guide, Line, LineChart, Point
from allreduce_edu.show.explorers import Control, Explorer, Table, View, slider

in_bytes = si("B")
NAMES = {key: name for key, (name, _) in FOUR.items()}
RANKS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
SIZES = [m * 10**k for k in range(11) for m in (1, 2, 5)][2:-2]  # 5 B to 10 GB
_LENGTHS = {
    1: "1",
    10: "10",
    1000: "1,000",
    10**6: "1 million",
    25_600_000: "25.6 million",
    7 * 10**9: "7 billion",
}
_WIDTHS = {8: "fp64, 8 bytes", 4: "fp32, 4 bytes", 2: "bf16, 2 bytes", 1: "fp8, 1 byte"}
_LATENCIES = {1.0: "as it is", 0.5: "half", 0.1: "a tenth"}
_SPEEDS = {1.0: "as it is", 2.0: "twice", 10.0: "ten times"}


def in_seconds(x: float) -> str:
    """Write a time: 20 µs, 3 ms, but 1,000 s."""
    return f"{number(x)} s" if x >= 1 else si("s")(x)


# ------------------------------------------------------------------------------- the bytes


def sent_chart(counts: dict[str, Count], ranks: int, size: float) -> BarChart:
    """Return what the busiest rank of each algorithm sends, beside the lower bound."""
    return BarChart(
        "Sent by the busiest rank",
        Axis("bytes sent by one rank in one all-reduce", name=in_bytes),
        [NAMES[key] for key in counts],
        {"sent": [each.most for each in counts.values()]},
        [Guide(least_sent(ranks, size), f"lower bound {in_bytes(least_sent(ranks, size))}")],
    )


def total_chart(counts: dict[str, Count]) -> BarChart:
    """Return what all ranks send together."""
    return BarChart(
        "Sent by all ranks together",
        Axis("bytes sent in one all-reduce, all ranks", name=in_bytes),
        [NAMES[key] for key in counts],
        {"sent": [each.total for each in counts.values()]},
    )


def _counting(ranks: int, elements: int, width: int, pieces: int, link: str) -> View:
    """Count all four for these numbers."""
    made = {
        key: make(ranks, chunks=pieces * ranks) if key == "ring" else make(ranks)
        for key, (_, make) in FOUR.items()
    }
    counts = {key: counted(schedule, elements, width) for key, schedule in made.items()}
    size, links = elements * width, Links.uniform(ranks, link)
    rows = [_row(key, made[key], counts[key], (elements, width), links) for key in FOUR]
    head = (
        "algorithm",
        "chunks",
        "rounds",
        "messages",
        "sent by all",
        "sent by one rank",
        "busiest port",
        "time, modelled",
    )
    words = (
        f"S = {in_bytes(size)} on each of {ranks} ranks. Bytes are counted: as many are received "
        f"as sent, and a port's are those of its busier direction. Seconds are modelled: {link}."
    )
    return View([sent_chart(counts, ranks, size), total_chart(counts)], words, Table(head, rows))


def _row(
    key: str, schedule: Schedule, c: Count, array: tuple[int, int], links: Links
) -> tuple[str, ...]:
    """Return one algorithm's row of the table."""
    elements, width = array
    sizes = np.asarray(schedule.cut(elements, width)) * width
    least, most = in_bytes(c.least), in_bytes(c.most)
    return (
        NAMES[key],
        f"{schedule.chunks}",
        f"{c.rounds}",
        f"{c.messages:,}",
        in_bytes(c.total),
        most if least == most else f"{least} to {most}",
        in_bytes(c.port),
        in_seconds(cost.time(schedule, sizes, links)),
    )


def counting() -> Explorer:
    """Show what four all-reduces send, in all and through the busiest port."""
    return Explorer(
        "Four all-reduces, counted",
        _counting,
        slider("ranks", "Ranks", RANKS, start=8),
        Control("elements", "Numbers on each rank", _LENGTHS, start=10**6),
        Control("width", "Each number", _WIDTHS, start=4),
        Control("pieces", "Chunks per block, in the ring", (1, 2, 4, 8)),
        Control("link", "Link", {name: name for name in LINKS}, start="100 GbE"),
    )


# ------------------------------------------------------------------------------ the seconds


def terms(key: str, ranks: int, size: float, link: Link) -> tuple[float, float]:
    """Return the seconds that go into latency, and those that go into bytes."""
    return (
        _seconds(key, ranks, size, Link(link.alpha, 0)),
        _seconds(key, ranks, size, Link(0, link.beta)),
    )


def _seconds(key: str, ranks: int, size: float, link: Link) -> float:
    return closed_form(key, ranks, size, Links.uniform(ranks, link)).time


def fastest(ranks: int, size: float, link: Link) -> str:
    """Return which of the four takes least in the model."""
    return min(FOUR, key=lambda key: _seconds(key, ranks, size, link))


def crossovers(ranks: int, link: Link) -> list[tuple[float, str]]:
    """Return the sizes at which another algorithm becomes the fastest, and which.

    Each time is a + b S, so two of them meet once or never.
    """
    lines = {key: terms(key, ranks, 1.0, link) for key in FOUR}
    found, at = [], 0.0
    best = min(lines, key=lambda key: lines[key])
    while after := [
        ((a - lines[best][0]) / (lines[best][1] - slope), slope, key)
        for key, (a, slope) in lines.items()
        if slope < lines[best][1]
    ]:
        at, _, best = min(after)
        found.append((at, best))
    return found


def time_chart(ranks: int, size: float, link: Link) -> LineChart:
    """Return time against size of all four, with the sizes at which the fastest changes."""
    lines = [
        Line(name, SIZES, [_seconds(key, ranks, each, link) for each in SIZES])
        for key, name in NAMES.items()
    ]
    points = [
        Point(at, _seconds(key, ranks, at, link), f"{NAMES[key]} from {in_bytes(at)} on")
        for at, key in crossovers(ranks, link)
        if SIZES[0] <= at <= SIZES[-1]
    ]
    return LineChart(
        f"Time of one all-reduce over {ranks} ranks, modelled",
        Axis("S, bytes on each rank", log=True, name=in_bytes),
        Axis("modelled time", log=True, name=in_seconds),
        lines,
        points,
        [Guide(size, in_bytes(size))],
        size=(600, 420),
    )


def terms_chart(ranks: int, size: float, link: Link) -> BarChart:
    """Return the two terms of the time as stacked bars, for the two that are ever worth it."""
    keys = ("ring", "recursive_doubling")
    both = [terms(key, ranks, size, link) for key in keys]
    return BarChart(
        f"Where the time goes, S = {in_bytes(size)}",
        Axis("modelled time of one all-reduce", name=in_seconds),
        [NAMES[key] for key in keys],
        {"latency": [a for a, _ in both], "bytes": [b for _, b in both]},
        width=440,
    )


def _timing(size: int, ranks: int, link: str, latency: float, speed: float) -> View:
    """Reckon all four for these numbers."""
    changed = Link(LINKS[link].alpha * latency, LINKS[link].beta / speed)
    best = fastest(ranks, size, changed)
    rows = []
    for key, name in NAMES.items():
        parts = terms(key, ranks, size, changed)
        rows.append((name, *map(in_seconds, (*parts, sum(parts)))))
    latency, both = terms("ring", ranks, size, changed)[0], _seconds("ring", ranks, size, changed)
    words = (
        f"{link}: a latency of {in_seconds(changed.alpha)}, {in_bytes(1 / changed.beta)}/s in "
        f"one direction. At {in_bytes(size)} the model's fastest is: {NAMES[best]}. Of the ring's "
        f"time {100 * latency / both:.0f} % is latency; it is half of it at "
        f"{in_bytes(ranks * changed.alpha / changed.beta)}."
    )
    return View(
        [time_chart(ranks, size, changed), terms_chart(ranks, size, changed)],
        words,
        Table(("algorithm", "latency", "bytes", "time, modelled"), rows),
    )


def timing() -> Explorer:
    """Show how long four all-reduces take in the model, and which term of it counts."""
    return Explorer(
        "Time against size, modelled",
        _timing,
        Control("size", "S, bytes on each rank", {s: in_bytes(s) for s in SIZES}, 10**6, "slider"),
        slider("ranks", "Ranks", RANKS, start=64),
        Control("link", "Link", {name: name for name in LINKS}, start="100 GbE"),
        Control("latency", "Its latency", _LATENCIES),
        Control("speed", "Its bandwidth", _SPEEDS),
    )


# ------------------------------------------------------------------------------- measured


def exam_chart(exam: Exam) -> LineChart:
    """Return what was measured, the fitted model, and the size that it had not seen."""
    at = list(exam.sizes).index(exam.held_out)
    return LineChart(
        f"One all-reduce over {exam.fit.ranks} ranks, measured",
        Axis("S, bytes on each rank", log=True, high=exam.sizes.max(), name=in_bytes),
        Axis("seconds", log=True, name=in_seconds),
        [
            Line("measured, the fastest call", exam.sizes.tolist(), exam.seconds.tolist()),
            Line("model: alpha and beta fitted", exam.sizes.tolist(), exam.predicted.tolist()),
        ],
        [Point(float(exam.held_out), float(exam.seconds[at]), "held out")],
        size=(600, 380),
    )
