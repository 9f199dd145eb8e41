"""Group B: reckoning how long a schedule takes, beside simulators that play every message."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from allreduce_edu.benchmark import rivals
from allreduce_edu.benchmark.measure import Meter, Row, Table, Target, ratio, span
from allreduce_edu.engine import cost
from allreduce_edu.engine.algorithms import ALGORITHMS, ring
from allreduce_edu.engine.formulas import closed_form
from allreduce_edu.engine.links import Link, Links

_MIB = 1 << 20
_DRAWN = ("ring", "halving_doubling", "recursive_doubling", "binomial_tree", "naive", "one_shot")
# Quoted, not run here: ring all-reduce of 1 MiB over 1,024 ranks, µs per transfer at the fastest,
# and how many times faster we promise to be.
_QUOTED = {
    "ASTRA-sim 518bd51, analytical, congestion-unaware": (1.4, 100),
    "SimGrid SMPI 3.32, no payload": (8.7, 1000),
}


def tables(meter: Meter) -> Iterator[Table]:
    """Yield the tables of this group."""
    yield from _blocks(meter)
    yield _every_message(meter)
    yield _sweep(meter)


def uneven(n: int) -> Links:
    """Return links of which no two ranks have the same port."""
    rng = np.random.default_rng(n)
    return Links.uniform(n, Link(rng.uniform(1e-6, 2e-6, n), rng.uniform(1e-10, 2e-10, n)))


def shared(n: int) -> Links:
    """Return nodes of 8 ranks that share one port to the network."""
    return Links.two_tier(n // 8, 8, "NVLink 4", "InfiniBand NDR", nics=1)


def _blocks(meter: Meter) -> Iterator[Table]:
    """Measure `cost.time` once, and hold it to two targets: in all, and per transfer.

    A schedule keeps its rounds once they are read, so a second call is faster: the targets are
    for a schedule made anew.
    """
    whole, each = [], []
    cases: list[tuple[str, int, str, Links, float, float]] = [
        ("ring", 65_536, "own ports", uneven(65_536), 10.0, 15.0)
    ]
    own, common = uneven(1024), shared(1024)
    for name in ALGORITHMS:
        cases.append((name, 1024, "own ports", own, 2.0, 15.0))
        cases.append((name, 1024, "shared ports", common, 2.0, 40.0))
    for name, n, which, links, most, per_transfer in cases:
        schedule = ALGORITHMS[name](n)
        first, again = meter.seconds(
            partial(_anew, name, n, links), partial(cost.time, schedule, _MIB, links)
        )
        seconds, stored = float(np.median(first)), sum(len(r) for r, _ in schedule.blocks())
        about = (f"{n:,}", which, f"{stored:,}", span(again))
        whole.append(Row(name, about, seconds * 1e3, Target(most)))
        each.append(Row(name, about, seconds * 1e9 / stored, Target(per_transfer)))
    head = ("algorithm", "N", "links", "transfers in its blocks", "called again")
    yield Table("B1. Time model: `cost.time` of a new schedule, ms", (*head, "ms"), whole)
    yield Table("B2. Time model: the same, ns per transfer in its blocks", (*head, "ns"), each)


def _anew(name: str, n: int, links: Links) -> float:
    return cost.time(ALGORITHMS[name](n), _MIB, links)


def _every_message(meter: Meter) -> Table:
    """Play every transfer of a ring one by one, which `cost.clocks` does."""
    n = 64 if meter.quick else 256
    links, chunk = uneven(n), _MIB // n
    ports = links.inside.alpha, links.inside.beta
    others = {"heapq event loop": (rivals.event_loop, 50)}
    if find_spec("simpy"):
        others["SimPy"] = (rivals.simpy_ring, 400)
    rows = []
    for name, (other, times) in others.items():
        ours, theirs = meter.seconds(
            partial(cost.clocks, ring(n), _MIB, links), partial(other, *ports, chunk)
        )
        rows.append(_compared(name, n, ours, theirs, times))
    (ours,) = meter.seconds(lambda: cost.clocks(ring(1024), _MIB, uneven(1024)))
    for name, (microseconds, times) in _QUOTED.items():
        theirs = np.full_like(ours, microseconds * 1e-6 * 2 * 1024 * 1023)
        rows.append(_compared(f"{name} (quoted)", 1024, ours, theirs, times))
    head = ("instead", "N", "µs per transfer", "`cost.clocks`", "times as long")
    return Table("B3. Time model: every transfer of a ring, one by one", head, rows)


def _compared(name: str, n: int, ours: Any, theirs: Any, times: int) -> Row:
    transfers = 2 * n * (n - 1)
    each = f"{float(np.median(theirs)) / transfers * 1e6:.3g}"
    mine = f"{float(np.median(ours)) / transfers * 1e6:.3g}"
    target = Target(float(times), at_least=True)
    return Row(name, (f"{n:,}", each, mine), ratio(theirs, ours), target)


def _sweep(meter: Meter) -> Table:
    """Reckon T(S) for a plot: what a slider over N redraws."""
    rows = []
    for n in (8, 64):
        links, sizes = Links.uniform(n, "100 GbE"), np.logspace(3, 9, 60).astype(int).tolist()
        schedules = {name: ALGORITHMS[name](n) for name in _DRAWN}
        played, closed = meter.seconds(
            lambda: [cost.times(s, sizes, links) for s in schedules.values()],  # noqa: B023
            lambda: [closed_form(name, n, size, links) for name in _DRAWN for size in sizes],  # noqa: B023
        )
        for what, took in (("`cost.times`", played), ("`closed_form`", closed)):
            about = (str(n), "60 sizes x 6 algorithms", span(took / (60 * len(_DRAWN))))
            rows.append(Row(what, about, float(np.median(took)) * 1e3, Target(20.0)))
    head = ("what", "N", "points", "a point", "ms")
    return Table("B4. Time model: the points of a plot", head, rows)
