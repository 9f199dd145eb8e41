"""Exhibits of the wing "it hangs": groups that not all ranks make, or use in one order."""

from __future__ import annotations

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.simulated import Simulated

PAIRS = Exhibit(
    name="pairs",
    wing="hangs",
    symptom="`new_group` never returns, or fails with Connect timeout; each pair alone is well",
    program="""
def train(comm, x):
    if comm.rank < 2:  # each pair shares a machine
        machine = comm.group([0, 1])
    else:
        machine = comm.group(range(2, comm.size))
    machine.all_reduce(x, "avg")  # first within the machine
    return comm.all_reduce(x)  # then all
""",
    stage=Simulated(right=lambda x: x.sum(0), tried=(3, 4)),
    question="Ranks 0 and 1 make a group for themselves. Whom does that concern?",
    choices={
        "the two of them": "They will use it. But groups are numbered, and so are their names: to "
        "the other ranks this one would be the first as well.",
        "all ranks": "Those who will not be in it must call `new_group` for it too, in the same "
        "order. They get nothing from it.",
        "rank 0, which is the master": "It keeps the addresses. It cannot know that two groups "
        "with one name are meant.",
    },
    answer="all ranks",
    cause="`new_group` must be called by every rank of the world, for every group, in the same "
    "order: groups are named by counting the calls. One that its members alone make may seem to "
    "work, and the next one hangs. Make all groups at the start, outside of any `if`",
    fix={
        """    if comm.rank < 2:  # each pair shares a machine
        machine = comm.group([0, 1])
    else:
        machine = comm.group(range(2, comm.size))
""": """    machines = comm.group([0, 1]), comm.group(range(2, comm.size))
    machine = machines[comm.rank >= 2]
""",
    },
    tried={
        "a barrier before": {"    if comm.rank < 2:": "    comm.barrier()\n    if comm.rank < 2:"},
        "first the one pair, then the other": {
            "    else:\n": "        comm.barrier()\n    else:\n        comm.barrier()\n",
        },
    },
    reports=(
        Report("pytorch/pytorch#25390", "each rank makes its own group, and calls for no other"),
        Report("pytorch/pytorch#130102", "groups of two pairs, each made by its members alone"),
    ),
    shows=(
        "group of ranks 2, 3 on ranks 2, 3: line 5 of train",
        "every rank must make every group",
    ),
)

MESH = Exhibit(
    name="mesh",
    wing="hangs",
    symptom="With data parallelism it runs, and with tensor parallelism; with both it hangs",
    program="""
def train(comm, x):
    rows = [comm.group([0, 1]), comm.group([2, 3])]
    columns = [comm.group([0, 2]), comm.group([1, 3])]
    i, j = divmod(comm.rank, 2)
    groups = [rows[i], columns[j]]
    if (i + j) % 2:  # half of the ranks begin with their column: less traffic at once
        groups.reverse()
    for group in groups:
        group.all_reduce(x)
    return x
""",
    stage=Simulated(right=lambda x: x.sum(0), tried=(4,)),
    question="Each group is used once by both of its members. Why does none of them begin?",
    choices={
        "a group of two is too small": "Each of them works alone. Leave out the rows, or the "
        "columns, and it runs.",
        "each rank waits in one group for a rank that waits in another": "A circle through four "
        "groups: everybody's partner is busy elsewhere.",
        "the groups were made in different orders": "All ranks make all four, in one order. It is "
        "how they are *used*.",
    },
    answer="each rank waits in one group for a rank that waits in another",
    cause="Within a group the order of calls must be one, and between groups that overlap it must "
    "be one too. Let all ranks use rows first, then columns. To notice, write down for each rank "
    "in which group it waits. On GPUs two streams can close such a circle although the program's "
    "order is one",
    fix={
        """    if (i + j) % 2:  # half of the ranks begin with their column: less traffic at once
        groups.reverse()
""": "",
    },
    tried={
        "the other half": {"if (i + j) % 2:": "if (i + j) % 2 == 0:"},
        "a barrier before each": {
            "        group.all_reduce(x)\n": "        comm.barrier()\n"
            "        group.all_reduce(x)\n",
        },
    },
    reports=(
        Report("meta-pytorch/torchrec#4149", "shards and replicas, used in another order by two"),
        Report("NVIDIA/nccl#195", "why several communicators at once need one order"),
    ),
    shows=(
        "0 -> 1 -> 3 -> 2 -> 0",
        "Rank 0 waits in group 1 for rank 1, which waits in group 4 for rank 3",
        "line 9 of train",
    ),
)

EXHIBITS = (PAIRS, MESH)
