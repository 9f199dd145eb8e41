"""Exhibits of numbers about a run: logs, meters, accuracies, and what logging does to training."""

from __future__ import annotations

from typing import Any

import numpy as np

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.returned import evaluated, logged
from allreduce_edu.lessons.museum.simulated import Simulated
from allreduce_edu.lessons.museum.training import HEAD


def _hits(ranks: int) -> Any:
    """Return for 90 images of each rank whether they are read right: most of them are."""
    return (np.arange(90) + np.arange(ranks)[:, None]) % (5 + ranks) > 0


def _means_so_far(losses: Any) -> Any:
    return losses.mean(0).cumsum() / np.arange(1, losses.shape[1] + 1)


PADDING = Exhibit(
    name="padding",
    wing="wrong",
    symptom="The same checkpoint has another accuracy on four GPUs than on one, in the third digit",
    program="""
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

def evaluate(model, test):
    share = DistributedSampler(test, shuffle=False)
    seen = torch.zeros(2)
    for images, labels in DataLoader(test, batch_size=32, sampler=share):
        right = (model(images).argmax(1) == labels).sum()
        seen += torch.tensor([right, len(labels)])
    dist.all_reduce(seen)
    return float(seen[0] / seen[1])
""",
    stage=Real(evaluated, sparing=False),
    question="357 images on 4 ranks: how many does each read?",
    choices={
        "90, 89, 89, 89": "That would be right for a test. The sampler is made for training, where "
        "ranks with fewer batches would leave the others waiting.",
        "90 each": "360 in all: the first three are read twice, so that all shares are equal.",
        "89 each": "So it is with `drop_last=True`. One image is then in nobody's share.",
    },
    answer="90 each",
    cause="`DistributedSampler` repeats samples, or drops some, until N divides them. In training "
    "it hardly matters; a metric counts them. Give each rank `range(rank, len(test), ranks)` when "
    "testing, and compare the number of samples counted with that of the data",
    fix={
        "    share = DistributedSampler(test, shuffle=False)\n": "    "
        "share = range(dist.get_rank(), len(test), dist.get_world_size())\n",
    },
    tried={
        "drop_last": {"shuffle=False": "shuffle=False, drop_last=True"},
        "divide by the number of images": {"seen[0] / seen[1]": "seen[0] / len(test)"},
        "shuffle": {"shuffle=False": "shuffle=True"},
    },
    reports=(
        Report("pytorch/pytorch#25162", "a validation accuracy that padding makes wrong"),
        Report("roboflow/rf-detr#1507", "metrics that count the images repeated"),
        Report("facebookresearch/deit#24", "an accuracy that depends on the number of GPUs"),
    ),
    shows=("have read 360 images together; there are 357",),
)

LOG = Exhibit(
    name="log",
    wing="wrong",
    symptom="The logged loss is four times that of one GPU, and the model is as good as ever",
    program=HEAD
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    sgd.step()
    total = loss.detach()
    dist.all_reduce(total)
    return total.item()
""",
    stage=Real(logged, sparing=False),
    question="DDP averages gradients. Who averages the loss that is logged?",
    choices={
        "DDP too": "DDP sees gradients alone. The loss of each rank stays what it is: that of its "
        "own images.",
        "`all_reduce` does": "Its default is SUM. The mean must be asked for, or made.",
        "nobody": "The sum of four means is four times their mean. The training is right: only "
        "what is told of it is not.",
    },
    answer="nobody",
    cause="`all_reduce` sums, and a sum of N means is N times the mean. Log a constant, say 1, in "
    "the same way: if N comes out, the loss is N times too large as well. Mend the log, not the "
    "step",
    fix={"total.item()": "total.item() / ranks"},
    tried={
        "divide the loss before backward": {
            "    loss.backward()": "    loss = loss / ranks\n    loss.backward()"
        },
        "the loss of rank 0 for all": {"all_reduce(total)": "broadcast(total, 0)"},
        "each rank its own": {"    dist.all_reduce(total)\n": ""},
    },
    reports=(
        Report("HRNet/HRNet-Semantic-Segmentation#34", "a sum logged in the place of a mean"),
        Report("bigscience-workshop/metadata#160", "a log of the main process's loss alone"),
    ),
    shows=("4 times as much. The step itself is right",),
)

IN_PLACE = Exhibit(
    name="in_place",
    wing="wrong",
    symptom="Since we log the mean loss of all ranks, training needs four times the epochs",
    program=HEAD
    + """
def log(loss):
    dist.all_reduce(loss.detach())  # no gradient flows through the log
    loss /= dist.get_world_size()
    return loss.item()

def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
    shown = log(loss)
    loss.backward()
    sgd.step()
    return shown
""",
    stage=Real(logged, sparing=False),
    question="What does `log` change, besides what it returns?",
    choices={
        "nothing, it detaches": "`detach()` makes a second name for the same number, and `/=` is "
        "on the first name. Neither makes a copy.",
        "the value of the loss": "That too, and it does no harm: `backward()` does not read it. "
        "What it reads is how the loss was made.",
        "the value of the loss and its graph": "`loss /= N` is a step of the computation: "
        "`backward()` goes back through it and divides the gradient by N.",
    },
    answer="the value of the loss and its graph",
    cause="What is done in place to the loss before `backward()` is part of the model. DDP has "
    "averaged, and the log divides again. Log a copy, `loss.detach().clone()`, and after the step; "
    "a step with and without logging must leave equal bits",
    fix={
        """    dist.all_reduce(loss.detach())  # no gradient flows through the log
""": """    loss = loss.detach().clone()
    dist.all_reduce(loss)
""",
    },
    tried={
        "divide before the sum": {
            """    dist.all_reduce(loss.detach())  # no gradient flows through the log
    loss /= dist.get_world_size()
""": """    loss /= dist.get_world_size()
    dist.all_reduce(loss.detach())
""",
        },
        "a learning rate times N": {"lr=0.1": "lr=0.1 * ranks"},
        "a view in the place of a copy": {
            "    loss /=": "    loss = loss.view(1)\n    loss /=",
        },
    },
    reports=(
        Report("NVIDIA/apex#664", "a loss reduced and divided before backward: which is right?"),
        Report("sanderwood/bgpt#5", "a loss divided for the log, and again by DDP"),
    ),
    shows=("0.25 times that of one process",),
)

METER = Exhibit(
    name="meter",
    wing="wrong",
    symptom="The running mean in the log grows without end, while the model learns",
    program="""
import numpy as np

def train(comm, losses):
    total, log = np.zeros(1), []
    for step, loss in enumerate(losses, 1):
        total += loss
        comm.all_reduce(total)  # over all ranks
        log.append(total[0] / (step * comm.size))
    return np.array(log)
""",
    stage=Simulated(right=_means_so_far),
    question="Which losses are in `total` after the all-reduce of step 2, and how often?",
    choices={
        "each of both steps once": "So it is in step 1. In step 2 `total` is on every rank "
        "already the sum of all, and N ranks bring it.",
        "those of step 1 N times, those of step 2 once": "Each rank brings the sum of step 1, and "
        "N equal sums are added. After step 3 it is there N times N times.",
        "those of step 2 alone": "`total` is never set back: it carries step 1 along.",
    },
    answer="those of step 1 N times, those of step 2 once",
    cause="`all_reduce` writes its result where the rank's own share was, and the next one counts "
    "it N times. Keep what is the rank's own, and reduce a copy. The first line of the log is "
    "right; look at the second",
    fix={
        """        comm.all_reduce(total)  # over all ranks
        log.append(total[0] / (step * comm.size))
""": """        every = comm.all_reduce(total.copy())
        log.append(every[0] / (step * comm.size))
""",
    },
    tried={
        "a copy that nobody reads": {"all_reduce(total)": "all_reduce(total.copy())"},
        "the mean in place of the sum": {"all_reduce(total)": 'all_reduce(total, "avg")'},
        "set back in every step": {"        total += loss": "        total = np.array([loss])"},
    },
    reports=(
        Report("pytorch/ignite#2803", "a metric that is computed, updated and computed again"),
        Report("Lightning-AI/pytorch-lightning#3713", "an accuracy of 714, reduced once too often"),
    ),
    shows=("all ranks agree on [ 277.75", "one process with all the data has [277.75"),
)

OVERFLOW = Exhibit(
    name="overflow",
    wing="wrong",
    symptom="The accuracy is right on two GPUs and nonsense on four",
    program="""
import numpy as np

def accuracy(comm, hits):  # for each of a rank's 90 images: is it read right?
    seen = np.zeros(2, np.uint8)  # 90 fits in a byte
    for hit in hits:
        seen += np.array([hit, 1], np.uint8)
    comm.all_reduce(seen)
    return seen[0] / seen[1]
""",
    stage=Simulated(right=lambda hits: hits.mean(), data=_hits),
    question="Four ranks with 90 images each. What is in `seen[1]` afterwards?",
    choices={
        "360": "In a byte there is room up to 255, and the sum is made in bytes.",
        "104": "360 - 256: integers wrap around, in the all-reduce too, and nobody is told.",
        "255": "A byte that stays at its largest value would have to be asked for. Sums wrap "
        "around.",
    },
    answer="104",
    cause="A dtype must hold the sum over all ranks, not the share of one, and an all-reduce adds "
    "in the dtype that it is given. With more ranks or a larger test set it wraps around in "
    "silence: count in int64",
    fix={
        "    seen = np.zeros(2, np.uint8)  # 90 fits in a byte": "    seen = np.zeros(2, np.int64)"
    },
    tried={
        "wider after the sum": {
            "    comm.all_reduce(seen)\n": "    comm.all_reduce(seen)\n"
            "    seen = seen.astype(np.int64)\n",
        },
        "signed bytes": {
            "zeros(2, np.uint8)": "zeros(2, np.int8)",
            "[hit, 1], np.uint8": "[hit, 1], np.int8",
        },
    },
    reports=(
        Report("NVIDIA/nccl#422", "how are overflows handled in an all-reduce? they are not"),
        Report("PaddlePaddle/PaddleFleet#1761", "a histogram that is summed over ranks in int64"),
        Report("MFlowCode/MFC#1605", "a count of 32 bits that the sum over ranks overflows"),
    ),
    shows=("all ranks agree on 0.61", "one process with all the data has 0.88"),
)

EXHIBITS = (PADDING, LOG, IN_PLACE, METER, OVERFLOW)
