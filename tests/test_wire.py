"""What travels between the kernel and a rank arrives equal, whole and independent."""

from __future__ import annotations

import socket
import struct
import threading

import numpy as np
import pytest

from allreduce_edu.realdist import wire


def carried(value):
    """Send `value` over a socket pair whose ends block, as a rank's do."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=lambda: wire.to_end(wire.send(ours, wire.dumps(value))))
        sender.start()
        message = wire.to_end(wire.receive(theirs))
        sender.join()
    return wire.loads(message)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "u1", "?", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7), (300, 1000)])
def test_arrays_keep_bits_shape_and_dtype(dtype, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    back = carried(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    back[...] = 0  # a rank may write into what it was given


def test_bfloat16_arrays_travel():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    array = np.arange(100_000).astype(bfloat16)
    assert carried(array).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (300, 1000)])
def test_tensors_keep_bits_shape_and_dtype(dtype, shape):
    torch = pytest.importorskip("torch", reason="tensors need torch")
    tensor = (torch.rand(shape) * 100).to(getattr(torch, dtype))
    back = carried(tensor)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)
    back.resize_(2)  # an ordinary tensor, which owns its memory


def test_a_row_of_nothing_travels():
    torch = pytest.importorskip("torch", reason="tensors need torch")
    assert carried(torch.zeros(1, 0)[0]).shape == (0,)


def test_a_row_travels_without_its_whole_tensor():
    torch = pytest.importorskip("torch", reason="tensors need torch")
    row = torch.zeros(1000, 1000)[3]
    assert sum(buffer.nbytes for buffer in wire.dumps(row)) < 10_000


def test_a_model_keeps_its_gradient_flags_and_tied_weights():
    torch = pytest.importorskip("torch", reason="tensors need torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = carried((model, optimizer))
    assert model[1].weight is model[0].weight is optimizer.param_groups[0]["params"][0]
    assert [p.requires_grad for p in model.parameters()] == [True, False, True]


def test_code_keeps_its_file_and_lines():
    def somewhere():
        return 1

    code = carried(somewhere).__code__
    assert (code.co_filename, code.co_firstlineno) == (__file__, somewhere.__code__.co_firstlineno)


def test_equal_objects_stay_one_object():
    array = np.ones(100_000)
    one, other = carried([array, array])
    assert one is other


def test_a_message_larger_than_the_socket_can_be_sent_without_blocking():
    ours, theirs = socket.socketpair()
    message = [memoryview(bytes(5_000_000)), memoryview(b"end")]
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        sending, receiving = wire.send(ours, message), wire.receive(theirs)
        received = None
        while received is None:
            next(sending, None)
            try:
                next(receiving)
            except StopIteration as end:
                received = end.value
    assert received == message


@pytest.mark.parametrize(
    "stray",
    [
        b"printed by the rank",
        struct.pack("<II", 300_000_000, 1),
        struct.pack("<4sI", b"edu\0", 300_000_000),
        struct.pack("<4sI2Q", b"edu\0", 2, 1 << 50, 1 << 63),
        struct.pack("<4sI2Q", b"edu\0", 2, (1 << 26) + 1, 8) + bytes(8),
    ],
)
def test_what_is_no_message_is_refused_before_it_takes_memory(stray):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(stray)
        theirs.settimeout(15)
        with pytest.raises(EOFError):
            wire.to_end(wire.receive(theirs))


def test_the_end_of_the_connection_is_told():
    ours, theirs = socket.socketpair()
    with theirs:
        ours.send(b"\x01")
        ours.close()
        with pytest.raises(EOFError):
            wire.to_end(wire.receive(theirs))
