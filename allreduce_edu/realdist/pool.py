"""A pool of real ranks: functions run on N processes inside torch.distributed, never in the kernel.

A blocked call of torch.distributed cannot be interrupted and may abort its process. Here that
happens to a rank, which the kernel can always kill.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from allreduce_edu.engine import check
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.realdist import namespaces, wire
from allreduce_edu.realdist.arguments import PerRank, move, news, pack, unpack
from allreduce_edu.realdist.backend import choose
from allreduce_edu.realdist.call import Call, deadline
from allreduce_edu.realdist.forked import Forked
from allreduce_edu.realdist.group import PATIENCE, Group, environment
from allreduce_edu.realdist.interrupts import Interrupts, in_one_line
from allreduce_edu.realdist.play import play
from allreduce_edu.realdist.program import RealRun, run_program
from allreduce_edu.realdist.report import RankError
from allreduce_edu.realdist.shaped import ShapedLinks, speeds
from allreduce_edu.realdist.spawned import Spawned
from allreduce_edu.realdist.status import Status
from allreduce_edu.realdist.sweep import REPEATS, SIZES, Plan, Sweep, sweep, time_on_rank

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MOST_RANKS", "PerRank", "Pool", "RankError"]

MOST_RANKS = 16
_LONG = 1e8  # seconds: faulthandler takes no more than a time_t holds
_START = 120.0  # seconds: importing torch on a busy machine with a cold disk


class Pool:
    """`ranks` processes that run functions together, inside an initialised torch.distributed.

    The processes start with the first call. After a failure or an interrupt they are all killed,
    and the next call starts fresh ones. `close`, the end of the ``with`` block and the end of the
    notebook's kernel, however it comes, leave none behind.

    Parameters
    ----------
    ranks : int
        1 to 16.
    backend : {"gloo", "nccl"}, optional
        Default: NCCL if there is a GPU for every rank, else gloo; `why` says which and why.
    timeout : float
        Seconds that a call may take before its ranks are killed.
    network : ShapedLinks, optional
        Links of known speed between the ranks; gloo on Linux only. Default: the loopback device.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> with Pool(2, backend="gloo") as pool:
    ...     pool.run(lambda: dist.get_rank())
    [0, 1]
    """

    # Forking takes 0.1 s and shares memory, but is only known to be safe on Linux.
    _processes: type[Group] = Forked if sys.platform == "linux" else Spawned

    def __init__(
        self,
        ranks: int,
        backend: str | None = None,
        timeout: float = 60.0,
        network: ShapedLinks | None = None,
    ) -> None:
        self.ranks = check.integer("ranks", ranks, 1, MOST_RANKS)
        self.timeout = deadline(timeout)
        if importlib.util.find_spec("torch") is None:
            raise ModuleNotFoundError("real ranks need torch, and it is not installed here")
        self._mbits = speeds(network, self.ranks, backend)
        self.backend, self.why = choose(self.ranks, "gloo" if self._mbits else backend)
        self._kernel = os.getpid()
        self._group: Group | None = None
        self._busy = threading.Lock()
        self._lost = self._closed = False

    def __repr__(self) -> str:
        return f"Pool of {self._title()}, {self.state}"

    def _title(self) -> str:
        name = "NCCL" if self.backend == "nccl" else self.backend
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{ranks}, {name}"

    @property
    def state(self) -> str:
        """How the ranks are: not started, ready, running, stopped or closed."""
        if self._closed:
            return "closed"
        if self._busy.locked():
            return "running"
        if self._group is not None:
            return "ready"
        return "stopped" if self._lost else "not started"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a Pool stays in the notebook")

    def run(self, fn: Callable[..., Any], *args: object, timeout: float | None = None) -> list[Any]:
        """Call ``fn(*args)`` on every rank and return the results in rank order.

        Functions of a notebook travel with what they use. Arrays and tensors arrive as copies,
        tensors contiguous and on the CPU. What the ranks print appears here, rank after rank; a
        notebook shows what each rank is doing, if it takes more than a moment. Ranks follow this
        process to another folder or search path, but their environment and the modules that they
        have imported are those of their start.

        Parameters
        ----------
        fn : callable
            Runs in each process; ``torch.distributed`` is ready there.
        *args : object
            The same for every rank, except those wrapped in `PerRank`.
        timeout : float, optional
            Seconds for this call; the default is the pool's.

        Raises
        ------
        RankError
            A rank raised, died, or did not end in time; says which, and at which line.
        """
        seconds = self.timeout if timeout is None else deadline(timeout)
        return self._call(fn, args, seconds, Status(self._title()))

    def _call(
        self, fn: Callable[..., Any], args: Sequence[object], seconds: float, status: Status
    ) -> list[Any]:
        payloads = pack(fn, args, self.ranks)
        with Interrupts() as interrupts, self._turn(), status:
            try:
                ranks = self._ready(interrupts, status)
                limit = ranks.slack and min(seconds, _LONG) + ranks.slack
                head = wire.header(sources=news(ranks), limit=limit, place=move(ranks))
                call = Call(ranks, [[head, *each] for each in payloads], status)
                answers = call.wait(seconds, interrupts)
            except BaseException as error:
                self._discard()
                if self._closed and isinstance(error, RankError):
                    raise RankError("the pool was closed during this call", error.fates) from None
                if isinstance(error, KeyboardInterrupt):
                    in_one_line(error)
                raise
            finally:
                if self._closed:  # `close` may have given up waiting for this call
                    self._discard()
        # Not before the stop button works again: this runs code of any class.
        return [unpack(rank, answer) for rank, answer in enumerate(answers)]

    def play(
        self,
        schedule: Schedule,
        x: Any,
        op: str = "sum",
        *,
        count: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Play a schedule on these ranks, by messages between them: `engine.execute.run` for real.

        The result is equal to that of ``run(schedule, x, op)`` bit for bit, and of the same type.

        Parameters
        ----------
        schedule : Schedule
        x : array [ranks, ...], or a sequence with one array per rank
        op : "sum", "avg", "max", "min" or "prod"
        count : bool
            Also return the bytes that each rank sent, array[ranks], counted as they were sent.
        timeout : float, optional
            As in `run`.

        Warns
        -----
        OverflowWarning
            Once, if an integer sum or product wraps around.
        """
        result, sent = play(self, schedule, x, op, timeout)
        return (result, sent) if count else result

    def spmd(self, fn: Callable[..., Any], x: Any = None, timeout: float | None = None) -> RealRun:
        """Call ``fn(comm, x[rank])`` on these ranks: ``spmd.run(fn, x)`` for real.

        Results are equal bit for bit, and so are the bytes counted. A hang is explained in the
        same words (`spmd.Deadlock`), when the deadline of the call has passed.
        """
        return run_program(self, fn, x, timeout)

    def sweep(
        self,
        what: str | Schedule = "all_reduce",
        sizes: Iterable[int] = SIZES,
        *,
        repeats: int = REPEATS,
        timeout: float | None = None,
    ) -> Sweep:
        """Time a collective over many sizes, as nccl-tests does, and return the measurements.

        Two calls to warm up, then `repeats` whose median counts, of each the slowest rank's time.
        The stop button ends it early; so does its deadline; what was measured by then is returned.

        Parameters
        ----------
        what : str or Schedule
            "all_reduce", "reduce_scatter", "all_gather" or "broadcast" of torch.distributed, or a
            schedule, which is played by messages between the ranks.
        sizes : iterable of int
            Bytes of float32, 4 to 2**31; default: 1 KiB to 4 MiB, each four times the one before.
        repeats : int
        timeout : float, optional
            Seconds for all together; the default is the pool's.
        """
        seconds = self.timeout if timeout is None else deadline(timeout)
        plan = Plan(what, sizes, repeats, self.ranks)
        status = Status(self._title())

        def run(note: str, jobs: list[Any], left: float) -> list[Any]:
            status.note = note
            return self._call(time_on_rank, [PerRank(jobs)], left, status)

        with status:
            points, why = sweep(plan, run, seconds)
        if why:
            print(f"{why}: {len(points)} of {len(plan.sizes)} sizes were measured")
        return plan.result(self.backend, points)

    def close(self) -> None:
        """End the ranks; a closed pool runs nothing more. Closing twice does no harm.

        A call that another thread is waiting for ends with a RankError.
        """
        self._closed = True
        if os.getpid() != self._kernel:
            return
        with Interrupts():
            running = not self._busy.acquire(blocking=False)
            group = self._group
            if running and group is not None:
                group.stop()
            if not running or self._busy.acquire(timeout=PATIENCE):
                self._discard()
                self._busy.release()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one call run at a time: two on one group would mix their messages."""
        if os.getpid() != self._kernel:
            raise RuntimeError("this pool belongs to the process that made it; make a new one here")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this pool is busy with another call; wait for it or stop it")
        try:
            if self._closed:
                raise RuntimeError("this pool is closed; make a new one with Pool(ranks)")
            yield
        finally:
            self._busy.release()

    def _ready(self, interrupts: Interrupts, status: Status) -> Group:
        """Return a group of live ranks that have met, a new one if need be."""
        if self._group is not None and self._group.deaths():
            self._discard()
        if self._group is None:
            self._start(interrupts, status)
            if self._lost:
                print("The ranks were started afresh: what they held in memory is lost.")
                self._lost = False
        assert self._group is not None
        return self._group

    def _start(self, interrupts: Interrupts, status: Status) -> None:
        try:
            self._group = self._processes(self.ranks, self._mbits)
        except OSError as error:
            raise RankError(f"the ranks could not be started: {error.strerror or error}") from None
        self._forgotten = weakref.finalize(self, _end_forgotten, self._group)
        if self._closed:  # by another thread, which may have found no group to stop
            self._group.stop()
        try:
            answers = Call(self._group, self._plans(), status).wait(_START, interrupts)
        except RankError as error:
            why = self._group.problem or str(error)
            raise RankError(f"the ranks could not be started: {why}", error.fates) from None
        self._group.threads = [wire.header_of(answer)["thread"] for answer in answers]

    def _plans(self) -> list[list[memoryview]]:
        assert self._group is not None
        device = {"GLOO_SOCKET_IFNAME": namespaces.DEVICE} if self._mbits else {}
        shared = {
            "ranks": self.ranks,
            "backend": self.backend,
            "environment": environment() | device,
            "place": move(self._group),
        }
        return [[wire.header(rank=rank, **shared)] for rank in range(self.ranks)]

    def _discard(self) -> None:
        """End the group, if there is one."""
        started = self._group is not None and bool(self._group.threads)
        self._lost = self._lost or started
        if self._group is not None:
            self._forgotten.detach()
            self._group.kill()
        self._group = None


def _end_forgotten(group: Group) -> None:
    with Interrupts(later=True):
        group.kill()
