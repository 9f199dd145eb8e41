"""Arrays of numpy and torch as messages carry them: bytes, and a header that says their kind."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from allreduce_edu.engine.dtypes import full_name, is_torch
from allreduce_edu.engine.spmd.comm import Kind, kind_of, raw

HEADER = 128  # bytes


def as_bytes(array: Any) -> Any:
    """Return a contiguous array's bytes as a tensor on the same memory."""
    flat = raw(array)
    return flat if is_torch(flat) else _torch().from_numpy(flat)


def padded(array: Any, size: int) -> Any:
    """Return a tensor of `size` bytes that begins with those of the array."""
    room = _torch().zeros(size, dtype=_torch().uint8)
    room[: array.nbytes] = as_bytes(array)
    return room


def as_tensor(array: Any) -> Any:
    """Return a contiguous array as a tensor on the same memory; numpy's bfloat16 too."""
    if is_torch(array):
        return array
    if full_name(array.dtype) != "bfloat16":
        return _torch().from_numpy(array)
    return _torch().from_numpy(array.view(np.int16)).view(_torch().bfloat16)


def header_of(array: Any) -> Any:
    """Return a tensor of `HEADER` bytes that says library, dtype and shape of an array."""
    library = "torch" if is_torch(array) else "numpy"
    text = json.dumps([library, *kind_of(array)]).encode()
    if len(text) > HEADER:
        raise ValueError(f"x must have fewer dimensions, got shape {tuple(array.shape)}")
    return as_bytes(np.frombuffer(text.ljust(HEADER), np.uint8).copy())


def read(header: Any) -> tuple[str, Kind]:
    """Return the library, and dtype and shape, that a header says."""
    library, name, shape = json.loads(header.numpy().tobytes())
    return library, (name, tuple(shape))


def empty(library: str, kind: Kind) -> Any:
    """Return room for an array of that kind."""
    name, shape = kind
    if library == "torch":
        return _torch().empty(shape, dtype=getattr(_torch(), name))
    from allreduce_edu.engine.dtypes import dtype

    return np.empty(shape, dtype(name))


def _torch() -> Any:
    import torch

    return torch
