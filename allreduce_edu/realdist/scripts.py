"""What a script does first and last when torchrun starts it: the pool's counterpart for scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from allreduce_edu.realdist.group import loopback
from allreduce_edu.realdist.report import clean

ONE_MACHINE = (
    "python -m torch.distributed.run --nproc-per-node 4 --local-addr 127.0.0.1 "
    "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0"
)


@contextmanager
def process_group(backend: str | None = None) -> Iterator[torch.device]:
    """Join the ranks that torchrun has started, yield this rank's device, and leave in the end.

    NCCL and a GPU for each rank of this machine if there are so many, else gloo. On one machine
    the ranks talk over its loopback device alone.
    """
    if "RANK" not in os.environ:
        raise SystemExit(f"this script wants ranks; start it by\n  {ONE_MACHINE} -m MODULE")
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    alone = here == int(os.environ["WORLD_SIZE"])
    if alone and loopback():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback())
    gpus = torch.cuda.device_count()
    chosen = backend or ("nccl" if gpus >= here else "gloo")
    device = torch.device("cuda", local) if chosen == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        if gpus < here:
            raise SystemExit(f"NCCL wants one GPU for each rank: {gpus} for {here} here; use gloo")
        torch.cuda.set_device(device)
    try:
        _join(chosen, alone=alone)
    except (RuntimeError, ValueError) as error:
        rank, why = os.environ["RANK"], clean(str(error))
        raise SystemExit(f"rank {rank} did not meet the others: {why}") from None
    try:
        yield device
    except BaseException:
        if chosen == "gloo":  # NCCL may wait here for ranks that will never come
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _join(backend: str, *, alone: bool) -> None:
    """Join under a name of this attempt.

    torchrun starts ranks again with the store that they had, in which the addresses of the dead
    still stand: who is first would try those. (On several machines the attempts are counted apart;
    there it helps to start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.)
    """
    if not alone:
        dist.init_process_group(backend)
        return
    store, rank, size = next(rendezvous("env://"))
    attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    named = PrefixStore(attempt, store)
    dist.init_process_group(backend, store=named, rank=rank, world_size=size)
