"""Watches DDP at work, on its rank: hooks firing, buckets closing, all-reduces, in their order.

What is noted is plain data that travels to the notebook. Needs torch.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _python_dispatch

from allreduce_edu.realdist.train import fingerprint, gradients


class Event(NamedTuple):
    """Something that happened on a rank.

    `what` is "ready" (a gradient is there), "start" and "done" (the all-reduce of a bucket), or
    the name of a moment of the loop. `held` is the fingerprint of what the rank then held: of the
    bucket, or of the whole gradient.
    """

    what: str
    at: float  # seconds since the backward began
    names: tuple[str, ...] = ()  # parameters, in the order in which they lie in the bucket
    bucket: int = -1
    size: int = 0  # bytes of the bucket
    held: str = ""


class Watch:
    """Notes what `ddp` does in every backward from now on; the gradients keep their bits.

    Watching takes the place of a communication hook, so a model can have one watch and no other
    hook. The times contain the watching.

    Parameters
    ----------
    ddp : DistributedDataParallel
        Before its first backward.

    Examples
    --------
    On a rank::

        watch = Watch(ddp)
        loss(ddp(x), y).backward()
        watch.buckets()  # [['2.bias', '2.weight', '0.bias', '0.weight']]
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.events: list[Event] = []
        self._model = ddp.module
        self._names = {id(p): name for name, p in ddp.module.named_parameters()}
        self._began = time.perf_counter()
        self._lock = threading.Lock()  # gloo tells of an end from a thread of its own
        for p in ddp.module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._ready)
        ddp.register_comm_hook(None, self._reduce)

    def __repr__(self) -> str:
        return f"Watch of {len(self._names)} parameters, {len(self.events)} events"

    def begin(self) -> None:
        """Forget what was noted, and set the clock to 0."""
        self.events = []
        self._began = time.perf_counter()

    def moment(self, what: str) -> None:
        """Note a moment of the training loop, with the fingerprint of the whole gradient."""
        self._note(what, held=fingerprint(gradients(self._model)))

    def buckets(self) -> list[list[str]]:
        """Return the names of the parameters in each all-reduce that has started."""
        return [list(event.names) for event in self.events if event.what == "start"]

    def sizes(self) -> list[int]:
        """Return the bytes of each all-reduce that has started."""
        return [event.size for event in self.events if event.what == "start"]

    def calls(self) -> int:
        """Return how many all-reduces have started."""
        return len(self.sizes())

    def _note(self, what: str, **more: Any) -> None:
        with self._lock:
            self.events.append(Event(what, time.perf_counter() - self._began, **more))

    def _ready(self, p: Tensor) -> None:
        self._note("ready", names=(self._names[id(p)],))

    # DDP reads these annotations, so they are no strings: no `from __future__ import annotations`.
    def _reduce(
        self,
        _state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        mine, index = bucket.buffer(), bucket.index()
        names = tuple(self._names[id(p)] for p in bucket.parameters())
        self._note("start", names=names, bucket=index, size=mine.nbytes, held=fingerprint([mine]))

        def done(future: Any) -> Tensor:
            total: Tensor = future.value()[0]
            self._note("done", names=names, bucket=index, held=fingerprint([total]))
            return total

        averaged: torch.futures.Future[Tensor] = _average(mine).get_future().then(done)
        return averaged


def _average(bucket: Tensor) -> Any:
    """Begin to average a bucket as DDP does on its own: times 1/N, then the sum."""
    bucket.mul_(1 / dist.get_world_size())
    return dist.all_reduce(bucket, async_op=True)


def watched_backwards(steps: int = 2, **how: Any) -> list[list[Event]]:
    """Train for a few steps under DDP and return the events of each, on this rank.

    ``how`` goes to DistributedDataParallel.
    """
    from torch.nn.functional import cross_entropy

    from allreduce_edu.realdist.train import images, make_model

    ddp = DistributedDataParallel(make_model(), **how)
    watch, told = Watch(ddp), []
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for step in range(steps):
        x, y = images(dist.get_rank(), step, ranks=dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(ddp(x), y)
        dist.barrier()  # so that the clocks of all ranks start together
        watch.begin()
        loss.backward()  # type: ignore[no-untyped-call]
        watch.moment("backward() returns")
        optimizer.step()
        watch.moment("step() returns")
        told.append(watch.events)
    return told


class Span(NamedTuple):
    """From when to when a rank was at something: "compute" or "all-reduce".

    An all-reduce starts when DDP hands it over, which is a place in the backward's own order. The
    backend's thread may take it up much later, on a busy machine after the last computation.
    """

    what: str
    start: float  # seconds since the backward began
    stop: float


def eight_layers() -> torch.nn.Sequential:
    """Return eight layers of 1.002 MiB each: more than one bucket at DDP's own sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))


def eight_layer_buckets(steps: int = 2, **how: Any) -> list[list[tuple[int, list[str]]]]:
    """Return, for each step, the bytes and the parameters of each bucket of `eight_layers`."""
    ddp = DistributedDataParallel(eight_layers(), **how)
    watch, told = Watch(ddp), []
    for _ in range(steps):
        watch.begin()
        ddp(torch.ones(1, 512)).sum().backward()
        told.append(list(zip(watch.sizes(), watch.buckets(), strict=True)))
    return told


def traced_backward(batch: int = 64, **how: Any) -> list[Span]:
    """Profile one backward of `eight_layers` under DDP, the third one, on this rank."""
    from torch.profiler import ProfilerActivity, profile, record_function

    ddp, x = DistributedDataParallel(eight_layers(), **how), torch.ones(batch, 512)
    works = _handed_over(ddp)
    for _ in range(2):
        ddp(x).sum().backward()
    loss = ddp(x).sum()
    profiler = profile(activities=[ProfilerActivity.CPU])
    with _silently():
        profiler.start()
    dist.barrier()
    with record_function("backward"):
        loss.backward()
    for work in works:  # gloo lets DDP go on first, and tells the profiler of the end afterwards
        work.wait()
    with _silently():
        profiler.stop()
    return _spans(profiler.events())  # type: ignore[no-untyped-call]


def _handed_over(ddp: DistributedDataParallel) -> list[Any]:
    """Let `ddp` keep every all-reduce that it hands over from now on, in the list returned."""
    works: list[Any] = []

    def reduce(
        _state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        works.append(_average(bucket.buffer()))
        averaged: torch.futures.Future[Tensor] = works[-1].get_future().then(lambda f: f.value()[0])
        return averaged

    ddp.register_comm_hook(None, reduce)
    return works


def _spans(events: Any) -> list[Span]:
    """Return what autograd computed and what was on its way, from a profiler's events."""
    began = next(e.time_range.start for e in events if e.name == "backward")

    def at(part: str) -> list[tuple[float, float]]:
        times = (e.time_range for e in events if part in e.name)
        return sorted((t.start - began, t.end - began) for t in times if t.start >= began)

    computed = [("compute", a, b) for a, b in at("autograd::engine::evaluate_function")]
    handed = zip(at("c10d::allreduce_"), at(":all_reduce"), strict=True)  # taken up in this order
    sent = [("all-reduce", a, b) for (a, _), (_, b) in handed]
    return [Span(what, a / 1e6, b / 1e6) for what, a, b in computed + sent]


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    """Hide what is written past Python: the profiler of torch 2.13 announces itself."""
    kept = [os.dup(fd) for fd in (1, 2)]
    try:
        with Path(os.devnull).open("wb") as nothing:
            for fd in (1, 2):
                os.dup2(nothing.fileno(), fd)
        yield
    finally:
        for fd, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, fd)
            os.close(copy)


@contextlib.contextmanager
def counting(kind: str = "") -> Iterator[list[str]]:
    """Collect the calls of collectives on this rank; with `kind`, say "allreduce", of that one.

    They are counted where torch dispatches them: a name imported before would escape a wrapper,
    and the profiler prints.
    """
    calls: list[str] = []
    mode: Any = _python_dispatch.TorchDispatchMode  # torch leaves it untyped

    class Counting(mode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if f"c10d.{kind}" in str(func):
                calls.append(str(func))
            return func(*args, **(kwargs or {}))

    with Counting():
        yield calls
