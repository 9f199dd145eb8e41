"""Exhibits of the wing "it hangs": a rank leaves a loop or a step, and its data decide that."""

from __future__ import annotations

from typing import Any

import numpy as np

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.simulated import Simulated


def uneven_shards(ranks: int) -> list[Any]:
    """Return the samples of each rank: seven, and six on the last one."""
    samples = np.arange(1.0, 7 * ranks)
    return [samples[rank::ranks] for rank in range(ranks)]


UNEVEN = Exhibit(
    name="uneven",
    wing="hangs",
    symptom="Every epoch runs well until its very last step, and there it stands still",
    program="""
import numpy as np

def epoch(comm, samples):
    total = np.zeros(1)
    for start in range(0, len(samples), 2):
        batch = samples[start : start + 2]
        total += comm.all_reduce(batch.sum(keepdims=True))
    return total  # the loss, summed over all samples
""",
    stage=Simulated(right=lambda x: np.array([sum(map(np.sum, x))]), data=uneven_shards, most=1.3),
    question="All ranks run the same loop. Why is one of them through first?",
    choices={
        "it is faster than the others": "Then it would wait in the next call. It has *returned*: "
        "its loop was over.",
        "it has a batch fewer": "The samples do not divide evenly, so its loop ends one step "
        "earlier, without an `if` in sight.",
        "it has lost its connection": "Then the others would be told at once. It says nothing, "
        "because it has done all that it had to do.",
    },
    answer="it has a batch fewer",
    cause="The number of steps comes from the data, and the data differ. Print `len(loader)` on "
    "every rank. Pad (as DistributedSampler does), `drop_last` on all, or `join()`; here every "
    "sample counts, so who has none left brings zeros",
    fix={
        """    for start in range(0, len(samples), 2):
""": """    longest = int(comm.all_reduce(np.array([len(samples)]), "max")[0])
    for start in range(0, longest, 2):
""",
    },
    tried={
        "a barrier after each epoch": {"    return total": "    comm.barrier()\n    return total"},
        "leave the last samples out": {"len(samples), 2)": "len(samples) - 1, 2)"},
    },
    reports=(
        Report("pytorch/pytorch#33148", "one rank has a batch more: all wait at the last"),
        Report("argonne-lcf/dlio_benchmark#339", "49, 49 and 47 samples: a rank leaves the loop"),
    ),
    shows=("rank 3 has returned and does not call all_reduce number 4", "line 7 of epoch"),
)


def losses(ranks: int) -> list[Any]:
    """Return four losses of each rank, with a NaN in the third of rank 1."""
    found = [np.arange(1.0, 5.0) * 10**rank for rank in range(ranks)]
    found[1][2] = np.nan
    return found


NAN = Exhibit(
    name="nan",
    wing="hangs",
    symptom="At step 5,000, or at another one each time, all GPUs are at 100 % and none moves",
    program="""
import numpy as np

def train(comm, losses):  # the losses of this rank's batches
    total = np.zeros(1)
    for loss in losses:
        if np.isnan(loss):  # it makes no sense to go on
            break
        total += comm.all_reduce(np.array([loss]))
    return total
""",
    stage=Simulated(
        right=lambda x: np.array([sum(np.sum(each[:2]) for each in x)]), data=losses, most=2
    ),
    question="Who decides that training ends here?",
    choices={
        "all ranks, since all have the same code": "The code is the same, the losses are not: "
        "each rank looks at its own.",
        "rank 0": "It has a rank like any other in this loop, and asks nobody.",
        "each rank for itself, after its own loss": "One sees a NaN and leaves. The others have "
        "seen none, go on, and wait for it.",
    },
    answer="each rank for itself, after its own loss",
    cause="A decision that changes the calls must be taken by all ranks from the same number: "
    "sum first and look at the sum, or agree on a flag. So with early stopping, skipped batches, "
    "time limits: look for `break`, `continue` and `return` before a collective",
    fix={
        """        if np.isnan(loss):  # it makes no sense to go on
            break
        total += comm.all_reduce(np.array([loss]))
""": """        loss = comm.all_reduce(np.array([loss]))
        if np.isnan(loss):  # a NaN on any rank is one in the sum
            break
        total += loss
""",
    },
    tried={
        "skip the batch": {"            break\n": "            continue\n"},
        "a barrier before the break": {
            "            break\n": "            comm.barrier()\n            break\n",
        },
    },
    reports=(
        Report("pytorch/audio#3749", "a NaN on one rank, which returns; the others gather"),
        Report("ai2cm/ace#850", "the loss is checked on each rank, and one alone gives up"),
    ),
    shows=("rank 1 has returned and does not call all_reduce number 3", "line 8 of train"),
)


def validation_losses(ranks: int) -> list[Any]:
    """Return four losses of each rank: their sum falls thanks to rank 0, then without it."""
    by_rank = [8.0, 3.0, 6.0, 4.0], [1.0, 2.0, 2.0, 0.5]
    return [np.array(by_rank[min(rank, 1)]) for rank in range(ranks)]


BEST = Exhibit(
    name="best",
    wing="hangs",
    symptom="It hangs when a checkpoint is due, in some epochs and not in others",
    program="""
import numpy as np

def train(comm, losses):  # this rank's loss after each epoch
    best, saved = np.inf, 0
    for loss in losses:
        total = comm.reduce(np.array([loss]), root=0)[0]
        if total < best:  # better than ever: save
            best = total
            comm.barrier()  # so that all write together
            saved += 1
    return saved
""",
    stage=Simulated(
        right=lambda x: int(np.sum(np.diff(np.minimum.accumulate([np.inf, *np.sum(x, 0)])) < 0)),
        data=validation_losses,
        most=1.7,
    ),
    question="All ranks compare `total` with `best`. Is it the same number everywhere?",
    choices={
        "yes, reduce has summed it": "On the root. What `reduce` leaves on the other ranks has no "
        "meaning: with gloo it is the sum of some of them.",
        "no: only the root has the sum": "The others compare a part of it, so they find a new "
        "best in other epochs.",
        "no, floats are rounded differently": "A sum ends with the same bits on all ranks that "
        "get it. Here only one rank does.",
    },
    answer="no: only the root has the sum",
    cause="What decides over a collective must be equal on all ranks, and after `reduce` it is "
    "not: print it on every rank to notice. Decide from an `all_reduce`, or decide on one rank and "
    "broadcast the decision",
    fix={"comm.reduce(np.array([loss]), root=0)[0]": "comm.all_reduce(np.array([loss]))[0]"},
    tried={
        "a barrier before the comparison": {
            "        if total": "        comm.barrier()\n        if total",
        },
        "each rank by its own loss": {"comm.reduce(np.array([loss]), root=0)[0]": "loss"},
        "the largest in the place of the sum": {
            "comm.reduce(np.array([loss]), root=0)": 'comm.all_reduce(np.array([loss]), "max")',
        },
    },
    reports=(Report("pytorch/pytorch#77562", "the best loss is found with reduce, then all save"),),
    shows=(
        "is barrier on rank 0, but reduce sum to root 0 on ranks 1-3",
        "line 9 of train",
        "line 6 of train",
    ),
)


def texts(ranks: int) -> list[Any]:
    """Return three lines of a file for each rank; the second of rank 2, or the last, is bad."""
    found = [[f"{10**rank * k}" for k in (1, 2, 3)] for rank in range(ranks)]
    found[min(2, ranks - 1)][1] = "n/a"
    return found


def _sum_of_good(x: list[Any]) -> Any:
    return np.array([sum(float(each) for lines in x for each in lines if each != "n/a")])


SWALLOWED = Exhibit(
    name="swallowed",
    wing="hangs",
    symptom="`skipped a bad line` says one log, an hour before all GPUs stop in the last step",
    program="""
import numpy as np

def train(comm, lines):
    total = np.zeros(1)
    for line in lines:
        try:
            number = float(line)
            total += comm.all_reduce(np.array([number]))
        except ValueError as error:  # one bad line must not end the job
            print("skipped a bad line:", error)
    return total
""",
    stage=Simulated(right=_sum_of_good, data=texts, most=2),
    question="The job stops in the last step. When did it go wrong?",
    choices={
        "in the last step": "There it shows. Count the all-reduces of each rank: one has made one "
        "fewer long before.",
        "when a line was skipped": "From that step on its all-reduces met those of the step "
        "before on the other ranks: wrong sums, and no error until one is left over.",
        "at the start: the ranks have different files": "They have equally many lines. What "
        "differs is what became of them.",
    },
    answer="when a line was skipped",
    cause="An exception that is caught on one rank takes its collectives away, and all later sums "
    "mix steps. Catch what may fail before the call, and then make the call on every rank, with "
    "zeros. An out-of-memory error inside backward() cannot be skipped: end the job",
    fix={
        """            number = float(line)
            total += comm.all_reduce(np.array([number]))
        except ValueError as error:  # one bad line must not end the job
            print("skipped a bad line:", error)
""": """            number = float(line)
        except ValueError as error:  # one bad line must not end the job
            print("skipped a bad line:", error)
            number = 0.0
        total += comm.all_reduce(np.array([number]))
""",
    },
    tried={
        "catch everything": {"except ValueError as": "except Exception as"},
        "a barrier for those who skip": {
            """            print("skipped a bad line:", error)
""": """            print("skipped a bad line:", error)
            comm.barrier()
""",
        },
        "let it end the job": {
            """            print("skipped a bad line:", error)
""": """            raise
""",
        },
    },
    reports=(
        Report("pytorch/pytorch#44353", "one rank skips a batch that was out of memory"),
        Report("NVIDIA-NeMo/Automodel#2468", "an error is caught per rank, and the step skipped"),
    ),
    shows=(
        "rank 2 has returned and does not call all_reduce number 3",
        "an `if` or a `try`",
        "line 8 of train",
    ),
)

EXHIBITS = (UNEVEN, NAN, BEST, SWALLOWED)
