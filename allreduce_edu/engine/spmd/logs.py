"""How to read what gloo, NCCL and torch print when ranks hang, and how to make them print it.

The lines are those of `tools`, and of a real job's log: they are known by what stays the same from
run to run.
"""

from __future__ import annotations

import re

# The telling ones first: a line may hold words of several.
_READINGS = {
    r"Detected mismatch": "Two ranks that differ, and in what: the call that one of them should "
    "have made is in the program before or after its line. Only ranks that are in a collective "
    "are compared, and the operator (sum, max) is not.",
    r"failed to pass monitoredBarrier": "The only line of gloo that names who is missing: go to "
    "the logs of these ranks.",
    r"monitoredBarrier": "This rank is well. Rank 0 knows who is missing, or is itself the one "
    "that is.",
    r"Expected to have finished reduction": "The fault is in the step before: a parameter took "
    "no part in the loss on this rank, so its bucket was never summed. The numbers count "
    "`model.parameters()`; with TORCH_DISTRIBUTED_DEBUG=INFO the names are told.",
    r"Received data size doesn't match|EnforceNotMet": "More bytes came than this rank had made "
    "room for: another rank's array is longer, or of another dtype, or is of another call. The "
    "process is aborted, and no `except` sees it.",
    r"lagging|Timeout at collective": "Who finished a lower number and did not join the next is "
    "missing; the others only wait. If all have joined the same number, compare what they have "
    "started: it is not the same call.",
    r"Not all ranks joining|Collective sequence number": "The missing ranks, or the culprits, "
    "are the ones to look at; the stack is that of a rank that waits. Which of two different "
    "calls is right, the tool cannot know.",
    r"Watchdog caught collective": "Compare SeqNum and OpType of this line in the logs of all "
    "ranks: the rank with the smallest number, or with no such line at all, is the one that is "
    "behind; with equal numbers, it is the one with another OpType.",
    r"SIGSEGV|SIGKILL|SIGABRT|exitcode *: -": "Here is the cause. A process that ends like this "
    "writes no traceback: -11 is a crash in native code, -9 mostly the system that ran out of "
    "memory, -6 a library that gave up.",
    r"Timed out waiting": "Who says so has waited, and need not be at fault. It names neither "
    "the call nor the rank that is missing: ask of each rank in which line it is, and first of "
    "the one that does not say so.",
    r"(closed|reset) by peer|pair closure|process exited": "A consequence: another rank has "
    "died or given up. Look for the rank whose log ends without this line; with several, for "
    "the earliest time.",
    r"connectFullMesh": "The ranks of a group did not find each other: an address cannot be "
    "reached, or the ranks do not agree which group this is. Does every rank make every group, in "
    "one order?",
    r"^\(nothing|^\(no message": "No line will tell you. TORCH_DISTRIBUTED_DEBUG=DETAIL "
    "compares shapes and dtypes before each call; for a difference in the operator only the "
    "program's text helps.",
}


def how_to_read(text: str) -> str:
    """Return what a line of a log says, and where to look then; "" if it is not known here."""
    return next((said for known, said in _READINGS.items() if re.search(known, text)), "")


# What makes those tools speak that say nothing by themselves.
ASKED = {
    "desync report": "`TORCH_NCCL_DESYNC_DEBUG=1`",
    "flight recorder": "`TORCH_NCCL_DUMP_ON_TIMEOUT=1` (in older versions of torch also "
    "`TORCH_FR_BUFFER_SIZE=2000`) before the start, and the analyzer over the dumps of all ranks",
    "monitored barrier": "`dist.monitored_barrier(wait_all_ranks=True)` in front of the collective "
    "that hangs, in a gloo group",
    "fingerprint": "`TORCH_DISTRIBUTED_DEBUG=DETAIL`; with plain collectives only, for with DDP on "
    "gloo some versions crash",
}


def how_to_get(tool: str) -> str:
    """Return how a job comes to print what a tool says, for the names of `tools.TOLD_BY`."""
    return f"Ask for it: {ASKED[tool]}." if tool in ASKED else "It comes by itself."
