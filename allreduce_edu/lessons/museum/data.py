"""Exhibits of wrong data: the ranks train on other images than one process would."""

from __future__ import annotations

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.returned import contrasted
from allreduce_edu.lessons.museum.seen import afresh, once
from allreduce_edu.lessons.museum.training import HEAD

_HEAD = """
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, Subset

"""
_LOOP = """
        sgd.zero_grad()
        cross_entropy(ddp(images), labels).backward()
        sgd.step()
"""

SAMPLER = Exhibit(
    name="sampler",
    wing="wrong",
    symptom="An epoch takes as long on four GPUs as on one, and the loss curve is the same",
    program=_HEAD
    + """
def train(model, digits):
    torch.manual_seed(0)  # every rank must start alike
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.5)
    loader = DataLoader(digits, batch_size=32, shuffle=True)
    for images, labels in loader:"""
    + _LOOP,
    stage=Real(once, sparing=False),
    question="The hashes of all ranks are equal after every step. What has this ruled out?",
    choices={
        "that anything is wrong": "Equal hashes say that the ranks agree. What they agree on, no "
        "hash can say: here it is what one rank reaches alone.",
        "that ranks have drifted apart": "That, and no more: the calls are made and the averages "
        "are equal. Ask next what was averaged.",
        "that the ranks read the same images": "The average of four equal gradients is that "
        "gradient. Equal data leave equal hashes, and different data too.",
    },
    answer="that ranks have drifted apart",
    cause="No `DistributedSampler`, one seed: every rank reads every image, in one order, and the "
    "average of equal gradients is the gradient. `len(loader)` shows it: with N ranks it must be "
    "N times smaller",
    fix={"shuffle=True)": "sampler=DistributedSampler(digits))"},
    tried={
        "another seed on each rank": {"manual_seed(0)": "manual_seed(dist.get_rank())"},
        "a batch four times as large": {"batch_size=32": "batch_size=128"},
        "a learning rate times N": {"lr=0.5": "lr=0.5 * dist.get_world_size()"},
    },
    reports=(
        Report("clovaai/voxceleb_trainer#98", "training on many GPUs that is that of one"),
        Report("openspeech-team/openspeech#149", "the same batch on every GPU"),
        Report("Parskatt/RoMa#32", "a sampler that knows of no other ranks, under DDP"),
    ),
    shows=("bit for bit, on the weights of one rank that trains alone", "the same 32 images"),
)

EPOCH = Exhibit(
    name="epoch",
    wing="wrong",
    symptom="The loss curve of every epoch has its bumps at the same steps",
    program=_HEAD
    + """
def train(model, digits):
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.5)
    sampler = DistributedSampler(digits, shuffle=True)
    loader = DataLoader(digits, batch_size=32, sampler=sampler)
    for epoch in range(3):
        for images, labels in loader:
            sgd.zero_grad()
            cross_entropy(ddp(images), labels).backward()
            sgd.step()
""",
    stage=Real(afresh, sparing=False),
    question="`shuffle=True`, and every epoch has the same order. How can that be?",
    choices={
        "all ranks have the same random seed": "They must: each takes every fourth place of one "
        "shuffled order, and that order must be the same on all. The question is why it is the "
        "same in the next epoch.",
        "`shuffle` belongs to the DataLoader": "Give the `DataLoader` both and it raises: the "
        "order is the sampler's, and this sampler does shuffle, once.",
        "the sampler makes its order from a seed and the number of the epoch": "And nobody tells "
        "it the number: the ranks have no other way to shuffle anew and still agree.",
    },
    answer="the sampler makes its order from a seed and the number of the epoch",
    cause="`DistributedSampler` shuffles with `seed + epoch`, and knows the epoch from "
    "`set_epoch` alone. Call it before each epoch; print the first labels of two epochs to notice",
    fix={
        """    for epoch in range(3):
""": """    for epoch in range(3):
        sampler.set_epoch(epoch)
""",
    },
    tried={
        "seed torch in each epoch": {
            """    for epoch in range(3):
""": """    for epoch in range(3):
        torch.manual_seed(epoch)
""",
        },
        "another seed on each rank": {"shuffle=True": "seed=dist.get_rank()"},
        "set_epoch after the epoch": {
            "            sgd.step()\n": "            sgd.step()\n        sampler.set_epoch(epoch)\n"
        },
    },
    reports=(
        Report("pytorch/pytorch#31771", "a shuffled sampler with the same order in each epoch"),
        Report("kan-bayashi/ParallelWaveGAN#177", "training code that forgot `set_epoch`"),
        Report("yangkky/distributed_tutorial#5", "a tutorial that forgot it"),
    ),
    shows=("epoch 1 is epoch 0 again", "128 of the 128 images"),
)

SHUFFLED = Exhibit(
    name="shuffled",
    wing="wrong",
    symptom="Rare classes are learned on one GPU and forgotten on four, in the same epochs",
    program=_HEAD
    + """
def train(model, digits):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # so that no two ranks draw the same dropout
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.5)
    order = torch.randperm(len(digits))
    mine = Subset(digits, order[rank::ranks])
    for images, labels in DataLoader(mine, batch_size=32):"""
    + _LOOP,
    stage=Real(once, sparing=False),
    question="Each rank takes every fourth place of an order. What must hold of that order?",
    choices={
        "it must be random": "It is, on each rank, and that is not enough: four hands of cards "
        "from four packs hold some cards twice.",
        "it must be the same on all ranks": "Parts of one order share nothing and leave nothing "
        "out. Parts of four orders share some images and leave some out.",
        "it must differ, or all ranks read the same images": "They read different places of it. "
        "One pack of cards, dealt to four, is what is wanted.",
    },
    answer="it must be the same on all ranks",
    cause="Ranks that shuffle with seeds of their own deal from different packs: about a third of "
    "the images is in nobody's hand. Shuffle with a generator whose seed is equal on all ranks; to "
    "notice, gather the indices of an epoch and count them",
    fix={"randperm(len(digits))": "randperm(len(digits), generator=torch.Generator())"},
    tried={
        "blocks in place of every fourth": {
            "order[rank::ranks]": "order.chunk(ranks)[rank]",
        },
        "all of it on each rank": {"order[rank::ranks]": "order"},
        "a barrier after the shuffle": {
            "    mine =": "    dist.barrier()\n    mine =",
        },
    },
    reports=(
        Report("NVlabs/LongLive#71", "a seed made of time and rank: samples shared and lost"),
        Report("mlcommons/training#625", "workers whose shares overlap by a quarter"),
        Report("TensorAuto/OpenTau#501", "an order drawn from a state that depends on the rank"),
    ),
    shows=("of 1,437 images are seen by no rank", "and ranks"),
)

LOCAL_RANK = Exhibit(
    name="local_rank",
    wing="wrong",
    symptom="A second machine makes an epoch half as long, and the model worse",
    program=_HEAD.replace("import torch\n", "import os\n\n", 1)
    + """
def train(model, digits):
    rank, ranks = int(os.environ["LOCAL_RANK"]), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.5)
    share = DistributedSampler(digits, num_replicas=ranks, rank=rank)
    for images, labels in DataLoader(digits, batch_size=32, sampler=share):"""
    + _LOOP,
    stage=Real(once, sparing=False),
    question="Two machines with two GPUs each. Which `LOCAL_RANK` has the third process?",
    choices={
        "2": "That is its `RANK`, the number among all. `LOCAL_RANK` begins again on each machine.",
        "0": "It is the first on its machine, and takes the share of rank 0 once more; nobody "
        "takes its own.",
        "3": "Ranks count from 0, so the third of all is 2, and the third is first on machine 1.",
    },
    answer="0",
    cause="`LOCAL_RANK` chooses the GPU, `RANK` the share of the data. On one machine they are "
    "equal, so the fault waits for the second, where each machine reads the same part. Use "
    "`dist.get_rank()`, and test with more than one node",
    fix={'int(os.environ["LOCAL_RANK"])': "dist.get_rank()"},
    tried={
        "as many shares as GPUs on a machine": {"num_replicas=ranks": "num_replicas=2"},
        "shuffle with another seed on each rank": {
            "rank=rank)": "rank=rank, seed=dist.get_rank())"
        },
    },
    reports=(
        Report("vllm-project/speculators#427", "every node reads the same shards"),
        Report("pytorch/examples#1263", "`local_rank` or `rank`, when there are several nodes?"),
    ),
    shows=("718 of 1,437 images are seen by no rank", "ranks 0 and 2 both see 360 of the 360"),
)

NEGATIVES = Exhibit(
    name="negatives",
    wing="wrong",
    symptom="A contrastive model trained on 4 x 16 pairs is no better than one trained on 16",
    program="\nimport torch\n"
    + HEAD.lstrip()
    + """
def train(model, left, right):  # two views of each image
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    both = ddp(torch.cat([left[rank::ranks], right[rank::ranks]]))
    a, b = both.chunk(2)
    scores = a @ b.T  # each image against all others
    loss = cross_entropy(scores, torch.arange(len(scores)))
    loss.backward()
    sgd.step()
""",
    stage=Real(contrasted, sparing=False),
    question="64 pairs on four ranks. Against how many others is each image told apart?",
    choices={
        "63": "So it is in one process. Here `scores` has 16 columns: those of the rank's own "
        "images.",
        "15": "The loss is a mean of four losses, and each of them knows its own 16 images. That "
        "is an easier task than one among 64.",
        "60": "DDP averages what the ranks have learned. It does not show them each other's "
        "images.",
    },
    answer="15",
    cause="DDP gives the gradient of the *mean of the ranks' losses*. It is that of the big batch "
    "only where each example has a loss of its own; here, and in a BatchNorm, examples meet. "
    "Gather the embeddings, with their gradients. To notice, count the columns of `scores`",
    fix={
        "    a, b = both.chunk(2)\n": """    every = [torch.empty_like(both) for _ in range(ranks)]
    dist.all_gather(every, both.detach())
    every[rank] = both  # the part that this rank's backward goes through
    a, b = (half.flatten(0, 1) for half in torch.stack(every).chunk(2, 1))
""",
        "    loss.backward()": "    (loss * ranks).backward()  # parts are summed, DDP averages",
    },
    tried={
        "gather without gradients": {
            "    a, b = both.chunk(2)\n": """    a, b = both.chunk(2)
    every = [torch.empty_like(b) for _ in range(ranks)]
    dist.all_gather(every, b.detach().contiguous())
    every = every[rank:] + every[:rank]  # its own first
    b = torch.cat(every)
""",
            "torch.arange(len(scores))": "torch.arange(len(a))",
        },
        "gather, and let DDP average": {
            "    a, b = both.chunk(2)\n": """    every = list(torch.empty(ranks, *both.shape))
    dist.all_gather(every, both.detach())
    every[rank] = both
    a, b = (half.flatten(0, 1) for half in torch.stack(every).chunk(2, 1))
""",
        },
        "a loss times N": {"    loss.backward()": "    (loss * ranks).backward()"},
    },
    reports=(
        Report("facebookresearch/vissl#474", "how a batch over many GPUs has its negatives"),
        Report("texttron/tevatron#30", "why the loss is scaled by N after gathering"),
        Report("PANXiao1994/mRASP2#11", "a contrastive loss within each GPU's batch"),
    ),
    shows=("all ranks agree, on another gradient", "from 63 others, a rank from 15"),
)

EXHIBITS = (SAMPLER, EPOCH, SHUFFLED, LOCAL_RANK, NEGATIVES)
