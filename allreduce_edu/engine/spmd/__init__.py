"""One ordinary function as N simulated ranks: ``spmd.run(fn, x)`` calls ``fn(comm, x[rank])``.

Deterministic, and in one process. A send waits for its receive, as on gloo; a hang is explained
at the moment in which nobody can go on, an endless loop at a deadline.

- ``run(fn, x)`` gives the results, bytes and clocks; ``Pool.spmd(fn, x)`` runs it on real ranks.
- ``schedule(fn, ranks)`` is the same program as a schedule: for `Player`, `explain`, `cost`.
- ``hang(fn, x)`` says who waits for whom, for `Waits`; ``tools`` says it as gloo and NCCL do.
- ``orders(fn, x)`` tries every order of events that can differ.
"""

import sys

from allreduce_edu.engine.spmd import tools
from allreduce_edu.engine.spmd.chance import Order, Orders, orders
from allreduce_edu.engine.spmd.comm import ANY, Comm
from allreduce_edu.engine.spmd.errors import (
    Deadlock,
    Endless,
    Hazard,
    Interrupted,
    Mismatch,
    NotASchedule,
    ProgramError,
)
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.engine.spmd.lift import schedule
from allreduce_edu.engine.spmd.play import play
from allreduce_edu.engine.spmd.simulate import Run, hang, run

__all__ = [
    "ANY",
    "Comm",
    "Deadlock",
    "Endless",
    "Hang",
    "Hazard",
    "Interrupted",
    "Mismatch",
    "NotASchedule",
    "Order",
    "Orders",
    "ProgramError",
    "Run",
    "hang",
    "orders",
    "play",
    "run",
    "schedule",
    "spmd",
    "tools",
]

spmd = sys.modules[__name__]  # for ``from allreduce_edu import spmd``
