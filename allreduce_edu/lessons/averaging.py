"""Judges a learner's own bucket: all gradients averaged in one all-reduce, on real ranks.

Runs it after a real `backward()` on each rank and compares with one process that saw all the
images: same bits on all ranks first, then the right ones, then how often it communicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.lessons import vectors
from allreduce_edu.lessons.checks import Verdict, right, wrong
from allreduce_edu.realdist.pool import Pool, RankError

Average = Callable[[Any], object]
_PATIENCE = 10.0  # seconds for one run, which takes a few hundredths


class Outcome(NamedTuple):
    """What one rank holds after averaging, as one vector, and its calls of all_reduce."""

    before: Any
    after: Any
    calls: int


def averages_in_one_call(average: Average) -> Verdict:
    """Judge `average(model)`: the gradient of the whole batch, on every rank, in one all-reduce."""
    for ranks in (4, 3):  # 1/4 is exact in binary, 1/3 is not
        with Pool(ranks, backend="gloo", timeout=_PATIENCE) as pool:
            try:
                found = pool.run(_outcome, average, ranks)
            except RankError as error:
                return wrong(f"with {ranks} ranks it did not end well:\n{error}")
        if problem := _problem(found, _backward(0, 16 * ranks, 1)):
            return wrong(f"with {ranks} ranks: {problem}")
    return right(
        "same bits on all ranks, and the gradient of one process with the whole batch, "
        "up to rounding; 1 call of all_reduce"
    )


def _problem(found: list[Outcome], alone: Any) -> str | None:
    """Say what is wrong with what the ranks hold, or None."""
    names, after = vectors.owners(alone), vectors.gradient(alone)
    mine, calls = [each.after for each in found], found[0].calls
    if all(np.array_equal(each.before, each.after) for each in found):
        if not calls:
            return "no gradient has changed, and all_reduce was not called"
        return f"all_reduce ran {calls} times, but p.grad is as before: was it on a copy?"
    sum_ = {float(len(found)): "it is the sum, divide by the world size"}
    return (
        vectors.gaps(mine, names)
        or vectors.disagreement(mine, names)
        or vectors.another(mine[0], after, names, sum_)
        or (
            f"the gradient is right, but all_reduce is called {calls} times" if calls != 1 else None
        )
    )


def _outcome(average: Average, ranks: int) -> Outcome:
    """Run one backward and the learner's averaging on this rank, counting calls."""
    import torch.distributed as dist

    from allreduce_edu.realdist.ddp import counting

    model = _backward(dist.get_rank(), 16, ranks)
    before = vectors.gradient(model)
    with counting("allreduce") as calls:
        average(model)
    return Outcome(before, vectors.gradient(model), len(calls))


def _backward(rank: int, batch: int, ranks: int) -> Any:
    from torch.nn.functional import cross_entropy

    from allreduce_edu.realdist.train import images, make_model

    model = make_model()
    x, y = images(rank, batch=batch, ranks=ranks)
    cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return model
