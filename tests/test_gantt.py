"""The picture of who works when: a bar for each round and each wait, drawn to scale."""

import re
from xml.etree import ElementTree as ET

import pytest

from allreduce_edu.show.axes import Axis
from allreduce_edu.show.gantt import Bar, Gantt

BARS = [
    Bar(0, 0, 2, "adds", "1"),
    Bar(0, 4, 5, "copies", "2"),
    Bar(0, 2, 4, "waits"),
    Bar(1, 0, 1, "late"),
    Bar(1, 1, 10, "adds", "1"),
]


def gantt(bars=BARS, ranks=2):
    return Gantt("Who works when", Axis("time, ms"), ranks, bars)


def boxes(svg, look):
    """Return (x, y, width) of every box of a look, without the key's, which comes first."""
    root = ET.fromstring(svg)
    d = [e.get("d") for e in root.iter() if e.get("class") == f"ar-{look}"][1:]
    pattern = r"M([\d.]+) ([\d.]+)h([\d.]+)v"
    return [tuple(map(float, box)) for path in d for box in re.findall(pattern, path)]


def test_bars_lie_in_the_row_of_their_rank_to_scale():
    svg = gantt().svg()
    (a, b), (wait,), (late,) = (boxes(svg, look) for look in ("r0", "void", "bad"))
    assert a[1] < b[1] == late[1]
    assert wait[1] == a[1]
    unit = (b[2] + 1) / 9
    for box, start, long in ((a, 0, 2), (wait, 2, 2), (late, 0, 1), (b, 1, 9)):
        assert box[0] - a[0] == pytest.approx(start * unit, abs=0.2)
        assert box[2] + 1 == pytest.approx(long * unit, abs=0.2)


def test_words_for_the_ear_say_each_rank():
    said = gantt().alt
    assert "rank 0: waits 2, 2 rounds, done at 5." in said
    assert "rank 1: begins at 1, 1 round, done at 10." in said
    assert said.startswith("Who works when. time, ms.")


def names(svg):
    """Return what is written on the bars."""
    return [t.text for g in ET.fromstring(svg).iter() if g.get("class") == "ar-head" for t in g]


def test_a_name_is_written_where_there_is_room():
    assert names(gantt().svg()) == ["1", "1", "2"]
    assert names(gantt([Bar(0, 0, 0.01, "adds", "1"), Bar(0, 1, 2, "adds", "2")]).svg()) == ["2"]


def test_copying_is_told_by_a_dash_as_well_and_waiting_by_hatches():
    root = ET.fromstring(gantt().svg())
    assert [e for e in root.iter() if e.get("stroke-dasharray") == "4 3"]
    assert any((e.get("fill") or "").startswith("url(#") for e in root.iter())


@pytest.mark.parametrize(
    "bar",
    [Bar(2, 0, 1, "adds"), Bar(0, 2, 1, "adds"), Bar(0, 0, 1, "sleeps"), Bar(0, -1, 1, "adds")],
)
def test_a_bar_that_cannot_be_is_refused(bar):
    with pytest.raises(ValueError, match="bars must be of a rank, a kind and a time that exist"):
        gantt([bar])
