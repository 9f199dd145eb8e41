"""What the ranks of a group tell each other as numbers, text and bits: no pickle is ever read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

_CPU_BACKENDS = ("gloo", "mpi", "ucc")


class Meeting:
    """The ranks of `group` that have all called the same function, `caller`.

    Each method is a collective call: every rank makes it, and gets the answers in rank order.
    (The ``_object`` calls of torch.distributed would be shorter, and run what others have pickled.)
    """

    def __init__(self, caller: str, group: Any, model: Any) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(f"{caller} needs torch.distributed: call init_process_group first")
        if dist.get_rank(group) < 0:
            raise ValueError(
                f"group must be one that this rank belongs to, and rank {dist.get_rank()} does "
                f"not: let its members alone call {caller}"
            )
        self.group = group
        self.ranks: list[int] = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.device = _device(dist.get_backend(group), model)

    def __repr__(self) -> str:
        return f"Meeting of {len(self.ranks)} ranks"

    def agree(self, trouble: Exception | None) -> None:
        """Raise on every rank if one is in trouble, so that the others do not wait for it."""
        told = self.texts(f"{type(trouble).__name__}: {trouble}" if trouble else "")
        if trouble:
            raise trouble
        for found in zip(self.ranks, told, strict=True):
            if found[1]:
                raise RuntimeError("rank {} has stopped with {}".format(*found))

    def numbers(self, mine: list[int]) -> list[list[int]]:
        """Return what every rank has given, equally many integers of 64 bits each."""
        return [each.tolist() for each in self._all(torch.tensor(mine, device=self.device))]

    def texts(self, mine: str) -> list[str]:
        """Return what every rank has given, a text of any length."""
        data = np.frombuffer(mine.encode(), np.uint8)
        sizes = [size for (size,) in self.numbers([len(data)])]
        if not max(sizes):
            return [""] * len(sizes)
        padded = np.zeros(max(sizes), np.uint8)
        padded[: len(data)] = data
        told = self._all(torch.from_numpy(padded).to(self.device))
        pairs = zip(told, sizes, strict=True)
        return [each[:size].numpy().tobytes().decode() for each, size in pairs]

    def firsts(self, mine: Tensor) -> Tensor:
        """Return the tensor of the group's first rank; all have one of the same dtype and shape."""
        plain = settled(mine).to(self.device, copy=True)
        dist.broadcast(as_bytes(plain), self.ranks[0], group=self.group)
        return plain.to(mine.device)

    def _all(self, mine: Tensor) -> list[Tensor]:
        told = [torch.empty_like(mine) for _ in self.ranks]
        dist.all_gather(told, mine, group=self.group)
        return [each.cpu() for each in told]


def _device(backend: str, model: Any) -> torch.device:
    """Return where what is sent must lie: on the model's GPU, if the backend needs one."""
    if any(name in backend for name in _CPU_BACKENDS):
        return torch.device("cpu")
    tensors = model.parameters() if isinstance(model, nn.Module) else ()
    here = (t.device for t in tensors if t.device.type not in ("cpu", "meta"))
    return next(here, None) or torch.device("cuda", torch.cuda.current_device())


def settled(tensor: Tensor) -> Tensor:
    """Return the tensor outside of any graph, with its numbers in a row and no pending change."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor that is contiguous, in the same memory."""
    return tensor.view(-1).view(torch.uint8)
