"""What is asked of a program that trains on real ranks: one plain step, beside one process."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from allreduce_edu.lessons.museum.exhibit import Examined

HEAD = """
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

"""  # of the programs
HEAD_NN = HEAD.replace("from torch.nn.f", "from torch import nn\nfrom torch.nn.f")
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
    unfit
        ``unfit(model)`` says why the model of the first forward is not the one to train.
    """

    model: Callable[[], Any] = digits_model
    batch: Callable[[int], tuple[Any, ...]] = digits_batch
    loss: Callable[..., Any] = mean_loss
    begin: Callable[[], Any] | None = None
    unfit: Callable[[Any], str | None] | None = None

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
        from allreduce_edu.realdist.oracle import one_step

        if self.begin and not _alike(seen.start, self.begin()):
            return "all ranks begin with equal weights, and not with those that they should have"
        if self.unfit and (why := self.unfit(seen.start)):
            return why
        rows: list[bytes] = []

        def loss(model: Any, *batch: Any) -> Any:
            one = Seen(model)
            with one.watching():
                value = self.loss(model, *batch)
            rows.extend(one.rows)
            return value

        found = one_step(seen.replay, loss, seen.start.train(), batch, RATE)
        used = _used(seen.rows, rows)
        if found:
            return used and f"the step is right, but it does too much: {used}"
        if found.times:
            return str(found)
        told = used or "each example went through the model once"
        stop = "" if str(found).endswith("?") else "."
        return f"{found}{stop} {told[0].upper()}{told[1:]}"


class Seen:
    """What a rank's program did to its model: how it began, its first gradient, its end."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.start: Any = None  # a copy, as it was before its first forward
        self.gradient: dict[str, Any] = {}
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
            pairs = ((name, p.grad) for name, p in self.model.named_parameters())
            self.gradient = {name: None if g is None else g.clone() for name, g in pairs}
            self.sent += len(self._calls)

    def disagreement(self) -> str | None:
        """Say where the ranks hold other bits: before the first step, or at the end."""
        from allreduce_edu.realdist.compare import compare_replicas

        if not (found := compare_replicas(self.start)):
            return f"before the first step {found.where}"
        for name, p in self.model.named_parameters():  # the program may have thrown it away
            p.grad = self.gradient.get(name)
        if found := compare_replicas(self.model):
            return None
        unsent = not self.sent and any(kind == "gradient" for kind, _ in found.differing)
        return found.where + "; no all-reduce ran between forward and step" * unsent

    def replay(self, model: Any, *_batch: Any) -> None:
        """Leave in a copy of `start` what the program left in its model."""
        model.load_state_dict(self.model.state_dict())
        for name, p in model.named_parameters():
            p.grad = self.gradient.get(name)


def _alike(a: Any, b: Any) -> bool:
    """Say whether two models hold the same weights."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(bool((p == q).all()) for p, q in pairs)


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
        which = "others" if missing else "examples went through the model"
        told.append(f"{which} {surplus} times too often")
    return ", and ".join(told) or None


trained = Trained()
