"""Builds networks for ranks out of what Linux has: namespaces, a switch, links of limited speed.

Everything belongs to the processes that are in it, under no name, and is gone with the last of
them. Nothing is added to the network of the machine, and nothing in here can reach it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DEVICE = "eth0"  # what a rank's link is called on the rank's side
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_PATIENCE = 20.0  # seconds for one command
_SMALL = 0xFF80  # a mask: IP packets of less than 128 bytes, so acknowledgements


def build(mbits: Sequence[float]) -> list[int]:
    """Return a descriptor per rank of a network namespace; `enter` takes it.

    All are joined by a switch, which stays with this process. Must be called with one thread. An
    OSError says in words what is not allowed here.
    """
    try:
        switch = _new_namespace()
    except OSError:  # not root, or a root that may not
        _become_root_of_a_new_user_namespace()
        switch = _new_namespace()
    ranks = [_new_namespace() for _ in mbits]
    enter(switch)
    _batch("ip", _switch(ranks))
    for port, rate in enumerate(mbits):
        _batch("tc", _limit(f"p{port}", rate))
    for rank, rate in enumerate(mbits):
        enter(ranks[rank])
        _batch("ip", _address(rank))
        _batch("tc", _limit(DEVICE, rate))
    enter(switch)
    os.close(switch)
    return ranks


def enter(namespace: int) -> None:
    """Move this process, which must have one thread, into a network namespace."""
    _call("setns", namespace, _NEW_NET)


def _become_root_of_a_new_user_namespace() -> None:
    """Be allowed to build networks, without a right more outside of them."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)


def _new_namespace() -> int:
    _call("unshare", _NEW_NET)
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _call(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        why = os.strerror(ctypes.get_errno())
        raise OSError(0, f"the system refuses network namespaces ({name}: {why})")


def _switch(ranks: Sequence[int]) -> list[str]:
    """Return the commands that make a switch, and a link from it to each rank's namespace."""
    lines = ["link add br0 type bridge", "link set br0 up"]
    for port, namespace in enumerate(ranks):
        there = f"/proc/{os.getpid()}/fd/{namespace}"
        lines.append(f"link add {DEVICE} netns {there} type veth peer name p{port}")
        lines.append(f"link set p{port} master br0 up")
    return lines


def _address(rank: int) -> list[str]:
    return [
        "link set lo up",
        f"addr add 10.77.0.{rank + 1}/24 dev {DEVICE}",
        f"link set {DEVICE} up",
    ]


def _limit(device: str, mbits: float) -> list[str]:
    """Return the commands that limit what leaves through `device`.

    Acknowledgements go first: behind data they would slow down the other direction.
    """
    burst = "burst 9k cburst 9k"
    share = f"ceil {mbits}mbit {burst}"
    small = f"match ip protocol 6 0xff match u16 0 {_SMALL:#x} at 2"  # TCP, by the packet's length
    return [
        f"qdisc add dev {device} root handle 1: htb default 20",
        f"class add dev {device} parent 1: classid 1:1 htb rate {mbits}mbit {share}",
        f"class add dev {device} parent 1:1 classid 1:10 htb rate {mbits * 0.1}mbit {share} prio 0",
        f"class add dev {device} parent 1:1 classid 1:20 htb rate {mbits * 0.9}mbit {share} prio 1",
        f"qdisc add dev {device} parent 1:10 pfifo limit 2000",
        f"qdisc add dev {device} parent 1:20 pfifo limit 2000",
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 {small} flowid 1:10",
    ]


def _batch(program: str, lines: Sequence[str]) -> None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = shutil.which(program, path=path)
    if found is None:
        raise OSError(0, f"the program {program} was not found (Debian's package: iproute2)")
    command = [found, "-batch", "-"]
    text = "".join(f"{line}\n" for line in lines)
    try:
        ran = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(0, f"{program} did not end") from None
    if ran.returncode:
        why = ran.stderr.strip().splitlines()[:1] or ["no reason given"]
        raise OSError(0, f"{program} cannot build the network here: {why[0]}")


if __name__ == "__main__":  # try it, say why not
    try:
        build([100.0, 100.0])
    except OSError as refused:
        sys.exit(refused.strerror or str(refused))
