"""Group F: rings and chains that round, beside the same additions in float32."""

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
from allreduce_edu.engine.precision import rounded
from allreduce_edu.lessons import precision as lesson

_KIB = 1024


def tables(meter: Meter) -> Iterator[Table]:
    """Yield the tables of this group."""
    rows = []
    shapes = ((16, 64), (16, 256)) if meter.quick else ((16, 64), (16, 256), (16, 1024), (64, 1024))
    for n, kib in shapes:
        rows += _rows(meter, n, kib)
    head = ("`run`", "N", "S in float32", "takes", "float32 takes", "times as long")
    yield Table("F. Drift: rings that round at every hop, through `run`", head, rows)
    yield Table(
        "F. Drift: one chain over all ranks, every addition rounded",
        ("format", "takes", "an addition and its rounding", "plain float32", "times as long"),
        _chains(meter),
    )
    yield Table(
        "F. Drift: the figure of error against the number of ranks",
        ("what", "takes", "seconds"),
        [_figure(meter)],
    )


def _chains(meter: Meter) -> list[Row]:
    """Time a chain of additions in each format, beside the same chain in plain float32."""
    x = lesson.shares("same sign", 256 if meter.quick else 2048, lesson.ELEMENTS)
    held = {kind: rounded(x, kind) for kind in lesson.FORMATS_SHOWN}
    plays = [partial(lesson.chain, each, kind) for kind, each in held.items()]
    reference, *taken = meter.seconds(partial(_plain, x), *plays)
    each = x.size - x.shape[1]
    return [
        Row(kind, (span(took), span(took / each), span(reference / each)), ratio(took, reference))
        for kind, took in zip(held, taken, strict=True)
    ]


def _plain(x: Any) -> Any:
    total = x[0]
    for share in x[1:]:
        total = total + share
    return total


def _figure(meter: Meter) -> Row:
    """Time all orders in all formats, for 4,096 sums and up to 4,096 ranks."""
    kinds = lesson.FORMATS_SHOWN[:1] if meter.quick else lesson.FORMATS_SHOWN
    lesson.shares("same sign")  # drawn once, not timed

    def figure() -> None:
        lesson.curve.cache_clear()
        for kind in kinds:
            for order in lesson.ORDERS:
                lesson.curve("same sign", kind, order)

    (taken,) = meter.seconds(figure)
    what = f"{len(kinds)} formats, {len(lesson.ORDERS)} orders, 4,096 sums, 2 to 4,096 ranks"
    return Row(what, (span(taken),), float(np.median(taken)), Target(2.0))


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
