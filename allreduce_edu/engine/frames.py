"""What a player draws: every transfer, sum and share of a schedule, as plain data.

Sent to the browser once; it draws and computes nothing. Cells are numbered
``rank * chunks + chunk``; frame 0 is the start and frame k the state after round k-1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import count
from allreduce_edu.engine.cost import chunk_bytes
from allreduce_edu.engine.dtypes import as_numpy, check_op, combiner, short_name
from allreduce_edu.engine.execute import as_shares, load, steps
from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule, schedule_of
from allreduce_edu.engine.verify import (
    Expected,
    counted,
    expected,
    place_values,
    spoiled,
    starting,
    wrong_shares,
)

MOST_RANKS, MOST_CELLS = 16, 1024
_WRITTEN = {
    "sum": "{} + {} = {}",
    "avg": "{} + {} = {}",
    "max": "max({}, {}) = {}",
    "min": "min({}, {}) = {}",
    "prod": "{} × {} = {}",
}
_WHOLE = 1e9  # whole floating-point numbers below are written out
_SAID = 4  # transfers that the spoken sentence lists one by one


def frames(schedule: Schedule, x: Any = None, op: str = "sum") -> dict[str, Any]:
    """Return a schedule's frames as JSON-able data.

    Parameters
    ----------
    schedule : Schedule
        At most 16 ranks and 1,024 cells (ranks x chunks).
    x : as for ``run``, optional
        Real data; one element of each chunk is shown and the port meter counts bytes. Without it
        the shares are ``place_values`` and the meter counts in S, the size of one rank's array.
        A full bar is (N-1) S, what a server sends: one scale for all schedules of N ranks.
    op : as for ``run``
        avg shows sums: it divides once, after the last round.

    Raises
    ------
    ValueError
        If there is more than a picture can show.
    """
    _check_room(schedule_of(schedule))
    values, sizes, note = _data(schedule, x, op)
    goal = expected(schedule)
    matters = starting(schedule).ravel()
    began = _masks(goal.start > 0).ravel()
    return {
        "name": "".join(each for each in schedule.name if each.isprintable()),
        "collective": schedule.collective,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
        "start": {
            "mask": np.where(matters, began, 0).tolist(),
            "value": [text if m else "" for text, m in zip(_texts(values), matters, strict=True)],
        },
        "goal": np.where(goal.meaning, _masks(goal.end > 0), -1).ravel().tolist(),
        "steps": list(_steps(schedule, (values, op), sizes, goal, "S" if x is None else "bytes")),
        "note": note,
        "unit": "S" if x is None else "bytes",
        "full": max(schedule.ranks - 1, 1) * (1 if x is None else int(sizes.sum())),
    }


def _steps(
    schedule: Schedule, data: tuple[Any, str], sizes: Any, goal: Expected, unit: str
) -> Iterator[dict[str, Any]]:
    """Yield each round: its transfers, and the state of the cells it wrote."""
    n, c = schedule.ranks, schedule.chunks
    sent, counts, since = np.zeros(n, np.int64), goal.start.copy(), spoiled(schedule)
    total = sum(1 for _ in schedule)
    played = zip(_live(schedule, *data), counted(schedule, counts), strict=True)
    for k, ((before, after), (whole, _)) in enumerate(played):
        r = whole.crossing()
        np.add.at(sent, r.src, sizes[r.chunk])
        wrong = (since >= 0) & ((since <= k) | (k == total - 1))
        fresh = wrong & (_written(r, n, c) | (k == total - 1))
        cells = np.unique(r.dst * c + r.chunk)
        done = (counts == goal.end).all(-1)
        yield {
            "src": r.src.tolist(),
            "dst": r.dst.tolist(),
            "chunk": r.chunk.tolist(),
            "reduce": r.reduce.astype(int).tolist(),
            "log": _log(whole, before, data[1]),
            "cell": cells.tolist(),
            "mask": _masks(counts > 0).ravel()[cells].tolist(),
            "twice": _masks(counts > 1).ravel()[cells].tolist(),
            "value": _texts(after.reshape(n * c)[cells]),
            "wrong": _sentences(fresh, counts, goal.end),
            "wrong_cells": np.flatnonzero(wrong).tolist(),
            "sent": (sent / c if unit == "S" else sent).tolist(),
            "phase": {"add": "reduce", "add and copy": "mixed"}.get(r.phase, "copy"),
            "say": _say(f"Round {k + 1} of {total}", r, done, goal.meaning),
        }


def _check_room(schedule: Schedule) -> None:
    n, c = schedule.ranks, schedule.chunks
    if n > MOST_RANKS or n * c > MOST_CELLS:
        raise ValueError(
            f"a picture shows at most {MOST_RANKS} ranks and {MOST_CELLS:,} cells, "
            f"got {n:,} ranks x {c:,} chunks; use run, contributions or sent_bytes instead"
        )


def _data(schedule: Schedule, x: Any, op: str) -> tuple[Any, npt.NDArray[np.int64], str]:
    """Return shown values [rank, chunk], units per chunk, and what a value is."""
    if x is None:
        ones = np.ones(schedule.chunks, np.int64)
        return (
            _with_idle_servers(schedule, place_values(schedule.ranks, schedule.chunks)),
            ones,
            "(c + 1) · 10ʳ for chunk c of rank r. S is one whole array",
        )
    shares = [as_numpy(share) for share in as_shares(schedule, x)]
    check_op(op, shares[0].dtype)
    buf, bounds = load(schedule, shares)
    sizes = chunk_bytes(schedule, np.diff(bounds) * shares[0].dtype.itemsize)
    note = f"one element of each chunk (the first that no rank has at 0), {short_name(buf.dtype)}"
    if op == "avg":
        note += f". The sum is divided by {schedule.workers} after the last round"
    return _telling(buf, schedule.workers), sizes, note


def _with_idle_servers(schedule: Schedule, values: Any) -> Any:
    values[schedule.workers :] = 0
    return values


def _telling(buf: Any, workers: int) -> Any:
    """Return one element per chunk: the first that is zero on no rank, else the first."""
    if not buf.shape[2]:
        return np.full(buf.shape[:2], 0)
    at = (buf[:workers] != 0).all(0).argmax(-1)
    return buf[:, np.arange(buf.shape[1]), at]


def _live(schedule: Schedule, values: Any, op: str) -> Iterator[tuple[Any, Any]]:
    """Yield the shown values before and after each round."""
    before = values
    for _, after in steps(schedule, values.copy(), op):
        yield before, after
        before = after.copy()


def _masks(shares: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Pack [..., whose] into one bit per rank."""
    return np.asarray((shares.astype(np.int64) << np.arange(shares.shape[-1])).sum(-1))


def _texts(values: Any) -> list[str]:
    return [_text(each) for each in values.reshape(-1).tolist()]


def _text(value: Any) -> str:
    if isinstance(value, float) and not (value.is_integer() and abs(value) < _WHOLE):
        return f"{value:.3g}"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


@np.errstate(over="ignore", invalid="ignore")
def _log(r: Round, before: Any, op: str) -> list[str]:
    """Write each transfer with its sum, or what `op` makes of the two."""
    combine, written = combiner(op, before), _WRITTEN[op]
    held: dict[tuple[int, int], Any] = {}
    said = []
    for src, dst, chunk, adds in _transfers(r):
        came = before[src, chunk]
        to = f"rank {src} → rank {dst}, chunk {chunk}: "
        if not adds:
            said.append(to + f"copy {_text(came.item())}")
            held[dst, chunk] = came
            continue
        old = held.get((dst, chunk), before[dst, chunk])
        new = held[dst, chunk] = combine(old, came)
        if src == dst:  # its own share, in its turn: no message
            continue
        said.append(to + written.format(*(_text(v.item()) for v in (old, came, new))))
    return said


def _transfers(r: Round) -> Iterator[tuple[int, int, int, bool]]:
    yield from zip(r.src.tolist(), r.dst.tolist(), r.chunk.tolist(), r.reduce.tolist(), strict=True)


def _written(r: Round, n: int, c: int) -> npt.NDArray[np.bool_]:
    written = np.zeros((n, c), bool)
    written[r.dst, r.chunk] = True
    return written


def _sentences(fresh: npt.NDArray[np.bool_], counts: Any, end: Any, most: int = 3) -> list[str]:
    cells = np.argwhere(fresh).tolist()
    said = [f"rank {r}, chunk {c} {wrong_shares(counts[r, c], end[r, c])}" for r, c in cells[:most]]
    left = len(cells) - most
    return said + ([f"and {left} more cell{'s' if left > 1 else ''}"] if left > 0 else [])


def _say(where: str, r: Round, done: npt.NDArray[np.bool_], meaning: npt.NDArray[np.bool_]) -> str:
    """One sentence for the caption and for screen readers."""
    verb = {"add": "adding", "copy": "copying", "add and copy": "adding and copying"}.get(
        r.phase, "nothing is sent"
    )
    moves = [f"rank {s} sends chunk {c} to rank {d}" for s, d, c, _ in _transfers(r)]
    listed = ", ".join(moves) if len(moves) <= _SAID else count(len(moves), "transfer")
    complete = int((done & meaning).sum())
    are = "is" if complete == 1 else "are"
    return f"{where}, {verb}: {listed}. {complete} of {int(meaning.sum())} cells {are} complete."
