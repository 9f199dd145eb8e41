"""Exhibits of messages and meetings: wrong sums, right sums at a price, a measured wait."""

from __future__ import annotations

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.simulated import Simulated

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
    stage=Simulated(right=lambda x: x.mean(), sparing=False),
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
    },
    reports=(
        Report("pytorch/pytorch#21480", "ranks that are not the root end with other numbers"),
        Report("pytorch/pytorch#76527", "a rank that is not the target holds part of the sum"),
        Report("rmchurch/disruptcnn#3", "a scheduler that does not see the loss of all ranks"),
    ),
    shows=("the ranks disagree: rank 0 ends with 694.375, rank 1 with",),
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

EXHIBITS = (REDUCE, REUSED)
