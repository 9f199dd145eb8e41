"""Exhibits of the wing "it hangs": what rank 0 does alone, and all others would have to do too."""

from __future__ import annotations

from typing import Any

import numpy as np

from allreduce_edu.engine import spmd
from allreduce_edu.lessons.museum.exhibit import Examined, Exhibit, Report
from allreduce_edu.lessons.museum.simulated import Simulated, not_right, shares, shown

BARRIER = Exhibit(
    name="barrier",
    wing="hangs",
    symptom="The first step is logged, and then nothing moves, without an error, for half an hour",
    program="""
def train(comm, x):
    for step in range(3):
        comm.all_reduce(x)
        if comm.rank == 0:
            print("step", step, "done")
            comm.barrier()  # wait until the others have come as far
        x /= comm.size
    return x
""",
    stage=Simulated(right=lambda x: x.mean(0), most=2),
    question="Rank 0 is in a barrier. What are the others waiting for?",
    choices={
        "for rank 0 to leave the barrier": "A barrier does not end by itself. Rank 0 waits in it "
        "for the others, and they are not on their way to it.",
        "for rank 0 in the next all-reduce": "They never come to the barrier: its line is rank "
        "0's alone.",
        "for nothing: they are only slower": "Then they would arrive. Look at the lines: theirs "
        "is the `all_reduce` of the next step.",
    },
    answer="for rank 0 in the next all-reduce",
    cause="A barrier is a collective: whoever is not in it keeps the others in it. On one rank "
    "alone it never ends, and what it should order, it need not: an all-reduce waits by itself",
    fix={
        """            comm.barrier()  # wait until the others have come as far
""": "",
    },
    tried={
        "the barrier first, then the line of the log": {
            """            print("step", step, "done")
            comm.barrier()  # wait until the others have come as far
""": """            comm.barrier()  # wait until the others have come as far
            print("step", step, "done")
""",
        },
        "only after the last step": {"if comm.rank == 0:": "if comm.rank == 0 and step == 2:"},
    },
    reports=(
        Report(
            "huggingface/transformers#1081",
            "only the main process evaluates, and comes to a barrier that the others have passed",
        ),
        Report("huggingface/transformers-bloom-inference#40", "rank 0 alone calls a barrier"),
    ),
    shows=("is barrier on rank 0, but all_reduce sum on ranks 1-3", "line 6 of train"),
)


def validation(ranks: int) -> list[Any]:
    """Return each rank's validation images, 1 where the guess is right: fewer on low ranks."""
    return [np.array([1.0] * (rank + 1) + [0.0]) for rank in range(ranks)]


def same_calls_and_metric(run: spmd.Run, x: list[Any]) -> Examined:
    """Ask that all ranks make the same calls, and that rank 0 has the metric of all images."""
    return different_calls(run), _on_rank_0(run.results[0], np.concatenate(x).mean())


def _on_rank_0(got: Any, right: Any) -> str | None:
    if not_right(got, right) is None:
        return None
    return f"rank 0 reports {shown(got)}, and over the data of all ranks it is {shown(right)}"


def different_calls(run: spmd.Run) -> str | None:
    """Say which rank makes other collectives than rank 0, where the tapes part."""
    tapes: list[list[str]] = [[] for _ in range(run.ranks)]
    for event in run.trace:
        if event.kind == "post" and event.requests[0].side == "all":
            tapes[event.rank].append(event.requests[0].call)
    other = next((rank for rank, tape in enumerate(tapes) if tape != tapes[0]), None)
    if other is None:
        return None
    told = [f"  rank {r}: {' '.join(tapes[r]) or 'none'}" for r in (0, other)]
    return "\n".join([f"rank {other} makes other calls than rank 0.", "", *told])


VALIDATE = Exhibit(
    name="validate",
    wing="hangs",
    symptom="An epoch of training, then validation, and after 30 minutes: Timed out waiting",
    program="""
import numpy as np

def accuracy(comm, hits):  # hits: 1 or 0 for each of this rank's images
    both = np.array([hits.sum(), len(hits)])
    comm.all_reduce(both)  # of all ranks
    return both[0] / both[1]

def train(comm, hits):
    gradient = np.ones(4)
    for epoch in range(2):
        comm.all_reduce(gradient)
        if comm.rank == 0:  # one rank is enough to validate
            metric = accuracy(comm, hits)
            print(f"epoch {epoch}: {metric:.3f}")
        comm.barrier()  # until rank 0 has validated
    return metric if comm.rank == 0 else None
""",
    stage=Simulated(data=validation, examine=same_calls_and_metric),
    question="A job hangs when it validates. Raise the time-out to two hours?",
    choices={
        "yes: validation takes longer than a step": "If it were late, it would arrive. Ask who is "
        "where: rank 0 and the others are in *different* calls, so nobody is on the way.",
        "no: first see which call each rank is in": "Two calls that are not the same never meet, "
        "however long they wait. The message only comes later.",
        "no: a barrier after the validation will do": "There is one already, and three ranks wait "
        "in it.",
    },
    answer="no: first see which call each rank is in",
    cause="What rank 0 does alone must not contain a collective, and `accuracy` contains one, a "
    "function away: the stacks of rank 0 and of the others show two different calls. So does "
    "`ddp(x)` with buffers: use `ddp.module(x)`, or let all ranks validate",
    fix={
        """        if comm.rank == 0:  # one rank is enough to validate
            metric = accuracy(comm, hits)
            print(f"epoch {epoch}: {metric:.3f}")
""": """        metric = accuracy(comm, hits)
        if comm.rank == 0:
            print(f"epoch {epoch}: {metric:.3f}")
""",
    },
    tried={
        "a barrier on rank 0 as well": {
            "        comm.barrier()  # until": "            comm.barrier()\n"
            "        comm.barrier()  # until",
        },
        "a longer time-out": {
            "    gradient = np.ones(4)\n": "    comm.timeout = 7200\n    gradient = np.ones(4)\n",
        },
        "each rank validates its own, rank 0 prints its own": {
            "    comm.all_reduce(both)  # of all ranks\n": "",
        },
        "no barrier": {"        comm.barrier()  # until rank 0 has validated\n": ""},
    },
    reports=(
        Report(
            "pytorch/pytorch#54059", "one rank validates through DDP, the rest wait in a barrier"
        ),
        Report("mlfoundations/open_clip#1152", "rank 0 validates a model that is still wrapped"),
    ),
    shows=("is all_reduce sum on rank 0, but barrier on ranks 1-3", "line 5 of accuracy"),
)


def whole_on_rank_0(run: spmd.Run, x: Any) -> Examined:
    """Ask that rank 0 has the state of all ranks, after two steps."""
    return None, _on_rank_0(run.results[0], np.concatenate(list(x)) + 2 * len(x))


SAVE = Exhibit(
    name="save",
    wing="hangs",
    symptom="Training ends, `saving ...` is the last line of the log, and the job never ends",
    program="""
import numpy as np

def whole_state(comm, shard):
    return np.concatenate(comm.all_gather(shard))

def train(comm, shard):  # each rank holds a part of the weights
    for step in range(2):
        shard += comm.all_reduce(np.ones(1))
    if comm.rank == 0:  # as everybody knows, one rank saves
        print("saving ...")
        return whole_state(comm, shard)  # goes to the disk
    return None
""",
    stage=Simulated(data=shares, examine=whole_on_rank_0, most=2),
    question="It is the last step, and only the saving is left. Who is missing?",
    choices={
        "the disk: it is full or slow": "Then rank 0 would be in a write. It is in an "
        "`all_gather`, and a disk is not asked there.",
        "the ranks that have ended": "To put the parts together is work for all. They have "
        "returned without it, and do not complain.",
        "nobody: rank 0 has all the weights": "It has a part. The whole state is gathered, in a "
        "function whose name does not say so.",
    },
    answer="the ranks that have ended",
    cause="Saving on one rank is right where every rank holds the whole model. With a sharded "
    "state (FSDP, ZeRO) the state is gathered first: all ranks must call, and one then writes. To "
    "notice, `py-spy dump`: one rank is in a gather, and the others are at their end",
    fix={
        """    if comm.rank == 0:  # as everybody knows, one rank saves
        print("saving ...")
        return whole_state(comm, shard)  # goes to the disk
    return None
""": """    state = whole_state(comm, shard)
    if comm.rank == 0:
        print("saving ...")
        return state  # goes to the disk
    return None
""",
    },
    tried={
        "the others wait in a barrier": {"    return None": "    comm.barrier()\n    return None"},
        "rank 0 saves what it has": {
            "return whole_state(comm, shard)  # goes": "return shard  # goes",
        },
    },
    reports=(
        Report("deepspeedai/DeepSpeed#801", "a checkpoint is saved by all ranks, or by none"),
        Report("pytorch/pytorch#143536", "FSDP freezes after its last step, gathering the state"),
    ),
    shows=("ranks 1-3 have returned and do not call all_gather", "line 4 of whole_state"),
)

EXHIBITS = (BARRIER, VALIDATE, SAVE)
