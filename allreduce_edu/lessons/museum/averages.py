"""Exhibits of wrong averages: equal bits on all ranks, and not those of one process."""

from __future__ import annotations

from typing import Any

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.training import BATCH, HEAD, Trained, mean_loss, trained

_LENGTHS = (8, 5, 3, 1, 8, 6, 2, 1)  # tokens in a text, before its padding
_ON = [sum(_LENGTHS[rank::4]) for rank in range(4)]  # tokens on each rank
_TIMES = _ON[0] // _ON[3]
_BOUND = 0.01  # of a clipped entry


def _texts(_ranks: int) -> tuple[Any, Any]:
    """Return texts of pixels [text, place, 64], and a target for each place: -100 for padding."""
    import torch

    from allreduce_edu.realdist.train import images

    x, y = images(0, 0, 8 * len(_LENGTHS), ranks=1)
    tokens, targets = x.reshape(-1, 8, 64), y.reshape(-1, 8).clone()
    targets[torch.arange(8) >= torch.tensor(_LENGTHS)[:, None]] = -100
    return tokens, targets


def _token_loss(model: Any, tokens: Any, targets: Any) -> Any:
    """Return the mean over all tokens."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def _clipped_loss(model: Any, images: Any, labels: Any) -> Any:
    """Return the mean over all images, in a model of which each entry's gradient is clipped."""
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-_BOUND, _BOUND))
    return mean_loss(model, images, labels)


TOKENS = Exhibit(
    name="tokens",
    wing="wrong",
    symptom="The same texts give another model on four GPUs than on one, at the same batch size",
    program=HEAD
    + """
def train(model, tokens, targets):  # of all ranks together; a target of -100 is padding
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    mine, wanted = tokens[rank::ranks], targets[rank::ranks]  # as many texts for all
    loss = cross_entropy(ddp(mine).flatten(0, 1), wanted.flatten())  # no padding in it
    loss.backward()
    sgd.step()
""",
    stage=Real(Trained(batch=_texts, loss=_token_loss), sparing=False),
    question=f"Rank 0 has {_ON[0]} tokens, rank 3 has {_ON[3]}. How much does a token count?",
    choices={
        "as much on both ranks": "On each rank the loss is a mean, and DDP takes the mean of the "
        "four. A quarter goes to each rank, however many tokens share it.",
        f"{_TIMES} times as much on rank 3": "A quarter of the gradient belongs to each rank. On "
        f"rank 3 {_ON[3]} tokens share it, on rank 0 {_ON[0]}.",
        f"{_TIMES} times as much on rank 0": "That is the share of a *rank* in a sum. Each "
        "rank has divided by its own count before.",
    },
    answer=f"{_TIMES} times as much on rank 3",
    cause="A mean of means is the mean only if all have as many. Sum the loss, divide by the count "
    "of all ranks (an all-reduce of one number), and multiply by the ranks, by which DDP divides. "
    "Nothing shows it but one step beside one process, with texts of unequal lengths",
    fix={
        "    loss.backward()\n": """    count = (wanted != -100).sum()
    total = count.clone()
    dist.all_reduce(total)
    (loss * count * ranks / total).backward()
""",
    },
    tried={
        "the sum in place of the mean": {"wanted.flatten())": 'wanted.flatten(), reduction="sum")'},
        "weighted, without the factor of the ranks": {
            "    loss.backward()\n": """    count = (wanted != -100).sum()
    total = count.clone()
    dist.all_reduce(total)
    (loss * count / total).backward()
""",
        },
        "divided by all places, padding too": {
            "wanted.flatten())": 'wanted.flatten(), reduction="sum") / wanted.numel()',
        },
        "the loss averaged over the ranks": {
            "    loss.backward()\n": """    dist.all_reduce(loss.data)
    loss.data /= ranks
    loss.backward()
""",
        },
    },
    reports=(
        Report("huggingface/transformers#34242", "tokens are averaged on each device first"),
        Report("vllm-project/speculators#942", "the loss is divided by the rank's own count"),
    ),
    shows=("all ranks agree, on another gradient",),
)

SHORT = Exhibit(
    name="short",
    wing="wrong",
    symptom="With accumulation the loss comes near to that without, and never meets it",
    program="from contextlib import nullcontext\n\n"
    + HEAD.lstrip()
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    mine, wanted = images[rank::ranks], labels[rank::ranks]
    parts = list(zip(mine.split(6), wanted.split(6)))  # six fit into memory
    for i, (x, y) in enumerate(parts, 1):
        with ddp.no_sync() if i < len(parts) else nullcontext():
            (cross_entropy(ddp(x), y) / len(parts)).backward()
    sgd.step()
""",
    stage=Real(trained),
    question="Which images count for more than the others?",
    choices={
        "those of the last micro-batch": f"{BATCH} are 6, 6 and 4: the last four share a third "
        "of the gradient, as six do before.",
        "those of the first": "They lie in `.grad` for longest, and lose nothing there: "
        "`backward()` only adds.",
        "none: every rank has as many": "Every rank has. Count the images in each of its parts.",
    },
    answer="those of the last micro-batch",
    cause="The last part is shorter, and its mean counts like those of full ones. Weight each mean "
    "by its share of the batch. The same happens across ranks, when the last batch of an epoch is "
    "shorter on one of them: then multiply by the ranks, and divide by the images of all",
    fix={"y) / len(parts))": "y) * len(y) / len(wanted))"},
    tried={
        "a fixed weight": {"y) / len(parts))": "y) * 6 / len(wanted))"},
        "the sum over a full part": {
            "y) / len(parts))": 'y, reduction="sum") / 6 / len(parts))',
        },
        "every micro-batch synchronised": {
            "        with ddp.no_sync() if i < len(parts) else nullcontext():": "        if True:",
        },
        "the short part left out": {
            "    for i": "    parts = [part for part in parts if len(part[1]) == 6]\n    for i",
        },
    },
    reports=(
        Report("keras-team/keras#20241", "a last batch of another size weighs as much"),
        Report("ml-explore/mlx-lm#1413", "parts of a batch are averaged without their counts"),
    ),
    shows=("all ranks agree, on another gradient",),
)

HOOK = Exhibit(
    name="hook",
    wing="wrong",
    symptom="Since the all-reduces are timed, training diverges at the old learning rate",
    program="from time import perf_counter\n\n"
    + HEAD.lstrip()
    + """
def timed(times, bucket):
    began = perf_counter()

    def done(future):
        times.append(perf_counter() - began)
        return future.value()[0]

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(done)


def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    ddp.register_comm_hook([], timed)
    cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks]).backward()
    sgd.step()
""",
    stage=Real(trained, sparing=False),
    question="The hook does what DDP does, and looks at the clock. What does it leave out?",
    choices={
        "waiting for the all-reduce": "`then` runs `done` when it has ended, and DDP waits for "
        "what `done` returns.",
        "the broadcast of the result": "An all-reduce leaves its result on every rank. That is "
        "what the ranks agree on here.",
        "dividing by the number of ranks": "DDP does that before its own all-reduce. A hook takes "
        "the place of both.",
    },
    answer="dividing by the number of ranks",
    cause="A hook replaces the division too: what it returns is `.grad`. Without it the gradient "
    "is a sum, N times as long; a smaller learning rate hides that, and so do AdamW and clipping. "
    "Hold one plain step against one process whenever a hook is new",
    fix={
        "    began = perf_counter()\n": "    began = perf_counter()\n"
        "    bucket.buffer().div_(dist.get_world_size())\n",
    },
    tried={
        "a smaller learning rate": {"lr=0.1": "lr=0.1 / ranks"},
        "the gradient clipped": {
            "    sgd.step()": "    from torch.nn.utils import clip_grad_norm_\n\n"
            "    clip_grad_norm_(model.parameters(), 1.0)\n    sgd.step()",
        },
        "an all-reduce that waits": {
            "    return dist.all_reduce(bucket.buffer(), async_op=True)": "    work = "
            "dist.all_reduce(bucket.buffer(), async_op=True)\n    work.wait()\n    return work",
        },
    },
    reports=(
        Report("pytorch/pytorch#42399", "with a hook DDP stops dividing: it is the hook's to do"),
    ),
    shows=("`.grad` is 4 times that of one process",),
)

CLIPPED = Exhibit(
    name="clipped",
    wing="wrong",
    symptom="One bad image upsets a step on one GPU less than on four, with the same clipping",
    program=HEAD
    + f"""
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    for p in model.parameters():  # no entry of the gradient may exceed {_BOUND}
        p.register_hook(lambda gradient: gradient.clamp(-{_BOUND}, {_BOUND}))
    cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks]).backward()
    sgd.step()
""",
    stage=Real(Trained(loss=_clipped_loss), sparing=False),
    question="What do the hooks clip?",
    choices={
        "the gradient that `step()` uses": "So it is in one process. Under DDP something happens "
        "between these hooks and `step()`.",
        "each rank's own gradient": "They run before DDP's hooks, so what is averaged has been "
        "clipped on each rank alone.",
        "nothing: DDP writes over it": "DDP averages what the hooks have left: it writes the mean "
        "of clipped gradients.",
    },
    answer="each rank's own gradient",
    cause="The mean of what is clipped is not the clipped mean: where ranks disagree most, it is "
    "wrong most. Clip after `backward()`, when the gradient has been averaged; all ranks then "
    "clip equal bits, and need no further call",
    fix={
        f"""    for p in model.parameters():  # no entry of the gradient may exceed {_BOUND}
        p.register_hook(lambda gradient: gradient.clamp(-{_BOUND}, {_BOUND}))
""": "",
        "    sgd.step()": f"""    for p in model.parameters():
        p.grad.clamp_(-{_BOUND}, {_BOUND})
    sgd.step()""",
    },
    tried={
        "a bound for each rank": {
            f"gradient.clamp(-{_BOUND}, {_BOUND})": "gradient.clamp"
            f"(-{_BOUND} / ranks, {_BOUND} / ranks)",
        },
        "hooks before wrapping": {
            "    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)\n": "",
            "    cross_entropy": "    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)\n"
            "    cross_entropy",
        },
        "clipped once more at the end": {
            "    sgd.step()": f"    for p in model.parameters():\n"
            f"        p.grad.clamp_(-{_BOUND}, {_BOUND})\n    sgd.step()",
        },
    },
    reports=(
        Report("horovod/horovod#1346", "some frameworks clip before the all-reduce, some after"),
        Report("huggingface/diffusers#721", "clipped before the ranks have averaged"),
    ),
    shows=("all ranks agree, on another gradient",),
)

EXHIBITS = (TOKENS, SHORT, HOOK, CLIPPED)
