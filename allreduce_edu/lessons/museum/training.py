"""What is asked of a program that trains on real ranks: one plain step, beside one process."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from allreduce_edu.lessons import vectors
from allreduce_edu.lessons.museum.real import Examined

HEAD = """
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

"""  # of the programs
Entries = dict[str, Any]  # by name of the parameter or buffer

RATE = 0.1  # of the plain SGD step that every program makes
BATCH = 16  # images per rank


def digits_model() -> Any:
    """Return the model of most programs: 64 pixels, 32 ReLUs, 10 classes, equal on all ranks."""
    from allreduce_edu.realdist.train import make_model

    return make_model()


def digits_batch(ranks: int) -> tuple[Any, ...]:
    """Return the images and labels of all ranks together, as one process would see them."""
    from allreduce_edu.realdist.train import images

    return images(0, 0, BATCH * ranks, ranks=1)


def mean_loss(model: Any, images: Any, labels: Any) -> Any:
    """Return the mean over all images."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(images), labels)


@dataclass(frozen=True)
class Trained:
    """Calls ``program(model, *batch)`` on a rank, and looks at its gradients and weights.

    The program makes one plain SGD step of rate `RATE`. One process makes the same step on the
    whole batch, from the weights with which rank 0 began its first forward.

    Attributes
    ----------
    model
        ``model()`` gives each rank its model.
    batch
        ``batch(ranks)`` gives what all ranks together train on.
    loss
        ``loss(model, *batch)`` gives the loss of one process.
    begin
        ``begin()`` gives a model with the weights that the step must start from; by default
        those of rank 0 count.
    after
        ``after(model)`` is what one process does between `backward()` and its step.
    """

    model: Callable[[], Any] = digits_model
    batch: Callable[[int], tuple[Any, ...]] = digits_batch
    loss: Callable[..., Any] = mean_loss
    begin: Callable[[], Any] | None = None
    after: Callable[[Any], None] | None = None

    def __call__(self, program: Callable[..., Any]) -> Examined:
        """Say where the ranks disagree, and how the step differs from that of one process."""
        import torch.distributed as dist

        model, batch = self.model(), self.batch(dist.get_world_size())
        seen = Seen(model)
        with seen.watching():
            program(model, *batch)
        disagree = seen.disagreement()
        return disagree, None if disagree else self._wrong(seen, batch)

    def _wrong(self, seen: Seen, batch: tuple[Any, ...]) -> str | None:
        """Say in what way the step is not that of one process."""
        import torch

        if self.begin and (where := _apart(weights(seen.start), weights(self.begin()))):
            return f"all ranks begin with other weights than they should, most of all in `{where}`"
        one = Seen(alone := seen.start.train())
        with one.watching():
            self.loss(alone, *batch).backward()
        if self.after:
            self.after(alone)
        used = _used(seen.rows, one.rows)
        if said := _another(seen.gradient, gradients(alone)):
            if not used and "another gradient" in said:
                used = "each example went through the model once, so ask how much each counts"
            return f"{said}: {used}" if used else said
        torch.optim.SGD(alone.parameters(), lr=RATE).step()
        if where := _apart(weights(seen.model), weights(alone)):
            return (
                "all ranks agree on the right gradient, and after the step on weights that are "
                f"not those of one plain SGD step with lr={RATE}, most of all in `{where}`"
            )
        return f"the step is right, but it does too much: {used}" if used else None


class Seen:
    """What a rank's program did to its model: how it began, its first gradient, its end."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.start: Any = None  # a copy, as it was before its first forward
        self.gradient: Entries = {}
        self.rows: list[bytes] = []
        self.sent = 0  # all-reduces between the first forward and the step
        self._calls: list[str] = []
        self._first = next(m for m in model.modules() if not list(m.children()))

    def __repr__(self) -> str:
        return f"Seen: {len(self.rows)} rows"

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note the state before the first forward, and the gradient before the first step."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from allreduce_edu.realdist.ddp import counting

        hooks = [
            register_module_forward_pre_hook(self._forward),
            register_optimizer_step_pre_hook(self._step),
        ]
        try:
            with counting("allreduce") as self._calls:
                yield
        finally:
            for hook in hooks:
                hook.remove()
        self._begin()
        self._step()

    def _begin(self) -> None:
        if self.start is None:
            self.start = copy.deepcopy(self.model)
            self.sent = -len(self._calls)

    def _forward(self, module: Any, inputs: Any) -> None:
        import torch

        if torch.is_grad_enabled() and module.training:
            self._begin()
            if module is self._first:
                rows = inputs[0].detach().reshape(-1, inputs[0].shape[-1])
                self.rows += [row.tobytes() for row in rows.numpy()]

    def _step(self, *_: object) -> None:
        if not self.gradient:
            self.gradient = gradients(self.model)
            self.sent += len(self._calls)

    def disagreement(self) -> str | None:
        """Say where the ranks hold other bits: at the start, in their gradients, at the end."""
        if said := _differing(weights(self.start), "weights"):
            return f"before the first step {said}"
        if said := _differing(self.gradient, "gradients"):
            return said if self.sent else f"{said}; no all-reduce ran between forward and step"
        return _differing(dict(self.model.state_dict()), "weights or buffers")


def weights(model: Any) -> Entries:
    """Return all parameters by name."""
    return {name: p.detach() for name, p in model.named_parameters()}


def gradients(model: Any) -> Entries:
    """Return all gradients by name, of NaN where a parameter has none."""
    import torch

    pairs = ((name, p, p.grad) for name, p in model.named_parameters())
    return {n: torch.full_like(p, torch.nan) if g is None else g.clone() for n, p, g in pairs}


def _flat(entries: Entries, names: list[str]) -> tuple[Any, list[str]]:
    """Return the entries of these names as one vector, and the name of each of its places."""
    import torch

    values = [entries[name].detach().float().reshape(-1) for name in names]
    owners = [name for name, value in zip(names, values, strict=True) for _ in value]
    return torch.cat(values).numpy(), owners


def _differing(mine: Entries, what: str) -> str | None:
    """Say which ranks hold other bits under the same name, and where."""
    import torch
    import torch.distributed as dist

    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, list(mine))  # ranks may have registered them in another order
    for rank, there in enumerate(names):
        if lone := sorted(set(names[0]) ^ set(there)):
            return f"only one of ranks 0 and {rank} has `{lone[0]}`"
    vector, owners = _flat(mine, names[0])
    held = torch.from_numpy(vector)
    every = [torch.empty_like(held) for _ in names]
    dist.all_gather(every, held)
    return vectors.disagreement([each.numpy() for each in every], owners, what)


def _another(mine: Entries, right: Entries) -> str | None:
    """Say how the gradient of all ranks differs from that of one process."""
    (a, names), (b, _) = _flat(mine, list(right)), _flat(right, list(right))
    if (missing := np.isnan(a)).any():
        return f"`{names[int(missing.argmax())]}` has no gradient, on any rank"
    return vectors.another(a, b, names, {})


def _apart(mine: Entries, right: Entries) -> str | None:
    """Return the name of the entry that is not near to what it should be, if there is one."""
    (a, names), (b, _) = _flat(mine, list(right)), _flat(right, list(right))
    gap = abs(a - b)
    return names[int(gap.argmax())] if gap.max() > vectors.NEAR * abs(b).max() else None


def _used(mine: list[bytes], batch: list[bytes]) -> str | None:
    """Say which part of the batch no rank has used, or more than one."""
    import torch.distributed as dist

    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, mine)
    used, whole = Counter(row for rows in by_rank for row in rows), Counter(batch)
    missing, surplus = (whole - used).total(), (used - whole).total()
    told = []
    if missing:
        told.append(f"of {len(batch)} examples {missing} went through the model on no rank")
    if surplus:
        told.append(f"examples went through the model {surplus} times too often")
    return ", and ".join(told) or None


trained = Trained()
