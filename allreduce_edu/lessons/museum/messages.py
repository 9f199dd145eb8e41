"""Exhibits of messages and meetings: wrong sums, right sums at a price, a measured wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from allreduce_edu.lessons.museum.counted import economical, late, measured, timed, vectors
from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.simulated import Simulated, shares


def losses(ranks: int) -> list[Any]:
    """Return the losses of each rank: one fewer on the last, so a mean of means is not the mean."""
    return [row[: ranks - (rank == ranks - 1)] for rank, row in enumerate(shares(ranks))]


REDUCE = Exhibit(
    name="reduce",
    wing="disagree",
    symptom="Some ranks lower the learning rate and others do not, from one reduced loss",
    program="""
import numpy as np

def mean_loss(comm, losses):  # what the scheduler of each rank reads
    total = np.array([losses.sum(), losses.size])
    comm.reduce(total, root=0)
    return total[0] / total[1]
""",
    stage=Simulated(right=lambda x: np.concatenate(x).mean(), data=losses, sparing=False),
    question="After `reduce` to rank 0: what is in `total` on rank 1?",
    choices={
        "the sum of all ranks": "That is what `all_reduce` leaves everywhere. `reduce` leaves it "
        "on the root.",
        "what rank 1 put in": "Often, and no one promises it: the buffer is room to work in, and "
        "on gloo it ends with sums of some of the ranks.",
        "nothing that anyone promises": "Only the root's buffer has a meaning afterwards. On gloo "
        "the others hold partial sums, which look like numbers of the right size.",
    },
    answer="nothing that anyone promises",
    cause="`reduce` gives the sum to its root alone; what it leaves on the others differs by "
    "backend, size and rank. Print the value on every rank to notice. What every rank reads must "
    "come from `all_reduce`",
    fix={"comm.reduce(total, root=0)": "comm.all_reduce(total)"},
    tried={
        "a barrier after it": {
            "root=0)\n": "root=0)\n    comm.barrier()\n",
        },
        "reduce to each rank in turn": {
            "    comm.reduce(total, root=0)": "    for root in range(comm.size):\n"
            "        comm.reduce(total, root)",
        },
        "broadcast of one part": {
            "root=0)\n": "root=0)\n    comm.broadcast(total[:1])\n",
        },
        "the mean of the ranks' means": {
            "[losses.sum(), losses.size]": "[losses.mean(), 1.0]",
            "comm.reduce(total, root=0)": "comm.all_reduce(total)",
        },
    },
    reports=(
        Report("pytorch/pytorch#21480", "ranks that are not the root end with other numbers"),
        Report("pytorch/pytorch#76527", "a rank that is not the target holds part of the sum"),
        Report("rmchurch/disruptcnn#3", "a scheduler that does not see the loss of all ranks"),
    ),
    shows=("the ranks disagree: rank 0 ends with 474, rank 1 with",),
)

REUSED = Exhibit(
    name="reused",
    wing="disagree",
    symptom="An all-reduce of our own passes its tests for weeks, and then one rank is off",
    program="""
def all_reduce(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size - 1):
        request = comm.isend(passing, right)
        comm.recv(left, out=passing)  # no second buffer needed
        total += passing
        request.wait()
    return total
""",
    stage=Simulated(right=lambda x: x.sum(0), strict=False),
    question="`isend` has returned. What may be done with `passing`?",
    choices={
        "anything, it is sent": "It has *begun*. On some days the network has copied it by then, "
        "and on those the tests pass.",
        "it may be read, and changed after `wait()`": "The data leave at any moment between the "
        "two lines. Who writes into the buffer before sends something else.",
        "nothing at all, not even read": "Reading harms nobody. It is the writing, here by "
        "`recv`, that races with the network.",
    },
    answer="it may be read, and changed after `wait()`",
    cause="A buffer that is on its way was written to. So it is with `async_op=True` too: whoever "
    "scales the gradient before `wait()` races with the all-reduce. Receive into a second buffer, "
    "and wait before the first is used again",
    fix={
        "comm.recv(left, out=passing)  # no second buffer needed": "passing = comm.recv(left)",
    },
    tried={
        "a barrier in each round": {
            "        request.wait()\n": "        request.wait()\n        comm.barrier()\n",
        },
        "add before the buffer is filled": {
            """        comm.recv(left, out=passing)  # no second buffer needed
        total += passing
        request.wait()
""": """        came = comm.recv(left)
        total += came
        passing[:] = came
        request.wait()
""",
        },
    },
    reports=(
        Report("OpenNMT/OpenNMT-py#2295", "gradients divided before an async all-reduce is done"),
        Report("dealii/dealii#13206", "one buffer for many sends, which worked by luck"),
        Report("xiaoyeli/superlu_dist#117", "a buffer that is overwritten before it is sent"),
    ),
    shows=("the ranks disagree: rank 0 ends with", "rank 1 with"),
)

WHOLE = Exhibit(
    name="whole",
    wing="wrong",
    symptom="Our ring gives the right sums, and takes longer with every rank that joins",
    program="""
def all_reduce(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, passing = x.copy(), x
    for _ in range(comm.size - 1):
        passing = comm.sendrecv(passing, right, left)
        total += passing
    return total
""",
    stage=Simulated(data=vectors, examine=economical, sparing=False),
    question="How many times its own data does each of N ranks send here?",
    choices={
        "2(N-1)/N times": "That is the ring in chunks: it never comes to 2. Count the arguments "
        "of `sendrecv`: what travels is whole.",
        "N-1 times": "Every share goes round whole. In chunks each part is added on its way, and "
        "only its sum goes round again.",
        "once": "Its own share once, and then those of all others, which it passes on.",
    },
    answer="N-1 times",
    cause="A ring is not made by its neighbours but by its chunks: sums in N-1 rounds, copies in "
    "N-1 more, each of a part in N. Whole arrays take N/2 times the bytes, and at two ranks nobody "
    "sees it. No hash and no sum shows it: count the bytes",
    fix={
        """    total, passing = x.copy(), x
    for _ in range(comm.size - 1):
        passing = comm.sendrecv(passing, right, left)
        total += passing
    return total
""": """    n, r = comm.size, comm.rank
    size = len(x) // n  # n divides it
    chunks = [x[c * size : (c + 1) * size] for c in range(n)]
    for k in range(n - 1):
        chunks[(r - k - 1) % n] += comm.sendrecv(chunks[(r - k) % n], right, left)
    for k in range(n - 1):
        chunks[(r - k) % n][:] = comm.sendrecv(chunks[(r - k + 1) % n], right, left)
    return x
""",
    },
    tried={
        "half the digits on the wire": {
            "sendrecv(passing,": 'sendrecv(passing.astype("f2"),',
        },
        "everything to rank 0 and back": {
            """    total, passing = x.copy(), x
    for _ in range(comm.size - 1):
        passing = comm.sendrecv(passing, right, left)
        total += passing
    return total
""": """    if comm.rank > 0:
        comm.send(x, 0)
        return comm.recv(0)
    for rank in range(1, comm.size):
        x += comm.recv(rank)
    for rank in range(1, comm.size):
        comm.send(x, rank)
    return x
""",
        },
    },
    reports=(
        Report("pytorch/gloo#222", "the ring without chunks puts more bytes on the wire"),
        Report("b4rtaz/distributed-llama#69", "whole vectors to one and back; asks for a ring"),
    ),
    shows=("the sums are right", "144 bytes for 48 bytes of numbers: 2 times the 72"),
)

BENCHMARK = Exhibit(
    name="benchmark",
    wing="wrong",
    symptom="The exchange takes 50 ms in our benchmark; the vendor's tool measures 1 ms",
    program="""
import numpy as np

def benchmark(comm, load, clock):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = load()
    start = clock()
    comm.sendrecv(x, right, left)
    seconds = np.array([clock() - start])
    return comm.all_reduce(seconds, "max")  # the slowest rank counts
""",
    stage=Simulated(data=late, called=timed, examine=measured, sparing=False),
    question="The ranks measure 50, 1, 50 and 1 ms. Which of them is slow?",
    choices={
        "rank 0 or rank 2: they take longest": "They take longest because they wait, for the one "
        "between them, which is not there yet.",
        "rank 1: it comes last and waits for nobody": "Who waits in an exchange is early: both "
        "neighbours of rank 1 are. The late one finds them ready and measures the link, and so "
        "does rank 3, which it does not touch.",
        "none, the link is": "The link takes the same time for all: what rank 1 and rank 3 "
        "measure. The rest is no message.",
    },
    answer="rank 1: it comes last and waits for nobody",
    cause="Without a barrier before the clock starts, a rank measures how long it waited for the "
    "others. A benchmark lets all begin together; in a profile the shortest bar points at the "
    "slow rank",
    fix={"    x = load()\n": "    x = load()\n    comm.barrier()\n"},
    tried={
        "a barrier after the exchange": {
            "    seconds =": "    comm.barrier()\n    seconds =",
        },
        "the mean of ten": {
            "    comm.sendrecv(x, right, left)\n    seconds = np.array([clock() - start])": "    "
            "for _ in range(10):\n        comm.sendrecv(x, right, left)\n"
            "    seconds = np.array([(clock() - start) / 10])",
        },
        "the mean of all ranks": {'"max")  # the slowest rank counts': '"avg")'},
    },
    reports=(
        Report("bigscience-workshop/bigscience#64", "a benchmark that got its barrier later"),
        Report("xdit-project/xDiT#772", "each rank's time by itself, with ranks that start apart"),
        Report("NVIDIA/Fuser#4968", "a straggler in the times of all others"),
    ),
    shows=("between the first rank that began and the last lie 49 ms",),
)

EXHIBITS = (REDUCE, REUSED, WHOLE, BENCHMARK)
