"""Trains the network of the notebooks as a script does: a start to copy and change.

Four ranks on this machine. The rendezvous is told to use the loopback device, because otherwise
it waits for the machine's name to be looked up, which on some machines takes for ever; its store
listens on every interface all the same, so do not run it where strangers can reach this machine::

    python -m torch.distributed.run --nproc-per-node 4 --local-addr 127.0.0.1 \
        --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 \
        --max-restarts 3 --log-dir logs --redirects 3 --tee 3 \
        -m allreduce_edu.realdist.train_ddp --checkpoint digits.pt

``--max-restarts`` is how often all ranks are started again after one has died: they go on from the
checkpoint. ``--redirects`` and ``--tee`` write what each rank prints to a file of its own below
``logs`` and show it too.

On two machines the same line runs on both, with an address of the first one that the second can
reach, a port that is free there, and a name for the job; all of it unencrypted, so on a network
of your own::

    python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 --rdzv-id digits \
        --rdzv-backend c10d --rdzv-endpoint 192.0.2.7:29400 \
        -m allreduce_edu.realdist.train_ddp --checkpoint digits.pt

Only rank 0 reads and writes the checkpoint, so the machines need no folder in common.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from allreduce_edu.data import digits
from allreduce_edu.realdist.scripts import process_group
from allreduce_edu.realdist.train import accuracy, fingerprint, make_model


def train(
    device: torch.device, epochs: int, batch: int, checkpoint: Path | None
) -> torch.nn.Module:
    """Train on this rank together with all others, and return the model, equal on all of them."""
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done = resume(model, optimizer, checkpoint, device)
    ddp = DistributedDataParallel(model)
    data = digits()
    shares = TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y))
    sampler: DistributedSampler[Any] = DistributedSampler(shares)
    loader = DataLoader(shares, batch_size=batch, sampler=sampler)
    for epoch in range(done, epochs):
        sampler.set_epoch(epoch)  # another shuffle, the same on every rank
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(ddp(x.to(device)), y.to(device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if dist.get_rank() == 0:
            save(model, optimizer, checkpoint, epoch + 1)
            right = accuracy(model.cpu())
            model.to(device)
            print(f"epoch {epoch + 1} of {epochs}: {right:.1%} of the test images", flush=True)
    return model


def save(model: Any, optimizer: Any, checkpoint: Path | None, epochs: int) -> None:
    """Write all that `resume` needs; whoever is killed meanwhile leaves the old file whole."""
    if checkpoint is None:
        return
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epochs}
    fresh = checkpoint.with_name(f"{checkpoint.name}.new")
    torch.save(state, fresh)
    fresh.replace(checkpoint)


def resume(model: Any, optimizer: Any, checkpoint: Path | None, device: torch.device) -> int:
    """Bring every rank to where rank 0's checkpoint is; return the epochs that are done."""
    state: list[Any] = [None]
    if dist.get_rank() == 0 and checkpoint is not None and checkpoint.exists():
        state = [torch.load(checkpoint, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(state, device=device)
    if state[0] is None:
        return 0
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    epochs = int(state[0]["epochs"])
    if dist.get_rank() == 0:
        print(f"goes on after epoch {epochs}, from {checkpoint}", flush=True)
    return epochs


@record  # so that torchrun can tell which rank failed first, and why
def main() -> None:
    """Train on the ranks that torchrun has started."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16, help="images of a rank in a step")
    parser.add_argument("--checkpoint", type=Path, help="a file to write and to go on from")
    parser.add_argument("--backend", choices=["gloo", "nccl"])
    asked = parser.parse_args()
    with process_group(asked.backend) as device:
        model = train(device, asked.epochs, asked.batch, asked.checkpoint)
        print(f"rank {dist.get_rank()}: weights {fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
