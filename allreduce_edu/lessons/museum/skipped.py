"""Exhibits of the wing "it hangs": somebody does not make the call that all others make."""

from __future__ import annotations

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.simulated import Simulated

SKIP = Exhibit(
    name="skip",
    wing="hangs",
    symptom="Three ranks wait in an all-reduce until the time-out; the fourth has ended in peace",
    program="""
def train(comm, x):
    for step in range(3):
        comm.barrier()
        if comm.rank != 2 or step < 2:  # "rank 2 has nothing to add in the last step"
            comm.all_reduce(x)
    return x
""",
    stage=Simulated(right=lambda x: len(x) ** 2 * x.sum(0)),
    question="Rank 0 prints `Timed out waiting`. Where do you look?",
    choices={
        "at rank 0: it reports the error": "Rank 0 is where it should be. It reports because it "
        "waits, and it waits because another is missing.",
        "at the network between the ranks": "Four ranks are through five collectives already over "
        "the same links. Ask first who is *not* in the sixth.",
        "at the rank that is not in the collective": "Who is missing has not failed: it has "
        "returned, or is elsewhere, and says nothing.",
    },
    answer="at the rank that is not in the collective",
    cause="A collective has no list of who came: one rank that leaves out a call stops all others. "
    "The rank at fault is the one that does not complain. A rank with nothing to add brings zeros",
    fix={
        """        if comm.rank != 2 or step < 2:  # "rank 2 has nothing to add in the last step"
            comm.all_reduce(x)
""": """        comm.all_reduce(x)
""",
    },
    tried={
        "all other ranks leave it out too": {"comm.rank != 2 or step < 2": "step < 2"},
        "a barrier in its place": {
            """            comm.all_reduce(x)
""": """            comm.all_reduce(x)
        else:
            comm.barrier()
""",
        },
    },
    reports=(
        Report(
            "pytorch/pytorch#118369",
            "a watchdog ends the job and does not say which rank is missing",
        ),
    ),
    shows=("rank 2 has returned and does not call all_reduce number 6", "line 5 of train"),
)

EXHIBITS = (SKIP,)
