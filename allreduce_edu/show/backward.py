"""One backward under DDP as a picture: gradients ready, all-reduces, and lamps that turn equal.

Each rank has a lane, and each event a column, in the order in which it happened on that rank: the
picture is not to scale, and the measured times are written below. A lamp is the fingerprint of
what a rank holds; equal letters are equal bits.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from allreduce_edu.engine.check import count
from allreduce_edu.show import svg
from allreduce_edu.show.draw import Keys, say, tag

_LEFT, _COLUMN, _TOP, _ROW = 84, 66, 60, 24
_SOFT: Keys = {"look": "soft", "font_size": 11}
_MIDDLE: Keys = {"text_anchor": "middle"}


@dataclass(frozen=True, eq=False, repr=False)
class Backward:
    """What happened on each rank in one backward: ``events[rank]``, in their order.

    Shown as an image with a description in words; ``svg()`` is its text.
    """

    events: Sequence[Sequence[Any]]  # those of `realdist.ddp.Event`, which needs torch

    def __post_init__(self) -> None:
        if not self.events or not all(self.events):
            raise ValueError("events must hold at least one event for each rank")

    @property
    def buckets(self) -> dict[int, Any]:
        """The start of each bucket's all-reduce on rank 0, by its number."""
        return {e.bucket: e for e in self.events[0] if e.what == "start"}

    @property
    def letters(self) -> dict[str, str]:
        """A letter for every different fingerprint, in the order of buckets, events and ranks."""
        found = sorted(
            (event.bucket < 0, event.bucket, event.what == "done", k, rank, event.held)
            for rank, lane in enumerate(self.events)
            for k, event in enumerate(lane)
            if event.held
        )
        different = dict.fromkeys(held for *_, held in found)
        names = string.ascii_uppercase + string.ascii_lowercase
        return {held: names[k % len(names)] for k, held in enumerate(different)}

    @property
    def alt(self) -> str:
        """What the picture shows, in words."""
        return f"{self._title()}. {' '.join(map(self._told, range(len(self.events))))}"

    def _title(self) -> str:
        ranks, buckets = count(len(self.events), "rank"), count(len(self.buckets), "bucket")
        return f"One backward() under DDP: {ranks}, {buckets}, in order"

    def _told(self, rank: int) -> str:
        letters = self.letters
        said = (
            f"{_name(event)}{f', holding {letters[event.held]}' if event.held else ''}"
            for event in self.events[rank]
        )
        return f"Rank {rank}: {'; '.join(said)}."

    def __repr__(self) -> str:
        return f"{self._title()}; {self._equal()}"

    def _equal(self) -> str:
        """Say whether all ranks hold the same at the end."""
        ends = len({lane[-1].held for lane in self.events})
        return "all ranks hold the same at the end" if ends == 1 else f"{ends} different ends"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": svg.image(self.svg())}

    def svg(self) -> str:
        """Return the picture as SVG text, its own static twin."""
        ident = "ab" + hashlib.sha256(self.alt.encode()).hexdigest()[:8]
        columns = max(map(len, self.events))
        high = 56 + _ROW * (len(self.buckets) + 1)
        width = _LEFT + columns * _COLUMN + 14
        foot = _TOP + high * len(self.events)
        lanes = (self._lane(rank, _TOP + rank * high, high, width) for rank in self._ranks())
        body = "".join([*self._head(), *lanes, *self._key(foot)])
        size = width, foot + 24 + 17 * (len(self.buckets) + 2)
        return svg.document(body, ident, size, self._title(), self.alt)

    def _ranks(self) -> range:
        return range(len(self.events))

    def _head(self) -> Iterator[str]:
        yield say(14, 24, self._title(), look="text", font_size=15, font_weight=600)
        told = "Time goes to the right, one column per event, not to scale."
        yield say(14, 45, told, look="soft", font_size=12)

    def _lane(self, rank: int, top: float, high: float, width: float) -> str:
        """Draw what happened on one rank."""
        box = tag("rect", look="box", x=8, y=top, width=width - 16, height=high - 6, rx=7)
        pill = tag("rect", look=f"r{rank}", x=16, y=top + 8, width=54, height=20, rx=10)
        name = say(43, top + 22, f"rank {rank}", look="head", font_size=12, **_MIDDLE)
        rows = {bucket: top + 44 + _ROW * k for k, bucket in enumerate([*self.buckets, -1])}
        parts = [box, pill, name, *self._names(rows, top + high), *self._bars(rank, rows)]
        for k, event in enumerate(self.events[rank]):
            x, ms = _x(k), f"{1e3 * event.at:.2f}"
            parts.append(self._words(event, x, top))
            parts.append(self._mark(event, rank, x, rows[self._bucket_of(event)]))
            parts.append(say(x, top + high - 14, ms, **_SOFT, **_MIDDLE))
        return "".join(parts)

    def _names(self, rows: dict[int, float], foot: float) -> Iterator[str]:
        """Name the rows of a lane."""
        for bucket, y in rows.items():
            name = f"bucket {bucket}" if bucket >= 0 else "gradient"
            yield say(72, y + 4, name, **_SOFT, text_anchor="end")
        yield say(72, foot - 14, "ms", **_SOFT, text_anchor="end")

    def _bars(self, rank: int, rows: dict[int, float]) -> Iterator[str]:
        """Draw how long each all-reduce was under way."""
        lane = self.events[rank]
        at = {(event.bucket, event.what): k for k, event in enumerate(lane)}
        for bucket in self.buckets:
            a, b = (_x(at.get((bucket, what), len(lane) - 1)) for what in ("start", "done"))
            yield tag("path", look="done", d=f"M{a:g} {rows[bucket]:g}H{b:g}")

    def _bucket_of(self, event: Any) -> int:
        """Return the bucket that an event belongs to, also that of a gradient; -1 if none."""
        if event.what != "ready":
            return int(event.bucket)
        return next((b for b, e in self.buckets.items() if event.names[0] in e.names), -1)

    def _words(self, event: Any, x: float, top: float) -> str:
        first, second = _short(event)
        bold = say(x, top + 15, first, look="text", font_size=11, **_MIDDLE)
        return bold + say(x, top + 27, second, **_SOFT, **_MIDDLE)

    def _mark(self, event: Any, rank: int, x: float, y: float) -> str:
        """Draw a tick for a gradient, else a lamp."""
        if event.what == "ready":
            return tag("path", look="check", d=f"M{x - 4:g} {y:g}l3 3.5 5-7")
        return self._lamp(event, rank, x, y)

    def _lamp(self, event: Any, rank: int, x: float, y: float) -> str:
        """Draw a lamp: in the colour of the rank that alone holds this, else only a ring."""
        holders = {r for r, lane in enumerate(self.events) for e in lane if e.held == event.held}
        alone = holders == {rank} and len(self.events) > 1
        disc = tag("circle", look=f"r{rank}" if alone else "chip", cx=x, cy=y, r=10)
        look = "head" if alone else "text"
        return disc + say(x, y + 4, self.letters[event.held], look=look, font_size=12, **_MIDDLE)

    def _key(self, foot: float) -> Iterator[str]:
        told = [
            f"Bucket {bucket}: {', '.join(event.names)} ({event.size:,} bytes)."
            for bucket, event in self.buckets.items()
        ]
        told.append(
            "Equal letters, equal bits. Filled: no other rank holds this. Outlined: all ranks do."
        )
        told.append("ms: measured on that rank since its backward began.")
        for k, line in enumerate(told):
            look = "text" if k < len(self.buckets) else "soft"
            yield say(14, foot + 14 + 17 * k, line, look=look, font_size=12)


def _x(k: int) -> float:
    return _LEFT + (k + 0.5) * _COLUMN


def _short(event: Any) -> tuple[str, str]:
    """Return an event's two words."""
    if event.what == "ready":
        return event.names[0], "ready"
    if event.bucket >= 0:
        return "all-reduce", "starts" if event.what == "start" else "is done"
    first, _, second = event.what.partition(" ")
    return first, second


def _name(event: Any) -> str:
    if event.what == "ready":
        return f"{event.names[0]} ready"
    if event.bucket >= 0:
        verb = "starts" if event.what == "start" else "is done"
        return f"all-reduce of bucket {event.bucket} ({', '.join(event.names)}) {verb}"
    return str(event.what)
