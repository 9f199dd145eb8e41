"""Exhibits of real ranks that come too late, or not at all: what the others say then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from allreduce_edu.engine.verify import place_values
from allreduce_edu.lessons.museum.exhibit import Examined, Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.returned import gathered
from allreduce_edu.lessons.museum.simulated import differing, not_right

SLOW = 1.1  # seconds that a save takes
_TEXTS = ((b"one", b"two"), (b"three", b"four"), (b"five", None))


def lengths(program: Callable[..., Any]) -> Examined:
    """Call ``program(texts)`` with addresses of texts, one of them 0: how many of each length."""
    import ctypes

    import torch.distributed as dist

    mine = _TEXTS[dist.get_rank()]
    held = [None if text is None else ctypes.create_string_buffer(text) for text in mine]
    found = program([0 if each is None else ctypes.addressof(each) for each in held])
    right = np.bincount([len(text) for texts in _TEXTS for text in texts if text], minlength=8)
    return _compared([each[1:] for each in gathered(found)], right[1:])  # is no text of length 0?


def _compared(results: list[Any], right: Any) -> Examined:
    if disagree := differing(results):
        return disagree, None
    return None, not_right(results[0], right)


CRASH = Exhibit(
    name="crash",
    wing="hangs",
    symptom="Connection closed by peer, say two logs of three, and the third just ends",
    program="""
import ctypes
import torch
import torch.distributed as dist

def length(text):  # a native library: reads from an address on
    return len(ctypes.string_at(text))

def count(texts):
    found = torch.zeros(8)  # how many texts are how long
    for text in texts:
        found[length(text)] += 1
    dist.all_reduce(found)
    return found
""",
    stage=Real(lengths, ranks=3),
    question="Two ranks report an error of the network. Where do you look?",
    choices={
        "at the network": "It has done what it should: it told two ranks that the third is gone.",
        "at these two: they have the same error": "They have it because they were waiting. What "
        "they say is where *they* were.",
        "at the one that reports nothing": "A process that crashes, or is killed for its memory, "
        "writes no traceback. Its exit code speaks: -11 is a crash, -9 a kill.",
    },
    answer="at the one that reports nothing",
    cause="Connection closed by peer is always a consequence. The first rank that ended is the "
    "cause: ask the launcher for exit codes and times, and run with PYTHONFAULTHANDLER=1. What "
    "crashes in C no `except` catches: look at the data before they go there",
    fix={"    for text in texts:\n": "    for text in filter(None, texts):\n"},
    tried={
        "catch it": {
            "        found[length(text)] += 1\n": "        try:\n"
            "            found[length(text)] += 1\n"
            "        except Exception:\n"
            "            pass\n",
        },
        "a barrier before the all-reduce": {
            "    dist.all_reduce(found)\n": "    dist.barrier()\n    dist.all_reduce(found)\n",
        },
        "rank 2 leaves its texts out": {
            "for text in texts:": "for text in texts if dist.get_rank() != 2 else []:",
        },
    },
    reports=(
        Report("horovod/horovod#2907", "one rank is killed; the three others lose a connection"),
    ),
    shows=(
        "rank 2 crashed (SIGSEGV)",
        "line 6 of length",
        "ranks 0 and 1 lost the connection to another rank, a consequence",
    ),
)


def saves(program: Callable[..., Any]) -> Examined:
    """Call ``program(x, save)``; rank 0 must save the first sum, and it takes its time."""
    import torch
    import torch.distributed as dist

    kept: list[Any] = []

    def save(x: Any) -> None:
        held = x.clone()
        time.sleep(SLOW)
        kept.append(held)

    rank, ranks = dist.get_rank(), dist.get_world_size()
    shares = torch.from_numpy(place_values(ranks, 3)).double()
    got = gathered(program(shares[rank].clone(), save))
    saved = gathered([each.tolist() for each in kept])[0]
    total = shares.sum(0)
    disagree, wrong = _compared(got, (total * ranks).numpy())
    if not disagree and not wrong and saved != [total.tolist()]:
        wrong = f"rank 0 has saved {saved} in the place of the first sum, {total.tolist()}"
    return disagree, wrong


LATE = Exhibit(
    name="late",
    wing="hangs",
    symptom="Timed out waiting, while a checkpoint is written; on a quiet disk it never happens",
    program="""
import datetime as dt
import torch.distributed as dist

def train(x, save):
    limit = dt.timedelta(seconds=0.6)  # a hang shall be seen soon
    group = dist.new_group(timeout=limit)
    dist.all_reduce(x, group=group)
    if dist.get_rank() == 0:
        save(x)  # a large file
    dist.all_reduce(x, group=group)  # the next step
    return x
""",
    stage=Real(saves, sparing=False),
    question="Is this a hang?",
    choices={
        "yes: it timed out": "A time-out cannot tell late from never. Ask where the missing rank "
        "was: on its way, or in another call.",
        "no: rank 0 comes, only too late": "It is in `save`, and its next line is the all-reduce "
        "for which the others wait. Here, and only here, a longer time-out is the cure.",
        "no: the network is slow": "The all-reduce before went through the same network, in time.",
    },
    answer="no: rank 0 comes, only too late",
    cause="The time-out must be longer than the longest pause that is meant: saving, validation, "
    "the first batch, a compilation. If a longer one helps, it was a straggler; if it only makes "
    "the message later, it was a hang. After a time-out a gloo group is dead: nothing can be tried "
    "again",
    fix={"seconds=0.6)  # a hang shall be seen soon": "seconds=60)"},
    tried={
        "try again": {
            "    dist.all_reduce(x, group=group)  # the next step\n": "    try:\n"
            "        dist.all_reduce(x, group=group)\n"
            "    except RuntimeError:\n"
            "        dist.all_reduce(x, group=group)\n",
        },
        "a barrier of the same group": {
            "        save(x)  # a large file\n": "        save(x)  # a large file\n"
            "    dist.barrier(group=group)\n",
        },
        "save nothing": {"        save(x)  # a large file\n": "        pass\n"},
    },
    reports=(
        Report("EleutherAI/bergson#444", "rank 0 writes for longer than the others may wait"),
        Report("NVIDIA/nccl#708", "one process prepares data, and the rest time out"),
    ),
    shows=("Timed out waiting 600ms", "Look first: rank 0 came too late", "line 10 of train"),
)

EXHIBITS = (CRASH, LATE)
