"""Links of known speed between real ranks, so that the time model can be held against a clock."""

from __future__ import annotations

import numbers
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from allreduce_edu.engine.check import integer, kind
from allreduce_edu.engine.links import Link, Links

_PAYLOAD = 1448 / 1514  # bytes of data per byte of an Ethernet frame, as TCP fills it
_SLOWEST, _FASTEST = 1.0, 10_000.0  # Mbit/s


class ShapedLinks:
    """A network of their own for the ranks of a pool: each has a link of limited speed to a switch.

    Each rank lives in a network namespace and reaches nothing but the others. Linux only: as root,
    or where the system lets users make such namespaces; `obstacle` says what stands against it.
    The limit is a token bucket, which is true to the model from 100 to 400 Mbit/s and for messages
    of a MiB and more.

    Parameters
    ----------
    mbits : float
        Mbit/s of every link in each direction, counting whole Ethernet frames.
    slow : mapping of rank to float, optional
        Other speeds for some ranks' links.

    Examples
    --------
    >>> ShapedLinks(100, slow={3: 50})
    ShapedLinks(100 Mbit/s; rank 3: 50 Mbit/s)
    """

    def __init__(self, mbits: float, slow: Mapping[int, float] | None = None) -> None:
        self.mbits = _speed("mbits", mbits)
        self.slow = {
            integer("a rank in slow", rank, 0): _speed(f"the speed of rank {rank} in slow", each)
            for rank, each in (slow or {}).items()
        }

    def __repr__(self) -> str:
        others = "".join(f"; rank {rank}: {each:g} Mbit/s" for rank, each in self.slow.items())
        return f"ShapedLinks({self.mbits:g} Mbit/s{others})"

    def speeds(self, ranks: int) -> list[float]:
        """Return the Mbit/s of each of `ranks` links."""
        beyond = [rank for rank in self.slow if rank >= ranks]
        if beyond:
            raise ValueError(f"slow names rank {beyond[0]}, and there are {ranks} ranks")
        return [self.slow.get(rank, self.mbits) for rank in range(ranks)]

    def links(self, ranks: int, alpha: float) -> Links:
        """Return the model of this network, for `cost.time`; nothing in it is fitted.

        Its bandwidth is the limit less the headers of TCP, IP and Ethernet; `alpha` is for the
        caller to measure, as half of a small message's way there and back.
        """
        speed = np.array(self.speeds(ranks)) * 1e6 / 8 * _PAYLOAD
        return Links.uniform(ranks, Link.of(alpha, speed))

    @staticmethod
    def obstacle() -> str:
        """Return why such a network cannot be built here, or ''; it tries."""
        if sys.platform != "linux":
            return "network namespaces are a thing of Linux"
        command = [sys.executable, "-m", "allreduce_edu.realdist.namespaces"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return ran.stderr.strip() if ran.returncode else ""


def speeds(network: Any, ranks: int, backend: str | None) -> list[float]:
    """Return the Mbit/s of each rank's link, none for no network, or say what it wants."""
    if network is None:
        return []
    if not isinstance(network, ShapedLinks):
        raise TypeError(f"network must be ShapedLinks, got {kind(network)}")
    if backend not in (None, "gloo") or sys.platform != "linux":
        raise ValueError("network is for gloo on Linux alone; leave it out")
    return network.speeds(ranks)


def _speed(name: str, value: Any) -> float:
    allowed = f"{name} must be a number of Mbit/s from {_SLOWEST:g} to {_FASTEST:g}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{allowed}, got {kind(value)}")
    if not _SLOWEST <= float(value) <= _FASTEST:
        raise ValueError(f"{allowed}, got {value!r}")
    return float(value)
