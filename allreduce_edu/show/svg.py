"""Frames as SVG text: one frame, a film strip, and a loop that moves.

The text is deterministic, stands on its own and needs no script: it is what a notebook on the
web, a print and a reader without JavaScript see. ``python -m allreduce_edu.show.svg`` prints the
moving ring of the README.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from html import escape, unescape
from typing import Any

from allreduce_edu.engine.check import count
from allreduce_edu.show.draw import (
    Keys,
    arrows,
    bars,
    cellwork,
    chips,
    clip,
    defs,
    ground,
    key,
    say,
    tag,
)
from allreduce_edu.show.paint import SANS, dark_style
from allreduce_edu.show.scene import Frames, layout, legend, opening

_TITLE: Keys = {"look": "text", "font_size": 15, "font_weight": 600}


def still(frames: Frames, index: int = 0, view: str | None = None) -> str:
    """Return frame `index` as an SVG text: picture, caption, and what went wrong."""
    scene, ident = layout(frames, view), _ident(frames, f"still {index} {view}")
    width = max(scene["width"], 420)
    start: Keys = {"say": opening(frames), "wrong": []}
    step = frames["steps"][index - 1] if index else start
    lines = [(line, "text") for line in _wrapped(step["say"], width)]
    lines += [(line, "wrong") for each in step["wrong"][:3] for line in _wrapped(each, width)]
    title, top = f"{frames['name']}, {_when(frames, index)}", 34 + 17 * len(lines)
    body = [say(14, 24, clip(title, int(width / 9)), **_TITLE)]
    for k, (line, look) in enumerate(lines):
        body.append(say(14, 44 + 17 * k, line, look=look, font_size=12))
    inner = ground(scene) + cellwork(frames, scene, index, ident)
    inner += arrows(frames, scene, index, ident) + bars(scene, index) + key(scene, ident)
    inner += say(14, scene["height"] + 10, f"Values: {frames['note']}.", look="soft", font_size=11)
    shift = (width - scene["width"]) // 2
    body.append(tag("g", inner, transform=f"translate({shift:g} {top:g})"))
    size = width, top + scene["height"] + 22
    return document("".join(body), ident, size, title, f"{title}. {_spoken(step)}")


def strip(frames: Frames) -> str:
    """Return the whole schedule as a film strip: all frames if few, else the telling ones."""
    shown, last = telling(frames), len(frames["steps"])
    few = frames["ranks"] <= 5 and frames["chunks"] <= 8
    scene, ident = layout(frames, "board", values=few, dense=True), _ident(frames, "strip")
    faults = any(step["wrong"] for step in frames["steps"])
    wide, high = scene["width"], scene["bottom"] + (54 if faults else 36)
    columns = max(1, min(len(shown), int(1240 // wide)))
    size = max(columns * wide, 460), 40 + -(-len(shown) // columns) * high
    scene["legend"] = legend(size[0] - 14, 24)
    title = f"{clip(frames['name'], int(size[0] / 9) - 42)}, {count(last, 'round')}"
    body = [say(14, 24, title, **_TITLE), key(scene, ident)]
    for k, index in enumerate(shown):
        x, y = k % columns * wide, 40 + k // columns * high
        inner = ground(scene) + cellwork(frames, scene, index, ident)
        inner = tag("g", inner + arrows(frames, scene, index, ident), transform="translate(0 12)")
        inner += say(14, 14, _caption(frames, index), look="soft", font_size=12)
        for fault in (frames["steps"][index - 1]["wrong"] if index else [])[:1]:
            keys: Keys = {"look": "wrong", "font_size": 11}
            inner += say(14, scene["bottom"] + 30, clip(fault, int(wide / 6)), **keys)
        body.append(tag("g", inner, id=f"{ident}-f{index}", transform=f"translate({x:g} {y:g})"))
    says = f"{frames['name']}. {story(frames, shown)}"
    return document("".join(body), ident, size, frames["name"], says)


def image(text: str) -> str:
    """Return an SVG text as an HTML image that says in words what it shows."""
    says = re.search("<desc[^>]*>(.*?)</desc>", text, re.DOTALL)
    data = base64.b64encode(text.encode()).decode()
    alt = escape(unescape(says[1])) if says else ""
    return f'<img alt="{alt}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


def telling(frames: Frames) -> list[int]:
    """Return every frame, or, if they are many, start, end of the adding, and end."""
    last = len(frames["steps"])
    if last <= 7 and frames["ranks"] * frames["chunks"] <= 40:
        return list(range(last + 1))
    middle = _added(frames)
    return sorted({0, middle, last}) if frames["ranks"] <= 8 else [middle]


def story(frames: Frames, shown: Sequence[int]) -> str:
    """Return the sentences of some frames in a row, for those who hear the picture."""
    steps = frames["steps"]
    return " ".join(_spoken(steps[k - 1]) if k else opening(frames) for k in shown)


def _added(frames: Frames) -> int:
    """Return the frame after the last round that adds."""
    adds = (k for k, step in enumerate(frames["steps"], 1) if step["phase"] != "copy")
    return max(adds, default=len(frames["steps"]))


def _spoken(step: dict[str, Any]) -> str:
    return " ".join([step["say"], *step["wrong"]])


def _when(frames: Frames, index: int) -> str:
    return f"after {index} of {len(frames['steps'])} rounds" if index else "at the start"


def _caption(frames: Frames, index: int) -> str:
    if not index:
        return "start"
    phase = frames["steps"][index - 1]["phase"]
    kind = {"reduce": "add", "mixed": "add and copy"}.get(phase, phase)
    return f"round {index} of {len(frames['steps'])}: {kind}"


def _wrapped(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, int((width - 28) / 6.2))


def _ident(frames: Frames, what: str) -> str:
    """Return a prefix for ids that differs between pictures and never between runs."""
    text = json.dumps([frames, what], sort_keys=True)
    return "ar" + hashlib.sha256(text.encode()).hexdigest()[:8]


def document(
    body: str, ident: str, size: tuple[float, float], title: str, says: str, *, style: str = ""
) -> str:
    """Return a whole SVG text that follows the reader's theme and says what it shows."""
    width, height = size
    head = tag("title", escape(title), id=f"{ident}-title")
    head += tag("desc", escape(says), id=f"{ident}-desc")
    head += tag("style", style + dark_style()) + defs(ident)
    back = tag("rect", look="back", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8)
    keys: Keys = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": width,
        "height": height,
        "style": "max-width:100%;height:auto",
        "role": "img",
        "aria_labelledby": f"{ident}-title {ident}-desc",
        "font_family": SANS,
    }
    return tag("svg", head + back + body, **keys)


# ------------------------------------------------------------------------------- the loop


def animation(frames: Frames, seconds: float = 1.8, rest: float = 2.0) -> str:
    """Return an SVG text that plays all rounds for ever, without a script.

    Where motion is unwanted or not understood it stands still, at the end of the adding.
    """
    scene, ident = layout(frames), _ident(frames, "loop")
    rounds, quiet, top = len(frames["steps"]), _added(frames), 38
    clock = Clock(ident, 2 * rest + rounds * seconds)
    begins = [0.0, *(rest + k * seconds for k in range(rounds)), clock.total]
    lands = [0.0, *(t + 0.6 * seconds for t in begins[1:-1]), clock.total]
    parts = [ground(scene), key(scene, ident)]
    for k in range(rounds + 1):
        inner = cellwork(frames, scene, k, ident) + bars(scene, k)
        parts.append(clock.between(inner, lands[k], lands[k + 1], still=k == quiet))
    for k in range(rounds + 1):
        title = clip(f"{frames['name']}, {_caption(frames, k)}", int(scene["width"] / 9))
        inner = say(14, 24 - top, title, **_TITLE)
        inner += arrows(frames, scene, k, ident)
        parts.append(clock.between(inner, begins[k], begins[k + 1], still=k == quiet))
        parts += [clock.along(*chip, begins[k], lands[k]) for chip in chips(frames, scene, k)]
    inner = tag("g", "".join(parts), transform=f"translate(0 {top})")
    size = scene["width"], top + scene["height"]
    says = f"{frames['name']}. {story(frames, range(rounds + 1))}"
    return document(inner, ident, size, frames["name"], says, style=clock.style())


class Clock:
    """Collects the CSS of a loop: what is seen from when to when, and what moves meanwhile."""

    def __init__(self, ident: str, total: float) -> None:
        self.ident, self.total = ident, total
        self._frames: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Clock: a loop of {self.total:g} s with {len(self._frames)} rules"

    def between(self, inner: str, start: float, stop: float, *, still: bool) -> str:
        """Show `inner` from start to stop; `still` says if it is seen where nothing moves."""
        run = self._window(start, stop)
        return tag("g", inner, class_=self.ident, opacity=int(still), style=f"animation:{run}")

    def along(self, inner: str, path: str, start: float, stop: float) -> str:
        """Move `inner`, which is drawn round 0, 0, along the path from start to stop."""
        a, b = (f"{100 * t / self.total:.2f}%" for t in (start, stop))
        text = f"0%,{a}{{offset-distance:0%}}{b},100%{{offset-distance:100%}}"
        run = f"{self._window(start, stop)},{self._rule(text)} ease-in-out"
        style = f"animation:{run};offset-path:path('{path}');offset-rotate:0deg"
        return tag("g", inner, class_=self.ident, opacity=0, style=style)

    def _window(self, start: float, stop: float) -> str:
        a, b = (f"{100 * t / self.total:.2f}%" for t in (start, stop))
        before = "0%{opacity:0}" if start else ""
        after = "{opacity:0}100%{opacity:0}" if stop < self.total else "{opacity:1}"
        return f"{self._rule(f'{before}{a}{{opacity:1}}{b}{after}')} step-end"

    def _rule(self, text: str) -> str:
        name = self._frames.setdefault(text, f"{self.ident}-{len(self._frames)}")
        return f"{name} {self.total:g}s infinite"

    def style(self) -> str:
        """Return the rules; none of them holds for readers who want less motion."""
        rules = "".join(f"@keyframes {name}{{{text}}}" for text, name in self._frames.items())
        stop = f".{self.ident}{{animation:none!important}}"
        return f"{rules}@media (prefers-reduced-motion:reduce){{{stop}}}"


def main() -> None:
    """Print the moving ring."""
    from allreduce_edu.engine.algorithms import ring
    from allreduce_edu.engine.frames import frames

    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    print(animation(frames(ring(4))))


if __name__ == "__main__":
    main()
