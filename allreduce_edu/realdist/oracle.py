"""Whether the ranks agree on the right thing: one step of theirs beside that of one process."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from allreduce_edu.engine import check
from allreduce_edu.realdist.compare import Tables, differences, exchange, in_words
from allreduce_edu.realdist.entries import BATCH, Entry, entries, leaves
from allreduce_edu.realdist.lengths import Gap, gap_of_gradients, gap_of_steps, gradients, largest
from allreduce_edu.realdist.meeting import Meeting

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class OneStep:
    """What `one_step` found; true if the ranks' step is that of one process, and ``why`` says it.

    If not: the parameter that it shows in first or most, `name`, if it is a single one; and how
    many `times` that of one process its gradient is, or the step, if it points the same way.
    """

    right: bool
    why: str
    name: str = ""
    times: float | None = None

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.why


def one_step(
    step: Callable[..., object],
    loss: Callable[..., Any],
    model: nn.Module,
    batch: Sequence[Any],
    rate: float = 0.1,
    group: Any = None,
    rtol: float = 1e-6,
) -> OneStep:
    """Say whether one step of all ranks is that of one process that has the whole batch.

    A collective call: every rank of `group` makes it, and each gets the same answer. It compares
    `.grad` first, which a parameter does not show: a quarter of the gradient at four times the
    learning rate is the right step of SGD, and the wrong one of everything else. AdamW and clipping
    in turn hide a gradient that is too short: let `step` be plain SGD. Then it compares parameters.
    Buffers are not compared: each rank's BatchNorm follows its own share.

    `model` is not changed, nor is the random state: `step` and the process alone get copies.

    Parameters
    ----------
    step : callable
        ``step(model, *batch)`` does on each rank all that your loop does: wraps the model, takes
        the rank's share of the batch, forward, backward, and one step of plain SGD. It leaves
        `.grad` where it is.
    loss : callable
        ``loss(model, *batch)`` is the loss of the whole batch in one process.
    model : torch.nn.Module
        Plain, not wrapped, and without random draws (dropout off). Rank 0's parameters count.
        With BatchNorm in training a share's statistics are not those of the batch: put it into
        `eval`, or convert the model to SyncBatchNorm inside `step`.
    batch : tuple
        The whole batch, the same on every rank.
    rate : float
        The learning rate of `step`.
    group : ProcessGroup, optional
        Default: all ranks.
    rtol : float
        Relative to the largest entry of the gradient; at least four roundings of its dtype.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> from allreduce_edu import Pool, one_step
    >>> def loss(model, x):
    ...     return model(x).square().mean()
    >>> def step(model, x):
    ...     ddp = DistributedDataParallel(model)
    ...     mine = x[dist.get_rank() :: dist.get_world_size()]
    ...     (loss(ddp, mine) / dist.get_world_size()).backward()
    ...     torch.optim.SGD(model.parameters(), lr=0.1).step()
    >>> with Pool(2, backend="gloo") as pool:
    ...     found = pool.run(one_step, step, loss, torch.nn.Linear(3, 1), (torch.rand(4, 3),))
    >>> found[0].right, round(found[0].times, 6)
    (False, 0.5)
    """
    meeting = Meeting("one_step", group, model)
    given = _tried(meeting, lambda: _given(step, loss, model, batch, rate, rtol))
    if tables := exchange(meeting, given):
        return _other_start(tables)
    with torch.inference_mode(mode=False), torch.enable_grad(), _random_state(model):
        alone = _begin(meeting, model)
        _tried(meeting, lambda: _backward(loss, alone, batch))
        mine = copy.deepcopy(model)
        step(mine, *copy.deepcopy(batch))
    return _verdict(meeting, mine, alone, rate, rtol)


# ------------------------------------------------------------------------------- before the step


def _tried(meeting: Meeting, fn: Callable[[], T]) -> T:
    """Return what ``fn()`` returns; if it fails on one rank, raise on all."""
    result, trouble = None, None
    try:
        result = fn()
    except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for us
        trouble = error
    meeting.agree(trouble)
    return cast("T", result)


def _given(step: Any, loss: Any, model: Any, batch: Any, rate: Any, rtol: Any) -> list[Entry]:
    """Return what must be alike on all ranks: the batch, and the model but for its numbers."""
    for name, fn in (("step", step), ("loss", loss)):
        if not callable(fn):
            raise TypeError(f"{name} must be a function of the model and the batch, got {fn!r}")
    if isinstance(model, DistributedDataParallel):
        raise TypeError("model must be the plain one, which step wraps: pass ddp.module")
    if not isinstance(batch, tuple | list):
        raise TypeError(f"batch must be a tuple: step(model, *batch), got {check.kind(batch)}")
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ValueError(f"rate must be a number > 0, got {rate!r}")
    if not isinstance(rtol, int | float) or not 0 <= rtol < math.inf:
        raise ValueError(f"rtol must be a number >= 0, got {rtol!r}")
    whole = (each._replace(held="") for each in entries(model) if each.kind != "gradient")
    return [*whole, *leaves(BATCH, batch, "batch")]


def _other_start(tables: Tables) -> OneStep:
    """Say in what the ranks' models differ, or raise if it is the batch."""
    key = next(iter(differences(tables)), ("", ""))
    if key[0] == BATCH:
        whole = "batch must be the whole one, the same on every rank"
        raise ValueError(f"{whole}: {in_words(tables, key)}")
    told = in_words(tables, key) if key[0] else "equal parameters in another order"
    return OneStep(right=False, why=f"the ranks have other models: {told}", name=key[1])


@contextmanager
def _random_state(model: nn.Module) -> Iterator[None]:
    """Take back in the end what was drawn of random numbers."""
    with torch.random.fork_rng(_gpus(model)):
        yield


def _gpus(model: nn.Module) -> list[torch.device]:
    return sorted({p.device for p in model.parameters() if p.is_cuda}, key=str)


def _begin(meeting: Meeting, model: nn.Module) -> nn.Module:
    """Return a copy of the model that the group's first rank has, without gradients."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    with torch.no_grad():
        for tensor in (*alone.parameters(), *alone.buffers()):
            tensor.copy_(meeting.firsts(tensor))
    return alone


def _backward(loss: Callable[..., Any], alone: nn.Module, batch: Sequence[Any]) -> None:
    """Leave the gradients of one process in `alone`, and see to it that they can be compared."""
    before = _drawn(alone)
    value = loss(alone, *copy.deepcopy(batch))
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError(f"loss must return a tensor with one number, got {check.kind(value)}")
    if not all(map(torch.equal, before, _drawn(alone))):
        raise ValueError(
            "loss must not draw random numbers, since no rank draws those of another: "
            "turn dropout and the like off"
        )
    if not value.requires_grad:
        raise ValueError("loss must depend on a parameter that requires a gradient")
    value.backward()  # type: ignore[no-untyped-call]
    most = largest(gradients(alone).values())
    if not 0 < most < math.inf:
        raise ValueError(f"loss must have a gradient to compare with; its largest entry is {most}")


def _drawn(model: nn.Module) -> list[Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, _gpus(model))]


# -------------------------------------------------------------------------------- after the step


def _verdict(
    meeting: Meeting, mine: nn.Module, alone: nn.Module, rate: float, rtol: float
) -> OneStep:
    """Return what all ranks are told: whether they agree, and what the first one has found."""
    ranks = len(meeting.ranks)
    found: list[OneStep | None] = [_of_gradients(mine, alone, ranks, rtol)]
    found += [_of_steps(mine, alone, rate, rtol) if found[0] is None else None]
    told = json.loads(
        meeting.texts(json.dumps([None if each is None else asdict(each) for each in found]))[0]
    )
    held = [each for each in entries(mine) if each.kind in ("parameter", "gradient")]
    tables = exchange(meeting, held) or {}
    for kind, first in zip(("gradient", "parameter"), told, strict=True):
        if key := next((key for key in differences(tables) if key[0] == kind), None):
            why = f"the ranks disagree: {in_words(tables, key)}. Go on with compare_replicas"
            return OneStep(right=False, why=why, name=key[1])
        if first:
            return OneStep(**first)
    who = f"{ranks} ranks" if ranks > 1 else "the only rank"
    more = " (buffers are not compared)" if any(True for _ in mine.buffers()) else ""
    return OneStep(
        right=True,
        why=f"the step of {who} is that of one process with the whole batch: gradients and "
        f"parameters within {rtol:g}{more}",
    )


def _of_gradients(mine: nn.Module, alone: nn.Module, ranks: int, rtol: float) -> OneStep | None:
    """Say in what the gradient that all ranks have is not that of one process."""
    rights, grads = gradients(alone), gradients(mine)
    if list(grads) != list(rights):
        why = "`step` must leave the model its parameters; they have other names afterwards"
        return OneStep(right=False, why=why)
    due = [name for name, grad in rights.items() if grad is not None]
    missing = [name for name in due if grads[name] is None]
    if missing == due:
        return OneStep(
            right=False,
            why="no parameter has a gradient after `step`: it must train the model that it is "
            "given, and call zero_grad() before the backward, not after it",
        )
    if missing:
        why = f"`.grad` of {missing[0]!r} is None on all ranks, and one process has one"
        return OneStep(right=False, why=why, name=missing[0])
    gap = gap_of_gradients(mine, alone, rtol)
    if gap is None:
        return None
    why = _gradient(gap, ranks, alone)
    return OneStep(right=False, why=why, name=gap.name, times=gap.times)


def _gradient(gap: Gap, ranks: int, model: nn.Module) -> str:
    if not math.isfinite(gap.far):
        return f"`.grad` of {gap.name!r} has numbers that are not finite, and one process has none"
    if gap.times is None:
        return (
            f"all ranks agree, on another gradient; it differs most in {gap.name!r}, by "
            f"{gap.far:.2g} of the largest entry: {_why_another(model)}"
        )
    whose = f"`.grad` of {gap.name!r}" if gap.name else "`.grad`"
    told = f"{gap.times:.6g} times that of one process" if gap.times else "0 everywhere"
    hints = {1 / ranks: "divided by the world size once too often?"}
    hints[float(ranks)] = "a sum, where DDP has the mean?"
    hint = next((f": {text}" for x, text in hints.items() if abs(gap.times / x - 1) < 1e-3), "")
    where = f", on all {ranks} ranks" if ranks > 1 else ""
    return f"{whose} is {told}{where}{hint}"


def _why_another(model: nn.Module) -> str:
    norms = (m for m in model.modules() if isinstance(m, _BatchNorm) and m.training)
    if any(not isinstance(m, SyncBatchNorm) for m in norms):
        return "BatchNorm in training sees a share and not the batch, which alone makes another"
    return (
        "shares of unequal size, the same share twice, a loss that is no mean, or clipping "
        "before the average?"
    )


def _of_steps(mine: nn.Module, alone: nn.Module, rate: float, rtol: float) -> OneStep | None:
    """Say in what the parameters have moved otherwise than plain SGD moves them."""
    gap = gap_of_steps(mine, alone, rate, rtol)
    if gap is None:
        return None
    sgd = f"plain SGD at rate {rate:g}"
    who = repr(gap.name) if gap.name else "no parameter"
    if not math.isfinite(gap.far):
        why = f"{who} has numbers that are not finite after the step"
    elif gap.times == 0:
        why = f"{who} has {'not ' if gap.name else ''}moved: whose parameters has the optimizer?"
    elif gap.times and not gap.name:
        why = f"the step is {gap.times:.6g} times that of {sgd}: is this the rate of `step`?"
    else:
        why = f"{who} has not moved as {sgd} moves it: momentum, weight decay, clipping?"
    return OneStep(
        right=False, why=f"the gradients are right, but {why}", name=gap.name, times=gap.times
    )
