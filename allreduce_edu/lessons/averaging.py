"""Judges a learner's own averaging of gradients, on real ranks.

Runs it after a real `backward()` on each rank and compares with one process that saw all the
images: same bits on all ranks first, then the right ones, then how often it communicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.lessons.checks import Verdict, right, wrong
from allreduce_edu.realdist.pool import Pool, RankError

Average = Callable[[Any], object]
_NEAR = 1e-6  # relative to the largest gradient; float32 reached 2e-7
_PATIENCE = 10.0  # seconds for one run, which takes a few hundredths


class Outcome(NamedTuple):
    """What one rank holds after averaging, as one vector, and its calls of all_reduce."""

    before: Any
    after: Any
    calls: int


def averages(average: Average) -> Verdict:
    """Judge `average(model)`: equal bits on every rank, and the gradient of the whole batch."""
    return _judge(average, most_calls=None)


def averages_in_one_call(average: Average) -> Verdict:
    """Judge the same, and that it calls ``dist.all_reduce`` only once."""
    return _judge(average, most_calls=1)


def _judge(average: Average, most_calls: int | None) -> Verdict:
    calls = 0
    for ranks in (4, 3):  # 1/4 is exact in binary, 1/3 is not
        with Pool(ranks, backend="gloo", timeout=_PATIENCE) as pool:
            try:
                found = pool.run(_outcome, average, ranks)
            except RankError as error:
                return wrong(f"with {ranks} ranks it did not end well:\n{error}")
        if problem := _problem(found, _alone(ranks), most_calls):
            return wrong(f"with {ranks} ranks: {problem}")
        calls = found[0].calls
    return right(
        "same bits on all ranks, and the gradient of one process with the whole batch, "
        f"up to rounding; {calls} call{'s' if calls != 1 else ''} of all_reduce"
    )


def _problem(found: list[Outcome], alone: Any, most_calls: int | None) -> str | None:
    """Say what is wrong with what the ranks hold, or None."""
    names, after = alone
    mine, calls = [each.after for each in found], found[0].calls
    if all(np.array_equal(each.before, each.after) for each in found):
        if not calls:
            return "no gradient has changed, and all_reduce was not called"
        return f"all_reduce ran {calls} times, but p.grad is as before: was it on a copy?"
    for rank, vector in enumerate(mine):
        if len(vector) != len(after):
            return f"rank {rank} holds {len(vector)} gradients in place of {len(after)}"
        if gaps := np.flatnonzero(np.isnan(vector)).tolist():
            return (
                f"p.grad of `{names[gaps[0]]}` is None or NaN on rank {rank}. all_reduce changes "
                "its argument in place and returns None: do not assign its result"
            )
    return (
        _disagreement(mine, names)
        or _another(mine[0], after, names, len(found))
        or (
            f"the gradient is right, but all_reduce is called {calls} times"
            if most_calls is not None and calls != most_calls
            else None
        )
    )


def _disagreement(mine: list[Any], names: list[str]) -> str | None:
    """Say which ranks hold different bits, and where."""
    for rank, vector in enumerate(mine[1:], 1):
        differs = np.flatnonzero(vector.view("u4") != mine[0].view("u4"))
        if differs.size:
            near = np.allclose(vector, mine[0], rtol=1e-4, atol=1e-6)
            how = "in the last bits" if near else "by much"
            where = names[int(differs[0])]
            return f"ranks 0 and {rank} hold different gradients, {how}, first in `{where}`"
    return None


def _another(mine: Any, after: Any, names: list[str], ranks: int) -> str | None:
    """Say how the gradient that all ranks hold differs from that of one process."""
    atol = _NEAR * float(np.abs(after).max())
    if np.allclose(mine, after, rtol=0, atol=atol):
        return None
    times = float(mine @ after / (after @ after))
    if not times or not np.allclose(mine / times, after, rtol=0, atol=10 * atol):
        where = names[int(np.abs(mine - after).argmax())]
        return f"all ranks agree, on another gradient; it differs most in `{where}`"
    hint = ""
    if abs(times - ranks) < 1e-3:
        hint = ": it is the sum, divide by the world size"
    return f"all ranks agree, on a gradient {times:.4g} times as long as the right one{hint}"


def _outcome(average: Average, ranks: int) -> Outcome:
    """Run one backward and the learner's averaging on this rank, counting calls.

    They are counted where torch dispatches them: ``from torch.distributed import all_reduce``
    would escape a wrapper, and the profiler prints.
    """
    import torch.distributed as dist
    from torch.utils import _python_dispatch

    calls = [0]
    mode: Any = _python_dispatch.TorchDispatchMode  # torch leaves it untyped

    class Counting(mode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls[0] += "c10d.allreduce" in str(func)
            return func(*args, **(kwargs or {}))

    model = _backward(dist.get_rank(), 16, ranks)
    before = _vector(model)
    with Counting():
        average(model)
    return Outcome(before, _vector(model), calls[0])


def _vector(model: Any) -> Any:
    """Return all gradients as one vector, NaN where a parameter has none."""
    import torch

    from allreduce_edu.realdist.train import flat

    pairs = ((p, p.grad) for p in model.parameters())
    return flat(torch.full_like(p, torch.nan) if g is None else g for p, g in pairs).numpy()


def _backward(rank: int, batch: int, ranks: int) -> Any:
    from torch.nn.functional import cross_entropy

    from allreduce_edu.realdist.train import images, make_model

    model = make_model()
    x, y = images(rank, batch=batch, ranks=ranks)
    cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return model


def _alone(ranks: int) -> tuple[list[str], Any]:
    """Return each element's parameter name, and the gradient of one process with all images."""
    model = _backward(0, 16 * ranks, 1)
    names = [name for name, p in model.named_parameters() for _ in range(p.numel())]
    return names, _vector(model)
