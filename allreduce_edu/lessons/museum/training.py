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

        if self.begin and (said := seen.another_start(self.begin())):
            return said
        alone = seen.at_start()
        self.loss(alone, *batch).backward()
        if self.after:
            self.after(alone)
        if (missing := np.isnan(seen.gradient)).any():
            return f"`{seen.names[int(missing.argmax())]}` has no gradient, on any rank"
        used = _used(seen.rows, self._rows(batch))
        if said := vectors.another(seen.gradient, vectors.gradient(alone), seen.names, {}):
            if not used and "another gradient" in said:
                used = "each example went through the model once, so ask how much each counts"
            return f"{said}: {used}" if used else said
        torch.optim.SGD(alone.parameters(), lr=RATE).step()
        said = seen.another_step(vectors.weights(alone))
        return said or (f"the step is right, but it does too much: {used}" if used else None)

    def _rows(self, batch: tuple[Any, ...]) -> list[bytes]:
        """Return the rows that one process puts through the model."""
        alone = self.model()
        counted = Seen(alone)
        with counted.watching():
            self.loss(alone, *batch)
        return counted.rows


class Seen:
    """What a rank's program did to its model: how it began, its first gradient, its end."""

    def __init__(self, model: Any) -> None:
        self.model, self.fresh = model, copy.deepcopy(model)
        self.names = vectors.owners(model)
        self.start: Any = None
        self.gradient: Any = None
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
            self.start = copy.deepcopy(self.model.state_dict())
            self.sent = -len(self._calls)

    def _forward(self, module: Any, inputs: Any) -> None:
        import torch

        if torch.is_grad_enabled() and module.training:
            self._begin()
            if module is self._first:
                rows = inputs[0].detach().reshape(-1, inputs[0].shape[-1])
                self.rows += [row.tobytes() for row in rows.numpy()]

    def _step(self, *_: object) -> None:
        if self.gradient is None:
            self.gradient = vectors.gradient(self.model)
            self.sent += len(self._calls)

    def at_start(self) -> Any:
        """Return a model as this one was before its first forward."""
        model = copy.deepcopy(self.fresh)
        model.load_state_dict(self.start)
        return model.train()

    def disagreement(self) -> str | None:
        """Say where the ranks hold other bits: at the start, in their gradients, at the end."""
        start = _gathered(vectors.weights(self.at_start()))
        if said := vectors.disagreement(start, self.names, "weights"):
            return f"before the first step {said}"
        if said := vectors.disagreement(_gathered(self.gradient), self.names):
            return said if self.sent else f"{said}; no all-reduce ran between forward and step"
        names, state = _state(self.model)
        return vectors.disagreement(_gathered(state), names, "weights or buffers")

    def another_start(self, right: Any) -> str | None:
        """Say that all ranks began with other weights than they should."""
        mine, wanted = vectors.weights(self.at_start()), vectors.weights(right)
        if not (differs := vectors.different(mine, wanted)).size:
            return None
        where = self.names[int(differs[0])]
        return f"all ranks begin with weights that are not those to begin with, first in `{where}`"

    def another_step(self, right: Any) -> str | None:
        """Say that the gradient is right, and the weights after the step are not."""
        mine = vectors.weights(self.model)
        if abs(mine - right).max() <= vectors.NEAR * abs(right).max():
            return None
        where = self.names[int(abs(mine - right).argmax())]
        return (
            "all ranks agree on the right gradient, and after the step on weights that are not "
            f"those of one plain SGD step with lr={RATE}; they differ most in `{where}`"
        )


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


def _state(model: Any) -> tuple[list[str], Any]:
    """Return all weights and buffers as one vector, and the name that each entry belongs to."""
    import torch

    state = model.state_dict().items()
    names = [name for name, value in state for _ in range(value.numel())]
    return names, torch.cat([value.float().reshape(-1) for _, value in state]).numpy()


def _gathered(mine: Any) -> list[Any]:
    import torch
    import torch.distributed as dist

    held = torch.from_numpy(mine)
    every = [torch.empty_like(held) for _ in range(dist.get_world_size())]
    dist.all_gather(every, held)
    return [each.numpy() for each in every]


trained = Trained()
