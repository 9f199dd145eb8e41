"""What a run of simulated ranks is made of: requests, the events of its trace, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from allreduce_edu.engine.spmd.comm import Comm, Kind, Request
from allreduce_edu.engine.spmd.sites import Site, Stack, site_of


class Posted(Request):
    """A send, a receive, or one rank's part in a collective, with all that became of it."""

    kind: Kind | None = None  # what is sent, or the room that was made
    sent: Any = None  # a send's payload, as it was when the receive met it
    nbytes = 0
    waited = False
    checksum: int | None = None
    number = 0  # of a collective in its group, the first is 1
    argument: Any = None

    def __init__(self, comm: Comm, side: str, call: str, peer: int | None, stack: Stack) -> None:
        super().__init__(comm)
        self.side, self.call, self.rank, self.peer, self.stack = side, call, comm.me, peer, stack

    @property
    def group(self) -> int:
        """The number of its group; 0 is everybody."""
        return self.comm.group_number

    @property
    def site(self) -> Site:
        """The learner's line that began it."""
        return site_of(self.stack)


class Event(NamedTuple):
    """One entry of a trace: post, match (send, recv), wait, all (a collective), or work."""

    kind: str
    rank: int
    requests: tuple[Posted, ...] = ()
    seconds: float = 0.0


class Outcome(NamedTuple):
    """How a run ended.

    done, deadlock, mismatch, "changed before wait", "never waited for", raised; or where it was
    ended: seconds, wall, stopped, "too many".
    """

    kind: str
    requests: tuple[Posted, ...] = ()
    rank: int = -1
    error: BaseException | None = None
    where: Stack = ()


class Waiting(NamedTuple):
    """What a rank waits for."""

    requests: Sequence[Posted]
    call: str
    stack: Stack
