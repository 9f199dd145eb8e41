"""Judges of notebook 06: an all-reduce that keeps its digits, and four numbers that lose theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.check import unknown
from allreduce_edu.engine.cost import sent_bytes
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.precision import FORMATS, exact_sum, format_of, relative_rms, rounded
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import explain
from allreduce_edu.lessons.checks import Verdict, right, wrong
from allreduce_edu.lessons.precision import Array

RANKS = 64
GOAL = 0.002
_ELEMENTS = 4096
_BYTES = 2


# ----------------------------------------------------------- exercise 1: keep the digits


def keeps_digits(
    schedule: Any, wire: Any = None, accumulate: Any = None, round_owner: Any = False
) -> Verdict:
    """Judge an all-reduce of 64 ranks: bytes on the wire, then equal replicas, then the error.

    The numbers are bf16's, of all its sizes: what fp16 cannot hold is among them.
    """
    if problem := _settings(schedule, wire, accumulate, round_owner):
        return wrong(problem)
    x, size = _numbers()
    keep = "fp32" if accumulate is None else accumulate
    sent = keep if wire is None else wire
    if problem := _too_many_bytes(schedule, format_of(sent).bits):
        return wrong(problem)
    got = run(schedule, x, wire=sent, accumulate=keep, round_owner=round_owner)
    if problem := _lost(got, sent, keep) or _apart(got):
        return wrong(problem)
    error = relative_rms(got / size, exact_sum(x) / size)
    if error >= GOAL:
        return wrong(_too_far(schedule, error, format_of(sent).digits, format_of(keep).digits))
    return right(
        f"error {error:.4f}, the same bits on all {RANKS} ranks, and {_share(schedule):.4g} S sent "
        f"by the busiest, {_BYTES} bytes a number: as many as a ring in bf16 sends"
    )


def _settings(schedule: Any, wire: Any, accumulate: Any, round_owner: Any) -> str | None:
    """Say what is wrong with the form of the answer."""
    if ... in (schedule, wire, accumulate, round_owner):
        return "replace the dots with a schedule, or with the name of a format"
    if not isinstance(schedule, Schedule):
        return f"give a schedule such as ring({RANKS}), got {type(schedule).__name__}"
    if schedule.ranks != RANKS:
        return f"the schedule must have {RANKS} ranks, got {schedule.ranks}"
    for name, kind in (("wire", wire), ("accumulate", accumulate)):
        if kind is not None and (not isinstance(kind, str) or kind not in FORMATS):
            return unknown(name, kind, tuple(FORMATS))
    if not isinstance(round_owner, bool):
        return f"round_owner must be True or False, got {round_owner!r}"
    if schedule.collective != "all_reduce":
        return f"{schedule.name} is no all-reduce: not every rank ends with every sum"
    return next(iter(explain(schedule)), None)


def _numbers() -> tuple[Array, Array]:
    """Return bf16 numbers x[rank, element], and a power of two for each element: its size."""
    rng = np.random.default_rng(6)
    size = (2.0 ** rng.integers(-30, 31, _ELEMENTS)).astype(np.float32)
    return rounded(rng.standard_normal((RANKS, _ELEMENTS), np.float32) * size, "bf16"), size


def _share(schedule: Schedule) -> float:
    """Return what the busiest rank sends, in units of the whole array."""
    return float(sent_bytes(schedule, _ELEMENTS).max()) / _ELEMENTS


def _too_many_bytes(schedule: Schedule, bits: int) -> str | None:
    share, least = _share(schedule), 2 * (RANKS - 1) / RANKS
    if bits > 8 * _BYTES:
        return (
            f"{bits} bits cross the wire for each number: that buys digits with time. "
            f"Send {8 * _BYTES}"
        )
    if share > least * 1.001:
        return (
            f"the busiest rank sends {share:.4g} S; {least:.4g} S are enough, and a ring needs "
            "no more"
        )
    return None


def _lost(got: Array, sent: str, keep: str) -> str | None:
    """Say how many sums are no numbers any more."""
    gone = float((~np.isfinite(got)).mean())
    if not gone:
        return None
    return (
        f"{100 * gone:.0f} % of the sums are infinite or no numbers ({sent} sent, {keep} kept): "
        "these are bf16's numbers, and a format of fewer exponents cannot hold them all"
    )


def _apart(got: Array) -> str | None:
    """Name two ranks that differ, and where."""
    for rank, row in enumerate(got[1:], 1):
        at = np.flatnonzero(row.view("u4") != got[0].view("u4"))
        if at.size:
            replicas = len({each.tobytes() for each in got})
            return (
                f"rank {rank} differs from rank 0, first in element {at[0]}: there are {replicas} "
                "different results. Each owner keeps digits of its chunk that it never sent"
            )
    return None


def _too_far(schedule: Schedule, error: float, sent: int, keep: int) -> str:
    said = f"the error is {error:.4f}, not below {GOAL}"
    if error > 0.5:
        return f"{said}: the format that you send in cannot hold numbers as small or as large"
    if keep > sent and schedule.name == ring(RANKS).name:
        return (
            f"{said}: with a wider accumulator the ring is as bad as without. Its partial sums "
            "are rounded each time they cross the wire. What else could cross it?"
        )
    if keep <= FORMATS["bf16"].digits:
        return f"{said}: each of {RANKS - 1} additions is rounded to {keep} digits"
    return f"{said}: partial sums cross the wire too often"


# ------------------------------------------- exercise 2: equal elements, different results


def splits_equal_elements(numbers: Any) -> Verdict:
    """Judge four numbers, one for each rank: equal elements must get different sums in bf16."""
    try:
        given = np.asarray([float(each) for each in numbers], np.float32)
    except (TypeError, ValueError):
        return wrong("give a list of four numbers, one for each rank")
    if given.shape != (4,) or not np.isfinite(given).all():
        return wrong(f"give four finite numbers, one for each rank, got {len(given)}")
    held = rounded(given, "bf16")
    if (held != given).any():
        at = int(np.flatnonzero(held != given)[0])
        return wrong(
            f"{given[at]:g} is no bf16 number, the nearest is {held[at]:g}: a rounding before any "
            "addition. Choose numbers that bf16 holds"
        )
    got = run(ring(4), np.repeat(given[:, None], 4, 1), wire="bf16", accumulate="bf16")[0]
    listed = ", ".join(f"{each:g}" for each in got)
    if len(set(got.tolist())) > 1:
        return right(
            f"four equal elements end as {listed}, the exact sum is {exact_sum(given):g}. Each "
            "lies in another chunk, and each chunk is added up in an order of its own"
        )
    return wrong(f"all four elements end as {got[0]:g}: {_why_equal(given, got[0])}")


def _why_equal(given: Array, got: Any) -> str:
    if len(set(given.tolist())) == 1:
        return "a rotation of equal addends changes nothing. Let one of them be unlike the others"
    if got == exact_sum(given):
        return (
            "the sums on the way are exact in every order. Let one number be so large that its "
            "neighbours in bf16 stand further apart than the small ones reach"
        )
    return "every order rounds to the same number here. Let the small ones be equal, and odd"
