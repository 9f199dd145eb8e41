"""The explorers of notebook 01: how far apart replicas are, and what each of them can read."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from allreduce_edu.lessons.optimizers import USUAL_RATE
from allreduce_edu.lessons.replicas import Replicas, Report, Setting
from allreduce_edu.lessons.shards import classes_of
from allreduce_edu.show.axes import Axis, number
from allreduce_edu.show.charts import HeatMap, Line, LineChart
from allreduce_edu.show.explorers import Control, Explorer, Table, View, Work, slider, switch

STEPS = 300
MISSED = 50
_KEPT = 100
DISTANCE = Axis("largest distance of two replicas' weights", log=True)
_SYNCS = {
    ("none", 1): "nothing",
    ("gradients", 1): "gradients in every step",
    ("weights", 1): "weights in every step",
    ("weights", 10): "weights every 10 steps",
    ("weights", 30): "weights every 30 steps",
    ("weights", 100): "weights every 100 steps",
    ("weights", STEPS): "weights once, at the end",
}
_SHARDS = {
    ("by class", False): "split by digit",
    ("shuffled", False): "shuffled",
    ("unequal", False): "unequal, all ranks weigh the same",
    ("unequal", True): "unequal, weighted by count",
}
_RATES = {0.25: "a quarter", 0.5: "half", 1.0: "the usual one", 2.0: "twice", 4.0: "four times"}


# ------------------------------------------------------------------------------- charts


def readings(report: Report) -> HeatMap:
    """Return what each replica reads right, digit by digit."""
    s = report.setting
    rows = [f"rank {rank}" for rank in range(s.ranks)]
    if s.shards == "by class":
        seen = (classes_of(rank, s.ranks) for rank in range(s.ranks))
        rows = [f"{row}, saw {_span(digits)}" for row, digits in zip(rows, seen, strict=True)]
    return HeatMap(
        "What each replica can read",
        rows,
        [*map(str, range(10)), "all"],
        np.column_stack([report.by_class, report.accuracy]).tolist(),
        row="test images read right, %",
        column="digit",
        width=480,
    )


def distances(reports: dict[str, Report]) -> LineChart:
    """Return the distance of the replicas, step by step, one line per training."""
    lines = [
        Line(name, range(len(report.apart)), report.apart.tolist())
        for name, report in reports.items()
    ]
    return LineChart("How far apart they are", Axis("training step"), DISTANCE, lines)


def accuracies(report: Report) -> LineChart:
    """Return the accuracy of each replica over the steps."""
    shares = [score.accuracy for score in report.scores]
    lines = [
        Line(f"rank {rank}", report.scored, [float(share[rank]) for share in shares])
        for rank in range(report.setting.ranks)
    ]
    accuracy = Axis("share of all test images read right", low=0.0, high=1.0)
    return LineChart("What one would watch", Axis("training step"), accuracy, lines)


def states(report: Report) -> Table:
    """Return which kinds of state have the same bits on all ranks."""
    return Table(
        ("kind of state", "on all ranks"),
        [
            (kind, "different bits" if same == "different" else same)
            for kind, same in report.state.items()
        ],
    )


def _span(digits: range) -> str:
    return f"{digits[0]} to {digits[-1]}" if len(digits) > 1 else f"{digits[0]}"


# ---------------------------------------------------------------------------- trainings


_reports: dict[Setting, Report] = {}  # the latest trainings, the oldest first


def trained(settings: dict[str, Setting]) -> Generator[float, None, dict[str, Report]]:
    """Train all settings, one after another, but for those at hand; yield the share done."""
    reports = {}
    for i, (name, setting) in enumerate(settings.items()):
        if setting not in _reports:
            training = Replicas(setting)
            while not training.over:
                training.step()
                yield (i + training.done / setting.steps) / len(settings)
            _reports[setting] = training.report()
        reports[name] = _reports[setting]
    while len(_reports) > _KEPT:
        del _reports[next(iter(_reports))]
    return reports


# ---------------------------------------------------------------------------- explorers


def _diverging(
    sync: tuple[str, int],
    shards: tuple[str, bool],
    same_start: bool,
    ranks: int,
    batch: int,
    optimizer: str,
    rate: float,
    dropout: float,
    batch_norm: bool,
    seed: int,
) -> Work:
    """Train the chosen way, and without any averaging for comparison."""
    alone = Setting(
        ranks=ranks,
        batch=batch,
        steps=STEPS,
        sync="none",
        shards=shards[0],
        by_count=shards[1],
        same_start=same_start,
        optimizer=optimizer,
        rate=rate * USUAL_RATE[optimizer],
        dropout=dropout,
        batch_norm=batch_norm,
        seed=seed,
    )
    settings = {_SYNCS["none", 1]: alone}
    settings[_SYNCS[sync]] = replace(alone, sync=sync[0], every=sync[1])
    reports = yield from trained(settings)
    chosen = reports[_SYNCS[sync]]
    words = f"Averaged: {_SYNCS[sync]}. {_told(chosen)}"
    return View([readings(chosen), distances(reports)], words, states(chosen))


def _told(report: Report) -> str:
    """Say each replica's loss on its own images."""
    losses = [number(round(float(loss), 2)) for loss in report.loss[-10:].mean(axis=0)]
    return f"Loss on each rank's own images, mean of the last ten steps: {', '.join(losses)}."


def diverging() -> Explorer:
    """Show replicas that share nothing, gradients, or weights now and then."""
    return Explorer(
        "Replicas of one small network on the digits",
        _diverging,
        Control("sync", "Averaged between ranks", _SYNCS),
        Control("shards", "Images", _SHARDS),
        Control("same_start", "Start", {True: "equal weights", False: "different weights"}),
        slider("ranks", "Ranks", range(2, 9), start=4),
        slider("batch", "Images per rank and step", (2, 4, 8, 16, 32), start=16),
        Control("optimizer", "Optimizer", tuple(USUAL_RATE)),
        Control("rate", "Learning rate", _RATES, start=1.0),
        slider("dropout", "Dropout", (0.0, 0.2, 0.5), start=0.0),
        switch("batch_norm", "BatchNorm"),
        slider("seed", "Seed", range(5)),
    )


def _starting(optimizer: str, shards: str, seed: int) -> Work:
    """Train without averaging, and with it from equal and from different weights."""
    alone = Setting(steps=STEPS, sync="none", shards=shards, optimizer=optimizer, seed=seed)
    together = replace(alone, sync="gradients")
    reports = yield from trained(
        {
            "none": alone,
            "gradients": together,
            "gradients, different start": replace(together, same_start=False),
        }
    )
    gap = reports["gradients, different start"].apart
    words = (
        f"Largest distance: none, {number(reports['none'].apart[-1])} at the end; gradients, "
        f"{number(reports['gradients'].apart.max())} in every step; gradients after a different "
        f"start, {number(gap[0])} at the start and {number(gap[-1])} at the end."
    )
    return View([distances(reports)], words)


def starting() -> Explorer:
    """Show what averaged gradients do to replicas that start equal, and to others."""
    return Explorer(
        "Start equal, start different",
        _starting,
        Control("optimizer", "Optimizer", tuple(USUAL_RATE)),
        Control("shards", "Images", {"by class": "split by digit", "shuffled": "shuffled"}),
        slider("seed", "Seed", range(5)),
    )


_FAULTS = {
    "missed": f"one rank misses step {MISSED}",
    "start": "one start for each rank",
    "none": "none",
}


def _repairing(optimizer: str, fault: str, seed: int) -> Work:
    """Train with averaged gradients and one fault; show the gap, and what hides it."""
    setting = Setting(
        steps=STEPS,
        shards="shuffled",
        optimizer=optimizer,
        seed=seed,
        missed=MISSED if fault == "missed" else None,
        same_start=fault != "start",
    )
    reports = yield from trained({"gradients averaged in every step": setting})
    (report,) = reports.values()
    first = MISSED if fault == "missed" else 0
    gap = report.apart[[first, -1]]
    words = "All replicas hold the same bits in every step."
    if gap[0]:
        times = number(gap[1] / gap[0])
        became = "the same" if times == "1" else f"{times} times as much"
        words = (
            f"Distance after step {first}: {number(gap[0])}. After step {STEPS}: "
            f"{number(gap[1])}, {became}."
        )
    return View([distances(reports), accuracies(report)], words)


def repairing() -> Explorer:
    """Show that averaging gradients repairs no difference that is there already."""
    return Explorer(
        "A gap, and gradients that are averaged in every step",
        _repairing,
        Control("optimizer", "Optimizer", tuple(USUAL_RATE)),
        Control("fault", "Fault", _FAULTS),
        slider("seed", "Seed", range(5)),
    )
