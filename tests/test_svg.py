"""The static pictures: what they show is what the engine counts, and nothing covers anything."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest

from allreduce_edu.engine.algorithms import ALGORITHMS, COLLECTIVES, ring
from allreduce_edu.engine.execute import steps
from allreduce_edu.engine.frames import frames
from allreduce_edu.engine.rounds import Round
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.show import paint, svg
from allreduce_edu.show.draw import complete, layers, ways
from allreduce_edu.show.scene import CHAR, amount_text, layout, views

SVG = "{http://www.w3.org/2000/svg}"
RANKS = (1, 2, 3, 4, 5, 8, 16)
EVERY = [
    pytest.param(make(n), id=f"{name}-{n}") for name, make in ALGORITHMS.items() for n in RANKS
]
OTHERS = [pytest.param(make(5), id=name) for name, make in COLLECTIVES.items()]
CHUNKED = [pytest.param(ring(n, n * k), id=f"ring-{n}x{k}") for n, k in ((2, 4), (4, 4), (16, 4))]


def adding_ring(n: int) -> Schedule:
    """A ring that adds in its second phase as well: shares are counted twice."""
    rounds = [Round.of(r.src, r.dst, r.chunk, reduce=True) for r in ring(n)]
    return Schedule("adding ring", n, n, lambda: rounds)


def starts(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path)]


def inside(point, corner, size) -> bool:
    return all(c <= p <= c + s for p, c, s in zip(point, corner, size, strict=True))


def documents(shown) -> list[str]:
    last = len(shown["steps"])
    stills = [svg.still(shown, k, view) for k in (0, last) for view in views(shown)]
    return [*stills, svg.strip(shown), svg.animation(shown)]


# ------------------------------------------------------------------- what the pictures say


def held(schedule: Schedule) -> list[set[tuple[int, int]]]:
    """Return which (cell, rank) pairs the engine counts at each frame of an all-reduce."""
    n = schedule.ranks
    counts = np.repeat(np.eye(n, dtype=int)[:, None], schedule.chunks, axis=1)

    def pairs() -> set[tuple[int, int]]:
        return {(cell, rank) for cell, rank in np.argwhere(counts.reshape(-1, n) > 0).tolist()}

    return [pairs(), *(pairs() for _ in steps(schedule, counts))]


def drawn(scene, paths) -> set[tuple[int, int]]:
    """Return which (cell, rank) pairs have a coloured segment."""
    found = set()
    for rank, (dx, dy) in enumerate(scene["seg"]):
        cells = {(x + dx, y + dy): cell for cell, (x, y) in enumerate(scene["cell"])}
        found |= {(cells[point], rank) for point in starts(paths[f"r{rank}"])}
    return found


@pytest.mark.parametrize("schedule", [*EVERY, *CHUNKED])
def test_the_coloured_segments_are_the_shares_that_the_engine_counts(schedule):
    shown = frames(schedule)
    counted = held(schedule)
    assert len(counted) == len(shown["steps"]) + 1
    for view in views(shown):
        scene = layout(shown, view)
        for k in {0, 1, len(counted) // 2, len(counted) - 2, len(counted) - 1} & {
            *range(len(counted))
        }:
            assert drawn(scene, layers(shown, scene, k)) == counted[k]


@pytest.mark.parametrize("schedule", EVERY)
def test_at_the_end_of_an_all_reduce_every_cell_is_checked_and_none_is_crossed(schedule):
    shown = frames(schedule)
    last = len(shown["steps"])
    paths = layers(shown, layout(shown), last)
    cells = schedule.ranks * schedule.chunks
    assert len(complete(shown, last)) == len(starts(paths["check"])) == cells
    assert paths["cross"] == paths["bad"] == paths["veil"] == ""


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_share_that_came_twice_is_outlined_crossed_and_named(n):
    shown = frames(adding_ring(n))
    scene, first = layout(shown), n  # round n is the first that should have copied
    good, bad = (layers(shown, scene, k) for k in (first - 1, first))
    assert good["twice"] == good["cross"] == good["hatch"] == ""
    assert len(starts(bad["cross"])) == len(starts(bad["hatch"])) == n
    assert len(starts(bad["twice"])) >= n
    assert shown["steps"][first - 1]["wrong"][0] in svg.still(shown, first)
    assert not set(shown["steps"][first - 1]["wrong_cells"]) & set(complete(shown, first))


def test_what_a_reduce_scatter_leaves_behind_is_veiled_at_its_end_alone():
    shown = frames(COLLECTIVES["ring_reduce_scatter"](4))
    scene, last = layout(shown), len(shown["steps"])
    assert layers(shown, scene, last - 1)["veil"] == ""
    assert len(starts(layers(shown, scene, last)["veil"])) == 12
    assert len(starts(layers(shown, scene, last)["check"])) == 4


@pytest.mark.parametrize("schedule", [*EVERY, *CHUNKED])
def test_the_bars_of_the_port_meter_are_in_proportion_to_what_was_sent(schedule):
    shown = frames(schedule)
    port = layout(shown)["meter"]["port"]
    most = max([shown["full"], *(max(step["sent"]) for step in shown["steps"])])
    for step, row in zip(shown["steps"], port[1:], strict=True):
        for sent, (high, text) in zip(step["sent"], row, strict=True):
            assert high == pytest.approx(40 * sent / most, abs=0.5)
            assert text == amount_text(sent, shown["unit"])


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (1200, "1200"), (9999, "9999"), (12_000, "12 k"), (1.25e6, "1.25 M"), (3e9, "3 G")],
)
def test_bytes_are_short(count, text):
    assert amount_text(count, "bytes") == text
    assert len(text) <= 6


# ------------------------------------------------------------------------ nothing overlaps


def apart(a, b) -> bool:
    (ax, ay, aw, ah), (bx, by, bw, bh) = a, b
    return ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay


def points(path: str) -> np.ndarray:
    """Return points on a straight line or on a cubic curve."""
    p = np.array([float(v) for v in re.findall(r"-?[\d.]+", path)]).reshape(-1, 2)
    t = np.linspace(0, 1, 41)[:, None]
    if len(p) == 2:
        return p[0] + t * (p[1] - p[0])
    return sum(k * (1 - t) ** (3 - i) * t**i * p[i] for i, k in enumerate((1, 3, 3, 1)))


@pytest.mark.parametrize("schedule", [*EVERY, *OTHERS, *CHUNKED])
def test_cells_and_boxes_are_apart_and_arrows_run_between_them(schedule):
    shown = frames(schedule)
    for view, dense in product(views(shown), (False, True)):
        scene = layout(shown, view, dense=dense)
        size = scene["size"]
        cells = [[*corner, *size] for corner in scene["cell"]]
        assert all(apart(a, b) for a, b in pairwise(cells))
        assert all(apart(a, b) for a, b in combinations(cells[:: scene["chunks"]], 2))
        assert all(apart(a, b) for a, b in combinations(scene["box"], 2))
        solid = scene["box"] or [[*scene["cell"][0], scene["width"], scene["height"]]]
        for path in scene["paths"]:
            at = points(path)
            assert (at >= 0).all()
            assert (at <= (scene["width"], scene["bottom"])).all()
            for x, y, w, h in solid:
                within = (at > (x, y)).all(1) & (at < (x + w, y + h)).all(1)
                assert not within.any(), path


@pytest.mark.parametrize("schedule", [*EVERY, *CHUNKED])
def test_values_and_marks_fit_into_their_cell_beside_the_shares(schedule):
    shown = frames(schedule)
    for view in views(shown):
        scene = layout(shown, view)
        (left, top, wide, high), (w, h) = scene["strip"], scene["size"]
        x, y, font, chars = scene["value"]
        assert x <= w
        assert y <= h
        room = x - (left + wide) if y < top + high else x - left + 1
        assert chars * font * CHAR <= max(room, 0)
        assert inside([v - 4 for v in scene["mark"]], (0, 0), size=(w - 8, h - 8))


@pytest.mark.parametrize("n", [4, 5, 8])
def test_a_ring_is_drawn_as_a_ring_and_a_star_as_a_board(n):
    assert views(frames(ring(n)))[0] == "ring"
    assert views(frames(ALGORITHMS["parameter_server"](n)))[0] == "board"


def test_each_neighbour_of_a_ring_has_an_arrow_from_the_very_cell():
    shown = frames(ring(8))
    scene = layout(shown, "ring")
    for k, step in enumerate(shown["steps"]):
        assert [scene["exact"][way] for way in scene["ways"][k]] == [1] * 8
        for way, src, chunk in zip(scene["ways"][k], step["src"], step["chunk"], strict=True):
            y = scene["cell"][src * 8 + chunk][1]
            assert y <= points(scene["paths"][way])[0][1] <= y + scene["size"][1]


def test_a_round_is_solid_where_it_adds_and_dashed_where_it_copies():
    shown = frames(ring(4))
    scene = layout(shown)
    kinds = [
        {kind for kind, d in ways(scene, s, k).items() if d} for k, s in enumerate(shown["steps"])
    ]
    assert kinds == [{"add"}] * 3 + [{"copy"}] * 3
    assert "stroke-dasharray" in paint.attributes("copy")
    assert "stroke-dasharray" not in paint.attributes("add")


# ------------------------------------------------------------------------------- the texts


@pytest.mark.parametrize("schedule", [*EVERY, *OTHERS])
def test_texts_are_well_formed_named_and_need_nothing_else(schedule):
    shown = frames(schedule)
    for text in documents(shown):
        root = ET.fromstring(text)
        names = root.get("aria-labelledby", "").split()
        assert [root.find(f".//*[@id='{name}']").tag for name in names] == [
            SVG + "title",
            SVG + "desc",
        ]
        assert root.find(SVG + "title").text.startswith(shown["name"])
        ids = [each.get("id") for each in root.iter() if each.get("id")]
        assert len(ids) == len(set(ids))
        assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
        assert not re.search(r"<script|href|@import|https?://(?!www\.w3\.org/2000/svg\")", text)


def test_texts_are_the_same_each_time_and_their_ids_never_meet():
    shown = frames(ring(4))
    assert documents(shown) == documents(frames(ring(4)))
    ids = [set(re.findall(r'id="([^"]+)"', text)) for text in documents(shown)]
    assert all(a.isdisjoint(b) for a, b in combinations(ids, 2))


def test_a_strip_shows_every_round_of_a_small_ring_and_the_telling_ones_of_a_large_one():
    assert svg.telling(frames(ring(4))) == [0, 1, 2, 3, 4, 5, 6]
    assert svg.telling(frames(ring(8))) == [0, 7, 14]
    assert svg.telling(frames(ring(16))) == [15]
    root = ET.fromstring(svg.strip(frames(ring(4))))
    assert len(root.findall(f"{SVG}g[@transform]")) == 7
    said = root.find(SVG + "desc").text
    assert all(step["say"] in said for step in frames(ring(4))["steps"])


def test_an_image_holds_the_text_and_says_it_in_words():
    shown = frames(ring(3).named('<ring> & "sum"'))
    image = ET.fromstring(svg.image(svg.strip(shown)).replace(">", "/>"))
    kind, data = image.get("src").split(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data).decode() == svg.strip(shown)
    assert image.get("alt").startswith('<ring> & "sum". Start: 3 ranks, 3 chunks on each. Round 1')


def test_markup_in_a_name_is_text():
    wild = frames(ring(2).named("<b>&\"'"))
    for text in documents(wild):
        assert ET.fromstring(text).find(SVG + "title").text.startswith("<b>&\"'")


def test_a_text_is_small_enough_for_a_notebook():
    for n, limit in ((2, 15e3), (4, 50e3), (8, 80e3), (16, 120e3)):
        assert len(svg.strip(frames(ring(n)))) < limit


# -------------------------------------------------------------------------------- the loop


def windows(text: str, name: str) -> tuple[float, float]:
    """Return from when to when a rule of the loop shows something, in percent."""
    rule = re.search(rf"@keyframes {name}{{(.*?}})}}", text).group(1)
    seen = {float(t): float(o) for t, o in re.findall(r"([\d.]+)%{opacity:([01])}", rule)}
    on = min(t for t, o in seen.items() if o)
    return on, min((t for t, o in seen.items() if t > on and not o), default=100.0)


def test_at_every_moment_of_the_loop_one_state_and_one_round_is_seen():
    text = svg.animation(frames(ring(4)))
    shown = re.findall(r'<g class="ar\w+" opacity="([01])" style="animation:([\w-]+) [^,"]*"', text)
    assert len(shown) == 7 + 7
    for series in (shown[:7], shown[7:]):
        at = [windows(text, name) for _, name in series]
        assert [on for on, _ in at] == [0.0, *(off for _, off in at[:-1])]
        assert at[-1][1] == 100
        assert [opacity for opacity, _ in series] == ["0", "0", "0", "1", "0", "0", "0"]


def test_in_the_loop_every_transfer_flies_along_its_arrow():
    shown = frames(ring(4))
    paths = re.findall(r"offset-path:path\(&#x27;([^&]+)&#x27;\)", svg.animation(shown))
    scene = layout(shown)
    assert paths == [scene["paths"][way] for ways_ in scene["ways"] for way in ways_]


def test_the_loop_stands_still_for_readers_who_want_less_motion():
    text = svg.animation(frames(ring(4)))
    stop = re.search(r"prefers-reduced-motion:reduce\){\.(\w+){animation:none!important}}", text)
    moving = re.findall(r'class="(\w+)"[^>]*style="animation', text)
    assert moving
    assert set(moving) == {stop.group(1)}


def test_the_committed_picture_of_the_readme_is_the_loop_of_a_ring_of_four():
    committed = Path(__file__).parent.parent / "assets" / "ring.svg"
    assert committed.read_text(encoding="utf-8").strip() == svg.animation(frames(ring(4)))


# ------------------------------------------------------------------------------ the colours


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [paint.LIGHT, paint.DARK], ids=["light", "dark"])
def test_all_text_has_a_contrast_of_four_and_a_half_and_all_shares_of_three(theme):
    for text, ground in product(("ink", "soft"), ("paper", "box", "got")):
        assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
    assert contrast(theme["bad"], theme["paper"]) >= 4.5
    assert contrast(theme["edge"], theme["paper"]) >= 3
    for colour in paint.RANKS:
        assert contrast(colour, "#ffffff") >= 4.5
        assert contrast(colour, theme["paper"]) >= 3


def test_both_themes_have_the_same_colours_and_every_class_is_in_the_css():
    assert paint.LIGHT.keys() == paint.DARK.keys()
    css = paint.css()
    used = set(re.findall(r"var\(--ar-(\w+)\)", css))
    assert used <= set(re.findall(r"--ar-(\w+):", css))
    classes = set(re.findall(r'class="ar-(\w+)"', "".join(documents(frames(ring(16))))))
    assert all(f".ar-{name}{{" in css for name in classes)


@pytest.mark.parametrize("schedule", EVERY)
@pytest.mark.parametrize("real", [False, True])
def test_the_meters_title_ends_before_the_key_begins(schedule, real):
    x = np.ones((schedule.ranks, 10)) if real else None
    shown = frames(schedule, x)
    for view in views(shown):
        scene = layout(shown, view)
        left, _, title = scene["meter"]["title"]
        key = float(re.match(r"M([\d.-]+) ", scene["legend"]["add"])[1])
        beside = scene["meter"]["title"][1] == scene["legend"]["texts"][0][1]
        assert not beside or left + 6.2 * len(title) < key


@pytest.mark.parametrize("name", ["a\x00b\ud800c", "x" * 400, "<b>&\"'", "🏖️ ring"])
def test_any_name_gives_a_picture_that_parses(name):
    shown = frames(ring(3).named(name))
    for text in (svg.strip(shown), svg.still(shown, 2), svg.animation(shown)):
        root = ET.fromstring(text.encode())
        titles = [e for e in root.iter() if e.tag.endswith("text") and e.get("font-size") == "15"]
        assert all(len(e.text or "") < 160 for e in titles)
