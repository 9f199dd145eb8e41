"""What is asked of a program that draws its own batches: which images the ranks have seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from allreduce_edu.engine.check import count
from allreduce_edu.lessons import vectors
from allreduce_edu.lessons.museum.exhibit import Examined

RATE = 0.5  # of the exhibits' programs
NODE = 2  # ranks on each machine, as the environment says it

Step = list[int]  # the numbers of the images of one forward


def _flat(steps: Iterable[Step]) -> Step:
    return list(chain.from_iterable(steps))


class Seen(NamedTuple):
    """What a program has done on every rank.

    Attributes
    ----------
    steps
        For each rank, for each step, the images.
    weights
        What each rank holds at the end.
    accuracy
        The share of test images that rank 0's model reads right.
    """

    steps: list[list[Step]]
    weights: list[Any]
    accuracy: float

    def __repr__(self) -> str:
        return f"Seen by {count(len(self.steps), 'rank')} in {count(len(self.together), 'step')}"

    @property
    def together(self) -> list[Step]:
        """The images of all ranks in each step."""
        return [_flat(parts) for parts in zip(*self.steps, strict=False)]


def once(program: Callable[..., Any]) -> Examined:
    """Call ``program(model, digits)`` on a rank: in one epoch, every image is for one rank."""
    return _asked(program, lambda seen: _alike(seen) or _uncovered(seen.steps))


def afresh(program: Callable[..., Any]) -> Examined:
    """Call ``program(model, digits)`` on a rank: three epochs, each in another order."""

    def problem(seen: Seen) -> str | None:
        epochs = _cut(seen, 3)
        if not epochs:
            return f"all ranks agree, on {len(seen.together)} steps, which are not three epochs"
        return next(filter(None, map(_uncovered, epochs)), None) or _again(epochs)

    return _asked(program, problem)


def _asked(program: Callable[..., Any], problem: Callable[[Seen], str | None]) -> Examined:
    from allreduce_edu.realdist.train import make_model

    seen = _watched(program)
    disagree = vectors.disagreement(seen.weights, vectors.owners(make_model()), "weights")
    if disagree or any(not steps for steps in seen.steps):
        idle = next((r for r, steps in enumerate(seen.steps) if not steps), None)
        return disagree, None if disagree else f"the model on rank {idle} has seen no image"
    return None, problem(seen) or _untrained(seen)


def _watched(program: Callable[..., Any]) -> Seen:
    """Run the program with a model that notes what it is trained on; tell what all ranks saw."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import TensorDataset

    from allreduce_edu.data import digits
    from allreduce_edu.realdist.train import accuracy, make_model

    data, model = digits(), make_model()
    number = {row.tobytes(): i for i, row in enumerate(data.x)}
    steps: list[Step] = []

    def note(_: Any, given: Any) -> None:
        if model.training and torch.is_grad_enabled():
            steps.append([number.get(row.tobytes(), -1) for row in given[0].numpy()])

    model.register_forward_pre_hook(note)
    _environment(dist.get_rank(), dist.get_world_size())
    program(model, TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y)))
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (steps, vectors.weights(model)))
    return Seen([each[0] for each in told], [each[1] for each in told], accuracy(model))


def _environment(rank: int, ranks: int) -> None:
    """Say what torchrun says on machines of two ranks each."""
    node = min(NODE, ranks)
    numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % node}
    os.environ |= {name: str(number) for name, number in numbers.items()}


# --------------------------------------------------------------- one process, with all the data


def alone(steps: Sequence[Step]) -> Any:
    """Return a model that one process has trained on these batches."""
    import torch
    from torch.nn.functional import cross_entropy

    from allreduce_edu.data import digits
    from allreduce_edu.realdist.train import make_model

    data, model = digits(), make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in steps:
        x, y = torch.from_numpy(data.x[step]), torch.from_numpy(data.y[step])
        sgd.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        sgd.step()
    return model


def _images() -> int:
    from allreduce_edu.data import digits

    return len(digits().x)


# ----------------------------------------------------------------------------------- sentences


def _alike(seen: Seen) -> str | None:
    """Say that all ranks train on the same batches, and whose weights they end with."""
    from allreduce_edu.realdist.train import accuracy

    first = [sorted(step) for step in seen.steps[0]]
    if any([sorted(step) for step in steps] != first for steps in seen.steps[1:]):
        return None
    ranks, steps, each = len(seen.steps), len(first), len(first[0])
    same = (vectors.weights(alone(seen.steps[0])) == seen.weights[0]).all()
    what = "bit for bit, on the weights" if same else "on the batches"
    right = accuracy(alone(in_order(steps, ranks * each)))
    return (
        f"all ranks agree, {what} of one rank that trains alone: in each of the {steps} steps "
        f"they all see the same {each} images. It reads {seen.accuracy:.3f} of the test "
        f"images right; one process with {ranks * each} images in each of {steps} steps reads "
        f"{right:.3f}"
    )


def in_order(steps: int, size: int) -> list[Step]:
    """Return batches that go through the images in order, again and again."""
    places = np.arange(steps * size) % _images()
    return [part.tolist() for part in places.reshape(steps, size)]


def _uncovered(steps: Sequence[Sequence[Step]]) -> str | None:
    """Say how many images an epoch leaves out, and how many it has more than once."""
    flat = [image for rank in steps for step in rank for image in step]
    if -1 in flat:
        return "all ranks agree, and have been trained on what is none of the images"
    times = np.bincount(flat, minlength=_images())
    ranks, batch = len(steps), sum(len(rank[0]) for rank in steps)
    missing, extra = int((times == 0).sum()), int((times - 1).clip(0).sum())
    if missing < batch and extra < ranks:  # what samplers drop, or repeat to make shares equal
        return None
    lost = f"{missing:,} of {len(times):,} images are seen by no rank"
    said = filter(None, (lost if missing else "", _shared(steps)))
    return (
        f"all ranks agree, and in one epoch {', and '.join(said)}. "
        f"One process sees each of the {len(times):,} once"
    )


def _shared(steps: Sequence[Sequence[Step]]) -> str:
    """Say which two ranks see the same images, if two do."""
    mine = [set(_flat(rank)) for rank in steps]
    both = {(a, b): len(mine[a] & mine[b]) for a in range(len(mine)) for b in range(a)}
    if not any(both.values()):
        again = any(len(_flat(rank)) > len(seen) for rank, seen in zip(steps, mine, strict=True))
        return "a rank sees an image more than once" if again else ""
    b, a = max(both, key=lambda pair: (both[pair], -pair[0], -pair[1]))
    return f"ranks {a} and {b} both see {both[b, a]:,} of the {len(mine[a]):,} of rank {a}"


def _cut(seen: Seen, epochs: int) -> list[list[list[Step]]]:
    """Return for each epoch what each rank saw; nothing if they are of different lengths."""
    each, rest = divmod(len(seen.together), epochs)
    if rest or any(len(steps) != each * epochs for steps in seen.steps):
        return []
    return [[rank[e * each : (e + 1) * each] for rank in seen.steps] for e in range(epochs)]


def _again(epochs: Sequence[Sequence[Sequence[Step]]]) -> str | None:
    """Say which epoch repeats the batches of the one before."""
    for later in range(1, len(epochs)):
        before, after = map(_sets, epochs[later - 1 : later + 1])
        same = [len(a & b) for a, b in zip(before, after, strict=True)]
        size = len(after[0])
        if sum(same) > sum(map(len, after)) / 2:
            return (
                f"all ranks agree, and epoch {later} is epoch {later - 1} again: in its first step "
                f"they see {same[0]} of the {size} images that they saw then, and so on, "
                f"{len(after)} times. One process that shuffles afresh meets "
                f"{round(size * size / _images())} of {size}, by chance"
            )
    return None


def _sets(steps: Sequence[Sequence[Step]]) -> list[set[int]]:
    """Return for each step the images of all ranks."""
    return [set(_flat(parts)) for parts in zip(*steps, strict=True)]


def _untrained(seen: Seen) -> str | None:
    """Say that the model has not learned what one process learns from these batches."""
    from allreduce_edu.realdist.train import accuracy

    right = accuracy(alone(seen.together))
    if seen.accuracy > right - 0.1:
        return None
    return (
        f"the ranks have seen the right images, and read {seen.accuracy:.3f} of the test images "
        f"right; one process that trains on these batches reads {right:.3f}"
    )
