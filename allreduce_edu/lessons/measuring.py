"""A sweep on the learner's own machine, a model fitted to it, and one size kept for the exam."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from allreduce_edu.engine.bandwidth import Fit, Floats, fit

if TYPE_CHECKING:
    from allreduce_edu.realdist.sweep import Sweep

SIZES = tuple(4**k for k in range(5, 13))  # 1 KiB to 16 MiB
# µs: the fastest calls of gloo over loopback, four ranks on a machine with two cores.
_RECORDED = (1795, 1655, 1719, 1821, 2014, 3406, 9699, 34725)


def measured(ranks: int = 4, sizes: Iterable[int] = SIZES) -> Sweep:
    """Time gloo's all-reduce on this machine; without torch, hand out recorded times and say so."""
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed here: these times were recorded on another machine")
        return _recorded()
    from allreduce_edu.realdist.pool import Pool

    with Pool(ranks, backend="gloo") as pool:
        return pool.sweep("all_reduce", sizes, timeout=60.0)


def _recorded() -> Sweep:
    from allreduce_edu.realdist.sweep import Point, Sweep

    times = zip(SIZES, _RECORDED, strict=True)
    points = tuple(Point.of(size, [us / 1e6]) for size, us in times)
    return Sweep("all_reduce, recorded", 4, "gloo", "all_reduce", points)


@dataclass(frozen=True, eq=False, repr=False)
class Exam:
    """Alpha and beta fitted to all sizes but one, and what they say of that one.

    Attributes
    ----------
    fit : Fit
        Of a ring, to the sizes that it was shown.
    sizes, seconds : array
        All that was measured: of each size the fastest call, which others disturbed least.
    held_out : int
        The size, in bytes, that the fit has not seen.
    """

    fit: Fit
    sizes: Floats
    seconds: Floats
    held_out: int

    @property
    def predicted(self) -> Floats:
        """The model's seconds for every size."""
        return np.array([self.fit.predict(float(size)) for size in self.sizes])

    @property
    def ratio(self) -> Floats:
        """Measured over predicted, array[sizes]: 1 where the model is right."""
        return np.asarray(self.seconds / self.predicted)

    @property
    def grade(self) -> float:
        """Measured over predicted for the size that the fit has not seen."""
        return float(self.ratio[self.sizes == self.held_out][0])

    def __repr__(self) -> str:
        lines = [f"{'bytes':>10}  {'measured µs':>11}  {'model µs':>9}  measured / model"]
        for row in zip(
            self.sizes, self.seconds * 1e6, self.predicted * 1e6, self.ratio, strict=True
        ):
            note = "  <- held out" if row[0] == self.held_out else ""
            lines.append("{:10,.0f}  {:11,.0f}  {:9,.0f}  {:16.2f}".format(*row) + note)
        link = self.fit.link
        lines.append(f"alpha {link.alpha * 1e6:.3g} µs, beta {link.beta * 1e9:.3g} ns/byte")
        return "\n".join(lines)


def examine(sweep: Sweep, held_out: int) -> Exam:
    """Fit alpha and beta to all sizes of a sweep but `held_out`, which is then predicted."""
    sizes = np.asarray(sweep.sizes, float)
    if held_out not in sizes:
        listed = ", ".join(f"{size:,.0f}" for size in sizes)
        raise ValueError(f"held_out must be one of the sizes {listed}, got {held_out!r}")
    seconds = np.array([point.fastest for point in sweep.points])
    shown = sizes != held_out
    return Exam(fit(sizes[shown], seconds[shown], sweep.ranks), sizes, seconds, held_out)
