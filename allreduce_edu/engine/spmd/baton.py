"""N call stacks of which one runs at a time: threads that hand over one baton.

So plain blocking code becomes deterministic, and the moment in which nobody can go on is seen at
once. The caller's thread runs no learner code; it waits, and the stop button always reaches it.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from allreduce_edu.engine.spmd.sites import Stack, stack_of
from allreduce_edu.engine.spmd.stop import Lines, Stop, leave, shoot

_SLICE = 0.05  # seconds between two looks at the clock and the stop button
PATIENCE = 2.0  # seconds to wait for a rank that is in code which does not come back to Python


class Baton:
    """One thread per rank, which runs ``body(rank)`` while it holds the baton.

    `ranks` is also the number of the caller's own place, which holds the baton at first.
    """

    def __init__(self, ranks: int, body: Callable[[int], None]) -> None:
        self.ranks = ranks
        self._body = body
        self._aim = threading.Lock()  # held to shoot, and to leave the range
        self._gone: set[int] = set()
        self._locks = [threading.Lock() for _ in range(ranks + 1)]
        for lock in self._locks:
            lock.acquire()
        self._threads = [
            threading.Thread(
                target=self._be,
                args=(rank, contextvars.copy_context()),
                name=f"rank {rank}",
                daemon=True,
            )
            for rank in range(ranks)
        ]

    def __repr__(self) -> str:
        return f"Baton among {self.ranks} ranks"

    def start(self) -> dict[int, int]:
        """Start the threads, none of which runs yet; return their ranks by identity."""
        for thread in self._threads:
            thread.start()
        return {thread.ident or 0: rank for rank, thread in enumerate(self._threads)}

    def give(self, to: int) -> None:
        """Let `to` go on."""
        self._locks[to].release()

    def take(self, me: int) -> None:
        """Wait until somebody gives the baton to `me`."""
        self._locks[me].acquire()

    def watch(self, seconds: float, wall: float, stopped: Callable[[], bool]) -> str:
        """Wait for the baton, in the caller's thread; return "" or why it did not come back.

        `seconds` are those of the processor, so that a breakpoint, input() or a loaded machine
        ends no run; `wall` bounds those. The reason is "seconds", "wall" or "stopped".
        """
        while seconds > 0 and wall > 0:
            used, now = time.process_time(), time.monotonic()
            if self._locks[self.ranks].acquire(timeout=_SLICE):
                return ""
            if stopped():
                return "stopped"
            seconds -= time.process_time() - used
            wall -= min(2 * _SLICE, time.monotonic() - now)
        return "seconds" if seconds <= 0 else "wall"

    def stack(self, rank: int) -> Stack:
        """Return the learner's frames of a rank that runs."""
        frames = sys._current_frames()  # noqa: SLF001
        return stack_of(frames.get(self._threads[rank].ident or 0))

    def end(self) -> list[int]:
        """Unwind every rank that has not ended; return those that are still in C code.

        Whoever hands over the baton from here on must find that the run is over, and raise Stop.
        """
        for lock in self._locks[:-1]:
            with contextlib.suppress(RuntimeError):  # it holds the baton or has ended
                lock.release()
        until, pause = time.monotonic() + PATIENCE, 0.001
        with _stops_muted(), Lines() as lines:
            while (left := self._alive()) and time.monotonic() < until:
                self._threads[left[0]].join(pause)
                pause = min(0.01, pause * 1.5)
                for rank in left:
                    with self._aim:
                        if rank not in self._gone:
                            lines.mark(self._threads[rank].ident or 0)
                            shoot(self._threads[rank].ident or 0)
        return self._alive()

    def _alive(self) -> list[int]:
        return [rank for rank, thread in enumerate(self._threads) if thread.is_alive()]

    def _be(self, rank: int, context: contextvars.Context) -> None:
        """Run the body, then go where no shot can hit; one already in the air lands in the loop.

        Taking a shot back is no way: on Python 3.11 that leaves every traced call looping for ever.
        """
        begun = False
        while True:
            try:
                if not begun:
                    begun = True
                    self._locks[rank].acquire()
                    context.run(self._body, rank)
                with self._aim:
                    self._gone.add(rank)
                for _ in range(100):
                    pass
                leave()
            except Stop:
                continue
            return


@contextlib.contextmanager
def _stops_muted() -> Iterator[None]:
    """Keep quiet about a Stop that hits a finaliser or a thread's last breath: no news."""
    hooks: tuple[Callable[[Any], Any], ...] = (sys.unraisablehook, threading.excepthook)

    def quietly(hook: Callable[[Any], Any]) -> Callable[[Any], None]:
        def tell(told: Any) -> None:
            with contextlib.suppress(Stop):  # a shot may hit here as well
                if told.exc_type is not Stop:
                    hook(told)

        return tell

    sys.unraisablehook, threading.excepthook = map(quietly, hooks)
    try:
        yield
    finally:
        sys.unraisablehook, threading.excepthook = hooks
