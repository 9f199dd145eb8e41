"""Exhibits of wrapping: DDP is there, and does not see what is trained."""

from __future__ import annotations

from typing import Any

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.training import HEAD, HEAD_NN, Trained, digits_model, trained

UNWRAPPED = Exhibit(
    name="unwrapped",
    wing="disagree",
    symptom="Four GPUs train without an error, and the checkpoint is no better than from one GPU",
    program=HEAD
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp = DDP(model)
    policy = ddp.module  # the wrapper lacks its methods
    sgd = SGD(policy.parameters(), lr=0.1)
    loss = cross_entropy(policy(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    sgd.step()
""",
    stage=Real(trained, sparing=False),
    question="What makes `backward()` average the gradients?",
    choices={
        "that the model has been wrapped": "Wrapping hangs hooks on the parameters, and they "
        "wait: somebody has to tell them that a step begins.",
        "that the loss was computed through the wrapper": "`forward` of the wrapper tells its "
        "hooks that a backward is coming. `ddp.module` knows nothing of them.",
        "that the optimizer holds the wrapper's parameters": "They are the same parameters, and "
        "`step()` sends nothing: it uses the `.grad` that it finds.",
    },
    answer="that the loss was computed through the wrapper",
    cause="The forward of the wrapper makes its hooks ready. What runs through `model` or "
    "`ddp.module` is trained on each rank alone, without a word; each rank then has a model of "
    "its own, of which you save one. Compare the hashes of the ranks after the first step",
    fix={"cross_entropy(policy(": "cross_entropy(ddp("},
    tried={
        "find_unused_parameters": {"DDP(model)": "DDP(model, find_unused_parameters=True)"},
        "the loss is averaged": {
            """    loss.backward()
""": """    dist.all_reduce(loss.data)
    loss.data /= ranks
    loss.backward()
""",
        },
        "the weights of rank 0 after each step": {
            """    sgd.step()
""": """    sgd.step()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
""",
        },
    },
    reports=(
        Report("kohya-ss/sd-scripts#924", "unwrapped for training, each process learns alone"),
        Report("jingyaogong/minimind#854", "the loss of reinforcement learning bypasses DDP"),
    ),
    shows=("parameter `0.weight` is another on each rank",),
)

TEMPORARY = Exhibit(
    name="temporary",
    wing="disagree",
    symptom="The model is wrapped in every step, and the ranks' weights part in the first one",
    program=HEAD
    + """
def forward(model, x):
    return DDP(model)(x)  # always wrapped, whoever calls


def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sgd = SGD(model.parameters(), lr=0.1)
    loss = cross_entropy(forward(model, images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    sgd.step()
""",
    stage=Real(trained, sparing=False),
    question="The loss came through the wrapper. What is missing when `backward()` runs?",
    choices={
        "the wrapper": "Nobody holds it after `forward` has returned, and its hooks go with it.",
        "a broadcast of the weights": "Each new wrapper broadcasts them, and they are equal "
        "before the step. Look at what happens after the forward.",
        "a barrier, so that no rank runs ahead": "An all-reduce waits for all ranks by itself. "
        "A barrier does not start one.",
    },
    answer="the wrapper",
    cause="DDP's hooks live as long as the object that hung them. One that dies before "
    "`backward()` averages nothing, and nothing complains. Wrap once, and keep the wrapper as "
    "long as you train",
    fix={
        "    return DDP(model)(x)  # always wrapped, whoever calls\n": "    return model(x)\n",
        "    sgd = SGD(model": "    ddp = DDP(model)\n    sgd = SGD(model",
        "forward(model, images": "forward(ddp, images",
    },
    tried={
        "a barrier before the backward": {
            "    loss.backward()": "    dist.barrier()\n    loss.backward()",
        },
        "the optimizer gets the wrapper's parameters": {
            "SGD(model.parameters()": "SGD(DDP(model).parameters()",
        },
    },
    reports=(
        Report("pytorch/pytorch#21591", "the hooks of DDP are deleted together with its reducer"),
        Report("NCAR/miles-credit#153", "the trainer lost the wrapper, and errors jumped later"),
    ),
    shows=("parameter `0.weight` is another on each rank",),
)

PARALLEL = Exhibit(
    name="parallel",
    wing="disagree",
    symptom="Four processes compute, the network between them is idle, and nobody complains",
    program="""
import torch.distributed as dist
from torch.nn import DataParallel
from torch.nn.functional import cross_entropy
from torch.optim import SGD


def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parallel = DataParallel(model)
    sgd = SGD(parallel.parameters(), lr=0.1)
    loss = cross_entropy(parallel(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    sgd.step()
""",
    stage=Real(trained, sparing=False),
    question="Among whom does `DataParallel` share out a batch?",
    choices={
        "the processes of the job": "It calls nothing of `torch.distributed`: there is no "
        "process but its own for it.",
        "the GPUs of its own process": "It is older than DDP: one process, a thread for each GPU.",
        "the machines of the job": "It does not even leave its process.",
    },
    answer="the GPUs of its own process",
    cause="`nn.DataParallel` belongs to one process with several GPUs. Started once for each GPU, "
    "every process trains a model of its own. Between processes it takes "
    "`DistributedDataParallel`. Count the collectives of one step: there are none",
    fix={
        "from torch.nn import DataParallel\n": "",
        "import cross_entropy\n": "import cross_entropy\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n",
        "= DataParallel(model)": "= DDP(model)",
    },
    tried={
        "the same weights to begin with": {
            "    parallel = ": "    for p in model.parameters():\n"
            "        dist.broadcast(p.data, 0)\n    parallel = ",
        },
        "the loss is summed": {
            "    loss.backward()": "    dist.all_reduce(loss.data)\n    loss.backward()",
        },
    },
    reports=(Report("ultralytics/yolov5#264", "`DataParallel` and DDP are taken for one another"),),
    shows=("parameter `0.weight` is another on each rank",),
)


def _old(model: Any) -> str | None:
    """Say that the head is the old one, if it is."""
    old = digits_model()[2].weight
    same = model[2].weight.shape == old.shape and bool((model[2].weight == old).all())
    return (
        "the ranks agree, and the head is the old one: the new classes need another" * same or None
    )


REPLACED = Exhibit(
    name="replaced",
    wing="disagree",
    symptom="Fine-tuned for new classes, every rank calls them differently, and none learns",
    program=HEAD_NN
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(32, 10)  # a head for the new classes
    loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    sgd.step()
""",
    stage=Real(Trained(unfit=_old), sparing=False),
    question="The new layer is in the model that DDP wraps. Who knows of its weights?",
    choices={
        "DDP and the optimizer: it is in their model": "Neither asks the model again. Both have "
        "made a list of its parameters, and the old ones are on it.",
        "the forward alone": "It runs what is in the model now. The lists of DDP and of the "
        "optimizer are older.",
        "DDP, which looks at the model in each forward": "It looks at buffers there. Its hooks "
        "hang on the parameters of the day on which it was made.",
    },
    answer="the forward alone",
    cause="DDP and the optimizer hold parameters, not a model. One that is exchanged later is not "
    "broadcast, not averaged and not stepped. Build the model to its end, then wrap it, then make "
    "the optimizer",
    fix={
        "    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)\n"
        "    model[2] = nn.Linear(32, 10)  # a head for the new classes\n": "    model[2] = "
        "nn.Linear(32, 10)  # a head for the new classes\n"
        "    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)\n",
    },
    tried={
        "equal weights to begin with": {
            "    loss = cross": "    for p in model.parameters():\n"
            "        dist.broadcast(p.data, 0)\n    loss = cross",
        },
        "only the optimizer made later": {
            "    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)": "    ddp = DDP(model)",
            "    loss = cross": "    sgd = SGD(model.parameters(), lr=0.1)\n    loss = cross",
        },
        "find_unused_parameters": {"DDP(model)": "DDP(model, find_unused_parameters=True)"},
    },
    reports=(
        Report("pytorch/pytorch#12603", "a weight exchanged after wrapping is never averaged"),
        Report("openvinotoolkit/nncf#327", "a new parameter that the optimizer does not hold"),
    ),
    shows=("before the first step parameter `2.weight` is another on each rank",),
)

EXHIBITS = (UNWRAPPED, TEMPORARY, PARALLEL, REPLACED)
