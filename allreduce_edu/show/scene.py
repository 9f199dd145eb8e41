"""Where everything stands: one layout, computed once, for the SVG text and for the browser.

A scene is plain data (it travels to the browser as JSON). Its numbers are multiples of a half,
so that adding them gives the same text in Python and in JavaScript.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Frames = dict[str, Any]
Scene = dict[str, Any]
Pair = tuple[int, int]

RING_RANKS = 8  # more boxes, or more chunks in a box, read better as a board
RING_CHUNKS = 8
CHAR = 0.62  # width of a monospaced character, in font sizes
BAR = 40  # height of the port meter's tallest bar
BULGE = 30  # how far an arrow round an end of the track swings out


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    w: float
    h: float


class Port(NamedTuple):
    """Where a chord meets a box, and which way is inward (1 is down)."""

    x: float
    y: float
    inward: int


def views(frames: Frames) -> list[str]:
    """Return the views that suit these frames, the best one first."""
    n = frames["ranks"]
    if n > RING_RANKS or frames["chunks"] > RING_CHUNKS:
        return ["board"]
    return ["board", "ring"] if _chords(frames) else ["ring", "board"]


def layout(
    frames: Frames, view: str | None = None, *, values: bool | None = None, dense: bool = False
) -> Scene:
    """Return where ranks, cells, arrows and the port meter stand.

    In the *ring* view ranks are boxes round a racetrack; an arrow between neighbours leaves from
    the very cell that is sent, all others cross the corridor inside. In the *board* view ranks
    are columns and chunks are rows; arrows are arcs above the columns; it can
    be `dense`, for several on one page.
    """
    view = view or views(frames)[0]
    scene = {key: frames[key] for key in ("ranks", "chunks")} | {"view": view, "dense": dense}
    scene |= _cell(frames, view, values)
    scene |= (_ring if view == "ring" else _board)(frames, scene)
    scene["meter"] = _meter(frames, scene)
    scene["legend"] = legend(scene["width"] - 14, scene["bottom"] + 30)
    scene["opening"] = opening(frames)
    scene["height"] = scene["meter"]["base"] + 22
    return scene


def opening(frames: Frames) -> str:
    """Return the sentence for the start."""
    n, chunks = frames["ranks"], frames["chunks"]
    return f"Start: {n} rank{'s' * (n > 1)}, {chunks} chunk{'s' * (chunks > 1)} on each."


def pairs(frames: Frames) -> set[Pair]:
    """Return every (src, dst) that sends at all."""
    return {p for step in frames["steps"] for p in zip(step["src"], step["dst"], strict=True)}


def _chords(frames: Frames) -> set[Pair]:
    """Return the pairs that are not neighbours on a ring."""
    n = frames["ranks"]
    return {(i, j) for i, j in pairs(frames) if (i - j) % n not in (1, n - 1)}


def amount_text(count: float, unit: str) -> str:
    """Write what was sent in at most six characters: 1.5 S, or bytes as 1200, 48 k, 3 G."""
    if unit == "S":
        return f"{count:.3g} S"
    return _bytes_text(count)


def _bytes_text(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size * (10 if unit == "k" else 1):
            return f"{count / size:.3g} {unit}"
    return f"{count:g}"


# --------------------------------------------------------------------------- inside a cell


def _cell(frames: Frames, view: str, values: bool | None) -> Scene:
    """Lay out one cell: N segments for the shares, a value, a mark."""
    n, chunks = frames["ranks"], frames["chunks"]
    longest = max(map(len, _texts(frames)), default=0)
    shown = (chunks <= 16 if values is None else values) and longest > 0
    per_row = n if n <= 8 or chunks > 32 else 8
    wide, high = _segment(n, per_row)
    strip_w = per_row * (wide + 1) - 1
    strip_h = math.ceil(n / per_row) * (high + 1) - 1
    left = 24 if view == "ring" else 4
    scene: Scene = {
        "seg": [[left + r % per_row * (wide + 1), 4 + r // per_row * (high + 1)] for r in range(n)],
        "seg_size": [wide, high],
        "digit": 0 if n > 8 else 10 if n <= 4 else 9,
        "strip": [left, 4, strip_w, strip_h],
    }
    if shown and view == "board" and n > 5:
        return scene | _stacked(left, strip_w, strip_h, longest)
    return scene | _inline(left + strip_w, strip_h, min(longest, 9) if shown else 0)


def _texts(frames: Frames) -> Iterator[str]:
    yield from frames["start"]["value"]
    for step in frames["steps"]:
        yield from step["value"]


def _segment(n: int, per_row: int) -> tuple[int, int]:
    if n <= 8:
        return (15 if n <= 4 else 12 if n <= 6 else 11), 15
    return (6, 7) if per_row == 8 else (3, 8)


def _inline(x: int, strip_h: int, chars: int) -> Scene:
    """Put value and mark to the right of the segments; value is x, y, font size, characters."""
    end = x + (8 + math.ceil(chars * 11.5 * CHAR) if chars else 0)
    middle = 4 + (strip_h + 1) // 2
    return {
        "size": [end + 20, strip_h + 8],
        "value": [end, middle + 4, 11.5, chars],
        "mark": [end + 11, middle],
    }


def _stacked(left: int, strip_w: int, strip_h: int, longest: int) -> Scene:
    """Put value and mark below the segments."""
    chars = min(longest, int((strip_w - 12) / (9.5 * CHAR)))
    return {
        "size": [left + strip_w + 4, strip_h + 20],
        "value": [left + strip_w - 12, strip_h + 15.5, 9.5, chars],
        "mark": [left + strip_w - 4, strip_h + 12],
    }


# ------------------------------------------------------------------------------- ring view


def _ring(frames: Frames, cell: Scene) -> Scene:
    n, chunks = frames["ranks"], frames["chunks"]
    cell_w, cell_h = cell["size"]
    used = pairs(frames)
    chords = _chords(frames)
    corridor = 0 if n <= 2 else 88 if chords else 34
    side = 14 if n <= 2 else BULGE + 6 + (cell["strip"][2] + 9) // 2  # a strip may pass outside
    boxes = _racetrack(n, cell_w + 12, 33 + chunks * (cell_h + 3), side, corridor)
    cells = [[b.x + 6, b.y + 30 + c * (cell_h + 3)] for b in boxes for c in range(chunks)]
    ports = _ports(boxes, chords)

    def path(src: int, dst: int, chunk: int) -> tuple[str, bool]:
        if (src, dst) in chords:
            a, b = (ports[rank, (src, dst)] for rank in (src, dst))
            return _chord(a, b, corridor), False
        lane = 0 if (dst, src) not in used else 5 if src > dst else -5
        y1, y2 = (cells[r * chunks + chunk][1] + cell_h // 2 + lane for r in (src, dst))
        return _hop(boxes[src], y1, boxes[dst], y2, left={src, dst} == {0, n - 1}), True

    return {
        "width": max(b.x + b.w for b in boxes) + boxes[0].x,
        "bottom": max(b.y + b.h for b in boxes),
        "box": boxes,
        "head": [[b.x + b.w / 2, b.y + 6] for b in boxes],
        "labels": [[x + 4, y + 15.5, f"c{k % chunks}"] for k, (x, y) in enumerate(cells)],
        "label": 11,
        "cell": cells,
        **_ways(frames, path),
    }


def _racetrack(n: int, w: float, h: float, side: float, corridor: float) -> list[Box]:
    """Put ranks clockwise: half of them on top from left to right, the rest back below."""
    top = n if n <= 2 else (n + 1) // 2
    below = n - top
    gap = 160 if n <= 2 else 84 if n <= 4 else 56
    span = (top - 1) * (w + gap)
    first, pitch = (span, span / (below - 1)) if below > 1 else (span / 2, 0)
    upper = [Box(side + k * (w + gap), 10, w, h) for k in range(top)]
    y = 10 + h + corridor
    return upper + [Box(_half(side + first - k * pitch), y, w, h) for k in range(below)]


def _half(x: float) -> float:
    return math.floor(2 * x) / 2


def _hop(a: Box, y1: float, b: Box, y2: float, *, left: bool) -> str:
    """Join two neighbours' cells: straight along a row, or round an end of the track."""
    if a.y == b.y:
        x1, x2 = (a.x + a.w + 3, b.x - 3) if a.x < b.x else (a.x - 3, b.x + b.w + 3)
        return f"M{x1:g} {y1:g}L{x2:g} {y2:g}"
    x1, x2 = (a.x - 3, b.x - 3) if left else (a.x + a.w + 3, b.x + b.w + 3)
    out = min(x1, x2) - BULGE * 4 / 3 if left else max(x1, x2) + BULGE * 4 / 3
    return f"M{x1:g} {y1:g}C{out:g} {y1:g} {out:g} {y2:g} {x2:g} {y2:g}"


def _ports(boxes: list[Box], chords: set[Pair]) -> dict[tuple[int, Pair], Port]:
    """Spread the ends of the chords along the inner edges of the boxes."""
    ports = {}
    for rank, box in enumerate(boxes):
        upper = box.y == boxes[0].y
        edge, inward = (box.y + box.h + 4, 1) if upper else (box.y - 4, -1)
        # In the order of the partners, and the two ways of one pair side by side, not crossed.
        mine = sorted((boxes[sum(p) - rank].x, p[0] > p[1], p) for p in chords if rank in p)
        for k, (_, _, pair) in enumerate(mine):
            x = _half(box.x + box.w * (k + 1) / (len(mine) + 1))
            ports[rank, pair] = Port(x, edge, inward)
    return ports


def _chord(a: Port, b: Port, corridor: float) -> str:
    """Cross the corridor inside the track; between two boxes of one row, dip into it."""
    deep = corridor * (0.5 if a.y != b.y else 1.0)
    y1, y2 = a.y + a.inward * deep, b.y + b.inward * deep
    return f"M{a.x:g} {a.y:g}C{a.x:g} {y1:g} {b.x:g} {y2:g} {b.x:g} {b.y:g}"


# ------------------------------------------------------------------------------ board view


def _board(frames: Frames, cell: Scene) -> Scene:
    n, chunks = frames["ranks"], frames["chunks"]
    cell_w, cell_h = cell["size"]
    dense = cell["dense"]
    pitch = cell_w + (24 if n <= 4 and not dense else 14 if n <= 8 else 8)
    row = cell_h + (3 if chunks <= 16 else 1)
    left, word = (34, "c") if dense else (66, "chunk ")
    reach = max((abs(i - j) for i, j in pairs(frames)), default=0)
    head = 12 + (_rise(reach, n) + 8 if reach else 0)
    top = head + 26
    middle = [left + r * pitch + cell_w // 2 for r in range(n)]
    ys = [top + c * row for c in range(chunks)]

    def path(src: int, dst: int, _: int) -> tuple[str, bool]:
        """Leave right of the name, arrive left of it: the arc back encloses the arc there."""
        x1, x2 = middle[src] + 6, middle[dst] - 6
        y = _half(head - 4 - (_rise(abs(src - dst), n) + (4 if src > dst else 0)) * 4 / 3)
        return f"M{x1:g} {head - 4:g}C{x1:g} {y:g} {x2:g} {y:g} {x2:g} {head - 4:g}", False

    return {
        "width": max(left + n * pitch - (pitch - cell_w) + 14, 300),
        "bottom": top + chunks * row,
        "box": [],
        "head": [[x, head] for x in middle],
        "labels": [[10, y + cell_h // 2 + 4, f"{word}{c}"] for c, y in enumerate(ys)],
        "label": 11 if row > 12 else 8,
        "cell": [[left + r * pitch, y] for r in range(n) for y in ys],
        **_ways(frames, path),
    }


def _rise(span: int, n: int) -> int:
    """Return how high an arc over `span` columns stands."""
    return 10 + 30 * (span - 1) // max(n - 2, 1)


# ---------------------------------------------------------------- arrows, meter and legend


def _ways(frames: Frames, path: Callable[[int, int, int], tuple[str, bool]]) -> Scene:
    """Give each different arrow a number, and each transfer the number of its arrow.

    ``exact[k]`` is 1 where arrow k itself starts at the cell that is sent.
    """
    known: dict[tuple[str, bool], int] = {}
    ways = [
        [
            known.setdefault(path(*move), len(known))
            for move in zip(step["src"], step["dst"], step["chunk"], strict=True)
        ]
        for step in frames["steps"]
    ]
    return {"paths": [d for d, _ in known], "exact": [int(e) for _, e in known], "ways": ways}


def _meter(frames: Frames, scene: Scene) -> Scene:
    """Lay out one bar per rank, on one scale for all schedules of N ranks: [height, text] each."""
    n, width = frames["ranks"], scene["width"]
    sent = [[0] * n] + [step["sent"] for step in frames["steps"]]
    most = max(frames["full"], *map(max, sent))
    unit = frames["unit"]
    what = "Sent by each rank, in S" if unit == "S" else "Bytes sent by each rank"
    pitch = min(104.0, (width - 40) / n)
    even = [_half(width / 2 + (r - (n - 1) / 2) * pitch) for r in range(n)]
    title = scene["bottom"] + (30 if width >= 400 else 50)
    return {
        "x": [x for x, _ in scene["head"]] if scene["view"] == "board" else even,
        "bar": 30 if n <= 8 else 22,
        "title": [14, title, what],
        "base": title + 18 + BAR,
        "full": BAR,
        "port": [[[_half(BAR * s / most), amount_text(s, unit)] for s in row] for row in sent],
    }


def legend(x: float, y: float) -> Scene:
    """Lay out the key of arrows and marks; it ends at x."""
    return {
        "add": f"M{x - 200:g} {y - 4:g}h26",
        "copy": f"M{x - 136:g} {y - 4:g}h26",
        "check": [x - 66, y - 4],
        "texts": [[x - 168, y, "add"], [x - 104, y, "copy"], [x - 58, y, "complete"]],
    }
