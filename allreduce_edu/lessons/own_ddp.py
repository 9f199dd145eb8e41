"""Judges a learner's own DDP, on real ranks, at three levels.

(a) All ranks hold the same bits, and those of one process up to rounding. (b) The bits of torch's
DDP on two ranks, where a sum has only one order. (c) The same on three, four and five ranks: then
the place of every number in the bucket counts, and when it is divided. What torch does there
belongs to a version, so on an unknown one (c) only reports.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.lessons import vectors
from allreduce_edu.lessons.checks import Verdict
from allreduce_edu.realdist.pool import PerRank, Pool, RankError

Prepare = Callable[[Any], object]
SEEN = ("2.13",)  # versions of torch for which (c) is known to be within reach
STEPS = 20
_PATIENCE = 15.0  # seconds for one run, which takes less than one
_RATE = 0.1
_EXACT = 4  # ranks; 1/4 is exact in binary, 1/3 and 1/5 are not


@dataclass(frozen=True, repr=False)
class Levels(Verdict):
    """What the judge found: the levels that were `reached`, and a line for each that was tried."""

    reached: str

    def __repr__(self) -> str:
        return self.why


class Course(NamedTuple):
    """A training run on one rank: its weights, the gradient at each step, and its calls."""

    start: Any
    gradients: list[Any]
    end: Any
    sent: list[int]  # collectives in each backward

    def __repr__(self) -> str:
        return f"Course of {len(self.gradients)} steps, {sum(self.sent)} collectives in all"


class Trio(NamedTuple):
    """The same training three times, on so many ranks: every rank's, torch's, and one process's."""

    mine: list[Course]
    theirs: Course
    alone: Course

    def __repr__(self) -> str:
        return f"Trio on {len(self.mine)} ranks"


Runs = dict[int, Trio]
Found = tuple[str | None, str]  # what is wrong, or what to say to what is right


def own_ddp(prepare: Prepare) -> Levels:
    """Judge `prepare(model)`, after which a plain loop must train as under DDP.

    It gets a model with other weights on each rank; if it returns a module, the loop calls that
    one. Nothing of it runs between `backward()` and `step()` but its hooks.
    """
    lines, reached = [], ""
    runs: Runs = {}
    for level, test in {"a": _level_a, "b": _level_b, "c": _level_c}.items():
        try:
            problem, praise = test(prepare, runs)
        except RankError as error:
            problem, praise = f"it did not end well:\n{error}", ""
        if problem:
            lines.append(f"✗ ({level}) Not yet: {problem}")
            return Levels(ok=False, why="\n".join(lines), reached=reached)
        lines.append(praise)
        reached += level * praise.startswith("✓")
    return Levels(ok=True, why="\n".join(lines), reached=reached)


# -------------------------------------------------------------------------------- the levels


def _level_a(prepare: Prepare, runs: Runs) -> Found:
    for ranks in (_EXACT, 3):
        if problem := _problem(_run(prepare, ranks, runs)):
            return f"with {ranks} ranks {problem}", ""
    same = "same bits on all ranks, and those of one process up to rounding"
    return None, f"✓ (a) Right: {same}, after {STEPS} steps on 3 and 4 ranks"


def _level_b(prepare: Prepare, runs: Runs) -> Found:
    mine, theirs, _ = _run(prepare, 2, runs)
    if apart := len(vectors.different(mine[0].end, theirs.end)):
        return f"{_apart(apart, mine[0], 2)}. Two ranks know one order: is it still float32?", ""
    return None, "✓ (b) Right: every bit of torch's DDP on 2 ranks"


def _level_c(prepare: Prepare, runs: Runs) -> Found:
    tried = (_EXACT, 3, 5)
    apart = {}
    for ranks in tried:
        mine, theirs, _ = _run(prepare, ranks, runs)
        apart[ranks] = len(vectors.different(mine[0].end, theirs.end))
    version = importlib.metadata.version("torch")
    if not version.startswith(SEEN):
        counts = ", ".join(f"{apart[ranks]:,} on {ranks} ranks" for ranks in sorted(tried))
        return None, f"– (c) Not judged: torch {version} is new to this judge. Apart: {counts}"
    for ranks in tried:
        if apart[ranks]:
            mine, theirs, _ = runs[ranks]
            return f"{_apart(apart[ranks], mine[0], ranks)}. {_why(ranks, mine[0], theirs)}", ""
    return None, "✓ (c) Right: every bit of torch's DDP on 3, 4 and 5 ranks"


def _apart(count: int, mine: Course, ranks: int) -> str:
    return (
        f"with {ranks} ranks {count:,} of {len(mine.end):,} parameters differ from those of "
        f"torch's DDP after {STEPS} steps"
    )


def _why(ranks: int, mine: Course, theirs: Course) -> str:
    """Say what a program that averages well does in another way than DDP."""
    if mine.sent[-1] != 1:
        return (
            f"Yours sends {mine.sent[-1]} times in a backward, DDP once, for one bucket. "
            "In a vector of another length a number lies in another chunk, and the ring adds "
            "each chunk in an order of its own"
        )
    if ranks != _EXACT:
        return (
            f"With {_EXACT} ranks none does: 1/{_EXACT} is exact in binary, 1/{ranks} is not. "
            "DDP multiplies each gradient by 1/N *before* the sum; dividing rounds otherwise"
        )
    pairs = zip(mine.gradients, theirs.gradients, strict=True)
    first = next(step for step, pair in enumerate(pairs) if len(vectors.different(*pair)))
    if not first:
        return (
            "They part in the first backward. There DDP's bucket holds the gradients in the "
            "order of `model.parameters()`"
        )
    return (
        f"The first backward agrees, number {first + 1} does not: after the first one DDP packs "
        "its bucket again, in the order in which the gradients became ready"
    )


def _problem(trio: Trio) -> str | None:
    """Say in what way the ranks' runs are not that of one process, or None."""
    mine, _, alone = trio
    names = _names()
    if not any(mine[0].sent):
        return "nothing is sent in `backward()`: let a hook call all_reduce"
    if 0 in mine[0].sent:
        silent = mine[0].sent.index(0) + 1
        return f"backward {silent} sends nothing, others do: does your hook begin anew each time?"
    if problem := _start(mine, alone, names):
        return problem
    for step, right in enumerate(alone.gradients, 1):
        held = [course.gradients[step - 1] for course in mine]
        problem = vectors.gaps(held, names) or vectors.disagreement(held, names)
        if step == 1:  # later ones start from weights that are equal only up to rounding
            sum_ = {float(len(mine)): "it is the sum. DDP's is the mean"}
            problem = problem or vectors.another(held[0], right, names, sum_)
        if problem:
            return f"after backward {step}, before `step()`: {problem}"
    if np.allclose(mine[0].end, alone.end, rtol=0, atol=vectors.NEAR):
        return None
    return f"the weights are no longer those of one process after {STEPS} steps"


def _start(mine: list[Course], alone: Course, names: list[str]) -> str | None:
    """Say which ranks begin with other weights than rank 0."""
    for rank, course in enumerate(mine[1:], 1):
        first, last = course.start - mine[0].start, course.end - mine[0].end
        if not first.any():
            continue
        told = f"ranks 0 and {rank} start with other weights, first in "
        told += f"`{names[int(np.flatnonzero(first)[0])]}`"
        if np.allclose(first, last, rtol=0, atol=1e-5):
            told += f", and are exactly as far apart after {STEPS} steps"
        return f"{told}: averaged gradients repair nothing. Broadcast rank 0's weights first"
    if (mine[0].start != alone.start).any():
        return "the ranks start with equal weights, but not with those that rank 0 had"
    return None


# ---------------------------------------------------------------------------------- the runs


def _run(prepare: Prepare, ranks: int, runs: Runs) -> Trio:
    """Return the three runs for so many ranks; they run once."""
    if ranks not in runs:
        every = PerRank(range(ranks))
        with Pool(ranks, backend="gloo", timeout=_PATIENCE) as pool:
            theirs = pool.run(_train, _ddp, every, ranks)[0]
            alone = pool.run(_train, _nothing, 0, 1, 16 * ranks)[0]  # on a rank: one thread
            runs[ranks] = Trio(pool.run(_train, prepare, every, ranks), theirs, alone)
    return runs[ranks]


def _names() -> list[str]:
    from allreduce_edu.realdist.train import make_model

    return vectors.owners(make_model())


def _nothing(_model: Any) -> None:
    """Prepare nothing: a process alone needs nobody."""


def _ddp(model: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


def _train(prepare: Prepare, rank: int, ranks: int, batch: int = 16) -> Course:
    """Train for some steps, on a rank."""
    import torch
    from torch.nn.functional import cross_entropy

    from allreduce_edu.realdist.ddp import counting
    from allreduce_edu.realdist.train import images, make_model

    model = make_model(seed=rank)
    with torch.no_grad():  # so that `dist.broadcast(p, 0)` is no part of any graph
        wrapped = prepare(model)
    call = wrapped if isinstance(wrapped, torch.nn.Module) else model
    start, seen, sent = vectors.weights(model), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    for step in range(STEPS):
        x, y = images(rank, step, batch, ranks)
        optimizer.zero_grad()
        loss: Any = cross_entropy(call(x), y)
        with counting() as calls:
            loss.backward()
        seen.append(vectors.gradient(model))
        sent.append(len(calls))
        optimizer.step()
    return Course(start, seen, vectors.weights(model), sent)
