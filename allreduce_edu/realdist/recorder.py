"""The flight recorder of real ranks: which collectives each of them began, in its own words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from allreduce_edu.engine.spmd.sites import NOWHERE
from allreduce_edu.engine.spmd.states import Call, Part, State
from allreduce_edu.realdist.pool import Pool

_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
_DTYPES |= {"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"}


class Recording:
    """What ranks gave, and what their flight recorders held when they were done or gave up.

    Attributes
    ----------
    results : list
        What each rank returned, or the first line of what it raised.
    states : tuple of State
        One per rank, with its `calls`; a rank that raised was waiting in the last of them.
    """

    def __init__(self, results: Sequence[Any], states: Sequence[State]) -> None:
        self.results, self.states = list(results), tuple(states)

    def __repr__(self) -> str:
        counts = ", ".join(str(len(state.calls)) for state in self.states)
        return f"Recording of {len(self.states)} ranks, with {counts} collectives"


def recorded(fn: Callable[..., Any], pool: Pool, seconds: float = 2.0) -> Recording:
    """Call ``fn(group)`` on every rank, with a group that waits so many seconds, and record it.

    The recorder's dump is private to PyTorch: on a version without it the ranks have no calls.
    """
    told = pool.run(_on_rank, fn, seconds)
    states = [
        State(rank, "waits" if failed else "returned", calls=_calls(entries, pool.ranks, failed))
        for rank, (_, failed, entries) in enumerate(told)
    ]
    return Recording([result for result, _, _ in told], states)


def _on_rank(fn: Callable[..., Any], seconds: float) -> tuple[Any, bool, list[Any]]:
    """Be one rank; return what it gave, whether it gave up, and the entries of its recorder."""
    from datetime import timedelta

    import torch.distributed as dist

    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # read when the recorder is first used
    group = dist.new_group(timeout=timedelta(seconds=seconds))
    try:
        result, failed = fn(group), False
    except RuntimeError as error:
        result, failed = str(error).splitlines()[0].rpartition("] ")[2], True
    return result, failed, _entries(group)


def _entries(group: Any) -> list[Any]:
    from torch._C import _distributed_c10d as c10d

    dump = getattr(c10d, "_dump_fr_trace_json", None)
    entries = json.loads(dump()).get("entries", []) if dump else []
    return [each for each in entries if each["process_group"][0] == group.group_name]


def _calls(entries: Sequence[Mapping[str, Any]], ranks: int, failed: bool) -> tuple[Call, ...]:
    last = len(entries) - 1
    return tuple(
        Call(_part(each, ranks), NOWHERE, not (failed and i == last))
        for i, each in enumerate(entries)
    )


def _part(entry: Mapping[str, Any], ranks: int) -> Part:
    name = entry["profiling_name"].partition(":")[2]
    dtype, shape = entry["input_dtypes"][:1], entry["input_sizes"][:1]
    kind = (_DTYPES.get(dtype[0], dtype[0]), tuple(shape[0])) if dtype and shape else None
    return Part(0, tuple(range(ranks)), entry["collective_seq_id"], name, None, kind)
