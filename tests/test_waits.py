"""The picture of a hang shows every rank, arrow and circle, and says the same in words."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape

import numpy as np
import pytest
import spmd_programs as programs
import test_hang

from allreduce_edu import spmd
from allreduce_edu.show.waits import Waits, _Node

SVG = "{http://www.w3.org/2000/svg}"
CASES = [(programs.sends_first, n) for n in (2, 3, 4, 8, 9, 16, 64)]
CASES += [(fn, 4) for fn, _ in test_hang.CLUES] + [(test_hang.skips, 4), (test_hang.swaps, 3)]
CASES += [(test_hang.any_source, 8), (test_hang.group_of_some, 5)]


def ident(value):
    return getattr(value, "__name__", str(value))


def picture(fn, ranks):
    return Waits(spmd.hang(fn, np.zeros((ranks, ranks))))


def texts(root):
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(("fn", "ranks"), CASES, ids=ident)
def test_the_picture_shows_every_rank_and_every_arrow(fn, ranks):
    waits = picture(fn, ranks)
    root = ET.fromstring(waits.svg())
    said = texts(root)
    for rank in range(ranks):
        assert (f"rank {rank}" if ranks <= 8 else str(rank)) in said
    key = 1 + bool(waits.hang.circle)
    arrows = [each for each in root.iter(f"{SVG}path") if each.get("marker-end")]
    red = [each for each in arrows if each.get("class") == "ar-twice"]
    assert len(red) - bool(waits.hang.circle) == len(waits.hang.circle)
    if ranks <= 8:
        assert len(arrows) - key == sum(map(len, waits.hang.edges.values()))
    assert " ".join(said).count("Look first:") == 1


@pytest.mark.parametrize(("fn", "ranks"), CASES, ids=ident)
def test_nothing_lies_outside_or_upon_another_rank(fn, ranks):
    waits = picture(fn, ranks)
    root = ET.fromstring(waits.svg())
    width, height = (float(root.get(name)) for name in ("width", "height"))
    nodes, _ = waits._places()
    for a in nodes:
        assert a.w < a.x < width - a.w
        assert a.h < a.y < height - a.h
        for b in nodes:
            apart = abs(a.x - b.x) >= a.w + b.w or abs(a.y - b.y) >= a.h + b.h
            assert a is b or apart or ranks > 8
    longest = max(texts(root), key=len)
    assert len(longest) * 6.2 <= width


def crosses(a, b, node):
    """Tell whether the straight line between the middles of a and b enters the box of node."""
    return any(
        abs(a.x + t * (b.x - a.x) - node.x) < node.w - 2
        and abs(a.y + t * (b.y - a.y) - node.y) < node.h - 2
        for t in np.linspace(0, 1, 400)
    )


@pytest.mark.parametrize("ranks", [3, 4, 5, 6, 7, 8])
def test_no_arrow_runs_under_another_rank(ranks):
    waits = picture(programs.sends_first, ranks)
    nodes, _ = waits._places()
    for a in nodes:
        for b in nodes:
            for other in nodes:
                straight = {round(a.x) == round(b.x) == round(other.x)}
                straight.add(round(a.y) == round(b.y) == round(other.y))
                if len({a, b, other}) == 3 and True not in straight:
                    assert not crosses(a, b, other)


def test_words_in_place_of_the_picture():
    waits = picture(test_hang.skips, 4)
    html = waits._repr_mimebundle_()["text/html"]
    alt = unescape(re.search('alt="([^"]*)"', html)[1])
    assert alt == " ".join(waits.hang.text.split())
    assert repr(waits) == "Waits: ranks 0, 1, 3 wait and rank 2 has returned."


def test_what_differs_is_marked_and_not_by_colour_alone():
    root = ET.fromstring(picture(test_hang.swaps, 3).svg())
    wrong = [e for e in root.iter(f"{SVG}text") if e.get("class") == "ar-wrong"]
    crosses = [e for e in root.iter(f"{SVG}path") if e.get("class") == "ar-cross"]
    assert [each.text for each in wrong] == ["broadcast from root 0"]
    assert len(crosses) == 1


def test_the_text_is_the_same_every_time_and_ids_differ_between_pictures():
    first, second = (picture(test_hang.skips, 4).svg() for _ in range(2))
    other = picture(test_hang.swaps, 3).svg()
    assert first == second
    ids = [set(re.findall(r' id="([^"]+)"', each)) for each in (first, other)]
    assert not ids[0] & ids[1]


def test_what_a_run_has_raised_is_taken_too():
    with pytest.raises(spmd.Deadlock) as info:
        spmd.run(test_hang.skips, np.zeros((4, 4)))
    assert Waits(info.value).svg() == picture(test_hang.skips, 4).svg()
    with pytest.raises(TypeError, match="hang must be a Hang or a Deadlock, got int"):
        Waits(3)
    with pytest.raises(ValueError, match="the program comes to its end: nobody waits"):
        spmd.hang(programs.ring, np.zeros((4, 4)))


def test_a_line_leaves_a_box_at_its_border():
    a, b = _Node(0, 0, 50, 20), _Node(0, 100, 50, 20)
    assert a.edge(b) == (0, 25)
    assert a.edge(_Node(300, 30, 50, 20)) == pytest.approx((55, 5.5))
