"""Judges the bug hunt: which ring is right, and in which round each of the others goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.check import integer
from allreduce_edu.engine.cost import busiest_port
from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.engine.verify import Counts, contributions, counted, expected, explain
from allreduce_edu.lessons.checks import SHOWN, Verdict, right, wrong
from allreduce_edu.lessons.rings import HUNTED


def first_fault(schedule: Schedule) -> tuple[int, str] | None:
    """Return the first round that goes wrong, counted from 1, and how; None if none does.

    A round goes wrong if it adds a share that is there already, copies what is not finished, or
    brings nothing new. Cells that merely wait for shares are not wrong yet.
    """
    counts = expected(schedule).start
    before = counts.copy()
    for k, (r, after) in enumerate(counted(schedule.check(), counts), 1):
        if what := _fault(r.crossing(), before, after):
            return k, what
        before = after.copy()
    return None


def _fault(r: Round, before: Counts, after: Counts) -> str | None:
    """Return what the first transfer that goes wrong in a round does."""
    for src, dst, chunk, adds in zip(r.src, r.dst, r.chunk, r.reduce, strict=True):
        sent = f"rank {src} sends chunk {chunk}"
        twice = np.flatnonzero(after[dst, chunk] > 1)
        if adds and twice.size:
            return f"{sent}, and rank {twice[0]}'s share is in rank {dst}'s already"
        if not adds and not before[src, chunk].all():
            return f"{sent}, which is not finished, and rank {dst} copies it"
        if (before[dst, chunk] == after[dst, chunk]).all():
            return f"{sent}, which rank {dst} has already: a round too many"
    return None


def hunt(found: Any) -> Verdict:
    """Judge ``{"A": 3, "B": "right", ...}``: the first wrong round of each ring of 4 ranks."""
    if not isinstance(found, dict) or set(found) != set(HUNTED):
        return wrong(f"give one answer for each of the rings {', '.join(HUNTED)}")
    if left := [letter for letter, answer in found.items() if answer is ...]:
        return wrong(f'ring {left[0]}: replace the dots with a round, or with "right"')
    if all(answer != "right" for answer in found.values()):
        return wrong("all of them wrong? One is right: a finished chunk may travel either way")
    verdicts = {letter: _judged(letter, found[letter]) for letter in HUNTED}
    if misses := [f"ring {letter}: {why}" for letter, why in verdicts.items() if why]:
        more = f" ({len(misses) - 1} more to mend)" if len(misses) > 1 else ""
        return wrong(f"{misses[0]}{more}")
    return right(f"one is right, and the other {len(HUNTED) - 1} go wrong where you say")


def _not_right(schedule: Schedule) -> str:
    """Say what shows that a ring is wrong, but not in which round it begins."""
    if contributions(schedule).min() == contributions(schedule).max() == 1:
        sent, enough = (
            busiest_port(each, schedule.ranks) for each in (schedule, ring(schedule.ranks))
        )
        return f"right sums, but each port sends {sent} chunks and {enough} are enough"
    return f"not right, for {explain(schedule)[0].partition(' (')[0]} at the end"


def _judged(letter: str, answer: Any) -> str | None:
    """Return what is wrong with the answer for one ring."""
    schedule = HUNTED[letter](SHOWN)
    rounds, fault = sum(1 for _ in schedule), first_fault(schedule)
    if answer == "right":
        return fault and _not_right(schedule)
    try:
        integer("the round", answer, 1, rounds)
    except (TypeError, ValueError) as error:
        return f'{error}; or say "right"'
    if fault is None:
        return "every share is in its place once, for the bytes of the ring. Look at your reason"
    first, _ = fault
    if answer > first:
        return f"round {answer} is where it shows as well; go back to where it begins"
    if answer < first:
        return (
            f"in round {answer} nothing has gone wrong: no share is twice anywhere, and nothing "
            "unfinished was copied. (A cell is marked there if it never gets what it still lacks.)"
        )
    return None
