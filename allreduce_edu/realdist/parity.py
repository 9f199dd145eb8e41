"""Whether `gloo_ring` predicts the last bit of gloo's all_reduce in the torch at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce_edu.engine.algorithms import gloo_ring
from allreduce_edu.engine.dtypes import dtype, full_name
from allreduce_edu.engine.execute import run

if TYPE_CHECKING:
    from allreduce_edu.realdist.pool import Pool

SEEN = ("2.13.0",)  # torch versions in which every tested case came out equal, bit for bit
SIZES = (1, 5, 1003, 100_003)
DTYPES = ("fp32", "fp64", "fp16", "bf16")


@dataclass(frozen=True)
class Parity:
    """What a comparison has found: the version of torch, and the cases that were equal or not."""

    torch: str
    equal: tuple[tuple[str, int], ...]  # (dtype, elements)
    differ: tuple[tuple[str, int], ...]

    @property
    def known(self) -> bool:
        """Whether this version is one on which the prediction was tested."""
        return self.torch in SEEN

    def __repr__(self) -> str:
        cases = len(self.equal) + len(self.differ)
        found = f"{len(self.equal)} of {cases} cases equal in every bit"
        if self.differ:
            kind, size = self.differ[0]
            found += f"; the first that differs: {size:,} elements of {kind}"
        tested = "" if self.known else f", which this suite was not tested on ({', '.join(SEEN)})"
        return f"torch {self.torch}{tested}: {found}"


def parity(
    pool: Pool, sizes: Sequence[int] = SIZES, dtypes: Sequence[str] = DTYPES, seed: int = 0
) -> Parity:
    """Compare ``run(gloo_ring(n), x)`` with ``dist.all_reduce(x)`` on the ranks of `pool`.

    Whatever the version, it measures and says what it found.
    """
    if pool.backend != "gloo":
        raise ValueError(f"pool must be one with the backend gloo, got {pool!r}")
    verdicts: dict[bool, list[tuple[str, int]]] = {True: [], False: []}
    version = ""
    for kind in dtypes:
        for size in sizes:
            answers = pool.run(_all_reduced, full_name(dtype(kind)), size, seed)
            versions, shares, sums = zip(*answers, strict=True)
            version = versions[0]
            x = np.stack(shares).view(dtype(kind))
            predicted = run(gloo_ring(pool.ranks), x).view(np.uint8)
            verdicts[np.array_equal(predicted, np.stack(sums))].append((kind, size))
    return Parity(version, tuple(verdicts[True]), tuple(verdicts[False]))


def _all_reduced(kind: str, size: int, seed: int) -> tuple[str, Any, Any]:
    """Return torch's version, this rank's numbers and the sum over ranks, both as raw bytes."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    x = (3 * torch.randn(size, generator=generator)).to(getattr(torch, kind))
    before = x.clone()
    dist.all_reduce(x)
    version = torch.__version__.partition("+")[0]
    return version, before.view(torch.uint8).numpy(), x.view(torch.uint8).numpy()
