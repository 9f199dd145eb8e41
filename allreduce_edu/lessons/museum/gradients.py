"""Exhibits of wrong gradients: programs with DDP that run, and learn something else."""

from __future__ import annotations

from typing import Any

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.training import HEAD, Trained, trained

TWICE = Exhibit(
    name="twice",
    wing="wrong",
    symptom="With four times the GPUs the loss falls four times as slowly, at any learning rate",
    program=HEAD
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
    loss = loss / ranks  # the sum over all ranks becomes a mean
    loss.backward()
    sgd.step()
""",
    stage=Real(trained, sparing=False),
    question="All ranks hold the same bits. `.grad` is how long, beside one process's?",
    choices={
        "as long": "So it would be without the line that divides: DDP has divided already.",
        "a quarter": "DDP averages, and the loss was divided once more.",
        "four times as long": "That is a sum that nobody divides. Here it is divided twice.",
    },
    answer="a quarter",
    cause="DDP averages: what is divided again is divided twice. AdamW and clipping hide it, "
    "because they do not see how long a gradient is; a plain SGD step shows it",
    fix={"    loss = loss / ranks  # the sum over all ranks becomes a mean\n": ""},
    tried={
        "a learning rate times N": {"lr=0.1": "lr=0.1 * ranks"},
        "the parameters of rank 0 after each step": {
            """    sgd.step()
""": """    sgd.step()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
""",
        },
    },
    reports=(Report("pytorch/pytorch#37359", "sum or mean? what DDP does with gradients"),),
    shows=("`.grad` is 0.25 times that of one process",),
)


def _frozen(model: Any) -> str | None:
    """Say which parameter the program has not thawed."""
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    return f"the ranks agree, and `{frozen[0]}` is still frozen: thaw it" if frozen else None


THAWED = Exhibit(
    name="thawed",
    wing="disagree",
    symptom="Fine-tuning works until the last layers are thawed; then each rank has its own",
    program=HEAD
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    head = model[2].requires_grad_(False)  # frozen for the first epochs
    ddp = DDP(model)
    head.requires_grad_(True)  # and now thawed
    loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    SGD(model.parameters(), lr=0.1).step()
""",
    stage=Real(Trained(unfit=_frozen), sparing=False),
    question="Which parameters does DDP keep equal?",
    choices={
        "all that have a gradient after backward()": "DDP asks once, when it wraps the model.",
        "those that required a gradient when it wrapped the model": "It hangs a hook on each of "
        "them then, and on no other later.",
        "all, whatever they require": "A parameter that requires no gradient has none to average.",
    },
    answer="those that required a gradient when it wrapped the model",
    cause="DDP hangs its hooks when it is made, on the parameters that require a gradient then. "
    "What is thawed later is trained on each rank alone: wrap the model again after thawing. Hash "
    "the parameters one step after every change of the model",
    fix={
        """    ddp = DDP(model)
    head.requires_grad_(True)  # and now thawed
""": """    head.requires_grad_(True)  # and now thawed
    ddp = DDP(model)
""",
    },
    tried={
        "find_unused_parameters": {"DDP(model)": "DDP(model, find_unused_parameters=True)"},
        "static_graph": {"DDP(model)": "DDP(model, static_graph=True)"},
    },
    reports=(
        Report("Lightning-AI/pytorch-lightning#20340", "a callback thaws the backbone under DDP"),
        Report("pytorch/pytorch#12603", "parameters exchanged after wrapping are never reduced"),
    ),
    shows=("parameter `2.weight` is another on each rank",),
)

EXHIBITS = (TWICE, THAWED)
