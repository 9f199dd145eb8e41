"""How objects travel between the kernel and a rank: pickles and raw bytes over a private socket.

A message is a list of buffers, all their lengths first. Large arrays travel as buffers of their
own, next to the pickle and not inside it, so nothing is copied on the way out. Both ends are
sockets that only this kernel and its own ranks hold: nothing that others can reach is unpickled.
"""

from __future__ import annotations

import io
import json
import marshal
import pickle
import struct
import sys
from collections.abc import Generator, Sequence
from selectors import EVENT_READ, EVENT_WRITE
from socket import socket
from types import CodeType
from typing import Any, TypeAlias, TypeVar

import cloudpickle
import numpy as np

Result = TypeVar("Result")
Transfer: TypeAlias = Generator[int, None, Result]
_MAGIC = b"edu\0"  # what a stray write to the socket does not begin with
_MOST = 100_000  # buffers of a message
_HEADER = 1 << 26  # bytes of its first one: it may hold the text of many cells
_SMALL = 1 << 16  # bytes: below this a buffer of its own costs more than a copy


def dumps(value: object) -> list[memoryview]:
    """Pickle `value` into a message: functions of a notebook by value, arrays as raw bytes."""
    aside: list[pickle.PickleBuffer] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _SMALL:
            return True
        aside.append(buffer)
        return False

    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=stays_inside).dump(value)
    return [file.getbuffer(), *(buffer.raw() for buffer in aside)]


def loads(message: Sequence[memoryview]) -> Any:
    """Rebuild what `dumps` took apart; arrays share memory with the message and are writable."""
    return pickle.loads(message[0], buffers=message[1:])  # noqa: S301 - see the module's docstring


def header(**fields: object) -> memoryview:
    """Return the first buffer of a message: what can be read without unpickling anything."""
    return memoryview(json.dumps(fields).encode())


def header_of(message: Sequence[memoryview]) -> dict[str, Any]:
    """Return the fields of a message's header."""
    return json.loads(bytes(message[0]))  # type: ignore[no-any-return]


def send(sock: socket, message: Sequence[memoryview]) -> Transfer[None]:
    """Send a message; yields EVENT_WRITE whenever a non-blocking socket can take no more."""
    sizes = [buffer.nbytes for buffer in message]
    head = struct.pack(f"<4sI{len(sizes)}Q", _MAGIC, len(sizes), *sizes)
    for buffer in (memoryview(head), *message):
        rest = buffer.cast("B")
        while rest:
            try:
                rest = rest[sock.send(rest) :]
            except BlockingIOError:
                yield EVENT_WRITE


def receive(sock: socket) -> Transfer[list[memoryview]]:
    """Receive a message; yields EVENT_READ whenever a non-blocking socket has no more.

    Raises EOFError when the other end is gone, or when what comes is no message.
    """
    magic, count = struct.unpack("<4sI", (yield from _fill(sock, 8)))
    if magic != _MAGIC or count > _MOST:
        raise EOFError
    sizes = struct.unpack(f"<{count}Q", (yield from _fill(sock, 8 * count)))
    if sizes[:1] > (_HEADER,):
        raise EOFError
    message: list[memoryview] = []
    for size in sizes:
        message += [(yield from _fill(sock, size))]
    return message


def ask(sock: socket, message: Sequence[memoryview]) -> Transfer[list[memoryview]]:
    """Send a message and receive the answer."""
    yield from send(sock, message)
    return (yield from receive(sock))


def _fill(sock: socket, size: int) -> Transfer[memoryview]:
    try:
        rest = buffer = np.empty(size, np.uint8).data  # takes memory only as it is filled
    except (MemoryError, ValueError):
        raise EOFError from None
    while rest:
        try:
            got = sock.recv_into(rest)
        except BlockingIOError:
            yield EVENT_READ
            continue
        if not got:
            raise EOFError
        rest = rest[got:]
    return buffer


def to_end(transfer: Transfer[Result]) -> Result:
    """Run a transfer on a blocking socket, where it never has to yield."""
    while True:
        try:
            next(transfer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with two kinds of object taken apart differently.

    A tensor is its own elements, and arrives on the CPU and contiguous: no shared memory, no
    storage of a whole base. Code keeps the name of its file, by which tracebacks find its lines.
    """

    def __repr__(self) -> str:
        return "Pickler of calls and answers"

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return marshal.loads, (marshal.dumps(obj),)
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and _is_plain(obj, torch):
            return _tensor, (_raw(obj), str(obj.dtype), tuple(obj.shape), obj.requires_grad)
        return super().reducer_override(obj)


def _is_plain(tensor: Any, torch: Any) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    return plain and tensor.device.type in ("cpu", "cuda")


def _raw(tensor: Any) -> pickle.PickleBuffer:
    """Return the bytes of a tensor's elements."""
    import torch

    if not tensor.numel():  # no view of nothing, should its strides be odd
        return pickle.PickleBuffer(b"")
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return pickle.PickleBuffer(flat.view(torch.uint8).numpy())


def _tensor(raw: memoryview, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    if len(raw) == 0:
        return torch.empty(shape, dtype=kind, requires_grad=requires_grad)
    # A clone, because memory that torch did not allocate itself cannot be resized.
    return torch.frombuffer(raw, dtype=kind).reshape(shape).clone().requires_grad_(requires_grad)
