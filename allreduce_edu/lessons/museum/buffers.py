"""Exhibits of buffers that gloo takes as they are: strides, dtypes, operations."""

from __future__ import annotations

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.returned import means, recalls, spikes

STRIDED = Exhibit(
    name="strided",
    wing="disagree",
    symptom="The recall of some classes is beyond 1, and each rank prints others",
    program="""
import torch.distributed as dist

def recall(table):  # for each class: how many images, how many of them found
    images, found = table[:, 0], table[:, 1]
    dist.all_reduce(images)
    dist.all_reduce(found)
    return found / images
""",
    stage=Real(recalls, sparing=False),
    question="`images` is a column of a table. Which numbers does gloo add?",
    choices={
        "the column": "It gets an address and a count, ten, and no stride: it takes the first ten "
        "numbers that lie there.",
        "the first ten numbers of the table": "From where the column begins, one after the other: "
        "half of them belong to the other column, and half of the column is left out.",
        "none, it refuses": "NCCL does, and says that tensors must be contiguous. gloo says "
        "nothing.",
    },
    answer="the first ten numbers of the table",
    cause="A column is a view with a stride, and gloo reads memory as if there were none. NCCL "
    "refuses such tensors, so the fault waits for runs on gloo. Ask `x.is_contiguous()`; reduce "
    "the whole table, or a contiguous copy that you go on with",
    fix={
        """    images, found = table[:, 0], table[:, 1]
    dist.all_reduce(images)
    dist.all_reduce(found)
""": """    dist.all_reduce(table)
    images, found = table[:, 0], table[:, 1]
""",
    },
    tried={
        "contiguous copies, which are dropped": {
            "all_reduce(images)": "all_reduce(images.contiguous())",
            "all_reduce(found)": "all_reduce(found.contiguous())",
        },
        "a barrier between the two": {
            "    dist.all_reduce(found)": "    dist.barrier()\n    dist.all_reduce(found)",
        },
    },
    reports=(
        Report("pytorch/pytorch#192920", "wrong results on a matrix column"),
        Report("pytorch/pytorch#24836", "a scatter of every second element, wrong since 2019"),
        Report("NVIDIA/Megatron-LM#5337", "a contiguous copy is reduced, and then dropped"),
    ),
    shows=("the ranks disagree: rank 0 ends with", "rank 1 with"),
)

DTYPES = Exhibit(
    name="dtypes",
    wing="disagree",
    symptom="The mean score is wrong on some days, and then one rank prints another than the rest",
    program="""
import numpy as np
import torch
import torch.distributed as dist

def mean_score(scores):  # a list of numbers
    total = torch.from_numpy(np.array([sum(scores), len(scores)]))
    dist.all_reduce(total)
    return float(total[0] / total[1])
""",
    stage=Real(means, sparing=False),
    question="On rank 2 all scores are whole: `[1, 1]`. What is another there?",
    choices={
        "nothing, 2 and 2.0 are equal": "As numbers. In memory they are not, and what travels is "
        "memory.",
        "the dtype of `total`": "Two ints make an array of int64, a float and an int one of "
        "float64. Both take 8 bytes, so the sizes match, and nobody converts.",
        "the size of `total`": "Two elements of 8 bytes on every rank. Were the sizes different, "
        "gloo would abort, and you would know.",
    },
    answer="the dtype of `total`",
    cause="An all-reduce does not convert: each rank adds the bytes that come as if they were of "
    "its own dtype. Equal sizes give garbage, others an abort or a hang. Name the dtype wherever "
    "numbers of Python become a tensor; `TORCH_DISTRIBUTED_DEBUG=DETAIL` finds it",
    fix={"len(scores)])": "len(scores)], dtype=np.float64)"},
    tried={
        "converted afterwards": {
            "    dist.all_reduce(total)\n": "    dist.all_reduce(total)\n"
            "    total = total.double()\n",
        },
        "torch.tensor in its place": {
            "torch.from_numpy(np.array([sum(scores), len(scores)]))": "torch.tensor("
            "[sum(scores), len(scores)])",
        },
    },
    reports=(
        Report("pytorch/pytorch#150248", "strange values where one rank has another dtype"),
        Report("modelscope/ms-swift#9551", "a metric whose dtype depends on the rank's numbers"),
    ),
    shows=("rank 0 ends with 0.75, rank 2 with 0.99", "one process with all the data has 0.81"),
)

SPIKE = Exhibit(
    name="spike",
    wing="wrong",
    symptom="After a spike the logged norms are neither the sums nor the largest, on all ranks",
    program="""
import torch.distributed as dist

def norms_of_all(norms):
    # The sums over all ranks; in case of a spike on any rank, the largest.
    op = dist.ReduceOp.SUM
    if norms.max() > 5000:
        op = dist.ReduceOp.MAX
    dist.all_reduce(norms, op)
    return norms
""",
    stage=Real(spikes, sparing=False),
    question="Rank 1 has a spike. What do the four ranks call?",
    choices={
        "all of them MAX": "Each asks its own numbers, and three see no spike.",
        "rank 1 MAX, the others SUM": "Each rank adds with its own operation what comes by. So "
        "every element is made in part by one and in part by the other.",
        "it cannot matter, or there would be an error": "Neither gloo nor DETAIL compares the "
        "operations. The sizes match, and all come.",
    },
    answer="rank 1 MAX, the others SUM",
    cause="A decision made of a rank's own numbers differs between ranks, and a collective does "
    "not compare what its callers want: all end with the same wrong bits. Decide together first, "
    "with an all-reduce of the flag",
    fix={
        """    if norms.max() > 5000:
""": """    spike = (norms.max() > 5000).int()
    dist.all_reduce(spike, dist.ReduceOp.MAX)
    if spike:
""",
    },
    tried={
        "the flag of rank 0 for all": {
            """    if norms.max() > 5000:
""": """    spike = (norms.max() > 5000).int()
    dist.broadcast(spike, 0)
    if spike:
""",
        },
        "a barrier before the call": {
            "    dist.all_reduce(norms, op)": "    dist.barrier()\n    dist.all_reduce(norms, op)",
        },
    },
    reports=(
        Report("mosaicml/composer#2513", "ranks that reduce different metrics in one call"),
        Report("ecmwf/WeatherGenerator#2724", "a spike that only its own rank knows of"),
    ),
    shows=("all ranks agree on [1100. 2200. 3000.", "has [1000. 2000. 3000."),
)

EXHIBITS = (STRIDED, DTYPES, SPIKE)
