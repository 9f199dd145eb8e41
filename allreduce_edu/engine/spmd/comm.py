"""What a rank holds in its hands: its number, how many there are, and how to talk to the others.

One interface for two worlds: simulated ranks (``spmd.run``) and real processes (``Pool.spmd``).
A send returns when its receive is posted, at every size, as it does on gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from allreduce_edu.engine.check import integer
from allreduce_edu.engine.dtypes import check_op, full_name, is_torch

ANY = None  # as a source: whoever comes first
_MOST_TAG = (1 << 15) - 1

Kind = tuple[str, tuple[int, ...]]  # dtype and shape


class Request:
    """One half of a message that has begun: wait for it before you touch its array again."""

    side: str  # "send" or "recv"
    call: str  # the learner's call: "send", "sendrecv", "isend", ...
    rank: int
    peer: int | None
    tag: int
    array: Any = None  # what is sent; the room to receive in; what came
    done = False

    def __init__(self, comm: Comm) -> None:
        self.comm = comm

    def wait(self) -> Any:
        """Wait until it is done; return what came, if it is a receive."""
        self.comm.wait_for([self], "wait")
        return self.array if self.side == "recv" else None

    def is_completed(self) -> bool:
        """Tell whether it is done, and let the other ranks go on."""
        return self.comm.world.poll(self)

    def __repr__(self) -> str:
        way = "to" if self.side == "send" else "from"
        peer = "any rank" if self.peer is None else f"rank {self.peer}"
        return f"{self.side} of rank {self.rank} {way} {peer}{'' if self.done else ', not done'}"


class World(Protocol):
    """What carries messages. Ranks and tags here are those of the whole world."""

    def post(
        self, comm: Comm, side: str, call: str, peer: int | None, tag: int, array: Any
    ) -> Request:
        """Begin one half of a message."""

    def wait(self, comm: Comm, requests: Sequence[Any], call: str) -> None:
        """Return when all requests are done."""

    def poll(self, request: Any) -> bool:
        """Tell whether a request is done."""

    def collective(self, comm: Comm, name: str, array: Any, argument: Any) -> Any:
        """Do this rank's part in a collective and return its result."""

    def work(self, comm: Comm, seconds: float) -> None:
        """Let a rank compute, in modelled time."""


class NoWorld:
    """In the place of a world whose run is over."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("this comm is of a run that is over")


class Comm:
    """The number of this rank, how many ranks there are, and the calls between them.

    Attributes
    ----------
    rank, size : int
    """

    _timeout: float | None = None

    def __init__(self, world: World, me: int, members: Sequence[int], group: int = 0) -> None:
        self.world = world
        self.me = me  # this rank's number in the whole world
        self.members = tuple(members)
        self.group_number = group
        self.rank, self.size = self.members.index(me), len(self.members)

    def __repr__(self) -> str:
        return f"Comm of rank {self.rank} of {self.size}"

    @property
    def timeout(self) -> float | None:
        """Seconds after which a real job gives up waiting; None: as many as the library has.

        Nobody waits for them here, because a hang is seen at once; its explanation names them.
        """
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        if not 0 < float(seconds) < 1e9:
            raise ValueError(f"timeout must be a number of seconds > 0, got {seconds!r}")
        self._timeout = float(seconds)

    @cached_property
    def rng(self) -> np.random.Generator:
        """A random generator of this rank's own; ``np.random`` is shared by simulated ranks."""
        return np.random.default_rng(self.me)

    # ------------------------------------------------------------------ messages

    def send(self, x: Any, dst: int, tag: int = 0) -> None:
        """Send array `x` to rank `dst`; return when it is there to receive it."""
        self.wait_for([self._post("send", "send", dst, tag, x)], "send")

    def recv(self, src: int | None = ANY, out: Any = None, tag: int = 0) -> Any:
        """Return the next array from rank `src` (or from any), in `out` if that is given."""
        request = self._post("recv", "recv", src, tag, out)
        self.wait_for([request], "recv")
        return request.array

    def sendrecv(self, x: Any, dst: int, src: int, out: Any = None, tag: int = 0) -> Any:
        """Send `x` to `dst` and receive from `src` at the same time; return what came."""
        _apart(_array("x", x), out)
        both = [self._post("send", "sendrecv", dst, tag, x)]
        both.append(self._post("recv", "sendrecv", src, tag, out))
        self.wait_for(both, "sendrecv")
        return both[1].array

    def isend(self, x: Any, dst: int, tag: int = 0) -> Request:
        """Begin to send `x`, which must not change before ``wait()`` of what this returns."""
        return self._post("send", "isend", dst, tag, x)

    def irecv(self, src: int | None, out: Any, tag: int = 0) -> Request:
        """Begin to receive into `out`, which must not be read before ``wait()``."""
        return self._post("recv", "irecv", src, tag, _array("out", out))

    def wait_for(self, requests: Sequence[Request], call: str) -> None:
        """Wait for requests of this rank."""
        self.world.wait(self, requests, call)

    def _post(self, side: str, call: str, peer: Any, tag: int, array: Any) -> Request:
        integer("tag", tag, 0, _MOST_TAG)
        if side == "send" or array is not None:
            _array("x" if side == "send" else "out", array)
        if peer is ANY and side == "recv":
            return self.world.post(self, side, call, None, tag, array)
        what = "dst" if side == "send" else "src"
        to = integer(what, peer, 0, self.size - 1)
        if to == self.rank:
            raise ValueError(f"{what} must be another rank, got {to}, which is this one")
        return self.world.post(self, side, call, self.members[to], tag, array)

    # --------------------------------------------------------------- collectives

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.world.collective(self, "barrier", None, None)

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        """Replace `x` by the sum (avg, max, min, prod) over all ranks; return it."""
        check_op(op, _array("x", x).dtype)
        return self.world.collective(self, "all_reduce", x, op)

    def reduce(self, x: Any, root: int = 0, op: str = "sum") -> Any:
        """As `all_reduce`, on `root` alone; what `x` holds on the others has no meaning."""
        check_op(op, _array("x", x).dtype)
        return self.world.collective(self, "reduce", x, (op, self._root(root)))

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """Replace `x` by that of `root`; return it."""
        return self.world.collective(self, "broadcast", _array("x", x), self._root(root))

    def all_gather(self, x: Any) -> list[Any]:
        """Return everybody's `x` in rank order."""
        found: list[Any] = self.world.collective(self, "all_gather", _array("x", x), None)
        return found

    def gather(self, x: Any, root: int = 0) -> list[Any] | None:
        """Return everybody's `x` in rank order on `root`, None elsewhere."""
        found: list[Any] | None = self.world.collective(
            self, "gather", _array("x", x), self._root(root)
        )
        return found

    def scatter(self, x: Any, root: int = 0) -> Any:
        """Return part `rank` of root's `x`, cut along the first axis; all bring room like it."""
        return self.world.collective(self, "scatter", _cuttable(x), self._root(root))

    def all_to_all(self, x: Any) -> Any:
        """Return an array whose part r is part `rank` of what rank r brought; parts are equal."""
        if len(_cuttable(x)) % self.size:
            raise ValueError(f"x must have a multiple of {self.size} rows, got {len(x)}")
        return self.world.collective(self, "all_to_all", x, None)

    def reduce_scatter(self, x: Any, op: str = "sum") -> Any:
        """Return part `rank` of the sum of all `x`, cut along the first axis by array_split."""
        check_op(op, _cuttable(x).dtype)
        return self.world.collective(self, "reduce_scatter", x, op)

    def group(self, ranks: Sequence[int]) -> Comm | None:
        """Return a smaller world of these ranks, or None to those left out; everybody must call."""
        chosen = [integer("ranks", each, 0, self.size - 1) for each in ranks]
        if not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"ranks must be at least one rank, none of them twice, got {chosen}")
        members = tuple(self.members[each] for each in chosen)
        made: Comm | None = self.world.collective(self, "group", None, members)
        return made

    def work(self, seconds: float) -> None:
        """Say that this rank now computes for `seconds`, in modelled time; nobody really waits."""
        if not 0 <= float(seconds) < 1e9:
            raise ValueError(f"seconds must be a number >= 0, got {seconds!r}")
        self.world.work(self, float(seconds))

    def _root(self, root: Any) -> int:
        return self.members[integer("root", root, 0, self.size - 1)]


# ------------------------------------------------------------- arrays, numpy's and torch's


def kind_of(array: Any) -> Kind:
    """Return dtype and shape, in words that are the same for numpy and torch."""
    return full_name(array.dtype), tuple(array.shape)


def copy_of(array: Any) -> Any:
    """Return a contiguous copy that no gradient flows through."""
    if is_torch(array):
        return array.detach().clone().contiguous()
    return np.array(array, order="C")


def write(held: Any, came: Any) -> None:
    """Replace what an array holds."""
    if is_torch(held):
        held.detach().copy_(came)
    else:
        held[...] = came


def whole(array: Any) -> Any:
    """Return the array itself if it is contiguous, else a contiguous copy."""
    if is_torch(array):
        return array.detach().contiguous()
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def raw(array: Any) -> Any:
    """Return the bytes of an array, as one-dimensional uint8 on the same memory if it is whole."""
    flat = whole(array).reshape(-1)
    if is_torch(flat):
        import torch

        return flat.view(torch.uint8)
    return flat.view(np.uint8)


def _array(name: str, value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)) and not is_torch(value):
        number = name == "x" and isinstance(value, (int, float, list))
        hint = f"; try np.array({value!r:.30})" if number else ""
        raise TypeError(f"{name} must be an array, got {type(value).__name__}{hint}")
    check_op("sum", value.dtype)  # refuses objects and text
    return value


def _cuttable(x: Any) -> Any:
    if not _array("x", x).shape:
        raise ValueError("x must have at least one axis to be cut along, got a single number")
    return x


def _apart(x: Any, out: Any) -> None:
    if isinstance(x, np.ndarray) and isinstance(out, np.ndarray) and np.shares_memory(x, out):
        raise ValueError(
            "out must not share memory with x: it would be overwritten while it is sent"
        )
