"""The picture of a backward shows who holds what, in letters and in colours."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from allreduce_edu.show import paint
from allreduce_edu.show.backward import Backward


class Event(NamedTuple):
    what: str
    at: float = 0.0
    names: tuple[str, ...] = ()
    bucket: int = -1
    size: int = 0
    held: str = ""


def lane(own, shared, whole):
    return [
        Event("ready", 1e-3, ("w",)),
        Event("start", 2e-3, ("w",), 0, 40, own),
        Event("ready", 3e-3, ("v",)),
        Event("start", 4e-3, ("v",), 1, 80, f"{own}, too"),
        Event("done", 5e-3, ("w",), 0, 0, shared),
        Event("done", 6e-3, ("v",), 1, 0, f"{shared}, too"),
        Event("backward() returns", 7e-3, held=whole),
        Event("step() returns", 8e-3, held=whole),
    ]


GOOD = Backward([lane(own, "sum", "all") for own in ("one", "two", "three")])
BAD = Backward([lane("one", "sum", "all"), lane("two", "other", "odd")])


def texts(picture):
    root = ET.fromstring(picture.svg())
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]


def lamps(picture):
    """Return the colour and the letter of each lamp, in the order of the picture."""
    found = re.findall(
        r'<circle class="ar-(\w+)"[^>]*/><text class="[^"]*"[^>]*>(\w)<', picture.svg()
    )
    assert len(found) == picture.svg().count("<circle")
    return found


def test_every_different_fingerprint_has_a_letter_of_its_own():
    assert list(GOOD.letters.items())[:4] == [
        ("one", "A"),
        ("two", "B"),
        ("three", "C"),
        ("sum", "D"),
    ]
    assert GOOD.letters["all"] == "I"
    assert len(set(GOOD.letters.values())) == len(GOOD.letters) == 9


def test_lamps_turn_from_the_ranks_colours_to_one():
    per_lane = [lamps(GOOD)[6 * r : 6 * r + 6] for r in range(3)]
    for rank, (own, letter) in enumerate(zip(per_lane, "ABC", strict=True)):
        assert own[0] == (f"r{rank}", letter)
        assert own[2] == ("chip", "D")
        assert own[4:] == [("chip", "I")] * 2


def test_ranks_that_disagree_keep_their_colours():
    assert [look for look, _ in lamps(BAD)] == ["r0"] * 6 + ["r1"] * 6
    assert repr(BAD).endswith("2 different ends")
    assert repr(GOOD).endswith("all ranks hold the same at the end")


def test_it_says_what_it_shows():
    assert "3 ranks, 2 buckets" in GOOD.alt
    assert "Rank 2: w ready; all-reduce of bucket 0 (w) starts, holding C; v ready" in GOOD.alt
    assert "all-reduce of bucket 0 (w) is done, holding D" in GOOD.alt
    bundle = GOOD._repr_mimebundle_()
    assert 'alt="One backward() under DDP: 3 ranks' in bundle["text/html"]
    assert bundle["text/plain"] == repr(GOOD)


def test_names_times_and_buckets_are_written():
    found = texts(GOOD)
    for wanted in ("w", "v", "1.00", "8.00", "backward()", "Bucket 1: v (80 bytes)."):
        assert wanted in found


def test_all_of_it_lies_inside():
    root = ET.fromstring(GOOD.svg())
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(element.get("x")) < width
        assert 0 < float(element.get("y")) < height


def test_it_is_the_same_text_every_time_and_turns_dark():
    assert GOOD.svg() == Backward(GOOD.events).svg()
    assert paint.dark_style() in GOOD.svg()


@pytest.mark.parametrize("events", [[], [[]]])
def test_nothing_cannot_be_drawn(events):
    with pytest.raises(ValueError, match="events must hold at least one event for each rank"):
        Backward(events)


def test_what_a_watch_records_can_be_drawn():
    pytest.importorskip("torch")
    from allreduce_edu import Pool
    from allreduce_edu.realdist.ddp import watched_backwards

    with Pool(2, backend="gloo") as pool:
        told = pool.run(watched_backwards)
    picture = Backward([steps[1] for steps in told])
    assert "all-reduce of bucket 0 (2.bias, 2.weight, 0.bias, 0.weight) starts" in picture.alt
    assert repr(picture).endswith("all ranks hold the same at the end")
