"""A trace of one backward, to scale: on each rank, what it computed and what was on its way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from allreduce_edu.engine.check import count
from allreduce_edu.show import svg
from allreduce_edu.show.axes import Axis, Scale, scale
from allreduce_edu.show.draw import Keys, say, tag

KINDS = "compute", "all-reduce"
_LEFT, _RIGHT, _TOP, _WIDTH, _LANE, _BAR = 150, 20, 58, 720, 62, 16
_SOFT: Keys = {"look": "soft", "font_size": 11}


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What each rank did from when to when: ``spans[rank]``, those of `realdist.ddp.Span`.

    Shown as an image with a description in words; ``svg()`` is its text.
    """

    spans: Sequence[Sequence[Any]]

    def __post_init__(self) -> None:
        if not self.spans or any(not self._of(rank, "compute") for rank in self._ranks()):
            raise ValueError('spans must hold something that is "compute" for each rank')

    def exposed(self, rank: int) -> float:
        """Return the seconds between a rank's last computation and its last all-reduce."""
        sent = self._of(rank, "all-reduce")
        last = max(span.stop for span in self._of(rank, "compute"))
        return max(0.0, *(span.stop - last for span in sent)) if sent else 0.0

    @property
    def alt(self) -> str:
        """What the picture shows, in words."""
        return f"{self._title()}. {' '.join(map(self._told, self._ranks()))}"

    def _title(self) -> str:
        return f"One backward to scale, {count(len(self.spans), 'rank')}"

    def _told(self, rank: int) -> str:
        last = max(span.stop for span in self._of(rank, "compute"))
        sent = "; ".join(
            f"an all-reduce from {_ms(span.start)} to {_ms(span.stop)}"
            for span in self._of(rank, "all-reduce")
        )
        return f"Rank {rank}: computing until {_ms(last)}; {sent or 'no all-reduce'}."

    def __repr__(self) -> str:
        overlap = sum(
            any(span.start < self._of(rank, "compute")[-1].start for span in found)
            for rank in self._ranks()
            if (found := self._of(rank, "all-reduce"))
        )
        return f"{self._title()}; computing and an all-reduce overlap on {overlap}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": svg.image(self.svg())}

    def svg(self) -> str:
        """Return the picture as SVG text, its own static twin."""
        ident = "at" + hashlib.sha256(self.alt.encode()).hexdigest()[:8]
        ends = (1e3 * span.stop for lane in self.spans for span in lane)
        along = scale(Axis("milliseconds since the backward began, measured"), ends)
        foot = _TOP + _LANE * len(self.spans)
        lanes = (self._lane(rank, _TOP + rank * _LANE, along) for rank in self._ranks())
        title = say(14, 24, self._title(), look="text", font_size=15, font_weight=600)
        told = "Filled: computing. Outlined: an all-reduce is on its way."
        told = say(14, 45, told, look="soft", font_size=12)
        body = "".join([title, told, *lanes, *_axis(along, foot)])
        return svg.document(body, ident, (_WIDTH, foot + 42), self._title(), self.alt)

    def _ranks(self) -> range:
        return range(len(self.spans))

    def _of(self, rank: int, what: str) -> list[Any]:
        found = [span for span in self.spans[rank] if span.what == what]
        return sorted(found, key=lambda span: (span.start, span.stop))

    def _lane(self, rank: int, top: float, along: Scale) -> str:
        """Draw one rank: its computing above, each all-reduce in a row of its own below."""
        keys: Keys = {"x": 8, "y": top, "width": _WIDTH - 16, "height": _LANE - 6, "rx": 7}
        pill = tag("rect", look=f"r{rank}", x=16, y=top + 18, width=54, height=20, rx=10)
        name = say(43, top + 32, f"rank {rank}", look="head", font_size=12, text_anchor="middle")
        parts = [tag("rect", look="box", **keys), pill, name]
        for k, what in enumerate(KINDS):
            parts.append(say(_LEFT - 8, top + 19 + 24 * k, what, **_SOFT, text_anchor="end"))
        busy = self._of(rank, "compute")
        parts += [_bar(span, along, f"r{rank}", top + 7, _BAR) for span in busy]
        sent = self._of(rank, "all-reduce")
        high = min(_BAR, 24 / max(len(sent), 1) - 2)
        for k, span in enumerate(sent):
            parts.append(_bar(span, along, "done", top + 29 + k * (high + 2), high))
        return "".join(parts)


def _place(along: Scale, ms: float) -> float:
    return float(round(_LEFT + along(ms) * (_WIDTH - _LEFT - _RIGHT), 1))


def _bar(span: Any, along: Scale, look: str, y: float, high: float) -> str:
    a, b = (_place(along, 1e3 * at) for at in (span.start, span.stop))
    wide = max(round(b - a, 1), 0.5)  # what is too short to see is still there
    return tag("rect", look=look, x=a, y=round(y, 1), width=wide, height=round(high, 1))


def _axis(along: Scale, foot: float) -> Iterator[str]:
    for ms in along.ticks():
        x = _place(along, ms)
        yield tag("path", look="grid", d=f"M{x:g} {_TOP - 4:g}V{foot:g}")
        yield say(x, foot + 12, f"{ms:g}", **_SOFT, text_anchor="middle")
    yield say(_LEFT, foot + 30, along.axis.label, look="soft", font_size=12)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
