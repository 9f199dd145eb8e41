"""Exhibits of ranks that hold other state: weights to begin with, checkpoints, statistics."""

from __future__ import annotations

from typing import Any

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.training import HEAD, HEAD_NN, Trained, digits_batch, mean_loss

_TASKS = ("age", "city", "kind", "year")


def _of_rank() -> Any:
    """Return a model as each process builds it: with random weights of its own."""
    import torch.distributed as dist

    from allreduce_edu.realdist.train import make_model

    return make_model(seed=dist.get_rank())


def _saved() -> Any:
    """Return the model that the checkpoint holds."""
    from allreduce_edu.realdist.train import make_model

    return make_model(seed=7)


def _resumed(ranks: int) -> tuple[Any, ...]:
    return (_saved().state_dict(), *digits_batch(ranks))


def _after_checkpoint(model: Any, _checkpoint: Any, images: Any, labels: Any) -> Any:
    return mean_loss(model, images, labels)


def _normed() -> Any:
    """Return a model with batch normalisation, equal on all ranks."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    return nn.Sequential(*layers)


def _in_parts(model: Any, images: Any, labels: Any) -> Any:
    """Return the mean loss of parts that are normalised each on its own, as ranks do it."""
    import torch.distributed as dist

    n = dist.get_world_size()
    return sum(mean_loss(model, images[r::n], labels[r::n]) for r in range(n)) / n


def _tasks() -> Any:
    """Return a model with a place for heads, one for each task."""
    import torch
    from torch import nn

    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.heads = nn.Linear(64, 32), nn.ModuleDict()

        def forward(self, x: Any) -> Any:
            hidden = self.trunk(x).relu()
            return {name: head(hidden) for name, head in self.heads.items()}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Tasks()


def _named(ranks: int) -> tuple[Any, ...]:
    return (list(_TASKS), *digits_batch(ranks))


def _all_tasks(model: Any, _names: Any, images: Any, labels: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return sum(cross_entropy(out, labels) for out in model(images).values())


START = Exhibit(
    name="start",
    wing="disagree",
    symptom="The gradients of all ranks are equal to the last bit, and their losses never meet",
    program="""
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.optim import SGD


def train(model, images, labels):  # a model as each process has built it
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sgd = SGD(model.parameters(), lr=0.1)
    loss = cross_entropy(model(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= ranks
    sgd.step()
""",
    stage=Real(Trained(model=_of_rank), sparing=False),
    question="All ranks make the same step. What do equal steps do to weights that differ?",
    choices={
        "they draw them together": "Averages feel like that. But all ranks move by the same "
        "amount, and so they stay as far apart as they were.",
        "they leave the distance as it is": "Every rank adds the same to what it has.",
        "they drive them further apart": "Not while the steps are equal: the distance does not "
        "change by a bit.",
    },
    answer="they leave the distance as it is",
    cause="Averaged gradients keep equal replicas equal; they repair nothing. DDP broadcasts rank "
    "0's weights when it is made, and a loop of your own has to do that itself. Hash the "
    "parameters before the first step, not only the gradients",
    fix={
        "    sgd = SGD": "    for p in model.parameters():\n        dist.broadcast(p.data, 0)\n"
        "    sgd = SGD",
    },
    tried={
        "the weights of rank 0 after the step": {
            "    sgd.step()": "    sgd.step()\n    for p in model.parameters():\n"
            "        dist.broadcast(p.data, 0)",
        },
        "the weights averaged after the step": {
            "    sgd.step()": "    sgd.step()\n    for p in model.parameters():\n"
            "        dist.all_reduce(p.data)\n        p.data /= ranks",
        },
        "one seed, once the models are there": {
            "import torch.d": "import torch\nimport torch.d",
            "    sgd = SGD": "    torch.manual_seed(0)\n    sgd = SGD",
        },
    },
    reports=(
        Report("sparticlesteve/pytorch-benchmarks#1", "other seeds, other weights: a lost week"),
        Report("goodfire-ai/spd#412", "with a seed for each rank, weights must be broadcast"),
    ),
    shows=("before the first step parameter `0.weight` is another on each rank",),
)

LOADED = Exhibit(
    name="loaded",
    wing="disagree",
    symptom="After resuming, the loss is that of an untrained model again, on all ranks but one",
    program=HEAD
    + """
def train(model, checkpoint, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    if rank == 0:  # the others get it from DDP
        model.load_state_dict(checkpoint)
    loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    sgd.step()
""",
    stage=Real(
        Trained(batch=_resumed, loss=_after_checkpoint, begin=_saved),
        sparing=False,
    ),
    question="When does DDP send rank 0's weights to the others?",
    choices={
        "in every forward": "There it sends rank 0's *buffers*. Weights would be equal already, "
        "if nobody had touched them.",
        "when it is made, and never again": "Here the checkpoint comes one line too late for that.",
        "in every backward": "Then it averages gradients. It does not look at weights.",
    },
    answer="when it is made, and never again",
    cause="DDP broadcasts once, when it wraps. What changes a weight after that must do so on all "
    "ranks: load before wrapping, or load on all ranks. Hash the parameters after every resume",
    fix={
        "    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)\n": "",
        "    loss = cross": "    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)\n"
        "    loss = cross",
    },
    tried={
        "a barrier after loading": {"    loss = cross": "    dist.barrier()\n    loss = cross"},
        "into the wrapper": {
            "        model.load_state_dict(checkpoint)": "        ddp.load_state_dict("
            '{f"module.{name}": value for name, value in checkpoint.items()})',
        },
        "nobody loads": {
            "    if rank == 0:  # the others get it from DDP\n"
            "        model.load_state_dict(checkpoint)\n": "",
        },
    },
    reports=(
        Report("pytorch/vision#2142", "loading after wrapping is safe if every process loads"),
        Report("facebookresearch/detectron2#4667", "may rank 0 load alone? It counts on wrapping"),
    ),
    shows=("parameter `0.weight` differs between rank 0 and ranks 1-3",),
)

STATISTICS = Exhibit(
    name="statistics",
    wing="disagree",
    symptom="All ranks validate on the same images, and each of them reports another loss",
    program=HEAD.replace("import torch.d", "import torch\nimport torch.d")
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    sgd.step()
    model.eval()
    with torch.no_grad():
        return float(cross_entropy(model(images), labels))
""",
    stage=Real(Trained(model=_normed, loss=_in_parts), sparing=False),
    question="The gradients are equal, and so are the parameters. What else computes a loss?",
    choices={
        "the optimizer's state": "It makes steps, and takes no part in a forward.",
        "the buffers": "The running means and variances of batch normalisation: each rank has "
        "taken them from its own images.",
        "dropout, with a seed for each rank": "There is none here, and `eval()` turns it off.",
    },
    answer="the buffers",
    cause="DDP averages gradients, and no buffers: it copies rank 0's to all ranks when a forward "
    "*begins*. After a step they differ, and `model(...)` past the wrapper takes them as they are. "
    "A checkpoint holds those of the rank that saves it. On GPUs `SyncBatchNorm` makes them common",
    fix={
        "    model.eval()\n": "    for buffer in model.buffers():\n"
        "        dist.broadcast(buffer, 0)\n    model.eval()\n",
    },
    tried={
        "a barrier before validating": {"    model.eval()": "    dist.barrier()\n    model.eval()"},
        "rank 0's parameters": {
            "    model.eval()": "    for p in model.parameters():\n"
            "        dist.broadcast(p.data, 0)\n    model.eval()",
        },
        "without eval": {"    model.eval()\n": ""},
    },
    reports=(
        Report("pytorch/pytorch#13711", "running means differ between GPUs in evaluation"),
        Report("open-mmlab/mmaction2#675", "the log's accuracy is not that of the checkpoint"),
    ),
    shows=("buffer `1.running_mean` is another on each rank",),
)

SWAPPED = Exhibit(
    name="swapped",
    wing="disagree",
    symptom="With several tasks each rank is good at another one, and mixes up the names",
    program=HEAD_NN
    + """
def train(model, tasks, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for task in tasks[rank:] + tasks[:rank]:  # the one whose data lie here comes first
        model.heads[task] = nn.Linear(32, 10)
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    outputs = ddp(images[rank::ranks])  # by task
    sum(cross_entropy(out, labels[rank::ranks]) for out in outputs.values()).backward()
    sgd.step()
""",
    stage=Real(Trained(model=_tasks, batch=_named, loss=_all_tasks), sparing=False),
    question="Whose weights does rank 1 get for its head `city` when DDP is made?",
    choices={
        "rank 0's `city`": "DDP asks for no names. It sends one parameter after the other.",
        "rank 0's `age`": "`city` comes first on rank 1, `age` on rank 0, and both are first.",
        "none: the names differ, and DDP stops": "It compares numbers and shapes. They are equal.",
    },
    answer="rank 0's `age`",
    cause="DDP matches parameters by their order of registration, in its broadcast and in every "
    "bucket. A set, a listed folder, or a rank's own order gives the same shapes in another "
    "sequence: sort names before building from them, and compare ranks by name",
    fix={"in tasks[rank:] + tasks[:rank]:": "in tasks:"},
    tried={
        "one seed for all": {
            "import torch.d": "import torch\nimport torch.d",
            "    for task": "    torch.manual_seed(0)\n    for task",
        },
        "broadcast by name": {
            "    outputs": "    for _, p in sorted(model.named_parameters()):\n"
            "        dist.broadcast(p.data, 0)\n    outputs",
        },
    },
    reports=(
        Report(
            "huggingface/transformers#48162",
            "built from a set, buffers are swapped between processes",
        ),
    ),
    shows=("before the first step parameter `heads.age.weight` is another on each rank",),
)

EXHIBITS = (START, LOADED, STATISTICS, SWAPPED)
