"""Four training runs whose ranks all hold equal bits, two of them wrong; and the judge of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from allreduce_edu.lessons.checks import Verdict, right, wrong
from allreduce_edu.lessons.museum.exhibit import Outcome
from allreduce_edu.lessons.museum.program import Program
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.training import Trained, digits_batch, mean_loss
from allreduce_edu.realdist.pool import Pool

RANKS = 4
_HEAD = """
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD


def train(model, batches):  # each batch: the images and labels of all ranks together
    rank, ranks = dist.get_rank(), dist.get_world_size()
"""
_PROGRAMS = {
    "A": """
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    for images, labels in batches:
        sgd.zero_grad()
        loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
        (loss / ranks).backward()  # a mean over all ranks
        sgd.step()
""",
    "B": """
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    for images, labels in batches:
        sgd.zero_grad()
        out, mine = ddp(images[rank::ranks]), labels[rank::ranks]
        loss = cross_entropy(out, mine, reduction="sum")
        (loss * ranks / len(images)).backward()
        sgd.step()
""",
    "C": """
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    for images, labels in batches:
        sgd.zero_grad()
        mine = torch.randperm(len(images))[: len(images) // ranks]  # my part
        cross_entropy(ddp(images[mine]), labels[mine]).backward()
        sgd.step()
""",
    "D": """
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    sgd = SGD(model.parameters(), lr=0.1)
    for images, labels in batches:
        sgd.zero_grad()
        out, mine = model(images[rank::ranks]), labels[rank::ranks]
        cross_entropy(out, mine).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= ranks
        sgd.step()
""",
}


class Seen(NamedTuple):
    """What the ranks of a run look like after its last step."""

    hashes: list[str]  # of each rank's weights
    loss: float  # rank 0's, over the images of all steps

    def __repr__(self) -> str:
        return f"{len(set(self.hashes))} hash on {len(self.hashes)} ranks"


class Run:
    """One of the four: a program that trains on a list of batches."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def __repr__(self) -> str:
        return self.source

    def train(self, steps: int = 100, program: str | Callable[..., Any] | None = None) -> Seen:
        """Train on real ranks for so many steps; with `program`, that one in its place."""
        entry = Program(self.source if program is None else program).entry
        with Pool(RANKS, backend="gloo") as pool:
            found = pool.run(_trained, entry, steps)
        return Seen([each for each, _ in found], found[0][1])

    def one_step(self) -> Outcome:
        """Hold one plain SGD step against that of one process."""
        return _STAGE.run(Program(self.source))


RUNS: Mapping[str, Run] = {
    name: Run(name, str(Program(_HEAD + text.lstrip("\n")))) for name, text in _PROGRAMS.items()
}


def four_runs(says: Mapping[str, str], mended: str | Callable[..., Any]) -> Verdict:
    """Judge which of A to D are called "right" and "wrong", and the mended text of a wrong one."""
    if problem := _unsaid(says):
        return wrong(problem)
    steps = _steps()
    if problem := next(filter(None, (_missed(n, says[n], step) for n, step in steps.items())), ""):
        return wrong(problem)
    program = Program(mended)
    for name, run in RUNS.items():
        if str(program) == run.source:
            as_it_was = "has been right all along" if steps[name].wing is None else "is unchanged"
            return wrong(f"the four are sorted; but {name} {as_it_was}. Mend one that is wrong")
    if problem := _STAGE.problem(program, program):
        return wrong(f"the four are sorted; but the mended one is not right yet: {problem}")
    return right(
        "equal hashes say that the ranks agree, not on what. One plain step beside one process "
        "tells; hold `.grad` against it first: weights agree too when two faults cancel"
    )


@functools.cache
def _steps() -> dict[str, Outcome]:
    """Return what the oracle says of each: it says the same every time."""
    return {name: run.one_step() for name, run in RUNS.items()}


def _unsaid(says: Mapping[str, str]) -> str | None:
    """Say which run is not called right or wrong."""
    for name in RUNS:
        if (said := dict(says).get(name)) not in ("right", "wrong"):
            return f'says["{name}"] must be "right" or "wrong", got {said!r}'
    return None


def _missed(name: str, said: str, step: Outcome) -> str | None:
    """Say what the oracle makes of a run that is called otherwise."""
    really = step.wing is not None
    if (said == "wrong") == really:
        return None
    if really:
        return (
            f"{name} is not right, equal hashes or not: hold its `.grad` after one step against "
            "that of one process with the same images"
        )
    return (
        f"{name} is not wrong: after one step its `.grad` is that of one process, and so are its "
        "weights. Which factor do you miss, or think one too many?"
    )


def _one_batch(ranks: int) -> tuple[Any, ...]:
    return ([digits_batch(ranks)],)


def _loss(model: Any, batches: Any) -> Any:
    return mean_loss(model, *batches[0])


_STAGE = Real(Trained(batch=_one_batch, loss=_loss), ranks=RANKS)


def _trained(program: Callable[..., Any], steps: int) -> tuple[str, float]:
    """Train on this rank; return the hash of the weights, and the loss."""
    import torch

    from allreduce_edu.realdist.train import fingerprint, images, make_model

    model = make_model()
    batches = [images(0, step, 16 * RANKS, ranks=1) for step in range(steps)]
    program(model, batches)
    everything = (torch.cat(part) for part in zip(*batches, strict=True))
    with torch.no_grad():
        loss = float(mean_loss(model, *everything))
    return fingerprint(model.parameters()), loss
