"""What one could use instead of the engine, each as short as a reader would write it."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

Floats = Any


class _Rank:
    def __init__(self, chunks: list[Any]) -> None:
        self.chunks = chunks


def ring_of_objects(buf: Any) -> tuple[Callable[[], None], list[Any]]:
    """Return a ring all-reduce with an object per rank and a copy per message, and its ranks.

    It works on copies of ``buf[rank, chunk, ...]``.
    """
    n = len(buf)
    ranks = [_Rank([chunk.copy() for chunk in row]) for row in buf]

    def play() -> None:
        for first, adds in ((0, True), (1, False)):
            for i in range(n - 1):
                sent = [((r + first - i) % n, ranks[r]) for r in range(n)]
                messages = [(c, rank.chunks[c].copy()) for c, rank in sent]
                for r, (c, message) in enumerate(messages):
                    there = ranks[(r + 1) % n].chunks
                    there[c] = there[c] + message if adds else message

    return play, ranks


def threaded_group(x: Any) -> tuple[Callable[[], None], Callable[[], None], Any] | None:
    """Return all_reduce by torch's threaded group, what ends its threads, and its tensors.

    None without torch. The group is part of torch's own tests: one process, a thread per rank.
    """
    if not find_spec("torch"):
        return None
    torch, dist = (import_module(name) for name in ("torch", "torch.distributed"))
    threaded = import_module("torch.testing._internal.distributed.multi_threaded_pg")
    isolate = import_module("torch._C._distributed_c10d")._set_thread_isolation_mode  # noqa: SLF001
    n, going, tensors = len(x), [True], [torch.from_numpy(row.copy()) for row in x]
    begin, end = threading.Barrier(n + 1), threading.Barrier(n + 1)
    threaded._install_threaded_pg()  # noqa: SLF001 - torch offers no other name for it
    isolate(True)
    store = dist.HashStore()

    def work(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=n, store=store)
        begin.wait()
        while going[0]:
            dist.all_reduce(tensors[rank])
            end.wait()
            begin.wait()
        dist.destroy_process_group()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(n)]
    for each in threads:
        each.start()

    def play() -> None:
        begin.wait()
        end.wait()

    def stop() -> None:
        going[0] = False
        begin.wait()
        for each in threads:
            each.join()
        isolate(False)
        threaded._uninstall_threaded_pg()  # noqa: SLF001

    return play, stop, tensors


def event_loop(alpha: Floats, beta: Floats, chunk: int) -> float:
    """Return the seconds of a ring over ranks with these ports, event by event from a heap."""
    n, takes = len(alpha), _hops(alpha, beta, chunk)
    sent, got, busy = [0] * n, [0] * n, [True] * n
    events, now = [(takes[r], r) for r in range(n)], 0.0
    heapq.heapify(events)
    while events:
        now, r = heapq.heappop(events)  # what r sent has arrived at its neighbour
        right = (r + 1) % n
        sent[r], got[right], busy[r] = sent[r] + 1, got[right] + 1, False
        for each in (r, right):
            if not busy[each] and sent[each] < 2 * (n - 1) and got[each] >= sent[each]:
                busy[each] = True
                heapq.heappush(events, (now + takes[each], each))
    return now


def simpy_ring(alpha: Floats, beta: Floats, chunk: int) -> float:
    """Return the same from SimPy, one process a rank."""
    import simpy

    takes, n, world = _hops(alpha, beta, chunk), len(alpha), simpy.Environment()
    arrived = [simpy.Store(world) for _ in range(n)]

    def rank(r: int) -> Any:
        for k in range(2 * (n - 1)):
            if k:
                yield arrived[r].get()
            yield world.timeout(takes[r])
            arrived[(r + 1) % n].put(k)

    for r in range(n):
        world.process(rank(r))
    world.run()
    return float(world.now)


def _hops(alpha: Floats, beta: Floats, chunk: int) -> list[float]:
    """Return the seconds that each rank's message to its right neighbour takes."""
    slower = np.maximum(alpha, np.roll(alpha, -1)) + np.maximum(beta, np.roll(beta, -1)) * chunk
    return list(slower.tolist())
