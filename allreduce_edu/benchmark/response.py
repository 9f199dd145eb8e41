"""Group E: what a reader waits for: a slider, a picture's data, an import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from allreduce_edu.benchmark.measure import Meter, Row, Table, Target, span
from allreduce_edu.engine.algorithms import ALGORITHMS
from allreduce_edu.engine.formulas import closed_form
from allreduce_edu.engine.frames import frames
from allreduce_edu.engine.links import Links
from allreduce_edu.engine.schedule import Schedule

_ECHO_MS = 1.4  # quoted: a message to a kernel's widget and back, on a Xeon with two cores
_DRAWN = ("ring", "halving_doubling", "recursive_doubling", "binomial_tree", "naive", "one_shot")
_SIZES = np.logspace(3, 9, 60).astype(int).tolist()


def tables(meter: Meter) -> Iterator[Table]:
    """Yield the tables of this group."""
    yield _slider(meter)
    yield _pictures(meter)
    yield _imports(meter)


def _slider(meter: Meter) -> Table:
    """Turn a slider's position over N into what the browser draws: data, and SVG as well."""
    from allreduce_edu.show.axes import Axis
    from allreduce_edu.show.charts import Line, LineChart
    from allreduce_edu.show.explorers import Explorer, View, slider

    def view(ranks: int) -> View:
        links = Links.uniform(ranks, "100 GbE")
        lines = [
            Line(name, _SIZES, [closed_form(name, ranks, size, links).time for size in _SIZES])
            for name in _DRAWN
        ]
        x, y = Axis("bytes per rank", log=True), Axis("time of one all-reduce, s", log=True)
        return View([LineChart("Time by size", x, y, lines)])

    explorer = Explorer("Time by size", view, slider("ranks", "Ranks", range(2, 65)))
    at = iter(range(1 << 40))
    (took,) = meter.seconds(lambda: explorer.turn(ranks=2 + next(at) % 63))
    payload = len(json.dumps(explorer.view)) / 1024
    limit = f"≤ 5 echoes of {_ECHO_MS} ms (quoted)"
    explorer.close()
    rows = [
        Row("slider → 6 curves of 60 points → SVG, ms", (limit,), _ms(took), Target(5 * _ECHO_MS)),
        Row("what is sent for it, KiB", ("≤ 5 KiB a plot",), payload, Target(5.0)),
    ]
    return Table("E1. Responsiveness: a slider, in the kernel", ("what", "rule", "figure"), rows)


def _pictures(meter: Meter) -> Table:
    """Build what is sent once: transfers, and also every sum, share and sentence to show."""
    times, sizes = [], []
    for name in ("ring", "halving_doubling", "binomial_tree"):
        for n in (4, 16):
            schedule = ALGORITHMS[name](n)
            (took,) = meter.seconds(partial(_sent, schedule))
            size, many = len(_sent(schedule)), schedule.transfers()
            about = (str(n), f"{many:,}", f"{size / 1024:.3g} KiB")
            times.append(Row(f"{name}: ms to build", about, _ms(took), Target(10.0)))
            sizes.append(Row(f"{name}: bytes a transfer", about, size / many, Target(10.0)))
    head = ("`frames` of", "N", "transfers", "payload", "figure")
    return Table("E2. Responsiveness: what a player is sent, once", head, times + sizes)


def _sent(schedule: Schedule) -> str:
    return json.dumps(frames(schedule))


def _imports(meter: Meter) -> Table:
    """Start a Python for each; what the bare one takes is subtracted."""
    rows = []
    for statement in ("import allreduce_edu", "from allreduce_edu import ring, run, Player"):
        bare, whole = meter.seconds(
            partial(_python, "pass"), partial(_python, statement), on_the_wall=True
        )
        ask = "; import sys; print(len({'torch', 'matplotlib'} & set(sys.modules)))"
        heavy = float(_python(statement + ask))
        rows.append(Row(f"`{statement}`", (span(bare), span(whole)), heavy, Target(0.0)))
    head = ("import", "bare Python", "with it", "heavy packages loaded (torch, matplotlib)")
    return Table("E3. Responsiveness: imports, on the wall", head, rows)


def _python(statement: str) -> str:
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, check=True)
    return done.stdout.decode()


def _ms(seconds: Any) -> float:
    return float(np.median(seconds)) * 1e3
