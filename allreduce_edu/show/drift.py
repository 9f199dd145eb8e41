"""The explorers of notebook 06: where digits are lost, how many, and what that does."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from allreduce_edu.engine.algorithms import ALGORITHMS
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.precision import FORMATS, exact_sum, rounded
from allreduce_edu.lessons import precision
from allreduce_edu.lessons.additions import WAYS, Array, additions, lamps, total_error
from allreduce_edu.lessons.policies import POLICIES, Run, fate, late_gradient, trained
from allreduce_edu.lessons.training import gradient_shares
from allreduce_edu.show.additions import Additions, Lamps, places, written
from allreduce_edu.show.axes import Axis, number
from allreduce_edu.show.charts import BarChart, Guide, HeatMap, Line, LineChart
from allreduce_edu.show.explorers import Control, Explorer, View, Work, slider, switch

_NAMES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}
_NAMES |= {"fp8_e4m3": "fp8 e4m3", "fp8_e5m2": "fp8 e5m2"}
_ALGORITHMS = {
    "ring": "ring",
    "binomial_tree": "balanced tree",
    "halving_doubling": "halving-doubling",
    "pairwise_exchange": "raw shares, pairwise",
}
_ROUNDINGS = {
    ("bf16", "bf16"): "bf16 on the wire and kept",
    ("bf16", "fp32"): "bf16 on the wire, fp32 kept",
    ("fp16", "fp16"): "fp16 on the wire and kept",
    ("fp8_e4m3", "fp8_e4m3"): "fp8 e4m3 on the wire and kept",
    ("fp32", "fp32"): "fp32 on the wire and kept",
}
_NUMBERS = {
    "large": "256 on rank 0, ones",
    "same sign": "between 0.5 and 1.5",
    "zero mean": "normal, mean 0",
    "gradient": "one entry of a real gradient",
}


# ------------------------------------------------------------------------ one element


def _numbers(kind: str, ranks: int) -> Array:
    """Return one number for each rank."""
    if kind == "large":
        return np.array([256, *[1] * (ranks - 1)], np.float32)
    if kind == "gradient":
        x = gradient_shares(8)
        best = int(np.abs(x.sum(axis=0)).argmax())
        return x[:ranks, best] * np.float32(2.0**7)
    return np.array(precision.shares(kind, 8, 1)[:ranks, 0])


def _hops(
    hop: int, algorithm: str, ranks: int, numbers: str, rounding: tuple[str, str], chunk: int
) -> View:
    """Draw the tree of one element, and say what is lost so far."""
    wire, keep = rounding
    schedule = ALGORITHMS[algorithm](ranks)
    x = rounded(_numbers(numbers, ranks), wire)
    root = additions(schedule, x.tolist(), wire, keep, chunk=chunk % schedule.chunks)
    done = min(hop, root.hop)
    title = f"{_ALGORITHMS[algorithm]}, {ranks} ranks, {_ROUNDINGS[rounding]}"
    truth = written(float(exact_sum(x[:, None])[0]))
    words = f"After hop {done} of {root.hop}. The exact sum is {truth}"
    if done == root.hop:
        error = places(total_error(root, x.tolist(), wire))
        words += f"; the result is {written(root.value)}, off by {error} of {_NAMES[wire]}"
    return View([Additions(title, root, done), _three(algorithm, ranks, wire, keep)], f"{words}.")


@lru_cache(maxsize=64)
def _three(algorithm: str, ranks: int, wire: str, keep: str) -> Lamps:
    schedule = ALGORITHMS[algorithm](ranks)
    x = rounded(precision.shares("zero mean", ranks, 997), wire)
    lit = lamps(lambda each, _: run(schedule, each, wire=wire, accumulate=keep), x, keep)
    return Lamps(f"The bits of {x.shape[1]} other sums", {schedule.name: lit})


def hop_by_hop() -> Explorer:
    """Show one element's additions hop by hop, with the value and what is lost at each."""
    return Explorer(
        "The additions behind one number",
        _hops,
        slider("hop", "After hop", range(9), start=0),
        Control("algorithm", "Algorithm", _ALGORITHMS),
        slider("ranks", "Ranks", range(2, 9), start=4),
        Control("numbers", "Numbers", _NUMBERS),
        Control("rounding", "Rounding", _ROUNDINGS),
        slider("chunk", "The number lies in chunk", range(8), start=0),
    )


# ------------------------------------------------------------------------- against N


_ERROR = Axis("relative error of the sums (rms)", log=True)
_RANKS = Axis("ranks", log=True, low=2.0, high=float(precision.MOST))


def _growing(data: str, kind: str) -> Work:
    """Draw every order of addition in one format, and a ring in every format."""
    done, whole = 0, len(precision.ORDERS) + len(precision.FORMATS_SHOWN)
    found = []
    for order in precision.ORDERS:
        found.append(precision.curve(data, kind, order))
        done += 1
        yield done / whole
    rings = {}
    for each in precision.FORMATS_SHOWN:
        rings[_NAMES[each]] = precision.curve(data, each, "ring")
        done += 1
        yield done / whole
    lines = [Line(c.order, c.ranks, c.error, k) for k, c in enumerate(found)]
    for k, order in enumerate(("ring", "balanced tree")):
        theory = [precision.theory(order, data, kind, n) for n in precision.RANKS]
        lines.append(Line(f"theory: {order}", precision.RANKS, theory, 5 + k))
    by_format = [Line(name, c.ranks, c.error) for name, c in rings.items()]
    ends = {c.order: number(c.error[-1]) for c in found}
    words = f"{_NAMES[kind]}, {precision.MOST:,} ranks: " + ", ".join(
        f"{order} {end}" for order, end in ends.items()
    )
    size = (520, 380)
    return View(
        [
            LineChart(f"Orders of addition in {_NAMES[kind]}", _RANKS, _ERROR, lines, size=size),
            LineChart("A ring in each format", _RANKS, _ERROR, by_format, size=size),
        ],
        f"{words}. (∞: the sum no longer fits into the format.)",
    )


def growing() -> Explorer:
    """Show the error against the number of ranks, with what theory says."""
    return Explorer(
        "The error of a sum against the number of ranks",
        _growing,
        Control("data", "Numbers", precision.DATA),
        Control("kind", "Format", _NAMES, start="bf16"),
    )


# ------------------------------------------------------------- wire against accumulator


def _nine(algorithm: str, ranks: int, round_owner: bool) -> Work:
    """Draw the error and the number of different results for each combination."""
    found = []
    work = precision.combinations(algorithm, ranks, round_owner=round_owner)
    for each in work:
        found.append(each)
        yield len(found) / 9
    kinds = ["fp32", "bf16", "fp16"]
    grid = {(wire, keep): result for wire, keep, result in found}
    error = [[grid[wire, keep].error for keep in kinds] for wire in kinds]
    results = [[float(grid[wire, keep].replicas) for keep in kinds] for wire in kinds]
    apart = [f"{wire} sent, {keep} kept" for wire, keep, o in found if not o.identical]
    words = "All ranks hold the same bits in all nine."
    if apart:
        words = f"Ranks hold different bits with {'; '.join(apart)}."
    table = partial(HeatMap, rows=kinds, columns=kinds, row="rows: sent as", column="kept as")
    charts = [
        table("Relative error", values=error, high=0.012, name=_small, width=360),
        table("Different results", values=results, low=1, high=ranks, name=number, width=360),
    ]
    return View(charts, words)


def _small(x: float) -> str:
    return number(x) if x < 1e-5 else f"{x:.4f}"


def nine_combinations() -> Explorer:
    """Show what the wire's and the accumulator's format do, each alone and together."""
    return Explorer(
        "Wire against accumulator",
        _nine,
        Control("algorithm", "Algorithm", _ALGORITHMS),
        slider("ranks", "Ranks", (4, 8, 16, 32, 64), start=64),
        switch("round_owner", "The owner rounds its own copy too"),
    )


# --------------------------------------------------------------------------- three lamps


_BUCKETS = {
    "gradient": "real gradients",
    "zero mean": "normal, mean 0",
    "whole": "small whole numbers",
}


def _lamps(ranks: int, numbers: str) -> View:
    """Draw three lamps for each way of adding."""
    if numbers == "gradient":
        x = gradient_shares(ranks)
    elif numbers == "zero mean":
        x = np.array(precision.shares("zero mean", ranks, 2000))
    else:
        x = np.random.default_rng(0).integers(-8, 9, (ranks, 2000)).astype(np.float32)
    rows = {name: lamps(way, x) for name, way in WAYS.items()}
    lit = sum(all(row) for row in rows.values())
    title = f"The bits of {x.shape[1]:,} sums"
    return View([Lamps(title, rows)], f"All three lamps are lit in {lit} of {len(rows)} rows.")


def three_lamps() -> Explorer:
    """Show which ways of adding give the same bits, in which of three senses."""
    return Explorer(
        "Three questions about bits",
        _lamps,
        slider("ranks", "Ranks", range(2, 9), start=4),
        Control("numbers", "Numbers", _BUCKETS),
    )


# -------------------------------------------------------------------------------- scaling


_BINADES = range(-39, 41)


def histogram(x: Array) -> tuple[list[float], list[float]]:
    """Return the middle of each binade, from the first that is not empty, and the counts in it."""
    exponent = np.floor(np.log2(np.abs(x.astype(np.float64)))).astype(int)
    count = np.bincount(np.clip(exponent, _BINADES[0], _BINADES[-1]) - _BINADES[0])
    first = int(np.flatnonzero(count)[0])
    middles = [2.0 ** (k + _BINADES[0] + 0.5) for k in range(first, len(count))]
    return middles, [float(c) for c in count[first:]]


def _scaling(power: int, kind: str) -> View:
    """Draw the sizes of scaled gradients between the ends of a format."""
    f, gradient = FORMATS[kind], late_gradient()
    scale = 2.0**power
    x, y = histogram(gradient * np.float32(scale))
    lost = fate(gradient, kind, scale)
    guides = [
        Guide(2.0 ** (f.lowest - f.digits + 1), "smallest"),
        Guide(2.0**f.lowest, "smallest normal"),
        Guide(f.largest, "largest"),
    ]
    chart = LineChart(
        f"Real gradients times {2**power:,} in {_NAMES[kind]}",
        Axis("size", log=True, low=1e-12, high=1e9),
        Axis("how many, per factor of 2", high=1.2 * max(y)),
        [Line("gradients after 3,000 steps", x, y)],
        guides=[g for g in guides if 1e-12 < g.at < 1e9],
        size=(640, 320),
    )
    words = (
        f"{100 * lost.zero:.1f} % become 0, {100 * lost.subnormal:.1f} % keep fewer digits, "
        f"{100 * lost.infinite:.1f} % become infinite. Exact zeros are left out."
    )
    return View([chart], words)


def loss_scaling() -> Explorer:
    """Show real gradients falling off the left edge of fp16, and a scale that saves them."""
    return Explorer(
        "Loss scaling",
        _scaling,
        Control("power", "Loss scale", {k: f"{2**k:,}" for k in range(0, 37, 2)}, kind="slider"),
        Control("kind", "Format", {k: _NAMES[k] for k in ("fp16", "bf16", "fp8_e5m2")}),
    )


# -------------------------------------------------------------------------------- training


SEEDS = 3
LAST = 30  # steps whose mean loss is compared
_RATES = {0.1: "the usual one", 0.03: "a third of it", 0.01: "a tenth of it"}


def _training(rate: float, seed: int) -> Work:
    """Draw the loss under each policy, and the differences beside those between seeds."""
    runs: dict[str, list[Run]] = {policy: [] for policy in POLICIES}
    done = 0
    for policy in POLICIES:
        for each in range(SEEDS):
            runs[policy].append(trained(policy, each, rate))
            done += 1
            yield done / (SEEDS * len(POLICIES))
    lines = [_smooth(policy, each[seed].loss) for policy, each in runs.items()]
    last = {
        policy: np.array([r.loss[-LAST:].mean() for r in each]) for policy, each in runs.items()
    }
    usual = last["all in fp32"]
    apart = {
        f"{p} against fp32": np.abs(v - usual).mean() for p, v in last.items() if v is not usual
    }
    apart["another seed, fp32"] = np.abs(usual - np.roll(usual, 1)).mean()
    stuck = np.mean([r.stuck for r in runs["bf16 ring and weights"]])
    charts = [
        LineChart("Loss", Axis("training step"), Axis("loss, mean of ten steps", low=0.0), lines),
        BarChart(
            "How much it changes",
            Axis("difference of the loss at the end"),
            list(apart),
            {"difference": [float(v) for v in apart.values()]},
            width=560,
        ),
    ]
    words = (
        f"Bars: the mean of the last {LAST} steps, and of {SEEDS} seeds. In the last step "
        f"{100 * stuck:.0f} % of the bf16 weights that should move do not."
    )
    return View(charts, words)


def _smooth(name: str, loss: Array) -> Line:
    ten = np.convolve(loss, np.ones(10) / 10, "valid")
    return Line(name, list(range(10, len(loss) + 1)), ten.tolist())


def policies() -> Explorer:
    """Show what formats of gradients and weights do to training."""
    return Explorer(
        "Training under four policies",
        _training,
        Control("rate", "Learning rate", _RATES),
        slider("seed", "Seed of the curves", range(SEEDS)),
    )
