"""The network of the time model: what a message costs, by who sends it to whom.

A message costs alpha seconds and beta seconds per byte, a reduction gamma seconds per byte
(Hockney's model). Each rank has one port in each direction, full duplex; ranks of a node may
share ports to the network. Everything is kept per rank or per tier, never per pair of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import Registry, integer, kind, listable, numbers
from allreduce_edu.engine.kinds import mesh_seconds
from allreduce_edu.engine.mesh import Mesh
from allreduce_edu.engine.rounds import Ints, Round

Seconds = npt.NDArray[np.float64]


def _at_least_0(name: str, value: Any) -> Any:
    array = np.asarray(numbers(name, value))
    if not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(f"{name} must be >= 0 and finite, got {value!r:.40}")
    return array if array.ndim else float(array)


@dataclass(frozen=True, eq=False, repr=False)
class Link:
    """What one message costs: `alpha` s, and `beta` s per byte in one direction.

    Either may be an array[ranks] of what each rank's port takes; a link is as slow as the slower
    of its two ends.
    """

    alpha: Any
    beta: Any
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, _at_least_0(name, getattr(self, name)))

    @classmethod
    def of(cls, alpha: Any, bandwidth: Any, source: str = "") -> Link:
        """Make a link from `alpha` s and `bandwidth` bytes/s in one direction."""
        speed = np.asarray(numbers("bandwidth", bandwidth))
        if not (speed > 0).all():
            raise ValueError(f"bandwidth must be > 0 bytes/s, got {bandwidth!r:.40}")
        return cls(alpha, 1 / speed, source)

    def __repr__(self) -> str:
        if np.ndim(self.alpha) or np.ndim(self.beta):
            return "Link(by rank)"
        speed = f"{1e-9 / self.beta:g} GB/s" if self.beta else "no limit"
        return f"Link({self.alpha * 1e6:g} µs, {speed})"


_NCCL = "NVIDIA/nccl, src/graph/tuning.cc (hwLat, ring, Simple: what NCCL reckons per hop)"
_TCP = "half a ping-pong through the kernel's TCP, measured at 41 to 69 µs; a round figure"

LINKS: Registry[Link] = Registry(
    "link",
    {
        "1 GbE": Link.of(50e-6, 1e9 / 8, f"line rate; alpha: {_TCP}"),
        "10 GbE": Link.of(50e-6, 10e9 / 8, f"line rate; alpha: {_TCP}"),
        "25 GbE": Link.of(50e-6, 25e9 / 8, f"line rate; alpha: {_TCP}"),
        "100 GbE": Link.of(14e-6, 100e9 / 8, f"line rate, RDMA; alpha: {_NCCL}"),
        "400 GbE": Link.of(14e-6, 400e9 / 8, f"line rate, RDMA; alpha: {_NCCL}"),
        "InfiniBand NDR": Link.of(14e-6, 400e9 / 8, f"4 lanes of 100 Gb/s; alpha: {_NCCL}"),
        "PCIe 4": Link.of(5.7e-6, 16e9 * 16 * 128 / 130 / 8, f"16 lanes; alpha: {_NCCL}"),
        "PCIe 5": Link.of(5.7e-6, 32e9 * 16 * 128 / 130 / 8, f"16 lanes; alpha: {_NCCL}"),
        "NVLink 3": Link.of(3.4e-6, 12 * 25e9, f"A100, 12 links, one direction; alpha: {_NCCL}"),
        "NVLink 4": Link.of(3.4e-6, 18 * 25e9, f"H100, 18 links, one direction; alpha: {_NCCL}"),
    },
)


@dataclass(frozen=True, eq=False, repr=False)
class Links:
    """A network of ranks in nodes. Make one with `uniform` or `two_tier`.

    Attributes
    ----------
    ranks : int
    inside, across : Link
        Between ranks of one node, and of two.
    node, nic : int array, shape (ranks,)
        Each rank's node, and the port through which it leaves the node.
    gamma : float
        Seconds per byte reduced.
    own_wires : bool
        True: no two messages of a rank in one round share a port, unless they have the same
        two ends.
    slow : tuple of (src, dst, factor)
        Links, in one direction, that take `factor` times as long; src or dst None means any.

    Examples
    --------
    >>> Links.uniform(8, "100 GbE")
    Links(8 ranks, 14 µs, 12.5 GB/s)
    >>> Links.two_tier(2, 8, "NVLink 4", "InfiniBand NDR", nics=8).with_slow(rank=3, factor=2)
    Links(2 nodes x 8 ranks, 3.4 µs, 450 GB/s; across 14 µs, 50 GB/s through 8 NICs; slow: 1)
    """

    ranks: int
    inside: Link
    across: Link
    node: Ints
    nic: Ints
    gamma: float = 0.0
    own_wires: bool = False
    slow: tuple[tuple[int | None, int | None, float], ...] = field(default=())

    @classmethod
    def uniform(
        cls, ranks: int, link: Link | str, gamma: float = 0.0, *, own_wires: bool = False
    ) -> Links:
        """Every rank reaches every other one over the same link.

        Parameters
        ----------
        ranks : int
        link : Link or a name in LINKS
        gamma : float
            Seconds per byte reduced.
        own_wires : bool
            True: each pair of ranks has a wire of its own instead of one port per rank.
        """
        ranks = listable("ranks", ranks)
        one, rank = _link("link", link, ranks), np.arange(ranks)
        return cls(ranks, one, one, 0 * rank, rank, _gamma(gamma), own_wires)

    @classmethod
    def two_tier(
        cls,
        nodes: int,
        gpus: int,
        inside: Link | str,
        across: Link | str,
        nics: int | None = None,
        gamma: float = 0.0,
    ) -> Links:
        """Nodes of `gpus` ranks each, fast inside, slower across; ranks of a node are neighbours.

        Each node reaches the others through `nics` ports of speed `across`, shared by the ranks
        of the node in equal groups of neighbours; one port per rank if not given.
        """
        nodes, gpus = listable("nodes", nodes), integer("gpus", gpus, 1)
        listable("nodes x gpus", nodes * gpus)
        nics = gpus if nics is None else integer("nics", nics, 1)
        if gpus % nics:
            raise ValueError(f"nics must divide the {gpus} GPUs of a node, got {nics}")
        ranks, rank = nodes * gpus, np.arange(nodes * gpus)
        return cls(
            ranks,
            _link("inside", inside, ranks),
            _link("across", across, ranks),
            rank // gpus,
            rank * nics // gpus,
            _gamma(gamma),
        )

    def __repr__(self) -> str:
        nodes = int(self.node.max()) + 1
        text = (
            f"{self.ranks:,} ranks"
            if nodes == 1
            else f"{nodes:,} nodes x {self.ranks // nodes} ranks"
        )
        text += f", {repr(self.inside)[5:-1]}"
        if nodes > 1:
            nics = (int(self.nic.max()) + 1) // nodes
            text += f"; across {repr(self.across)[5:-1]} through {nics} NICs"
        return f"Links({text}{f'; slow: {len(self.slow)}' if self.slow else ''})"

    def with_slow(
        self,
        rank: int | None = None,
        link: tuple[int, int] | None = None,
        factor: float = 2.0,
    ) -> Links:
        """Return the network with one rank's port, or one link, `factor` times as slow.

        Parameters
        ----------
        rank : int, optional
            Everything this rank sends or receives.
        link : (src, dst), optional
            What src sends to dst; not the way back.
        factor : float
            Multiplies beta; alpha stays.
        """
        if (rank is None) == (link is None):
            raise ValueError("with_slow needs either a rank or a link, one of them")
        factor = _one_number("factor", factor)
        if not factor > 0:
            raise ValueError(f"factor must be > 0, got {factor!r}")
        if rank is not None:
            rank = integer("rank", rank, 0, self.ranks - 1)
            return replace(self, slow=(*self.slow, (rank, None, factor), (None, rank, factor)))
        if not isinstance(link, (tuple, list)) or len(link) != 2:
            raise ValueError(f"link must be two ranks (src, dst), got {link!r:.40}")
        src, dst = (integer("link", end, 0, self.ranks - 1) for end in link)
        return replace(self, slow=(*self.slow, (src, dst, factor)))

    def alpha(self, src: Any, dst: Any) -> Any:
        """Return the seconds that a message from src to dst takes however short it is."""
        return self._of(src, dst, lambda link: link.alpha)

    def beta(self, src: Any, dst: Any) -> Any:
        """Return the seconds per byte from src to dst."""
        beta = self._of(src, dst, lambda link: link.beta)
        if not self.slow:
            return beta
        beta = np.array(np.broadcast_to(beta, np.broadcast_shapes(np.shape(src), np.shape(dst))))
        for a, b, factor in self.slow:
            hit = (a is None or src == a) & (b is None or dst == b)
            beta[hit] *= factor
        return beta

    def _of(self, src: Any, dst: Any, what: Callable[[Link], Any]) -> Any:
        """Return a number where all links are alike, else one per message."""
        inside = _slower(what(self.inside), src, dst)
        if self.inside is self.across:
            return inside
        across = _slower(what(self.across), src, dst)
        return np.where(self.node[src] == self.node[dst], inside, across)

    def cost(self, r: Round, sizes: Any) -> Seconds:
        """Return the seconds that a round takes each rank, array[ranks] or [lots, ranks].

        A port takes the largest alpha of its messages, plus the beta of all their bytes. A rank
        takes as long as the slowest port that it uses, with what others send through it, plus
        gamma times the bytes it reduces.

        Parameters
        ----------
        r : Round
        sizes : array[transfers], or a number for all, or array[lots, transfers]
            Bytes that each transfer carries; one without bytes is no message. Of several lots
            of bytes each takes the round by itself.
        """
        if isinstance(r, Mesh):
            return mesh_seconds(self, r, sizes)
        shape = (*np.shape(sizes)[:-1], self.ranks)
        lot, src, dst, sent = _messages(r, sizes)
        alpha, seconds, first = self.alpha(src, dst), self.beta(src, dst) * sent, lot * self.ranks
        sides = (self._ends(e, first, src, dst, alpha, seconds, shape) for e in (src, dst))
        slowest: Seconds = np.maximum(*sides)
        if self.gamma:
            reduced = np.broadcast_to(sizes, (*shape[:-1], len(r)))[..., r.reduce]
            at: Any = (..., r.dst[r.reduce])
            np.add.at(slowest, at, reduced * self.gamma)
        return slowest

    def _ends(
        self, end: Ints, first: Any, src: Ints, dst: Ints, alpha: Any, seconds: Any, shape: Any
    ) -> Seconds:
        """Return the time of the slowest outgoing (or incoming) port of each rank of each lot."""
        ranks = math.prod(shape)
        if self.own_wires:
            pair = first * self.ranks + src * self.ranks + dst
            _, port = np.unique(pair, return_inverse=True)
        elif self.inside is self.across:
            return _ports(end + first, alpha, seconds, ranks).reshape(shape)
        else:
            own = self.node[src] == self.node[dst]
            port = first + np.where(own, end, ranks + self.nic[end])
        slowest = np.zeros(ranks)
        each = _ports(port, alpha, seconds, int(port.max(initial=0)) + 1)
        np.maximum.at(slowest, end + first, each[port])
        return slowest.reshape(shape)


def _messages(r: Round, sizes: Any) -> tuple[Any, Ints, Ints, Any]:
    """Return lot, src, dst and bytes of each transfer that is a message."""
    if np.ndim(sizes) == 2:
        lot, which = np.nonzero((sizes > 0) & (r.src != r.dst))
        return lot, r.src[which], r.dst[which], sizes[lot, which]
    if np.ndim(sizes):
        full = (sizes > 0) & (r.src != r.dst)
        src, dst, sent = (e if full.all() else e[full] for e in (r.src, r.dst, sizes))
        return 0, src, dst, sent
    out, some = r.crossing(), slice(None if sizes else 0)
    return 0, out.src[some], out.dst[some], sizes


def _ports(port: Ints, alpha: Any, seconds: Any, count: int) -> Seconds:
    """Return each port's largest alpha plus the sum of its seconds."""
    if not np.ndim(alpha) and not np.ndim(seconds):
        messages = np.bincount(port, minlength=count)
        return np.asarray(messages * seconds + (messages > 0) * alpha)
    most = np.zeros(count)
    if len(port) <= count and np.bincount(port, minlength=count).max() == 1:
        most[port] = alpha + seconds
        return most
    np.maximum.at(most, port, alpha)
    most += np.bincount(port, np.broadcast_to(seconds, port.shape), count)
    return most


def _slower(value: Any, src: Any, dst: Any) -> Any:
    return np.maximum(value[src], value[dst]) if np.ndim(value) else value


def _gamma(value: float) -> float:
    return _one_number("gamma", value)


def _one_number(name: str, value: Any) -> float:
    number = _at_least_0(name, value)
    if np.ndim(number):
        raise TypeError(f"{name} must be one number, got {kind(value)}")
    return float(number)


def _link(name: str, link: Link | str, ranks: int) -> Link:
    if isinstance(link, str):
        return LINKS[link]
    if not isinstance(link, Link):
        raise TypeError(f"{name} must be a Link or one of its names in LINKS, got {kind(link)}")
    for what in ("alpha", "beta"):
        shape = np.shape(getattr(link, what))
        if shape not in ((), (ranks,)):
            raise ValueError(
                f"{what} must be a number or one for each of {ranks} ranks, got {shape}"
            )
    return link
