"""Group F: rings in bf16 and fp16, beside the same ring in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from allreduce_edu.benchmark.measure import Meter, Row, Table, Target, ratio, span
from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.dtypes import dtype
from allreduce_edu.engine.execute import run

_KIB = 1024


def tables(meter: Meter) -> Iterator[Table]:
    """Yield the tables of this group."""
    rows = []
    shapes = ((16, 64), (16, 256)) if meter.quick else ((16, 64), (16, 256), (16, 1024), (64, 1024))
    for n, kib in shapes:
        rows += _rows(meter, n, kib)
    head = ("`run`", "N", "S in float32", "takes", "float32 takes", "times as long")
    yield Table("F. Drift: rings that round at every hop, through `run`", head, rows)


def _rows(meter: Meter, n: int, kib: int) -> list[Row]:
    x = np.random.default_rng(0).normal(size=(n, kib * _KIB // 4)).astype(np.float32)
    kinds = {
        f"{library} {short}": _in(library, short, x)
        for library in ("torch", "numpy")
        for short in ("bf16", "fp16")
        if library == "numpy" or find_spec("torch")
    }
    with _one_thread():
        plays = (partial(run, ring(n), each) for each in (x, *kinds.values()))
        reference, *taken = meter.seconds(*plays)
    rows = []
    for name, took in zip(kinds, taken, strict=True):
        most = (2.5 if kib < 256 else 1.2) if name.startswith("torch") else None
        about = (str(n), f"{kib} KiB", span(took), span(reference))
        target = Target(most) if most else None
        rows.append(Row(name, about, ratio(took, reference), target))
    by_name = dict(zip(kinds, taken, strict=True))
    for short, least in (("bf16", 2.0), ("fp16", 8.0)):
        if f"torch {short}" in by_name:
            slow, fast = by_name[f"numpy {short}"], by_name[f"torch {short}"]
            about = (str(n), f"{kib} KiB", span(slow), "–")
            target = Target(least, at_least=True)
            rows.append(Row(f"numpy {short} / torch {short}", about, ratio(slow, fast), target))
    return rows


def _in(library: str, short: str, x: Any) -> Any:
    if library == "numpy":
        return x.astype(dtype(short))
    import torch

    return torch.from_numpy(x).to({"bf16": torch.bfloat16, "fp16": torch.float16}[short])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch work on this thread alone, whose time is taken."""
    if not find_spec("torch"):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
