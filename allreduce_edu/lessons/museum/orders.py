"""Exhibits of the wing "it hangs": all ranks call, but not the same, or not in one order."""

from __future__ import annotations

from typing import Any

import numpy as np

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.simulated import Simulated

Metric = tuple[str, float]


def metrics_as_they_come(ranks: int) -> list[list[Metric]]:
    """Return what each rank measures, in its own order; the last rank begins with a score."""
    found: list[list[Metric]] = [
        [("loss", 10.0**rank), ("score", rank + 1.0), ("loss", 2 * 10.0**rank)]
        for rank in range(ranks)
    ]
    found[-1] = [found[-1][1], found[-1][0], found[-1][2]]
    return found


def _loss_and_median(x: list[list[Metric]]) -> Any:
    of = {kind: [v for each in x for k, v in each if k == kind] for kind in ("loss", "score")}
    return np.array([sum(of["loss"]), np.median(of["score"])])


ORDER = Exhibit(
    name="order",
    wing="hangs",
    symptom="It hangs where the metrics are logged, in some epochs only, and never on one GPU",
    program="""
import numpy as np

def log(comm, measured):
    metrics = {}
    for kind, value in measured:  # as the samples came
        metrics.setdefault(kind, []).append(value)
    result = {}
    for kind, values in metrics.items():
        if kind == "loss":
            result[kind] = comm.all_reduce(np.array([sum(values)]))[0]
        else:  # the median needs the scores of all ranks
            result[kind] = np.median(comm.all_gather(np.array(values)))
    return np.array([result["loss"], result["score"]])
""",
    stage=Simulated(right=_loss_and_median, data=metrics_as_they_come),
    question="Every rank has both metrics, once each. What is different on rank 3?",
    choices={
        "its values": "They are different on every rank. That is no matter: values are what is "
        "being exchanged.",
        "the order in which it first met them": "A dict remembers it, and `items()` follows it. "
        "Rank 3 met a score before its first loss.",
        "nothing: a dict is the same everywhere": "Two dicts are equal whatever their order, so "
        "`==` finds nothing. A loop over them does.",
    },
    answer="the order in which it first met them",
    cause="Collectives are matched by their order alone, so the loop around them must have one "
    "order on all ranks: `sorted(metrics)`, or a list that is written down. A `set` of names is "
    "worse: each process orders it by its own hash seed. To notice, compare on all ranks which "
    "operation has the number at which they stand",
    fix={
        "for kind, values in metrics.items():\n": "for kind in sorted(metrics):\n"
        "        values = metrics[kind]\n",
    },
    tried={
        "a barrier in each turn of the loop": {
            '        if kind == "loss"': '        comm.barrier()\n        if kind == "loss"',
        },
        "sorted by value": {
            "in metrics.items():": "in sorted(metrics.items(), key=lambda pair: pair[1][0]):",
        },
    },
    reports=(
        Report(
            "NVIDIA/nvalchemi-toolkit#143",
            "a loop over outputs that were once a set: each rank calls in another order",
        ),
        Report("Lightning-AI/pytorch-lightning#20946", "the same values logged in another order"),
    ),
    shows=(
        "is all_reduce sum on ranks 0-2, but all_gather on rank 3",
        "a loop over a dict",
        "line 12 of log",
    ),
)


def guesses(ranks: int) -> list[Any]:
    """Return the guesses of each rank: eight, and seven on the last one."""
    every = np.arange(1.0, 8 * ranks)
    return [every[8 * rank : 8 * rank + 8] for rank in range(ranks)]


RAGGED = Exhibit(
    name="ragged",
    wing="hangs",
    symptom="Evaluation dies in its last batch: one rank aborted (signal 6), the rest cut off",
    program="""
import numpy as np

def evaluate(comm, guesses):
    found = []
    for start in range(0, len(guesses), 4):
        batch = guesses[start : start + 4]
        found += comm.all_gather(batch)
    return np.sort(np.concatenate(found))  # the guesses of all ranks
""",
    stage=Simulated(right=lambda x: np.sort(np.concatenate(x)), data=guesses, most=2),
    question="All ranks make equally many calls. What does the last one not find?",
    choices={
        "a partner: a rank is missing": "Count them: two calls on each rank. They meet, and then "
        "do not fit.",
        "arrays of one shape": "The last batch of the last rank is shorter, and `all_gather` "
        "takes for granted that all are alike.",
        "enough memory": "Three numbers in the place of four need no more.",
    },
    answer="arrays of one shape",
    cause="Collectives do not send their shape along: all ranks must bring equally many bytes. "
    "Gloo aborts, or stands still, or goes on with wrong numbers, as the sizes fall. Fill the "
    "last batch up and cut the filling off, or gather the lengths first",
    fix={
        "        found += comm.all_gather(batch)\n": "        full = np.full(4, np.nan)\n"
        "        full[: len(batch)] = batch\n"
        "        found += [each[~np.isnan(each)] for each in comm.all_gather(full)]\n",
    },
    tried={
        "fill up with zeros": {
            "comm.all_gather(batch)": "comm.all_gather(np.resize(batch, 4) * (np.arange(4) < "
            "len(batch)))",
        },
        "only whole batches": {"len(guesses), 4)": "len(guesses) - 3, 4)"},
        "catch the error": {
            "        found += comm.all_gather(batch)\n": "        try:\n"
            "            found += comm.all_gather(batch)\n"
            "        except Exception:\n"
            "            found.append(batch)\n",
        },
    },
    reports=(
        Report("pytorch/pytorch#56112", "texts of different lengths block an all_gather"),
        Report("NVIDIA/nccl#1417", "why some shapes that differ hang, and others do not"),
    ),
    shows=("rank 3 asks for something else", "float64 (3,) on rank 3: line 7 of evaluate"),
)

SENDS = Exhibit(
    name="sends",
    wing="hangs",
    symptom="A ring of my own stands still at its very first message, and with MPI it used to run",
    program="""
def ring(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, passed = x.copy(), x
    for _ in range(comm.size - 1):
        comm.send(passed, right)  # my neighbour takes it when it can
        passed = comm.recv(left)
        total += passed
    return total
""",
    stage=Simulated(right=lambda x: x.sum(0)),
    question="Each rank sends first and then receives. When does `send` return?",
    choices={
        "at once: the network keeps the message": "MPI does that with small messages, so this ran "
        "there. Gloo does it with none, NCCL with none.",
        "when the neighbour receives": "And the neighbour is in its own `send`, which waits for "
        "*its* neighbour, all around the ring.",
        "when the message has arrived in memory": "Nobody has made room for it: that is what "
        "`recv` does.",
    },
    answer="when the neighbour receives",
    cause="A send may wait for its receive, so somebody must receive first. Send and receive at "
    "the same time (`sendrecv`, `batch_isend_irecv`), or let every second rank receive first",
    fix={
        """        comm.send(passed, right)  # my neighbour takes it when it can
        passed = comm.recv(left)
""": """        passed = comm.sendrecv(passed, right, left)
""",
    },
    tried={
        "receive first": {
            """        comm.send(passed, right)  # my neighbour takes it when it can
        passed = comm.recv(left)
""": """        came = comm.recv(left)
        comm.send(passed, right)  # my neighbour takes it when it can
        passed = came
""",
        },
        "begin to send, and never wait": {"comm.send(passed, right)": "comm.isend(passed, right)"},
        "a barrier after each round": {
            "        total += passed\n": "        total += passed\n        comm.barrier()\n",
        },
    },
    reports=(Report("NVIDIA/nccl#479", "two ranks that send to each other first, and stay there"),),
    shows=("ranks 0-3: send to rank r+1", "everybody sends before anybody receives", "line 5 of"),
)

EXHIBITS = (ORDER, RAGGED, SENDS)
