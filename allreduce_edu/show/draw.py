"""One frame as SVG elements: what a scene shows after so many rounds.

The browser's player draws the same layers from the same scene; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from allreduce_edu.show.paint import attributes
from allreduce_edu.show.scene import Frames, Scene

Keys = dict[str, Any]

CHECK = "m-4 0l3 3.5 5-7"
CROSS = "m-4-4l8 8m0-8l-8 8"


class State(NamedTuple):
    """What every cell holds at one frame."""

    mask: list[int]
    value: list[str]
    twice: list[int]


def state(frames: Frames, index: int) -> State:
    """Return what every cell holds after `index` rounds."""
    start = frames["start"]
    now = State(list(start["mask"]), list(start["value"]), [0] * len(start["mask"]))
    for step in frames["steps"][:index]:
        for i, cell in enumerate(step["cell"]):
            now.mask[cell], now.value[cell] = step["mask"][i], step["value"][i]
            now.twice[cell] = step["twice"][i]
    return now


def wrong(frames: Frames, index: int) -> list[int]:
    """Return the cells that are wrong after `index` rounds."""
    cells: list[int] = frames["steps"][index - 1]["wrong_cells"] if index else []
    return cells


def complete(frames: Frames, index: int) -> list[int]:
    """Return the cells that hold what must be there at the end, each share once."""
    now, bad = state(frames, index), set(wrong(frames, index))
    return [
        cell
        for cell, goal in enumerate(frames["goal"])
        if now.mask[cell] == goal and not now.twice[cell] and cell not in bad
    ]


# ---------------------------------------------------------------------------------- layers


def layers(frames: Frames, scene: Scene, index: int) -> dict[str, str]:
    """Return the paths that show the cells of frame `index`, from back to front."""
    now, done, bad = state(frames, index), complete(frames, index), wrong(frames, index)
    step = frames["steps"][index - 1] if index else {"cell": [], "src": []}
    over = index == len(frames["steps"])
    unused = [c for c, goal in enumerate(frames["goal"]) if over and goal < 0 and c not in bad]
    every = range(frames["ranks"])
    return {
        "cell": _cells(scene, range(len(now.mask))),
        "tint": _cells(scene, step["cell"]),
        "hatch": _cells(scene, bad),
        "void": _free(scene, now.mask),
        **{f"r{r}": _segments(scene, now.mask, [r]) for r in every},
        "twice": _segments(scene, now.twice, every, hollow=False),
        "veil": _cells(scene, unused),
        "done": _cells(scene, done),
        "bad": _cells(scene, bad),
        "check": _marks(scene, done, CHECK),
        "cross": _marks(scene, bad, CROSS),
        "tip": _sent(scene, step, index - 1),
    }


def ways(scene: Scene, step: dict[str, Any], k: int) -> dict[str, list[str]]:
    """Return the different arrows of round k, by what the receiver does."""
    kinds: dict[str, dict[str, None]] = {"copy": {}, "add": {}}
    for way, reduce in zip(scene["ways"][k], step["reduce"], strict=True):
        kinds["add" if reduce else "copy"][scene["paths"][way]] = None
    return {kind: list(paths) for kind, paths in kinds.items()}


def _cells(scene: Scene, cells: Iterable[int]) -> str:
    w, h = scene["size"]
    at = (scene["cell"][cell] for cell in cells)
    return "".join(f"M{x:g} {y:g}h{w:g}v{h:g}h-{w:g}z" for x, y in at)


def _segments(
    scene: Scene, masks: Sequence[int], ranks: Iterable[int], *, hollow: bool = True
) -> str:
    """Return a rectangle per share that is in `masks`; those of ranks 8 to 15 have a hole."""
    w, h = scene["seg_size"]
    edge = 2 if w > 4 else 1
    hole = f"m{edge} {edge}v{h - 2 * edge}h{w - 2 * edge}v-{h - 2 * edge}z"
    seg = [(r, *scene["seg"][r], hole if hollow and r > 7 else "") for r in ranks]
    return "".join(
        f"M{x + dx:g} {y + dy:g}h{w}v{h}h-{w}z{inner}"
        for (x, y), mask in zip(scene["cell"], masks, strict=True)
        for r, dx, dy, inner in seg
        if mask >> r & 1
    )


def _free(scene: Scene, masks: Sequence[int]) -> str:
    """Return the places of the shares that are not there; of many ranks, all places as one."""
    if scene["ranks"] <= 8:
        free, every = [~mask for mask in masks], range(scene["ranks"])
        return _segments(scene, free, every, hollow=False)
    left, top, w, h = scene["strip"]
    return "".join(f"M{x + left:g} {y + top:g}h{w}v{h}h-{w}z" for x, y in scene["cell"])


def _marks(scene: Scene, cells: Iterable[int], shape: str) -> str:
    dx, dy = scene["mark"]
    at = (scene["cell"][cell] for cell in cells)
    return "".join(f"M{x + dx:g} {y + dy:g}{shape}" for x, y in at)


def _sent(scene: Scene, step: dict[str, Any], k: int) -> str:
    """Point out the cells that were sent, where the arrow itself does not start at the cell."""
    (w, h), chunks = scene["size"], scene["chunks"]
    tips: dict[str, None] = {}
    for i, src in enumerate(step["src"]):
        if scene["exact"][scene["ways"][k][i]]:
            continue
        ends = (rank * chunks + step["chunk"][i] for rank in (src, step["dst"][i]))
        (x, y), (to, _) = (scene["cell"][cell] for cell in ends)
        side, tip = (x - 1, "l-5 4 5 4z") if to < x else (x + w + 1, "l5 4-5 4z")
        tips[f"M{side:g} {y + h // 2 - 4:g}{tip}"] = None
    return "".join(tips)


# -------------------------------------------------------------------------------- elements


def tag(name: str, inner: str = "", *, look: str = "", **keys: Any) -> str:
    """Write one element; `look` gives it the class and the attributes of `paint`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_plain(value)}"'
        for key, value in ((attributes(look) if look else {}) | keys).items()
    )
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def say(x: float | str, y: float, text: str, **keys: Any) -> str:
    """Write a text element."""
    return tag("text", escape(text, quote=False), x=x, y=y, **keys)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else escape(str(value))


def defs(ident: str) -> str:
    """Return arrowhead and hatch."""
    tip = tag("path", d="M0 0L8 4L0 8z", look="tip")
    line = tag("path", d="M-1 1l2-2M0 5l5-5M4 6l2-2", look="stripe")
    size: Keys = {"refX": 7, "refY": 4, "markerWidth": 8, "markerHeight": 8, "orient": "auto"}
    marker: Keys = {"id": f"{ident}-tip", "markerUnits": "userSpaceOnUse", **size}
    hatch: Keys = {
        "id": f"{ident}-hatch",
        "patternUnits": "userSpaceOnUse",
        "width": 5,
        "height": 5,
    }
    return tag("defs", tag("marker", tip, **marker) + tag("pattern", line, **hatch))


def ground(scene: Scene) -> str:
    """Return what no round changes: boxes and names of ranks."""
    parts = [
        tag("rect", look="box", x=x, y=y, width=w, height=h, rx=7) for x, y, w, h in scene["box"]
    ]
    for rank, (x, y) in enumerate(scene["head"]):
        parts.append(tag("rect", look=f"r{rank}", x=x - 25, y=y, width=50, height=18, rx=9))
    names = [say(x, y + 13, f"rank {rank}") for rank, (x, y) in enumerate(scene["head"])]
    parts.append(tag("g", "".join(names), look="head", text_anchor="middle", font_size=11))
    return "".join(parts)


def cellwork(frames: Frames, scene: Scene, index: int, ident: str) -> str:
    """Return the cells of one frame, each layer with an id of its own."""
    parts = []
    for name, d in layers(frames, scene, index).items():
        fill: Keys = {"fill": f"url(#{ident}-hatch)"} if name == "hatch" else {}
        if d:
            parts.append(tag("path", look=name, id=f"{ident}-{index}-{name}", d=d, **fill))
        if name == "hatch":
            names = "".join(say(*each) for each in scene["labels"])
            parts.append(tag("g", names, look="soft", font_size=scene["label"]))
        if name == "twice" and scene["digit"]:
            parts.append(_digits(scene, state(frames, index).mask))
    return "".join(parts) + _values(frames, scene, index)


def _digits(scene: Scene, masks: Sequence[int]) -> str:
    """Write the digits of the shares, one text per cell."""
    wide, high = scene["seg_size"]
    texts = []
    for (x, y), mask in zip(scene["cell"], masks, strict=True):
        held = [r for r in range(scene["ranks"]) if mask >> r & 1]
        at = " ".join(f"{x + scene['seg'][r][0] + wide / 2:g}" for r in held)
        line = y + scene["seg"][0][1] + (high + scene["digit"]) // 2 - 1
        texts.append(say(at, line, "".join(map(str, held))) if held else "")
    keys: Keys = {"text_anchor": "middle", "font_size": scene["digit"]}
    return tag("g", "".join(texts), look="digit", **keys)


def clip(text: str, chars: int) -> str:
    """Shorten a text that there is no room for."""
    return text if len(text) <= chars else text[: max(chars - 1, 0)] + "…"


def _values(frames: Frames, scene: Scene, index: int) -> str:
    dx, dy, size, chars = scene["value"]
    texts = [
        say(x + dx, y + dy, text)
        for (x, y), text in zip(scene["cell"], state(frames, index).value, strict=True)
        if text and len(text) <= chars  # a cut number would look like another one
    ]
    return tag("g", "".join(texts), look="value", text_anchor="end", font_size=size)


def arrows(frames: Frames, scene: Scene, index: int, ident: str) -> str:
    """Return the arrows of the round before frame `index`: solid where it adds."""
    if not index:
        return ""
    tip = f"url(#{ident}-tip)"
    return "".join(
        tag("path", look=kind, d=d, marker_end=tip)
        for kind, paths in ways(scene, frames["steps"][index - 1], index - 1).items()
        for d in paths
    )


def chips(frames: Frames, scene: Scene, index: int) -> list[tuple[str, str]]:
    """Return what travels in the round before frame `index`, round 0, 0, and its path."""
    if not index:
        return []
    step, before, k = frames["steps"][index - 1], state(frames, index - 1), index - 1
    cells = (r * frames["chunks"] + c for r, c in zip(step["src"], step["chunk"], strict=True))
    masks = [before.mask[cell] for cell in cells]
    return [
        (_chip(scene, mask), scene["paths"][way])
        for mask, way in zip(masks, scene["ways"][k], strict=True)
    ]


def _chip(scene: Scene, mask: int) -> str:
    """Draw the shares in `mask` on a card whose middle is 0, 0."""
    left, top, w, h = scene["strip"]
    alone, every = scene | {"cell": [[-left - w / 2, -top - h / 2]]}, range(scene["ranks"])
    keys: Keys = {"x": -w / 2 - 4, "y": -h / 2 - 4, "width": w + 8, "height": h + 8, "rx": 4}
    parts = [tag("rect", look="chip", **keys)]
    parts.append(tag("path", look="void", d=_free(alone, [mask])))
    held = (r for r in every if mask >> r & 1)
    parts += [tag("path", look=f"r{r}", d=_segments(alone, [mask], [r])) for r in held]
    return "".join(parts) + (_digits(alone, [mask]) if scene["digit"] else "")


def bars(scene: Scene, index: int) -> str:
    """Draw the port meter: bytes each rank has sent so far."""
    meter, parts = scene["meter"], [say(*scene["meter"]["title"], look="soft", font_size=11)]
    wide, base, full = meter["bar"], meter["base"], meter["full"]
    for rank, (x, (high, text)) in enumerate(zip(meter["x"], meter["port"][index], strict=True)):
        left = x - wide / 2
        parts += [
            tag("rect", look="void", x=left, y=base - full, width=wide, height=full),
            tag("rect", look="bar", x=left, y=base - high, width=wide, height=high),
            say(x, base - full - 4, text, look="text", font_size=10, text_anchor="middle"),
            say(x, base + 13, f"rank {rank}", look="soft", font_size=10, text_anchor="middle"),
        ]
    return "".join(parts)


def key(scene: Scene, ident: str) -> str:
    """Draw the key of arrows and marks."""
    at, tip = scene["legend"], f"url(#{ident}-tip)"
    parts = [tag("path", look=kind, d=at[kind], marker_end=tip) for kind in ("add", "copy")]
    parts.append(tag("path", look="check", d=f"M{at['check'][0]:g} {at['check'][1]:g}{CHECK}"))
    texts = "".join(say(*each) for each in at["texts"])
    return "".join(parts) + tag("g", texts, look="soft", font_size=11)
