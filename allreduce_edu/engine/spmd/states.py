"""Where each rank is, as plain data: what it waits for, its part in a collective, its offers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from allreduce_edu.engine.spmd.comm import Kind
from allreduce_edu.engine.spmd.sites import Site
from allreduce_edu.engine.spmd.words import kind_text, ranks_text


class Need(NamedTuple):
    """One half of a message that is not done."""

    side: str  # "send" or "recv"
    peer: int | None  # None: anybody
    tag: int
    kind: Kind | None

    @property
    def to(self) -> str:
        """Return "send to" or "receive from"."""
        return "send to" if self.side == "send" else "receive from"


class Part(NamedTuple):
    """A rank's part in a collective: its fingerprint."""

    group: int
    members: tuple[int, ...]
    number: int  # counted in each group, the first is 1
    name: str
    argument: Any
    kind: Kind | None

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in the order of collectives: group and number."""
        return self.group, self.number

    @property
    def what(self) -> str:
        """Return "all_reduce sum", "broadcast from root 0"."""
        match self.name, self.argument:
            case (("broadcast" | "scatter"), root):
                return f"{self.name} from root {root}"
            case "gather", root:
                return f"gather to root {root}"
            case "reduce", (op, root):
                return f"reduce {op} to root {root}"
            case "group", members:
                return f"group of {ranks_text(members)}"
            case name, None:
                return name
            case name, op:
                return f"{name} {op}"

    @property
    def text(self) -> str:
        """Return "all_reduce sum of float64 (4,), number 2"."""
        of = f" of {kind_text(self.kind)}" if self.kind else ""
        where = f" of group {self.group} ({ranks_text(self.members)})" if self.group else ""
        return f"{self.what}{of}, number {self.number}{where}"


class Offer(NamedTuple):
    """A message that was sent and that nobody has taken."""

    peer: int
    tag: int
    kind: Kind | None
    site: Site


class Last(NamedTuple):
    """The last collective that a rank has completed."""

    name: str
    group: int
    number: int
    site: Site

    @property
    def text(self) -> str:
        """Return "all_reduce, number 2"."""
        return f"{self.name}, number {self.number}{f' of group {self.group}' * bool(self.group)}"


class Call(NamedTuple):
    """A collective that a rank has begun: its fingerprint, its line, and whether it is over."""

    part: Part
    site: Site
    done: bool


@dataclass(frozen=True)
class State:
    """Where one rank is; `calls` are its latest collectives, as far as they are known."""

    rank: int
    status: str  # "waits", "returned", "raised" or "runs"
    call: str = ""
    needs: tuple[Need, ...] = ()
    part: Part | None = None
    site: Site | None = None
    last: Last | None = None
    offers: tuple[Offer, ...] = ()
    calls: tuple[Call, ...] = field(default=(), repr=False)
    timeout: float | None = None  # seconds, if the program has set them
