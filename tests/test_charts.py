"""Charts show the numbers that they were given: read back from their own SVG text."""

from __future__ import annotations

import base64
import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from allreduce_edu.show import paint
from allreduce_edu.show.axes import Axis, crossings, number, scale, si
from allreduce_edu.show.charts import BarChart, Guide, HeatMap, Line, LineChart, Point
from allreduce_edu.show.lineplot import CHAR

SVG = "{http://www.w3.org/2000/svg}"
STEPS = list(range(301))
ALPHA, BETA = 1e-5, 8e-11
SIZES = [10 ** (k / 8) for k in range(16, 81)]
RING = [14 * ALPHA + 1.75 * s * BETA for s in SIZES]
DOUBLING = [6 * ALPHA + 3 * s * BETA for s in SIZES]


def line_chart(**changes):
    crossover = crossings(SIZES, RING, DOUBLING, log=True)[0]
    return LineChart(
        **{
            "title": "Time of one all-reduce",
            "x": Axis("size", log=True, name=si("B")),
            "y": Axis("time", log=True, name=si("s")),
            "lines": [Line("ring", SIZES, RING), Line("recursive doubling", SIZES, DOUBLING)],
            "points": [Point(*crossover, "equally fast")],
            "guides": [Guide(1e6, "the size at hand")],
        }
        | changes
    )


def bar_chart(**changes):
    return BarChart(
        **{
            "title": "Where the time goes",
            "x": Axis("time, ms"),
            "names": ["star", "ring"],
            "parts": {"latency": [2, 14], "bandwidth": [70, 17.5]},
            "guides": [Guide(17.5, "lower bound")],
        }
        | changes
    )


def heat_map(**changes):
    values = np.linspace(0, 1, 8).reshape(2, 4).tolist()
    return HeatMap(
        **{
            "title": "What each replica reads",
            "rows": ["rank 0", "rank 1"],
            "columns": list("0123"),
            "values": values,
            "row": "test images read right, %",
            "column": "digit",
        }
        | changes
    )


CHARTS = [line_chart(), bar_chart(), heat_map()]
NAMES = ["lines", "bars", "heat map"]
every = pytest.mark.parametrize("chart", CHARTS, ids=NAMES)


def tree(chart, **how):
    return ET.fromstring(chart.svg(**how))


def texts(root):
    """Return (left, right, y, text) of each text, with the anchor of the group that it is in."""
    found = []

    def walk(node, anchor):
        anchor = node.get("text-anchor", anchor)
        if node.tag == f"{SVG}text":
            x, wide = float(node.get("x")), CHAR * len(node.text or "")
            left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
            found.append((left, left + wide, float(node.get("y")), node.text))
        for child in node:
            walk(child, anchor)

    walk(root, "start")
    return found


def paths(root, look):
    return [node.get("d") for node in root.iter(f"{SVG}path") if node.get("class") == f"ar-{look}"]


def strokes(d):
    """Return the strokes of a path as arrays of points."""
    return [
        np.array([point.split() for point in stroke.split("L")], float)
        for stroke in d.split("M")
        if stroke
    ]


def box(root):
    """Return left, right, top and bottom of the field of data, from its axes."""
    (axis,) = paths(root, "axis")
    left, top, bottom, right = map(float, re.fullmatch(r"M(\S+) (\S+)V(\S+)H(\S+)", axis).groups())
    return left, right, top, bottom


# ---------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (5.434878, "5.43"), (1437, "1,437"), (1e6, "10⁶"), (1e-5, "10⁻⁵"),
     (2.53e-4, "2.53·10⁻⁴"), (0.001, "0.001"), (math.inf, "∞"), (math.nan, "not a number")],
)  # fmt: skip
def test_numbers_are_written_for_readers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1000, "1 kB"), (999, "999 B"), (28e9, "28 GB"), (1e-5, "10 µB"),
     (2e18, "2,000 PB")],
)  # fmt: skip
def test_units_get_their_prefix(value, text):
    assert si("B")(value) == text


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[3], [0.2, 6], [1, 9e9], [2e-8, 3e-8], [5, 5, 5], []])
def test_scales_have_room_for_all_and_a_few_ticks(values, log):
    s = scale(Axis("x", log=log), values)
    assert all(-1e-9 <= s(v) <= 1 + 1e-9 for v in values)
    assert 2 <= len(s.ticks()) <= 10
    assert all(-1e-9 <= s(t) <= 1 + 1e-9 for t in s.ticks())
    assert log or s.low == 0


def test_crossings_of_power_laws_are_exact():
    x = [1, 10, 100]
    a, b = [v**2 for v in x], [50.0 * v for v in x]
    assert crossings(x, a, b, log=True) == [pytest.approx((50, 2500))]
    assert crossings(x, a, [v + 1 for v in a]) == []


# ------------------------------------------------------------------------------------ lines


def test_lines_stand_where_their_numbers_say():
    root, chart = tree(line_chart()), line_chart()
    left, right, top, bottom = box(root)
    for k, line in enumerate(chart.lines):
        (stroke,) = strokes(paths(root, f"s{k}")[-1])  # the first one is in the key
        x = 2 + 8 * (stroke[:, 0] - left) / (right - left)  # the axis is 10² to 10¹⁰ bytes
        low, high = -5, 1
        y = low + (high - low) * (bottom - stroke[:, 1]) / (bottom - top)
        want = np.interp(x, np.log10(line.x), np.log10(line.y))
        assert np.abs(y - want).max() < 0.5 * (high - low) / (bottom - top)
        assert x[0] == pytest.approx(2)
        assert x[-1] == pytest.approx(10)
    ring = next(node for node in root.iter(f"{SVG}circle"))
    at = 2 + 8 * (float(ring.get("cx")) - left) / (right - left)
    want = 8 * ALPHA / ((3 - 1.75) * BETA)
    assert at == pytest.approx(math.log10(want), abs=0.02)


def test_no_line_is_off_by_a_pixel_where_points_are_left_out():
    rng = np.random.default_rng(0)
    y = np.cumsum(rng.normal(size=301)) + 40 + 30 * np.sin(np.arange(301) / 9)
    chart = LineChart("noise", Axis("x"), Axis("y", low=0, high=120), [Line("y", STEPS, y)])
    root = tree(chart)
    left, right, top, bottom = box(root)
    (stroke,) = strokes(paths(root, "s0")[-1])
    assert len(stroke) < 301
    x = left + np.arange(301) / 300 * (right - left)
    want = bottom - y / 120 * (bottom - top)
    assert np.abs(np.interp(x, stroke[:, 0], stroke[:, 1]) - want).max() < 0.5


def test_zeros_on_a_log_axis_have_a_band_of_their_own():
    y = [0.0] * 50 + [0.05] * 251
    root = tree(LineChart("gap", Axis("step"), Axis("distance", log=True), [Line("one", STEPS, y)]))
    *_, bottom = box(root)
    above, band = strokes(paths(root, "s0")[-1])
    assert (above[:, 1] < bottom).all()
    assert (band[:, 1] > bottom).all()
    assert "exactly 0" in [text for *_, text in texts(root)]
    plain = tree(LineChart("gap", Axis("step"), Axis("distance"), [Line("one", STEPS, y)]))
    assert "exactly 0" not in [text for *_, text in texts(plain)]
    assert len(strokes(paths(plain, "s0")[-1])) == 1


@pytest.mark.parametrize("log", [False, True])
def test_what_cannot_be_drawn_is_left_out(log):
    odd = [Line("odd", [0, 1, 2, 3], [math.nan, math.inf, 2, 3]), Line("none", [1], [math.nan])]
    chart = LineChart("odd", Axis("x"), Axis("y", log=log), odd)
    assert len(strokes(paths(tree(chart), "s0")[-1])[0]) == 2
    assert "none: nothing that can be drawn." in chart.alt
    assert "nan" not in chart.svg()


def test_the_key_is_above_the_data_and_words_keep_off_the_lines():
    root = tree(line_chart())
    left, right, top, bottom = box(root)
    drawn = np.concatenate([strokes(paths(root, f"s{k}")[-1])[0] for k in range(2)])
    dense = np.concatenate([np.linspace(a, b, 30) for a, b in pairwise(drawn)])
    words = {text: (a, b, y) for a, b, y, text in texts(root)}
    assert words["ring"][2] < top > words["recursive doubling"][2]
    for name in ("equally fast", "the size at hand"):
        a, b, y = words[name]
        hit = (dense[:, 0] > a) & (dense[:, 0] < b) & (dense[:, 1] > y - 10) & (dense[:, 1] < y + 2)
        assert not hit.any()
        assert left <= a < b <= right
        assert top <= y <= bottom


def test_lines_differ_by_more_than_their_colour():
    assert len(set(paint.DASHES)) == len(paint.DASHES) == len(paint.RANKS)
    many = [Line(f"rank {k}", [0, 1], [k, k]) for k in range(8)]
    root = tree(LineChart("many", Axis("x"), Axis("y"), many))
    marks = [paths(root, f"m{k}")[0] for k in range(8)]
    assert len(set(marks)) == 8


# ------------------------------------------------------------------------------------- bars


def test_bars_are_as_long_as_their_numbers():
    chart = bar_chart()
    root = tree(chart)
    long = {}
    for k, part in enumerate(chart.parts):
        found = [n for n in root.iter(f"{SVG}rect") if n.get("class") == f"ar-r{k}"]
        long[part] = [float(n.get("width")) for n in found][1:]  # the first one is in the key
    unit = long["bandwidth"][0] / 70
    for part, values in chart.parts.items():
        np.testing.assert_allclose(long[part], [v * unit for v in values], atol=0.2)
    assert {"72", "31.5"} <= {text for *_, text in texts(root)}
    assert chart.alt.endswith(
        "star: 72 (latency 2, bandwidth 70). ring: 31.5 (latency 14, bandwidth 17.5). "
        "lower bound: 17.5."
    )
    one = bar_chart(parts={"time": [72, 31.5]}, guides=())
    assert "(" not in one.alt
    assert "pattern" not in one.svg()


# --------------------------------------------------------------------------------- heat map


def test_cells_are_as_dark_as_their_numbers():
    chart = heat_map()
    root = tree(chart)
    (dark,) = [n for n in root.iter(f"{SVG}g") if n.get("class") == "ar-r0"]
    opacity = [float(cell.get("opacity")) for cell in dark]
    np.testing.assert_allclose(opacity, np.linspace(0, 1, 8)[1:], atol=1e-5)
    written = sorted((y, left, text) for left, _, y, text in texts(root) if text.isdigit())
    assert [text for *_, text in written] == [
        *"0123",
        "0",
        "14",
        "29",
        "43",
        "57",
        "71",
        "86",
        "100",
    ]
    assert "rank 1: 57, 71, 86, 100." in chart.alt
    assert "–" in heat_map(values=[[math.nan] * 4] * 2).svg()


def luminance(rgb):
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def rgb(text):
    return np.array([int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)])


@pytest.mark.parametrize("theme", [paint.LIGHT, paint.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("depth", np.linspace(0, 1, 101))
def test_numbers_can_be_read_on_cells_of_any_depth(theme, depth):
    shown = heat_map(values=[[depth] * 4] * 2).svg()
    ink = "#ffffff" if re.search(r'class="ar-digit"[^>]*><text', shown) else theme["deep"]
    cell = depth * rgb(paint.RANKS[0]) + (1 - depth) * rgb(theme["paper"])
    assert contrast(rgb(ink), cell) >= 4.5


# --------------------------------------------------------------------------------- all charts


@every
def test_nothing_is_written_outside_the_picture(chart):
    root = tree(chart)
    width, height = map(float, root.get("viewBox").split()[2:])
    for left, right, y, text in texts(root):
        assert left >= 0, text
        assert right <= width + 1, text
        assert 8 < y < height, text


@every
def test_a_chart_is_its_own_static_twin(chart):
    shown = chart._repr_mimebundle_()
    assert shown["text/plain"] == repr(chart) == chart.alt
    alt, data = re.fullmatch(
        r'<img alt="(.*?)" style="max-width:100%" src="data:image/svg\+xml;base64,(.*?)">',
        shown["text/html"],
    ).groups()
    assert alt == chart.alt
    text = base64.b64decode(data).decode()
    assert text == chart.svg() == chart.svg()
    assert "prefers-color-scheme:dark" in text
    live = chart.svg(live=True)
    assert "<style" not in live
    colours = re.findall(r'"#[0-9a-f]{6}"', re.sub("<defs.*?</defs>", "", live))
    assert colours == []
    assert ET.fromstring(live).get("aria-label") == chart.alt


@every
def test_every_class_is_in_the_css(chart):
    css = paint.css(".ar-explorer")
    for name in set(re.findall(r'class="(ar-[\w-]+)"', chart.svg())):
        assert f".ar-explorer .{name}{{" in css, name


@pytest.mark.parametrize("name", ["a < b & c", '"quoted"', "<script>alert(1)</script>"])
def test_names_cannot_break_the_picture(name):
    for chart in (
        line_chart(title=name, lines=[Line(name, [1, 2], [1, 2])]),
        bar_chart(title=name, names=[name, "ring"]),
        heat_map(title=name, rows=[name, "rank 1"]),
    ):
        assert not list(tree(chart).iter(f"{SVG}script"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Line("a", [1, 2], [1]), "line 'a' has 2 x and 1 y"),
        (lambda: line_chart(lines=[]), "lines must be one or more, got none"),
        (lambda: bar_chart(parts={"t": [1]}), "part 't' must have one value per name (2), got 1"),
        (lambda: bar_chart(parts={"t": [1, -1]}), "part 't' must hold values >= 0, got [1, -1]"),
        (lambda: bar_chart(x=Axis("t", log=True)), "bars need an axis that begins at 0"),
        (lambda: heat_map(values=[[1] * 4]), "values must have shape (2, 4), got 1 rows of [4]"),
        (lambda: heat_map(low=1), "low must be below high, got 1 and 1.0"),
    ],
)
def test_bad_charts_are_told_in_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert sentence in str(caught.value)


def test_any_numbers_give_a_picture():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 12))
        x = np.sort(10 ** rng.uniform(-9, 9, n))
        y = rng.choice([0.0, 1e-300, 1e300, math.nan, math.inf, -1.0, 5.0], n)
        log = bool(rng.integers(2))
        chart = LineChart("any", Axis("x", log=True), Axis("y", log=log), [Line("y", x, y)])
        root = tree(chart)
        assert "nan" not in chart.svg()
        for d in paths(root, "s0")[1:]:
            assert all(np.isfinite(stroke).all() for stroke in strokes(d))
