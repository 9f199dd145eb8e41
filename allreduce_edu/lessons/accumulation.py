"""Judges a learner's gradient accumulation under DDP: the right gradient, in one all-reduce."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from allreduce_edu.lessons import vectors
from allreduce_edu.lessons.checks import Verdict, right, wrong
from allreduce_edu.realdist.pool import Pool, RankError

Accumulate = Callable[[Any, list[Any]], object]
_STEPS, _MICRO, _BATCH, _RANKS = 3, 4, 16, 4
_PATIENCE = 10.0  # seconds


class Outcome(NamedTuple):
    """What one rank holds after the first step, and what it did in all."""

    gradient: Any
    calls: int
    forwards: int
    quiet: bool  # whether it entered `no_sync`


def accumulates(accumulate: Accumulate) -> Verdict:
    """Judge `accumulate(ddp, batches)` on four micro-batches, three times over.

    `.grad` must be that of one process with all images, and one all-reduce a step is enough.
    """
    with Pool(_RANKS, backend="gloo", timeout=_PATIENCE) as pool:
        try:
            found = pool.run(_outcome, accumulate)
        except RankError as error:
            return wrong(f"it did not end well:\n{error}")
    if problem := _problem(found):
        return wrong(problem)
    return right(
        f"the gradient of one process with all images, and {_STEPS} all-reduces for "
        f"{_STEPS} steps of {_MICRO} micro-batches"
    )


def _problem(found: list[Outcome]) -> str | None:
    from allreduce_edu.realdist.train import make_model

    names, mine = vectors.owners(make_model()), [each.gradient for each in found]
    calls, quiet = found[0].calls, found[0].quiet
    if (mine[0] != mine[0]).all():
        return "no parameter has a gradient: call `backward()` for each micro-batch"
    if not calls:
        told = vectors.disagreement(mine, names) or "ranks may hold different gradients"
        return f"no all-reduce ran: {told}. The last micro-batch must be outside of `no_sync`"
    if (problem := vectors.disagreement(mine, names)) and quiet:
        return f"{problem}: what is accumulated after the last all-reduce stays on its rank"
    hints = {float(_MICRO): "`backward()` adds up the micro-batches; divide each loss by 4"}
    hints[1 / _RANKS] = "DDP has divided by the number of ranks already"
    if problem := problem or vectors.another(mine[0], _alone(), names, hints):
        return problem
    if (forwards := found[0].forwards) != _STEPS * _MICRO:
        return (
            f"the model was called {forwards} times, not once for each of {_STEPS * _MICRO} "
            "micro-batches: they are to save memory"
        )
    if calls == _STEPS:
        return None
    told = f"the gradient is right, but {calls} all-reduces ran in {_STEPS} steps"
    if quiet:
        return f"{told}, in spite of `no_sync`: DDP decides in the forward. `ddp(x)` belongs inside"
    return f"{told}; {_STEPS} are enough"


def _outcome(accumulate: Accumulate) -> Outcome:
    """Run the learner's steps on this rank."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from allreduce_edu.realdist.ddp import Watch
    from allreduce_edu.realdist.train import make_model

    ddp: Any = DistributedDataParallel(make_model())
    watch, first = Watch(ddp), None
    quiet, forwards = _noting(ddp), list[None]()
    ddp.module.register_forward_hook(lambda *_: forwards.append(None))
    for step in range(_STEPS):
        ddp.zero_grad()
        accumulate(ddp, _batches(dist.get_rank(), step))
        first = vectors.gradient(ddp.module) if first is None else first
    return Outcome(first, watch.calls(), len(forwards), bool(quiet))


def _noting(ddp: Any) -> list[bool]:
    """Let `ddp` note in the list returned that `no_sync` was entered."""
    entered: list[bool] = []
    real = ddp.no_sync

    @contextlib.contextmanager
    def no_sync() -> Iterator[None]:
        entered.append(True)
        with real():
            yield

    ddp.no_sync = no_sync
    return entered


def _batches(rank: int, step: int) -> list[Any]:
    from allreduce_edu.realdist.train import images

    return [images(rank, step * _MICRO + k, _BATCH, _RANKS) for k in range(_MICRO)]


def _alone() -> Any:
    """Return the gradient of one process with all images of the first step."""
    import torch
    from torch.nn.functional import cross_entropy

    from allreduce_edu.realdist.train import make_model

    model = make_model()
    shares = [batch for rank in range(_RANKS) for batch in _batches(rank, 0)]
    x, y = (torch.cat(part) for part in zip(*shares, strict=True))
    loss: Any = cross_entropy(model(x), y)
    loss.backward()
    return vectors.gradient(model)
