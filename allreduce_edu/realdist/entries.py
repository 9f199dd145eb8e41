"""What a rank holds of its training, entry by entry: parameters, buffers, optimizer, gradients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from allreduce_edu.engine import check
from allreduce_edu.realdist.meeting import as_bytes, settled

BATCH = "part of the batch"
KINDS = "parameter", "buffer", "optimizer entry", "gradient", BATCH
_WRAPPERS = "module.", "_orig_mod."  # of DistributedDataParallel, and of torch.compile
_SHARDED = {"DTensor", "FullyShardedDataParallel", "FSDPModule", "ZeroRedundancyOptimizer"}


class Entry(NamedTuple):
    """One thing that a rank holds, and that all ranks should hold alike."""

    kind: str  # one of KINDS
    name: str
    form: str  # dtype and shape of a tensor; nothing for a number
    held: str  # hash of a tensor's bytes; the number itself
    tensor: Tensor | None = None

    def __repr__(self) -> str:
        return f"{self.kind} {self.name!r}: {self.form or self.held}"


def entries(model: Any, optimizer: Any = None) -> list[Entry]:
    """Return all that `model` and `optimizer` hold on this rank, in the order of `KINDS`.

    Parameters that share their memory stand once, under their first name.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {check.kind(model)}")
    for what, part in (("model", model), *model.named_modules()):
        _whole(what, part)
    names = {id(p): name for name, p in parameters(model)}
    found = [_entry("parameter", name, p) for name, p in parameters(model)]
    found += [_entry("buffer", name, b) for name, b in _plain(model.named_buffers())]
    if optimizer is not None:
        _whole("optimizer", optimizer)
        found += _of_optimizer(optimizer, names)
    return found + [_entry("gradient", name, p.grad) for name, p in parameters(model)]


def parameters(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters with their names, those that a model has without its wrapper."""
    return _plain(model.named_parameters())


def _plain(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Take the wrappers' names off, where they stand before every name."""
    pairs = list(named)
    while pairs:
        first = next((w for w in _WRAPPERS if all(name.startswith(w) for name, _ in pairs)), None)
        if first is None:
            break
        pairs = [(name.removeprefix(first), tensor) for name, tensor in pairs]
    return pairs


def _whole(name: str, thing: Any) -> None:
    """Refuse what is sharded: there each rank is to hold something else."""
    for kind in type(thing).__mro__:
        if kind.__name__ in _SHARDED:
            raise TypeError(
                f"replicas are whole copies, and {name!r} is sharded ({kind.__name__}): "
                "each rank holds another part of it"
            )


def _entry(kind: str, name: str, value: Any) -> Entry:
    """Return the entry for a tensor or a number."""
    if isinstance(value, np.ndarray | np.generic):
        value = torch.as_tensor(value)
    if not isinstance(value, Tensor):
        plain = isinstance(value, int | float | complex | str | None)
        return Entry(kind, name, "", repr(value) if plain else type(value).__name__)
    _whole(name, value)
    if is_lazy(value) or value.is_meta:
        why = "lazy: run one forward first" if is_lazy(value) else "on the meta device"
        raise ValueError(f"{kind} {name!r} has no numbers yet, it is {why}")
    frozen = ", frozen" if kind == "parameter" and not value.requires_grad else ""
    sparse = "" if value.layout == torch.strided else "sparse "
    form = f"{sparse}{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}{frozen}"
    return Entry(kind, name, form, _hash(value), value)


def _hash(tensor: Tensor) -> str:
    """Return a hash of a tensor's bytes: equal bits, equal hashes. NaNs have bits like others."""
    digest = hashlib.sha256()
    for part in _dense(tensor):
        digest.update(as_bytes(settled(part).cpu()).numpy().data)
    return digest.hexdigest()[:16]


def _dense(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that hold the numbers of one."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    return (tensor,) if tensor.layout == torch.strided else (tensor.to_dense(),)


def _of_optimizer(optimizer: Any, names: Mapping[int, str]) -> Iterator[Entry]:
    """Yield every group's numbers, the learning rate first, then every parameter's state."""
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {check.kind(optimizer)}")
    owners: dict[Any, str] = {}
    for k, group in enumerate(optimizer.param_groups):
        where = f"of group {k}"
        mine = {p: names.get(id(p), f"number {j} {where}") for j, p in enumerate(group["params"])}
        numbers = {key: x for key, x in group.items() if key not in ("params", "param_names")}
        yield from leaves(KINDS[2], numbers, owner=f" {where}")
        told = hashlib.sha256("\n".join(mine.values()).encode()).hexdigest()[:16]
        yield Entry(KINDS[2], f"params {where}", check.count(len(mine), "parameter"), told)
        owners |= mine
    others = sorted(key for key in optimizer.state if isinstance(key, str))
    for key in [p for p in owners if p in optimizer.state] + others:
        yield from leaves(KINDS[2], optimizer.state[key], owner=f" of {owners.get(key, key)}")


def leaves(kind: str, value: Any, path: str = "", owner: str = "") -> Iterator[Entry]:
    """Yield the tensors and numbers inside of a value, under the names that lead to them."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=lambda key: (key != "lr", str(key))):
            yield from leaves(kind, value[key], f"{path}.{key}" if path else str(key), owner)
    elif isinstance(value, list | tuple):
        for k, each in enumerate(value):
            yield from leaves(kind, each, f"{path}[{k}]", owner)
    else:
        yield _entry(kind, f"{path}{owner}", value)
