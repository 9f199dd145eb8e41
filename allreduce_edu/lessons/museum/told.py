"""What the tools of PyTorch say of a hang, each with how to read it."""

from __future__ import annotations

from typing import NamedTuple

from allreduce_edu.engine.spmd import tools
from allreduce_edu.engine.spmd.errors import Deadlock, Mismatch
from allreduce_edu.engine.spmd.hang import Hang

READ = {
    "gloo": "One of the ranks that waited prints this, when its own time-out is over. It names no "
    "collective and no rank. Who prints it is where it should be: look for the others.",
    "NCCL watchdog": "`SeqNum` counts the collectives of the group from 1, `OpType` says which one "
    "it is. Compare both between the logs of all ranks: a lower number, or none, is a rank to "
    "look at. The number of elements says whether it is a gradient bucket or a flag.",
    "desync report": "Printed as well where `TORCH_NCCL_DESYNC_DEBUG=1` is set. The lagging "
    "ranks are the ones to look at, and what they finished last says how far they came.",
    "flight recorder": "Each rank keeps its last collectives in memory "
    "(`TORCH_FR_BUFFER_SIZE=2000`) and dumps them at the time-out; the analyzer compares the "
    "dumps. `missing ranks` is the answer; the stack trace is that of a rank which is there.",
    "monitored barrier": "`dist.monitored_barrier(wait_all_ranks=True)`, put in front of the "
    "collective that hangs, in a gloo group: rank 0 names the ranks that have not come.",
    "fingerprint": "`TORCH_DISTRIBUTED_DEBUG=DETAIL` compares operation, shape and dtype before "
    "each collective, here numbered from 0. It does not see SUM against MAX. Use it with plain "
    "collectives: with DDP on gloo some versions crash.",
}


class Told(NamedTuple):
    """What a tool prints of a hang, and how to read it."""

    tool: str
    text: str
    read: str


def told(found: Hang | BaseException | None) -> list[Told]:
    """Return what each tool prints that has something to say; nothing for what is no hang."""
    if isinstance(found, Mismatch):
        texts = {"fingerprint": tools.fingerprint(found)}
    elif isinstance(found, Hang | Deadlock):
        hang = found if isinstance(found, Hang) else found.hang
        texts = {tool: tell(hang) for tool, tell in tools.TOLD_BY.items()}
    else:
        texts = {}
    return [Told(tool, text, READ[tool]) for tool, text in texts.items() if text]
