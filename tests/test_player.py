"""The player without a browser: its traits, its sentences, its twin and its page."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="anywidget is not installed")

from allreduce_edu.engine.algorithms import (
    ALGORITHMS,
    halving_doubling,
    parameter_server,
    ring,
)
from allreduce_edu.engine.frames import frames
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.show import player, svg
from allreduce_edu.show.player import Player, page

SCRIPT = (player.STATIC / "player.js").read_text(encoding="utf-8")
WIDGET = "application/vnd.jupyter.widget-view+json"


# -------------------------------------------------------------------------------- the traits


def test_it_is_a_sentence():
    shown = Player(ring(4), index=2)
    assert repr(shown) == "Player: ring all-reduce, 4 ranks, 4 chunks, 6 rounds, at round 2"
    assert repr(Player(parameter_server(3))).startswith(
        "Player: parameter server, 3 ranks, 1 chunk,"
    )


def test_a_schedule_is_sent_as_its_frames_and_offers_no_other_numbers():
    shown = Player(ring(5))
    assert shown.frames == frames(ring(5))
    assert list(shown.scenes) == ["ring", "board"]
    assert shown.offered_ranks == shown.offered_pieces == []
    json.dumps([shown.frames, shown.scenes], allow_nan=False)


def test_real_data_are_shown_and_their_bytes_are_counted():
    x = np.arange(12, dtype=np.float32).reshape(4, 3) + 0.5
    shown = Player(ring(4), x)
    assert shown.frames == frames(ring(4), x)
    assert shown.frames["unit"] == "bytes"
    assert "0.5" in shown.frames["start"]["value"]


@pytest.mark.parametrize("n", range(2, 17))
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_with_a_function_the_kernel_answers_other_ranks_and_chunks(n, pieces):
    shown = Player(ring, ranks=3)
    shown.index, shown.playing = 2, True
    shown.ranks, shown.pieces = n, pieces
    assert shown.frames == frames(ring(n, chunks=n * pieces))
    assert all(len(scene["cell"]) == n * n * pieces for scene in shown.scenes.values())
    if (n, pieces) != (3, 1):
        assert (shown.index, shown.playing) == (0, False)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_chunks_are_a_control_only_where_the_function_takes_them(name):
    shown = Player(ALGORITHMS[name])
    assert shown.offered_ranks == list(range(2, 17))
    cut = name in ("ring", "pipelined_tree", "double_binary_tree")
    assert shown.offered_pieces == ([1, 2, 3, 4] if cut else [])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_choice_offered_can_be_shown(name):
    shown = Player(ALGORITHMS[name])
    for n in (2, 5, 16):
        for pieces in shown.offered_pieces or [1]:
            shown.ranks, shown.pieces = n, pieces
            assert shown.problem == ""


def test_a_function_that_fails_is_quoted_and_what_was_shown_stays():
    def even(n: int) -> Schedule:
        if n % 2:
            raise ValueError(f"n must be even, got {n}")
        return ring(n)

    shown = Player(even)
    before = shown.frames
    shown.ranks = 5
    assert shown.problem == "With 5 ranks: n must be even, got 5"
    assert (shown.ranks, shown.frames) == (4, before)
    shown.ranks = 6
    assert (shown.problem, shown.frames["ranks"]) == ("", 6)


def test_a_function_that_returns_something_else_is_told_so():
    with pytest.raises(TypeError, match=r"^<lambda>\(4\) must return a Schedule, got int$"):
        Player(lambda n: n)
    shown = Player(lambda n: ring(n) if n < 5 else None)
    shown.ranks = 7
    assert shown.problem == "With 7 ranks: <lambda>(7) must return a Schedule, got NoneType"


@pytest.mark.parametrize(
    ("kind", "make", "sentence"),
    [
        (
            TypeError,
            lambda: Player(4),
            ("schedule must be a Schedule or a function of the number of ranks, got 4 (int)"),
        ),
        (
            TypeError,
            lambda: Player(ring, [[1], [2]]),
            ("x needs one schedule, as in Player(ring(4), x), got a function"),
        ),
        (ValueError, lambda: Player(ring(4), ranks=5), "ranks is 4 in this schedule, got 5"),
        (
            ValueError,
            lambda: Player(ring, ranks=17),
            ("ranks must be an integer between 2 and 16, got 17"),
        ),
        (
            ValueError,
            lambda: Player(ring(4), index=7),
            ("index must be an integer between 0 and 6, got 7"),
        ),
        (ValueError, lambda: Player(ring(4), speed=3), "speed must be 0.5, 1, 2 or 4, got 3.0"),
        (
            ValueError,
            lambda: Player(ring(4), view="top"),
            ("view must be 'ring', 'board' or '', got 'top'"),
        ),
    ],
)
def test_bad_input_gets_one_sentence(kind, make, sentence):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("name", "value"), [("index", -1), ("index", 7), ("ranks", 5)])
def test_a_trait_refuses_what_there_is_not(name, value):
    shown = Player(ring(4))
    with pytest.raises(ValueError, match=name):
        setattr(shown, name, value)
    assert (shown.index, shown.ranks) == (0, 4)


# ------------------------------------------------------------------------ the static twin


def test_the_twin_stands_beside_the_widget_and_says_the_same_each_time():
    first, again = (Player(ring(4))._repr_mimebundle_()[0] for _ in range(2))
    assert first.keys() == {"text/plain", "text/html", WIDGET}
    assert first["text/plain"] == "Player: ring all-reduce, 4 ranks, 4 chunks, 6 rounds, at round 0"
    assert first["text/html"] == again["text/html"] == svg.image(svg.strip(frames(ring(4))))


def test_the_twin_of_a_player_that_stands_at_a_round_shows_that_round():
    shown = Player(ring(4), index=3, view="board")
    assert shown.still() == svg.still(frames(ring(4)), 3, "board")
    title = ET.fromstring(shown.still()).find("{http://www.w3.org/2000/svg}title").text
    assert title == "ring all-reduce, after 3 of 6 rounds"
    large = Player(ring(16), index=1, view="ring")  # there is no such view of so many
    assert large.still() == svg.still(frames(ring(16)), 1)


# ------------------------------------------------------------------------------- the page


def test_the_page_is_one_file_with_the_very_script_of_the_widget():
    text = page(frames(ring(4)))
    assert SCRIPT.replace("export default", "const widget =") in text
    assert player.CSS in text
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href)=|@import|url\((?!['"`#$])""", text)
    state = json.loads(re.search(r'id="state">(.*?)</script>', text, re.DOTALL).group(1))
    assert state["frames"] == frames(ring(4))
    assert state.keys() >= set(re.findall(r'model\.get\("(\w+)"\)', SCRIPT))
    assert Player(ring(4)).page() == text


def test_a_name_cannot_break_out_of_the_page():
    wild = frames(halving_doubling(4).named("</script><script>alert(1)</script>"))
    text = page(wild)
    assert "<script>alert" not in text
    assert text.count("</script>") == 2


def test_the_script_makes_no_markup_runs_no_text_and_loads_nothing():
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "eval(",
        "new Function",
        "import ",
    ):
        assert word not in SCRIPT
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", SCRIPT)


def test_the_script_reads_only_what_the_kernel_sends():
    traits = Player(ring).traits(sync=True)
    asked = set(re.findall(r'model\.get\("(\w+)"\)|"change:(\w+)"', SCRIPT))
    assert {a or b for a, b in asked} <= set(traits)


def test_another_op_is_played_with_data_and_without():
    x = np.array([[3.0, 1.0], [2.0, 4.0]])
    steps = Player(ring(2), x, op="min").frames["steps"]
    assert steps[0]["log"][0].endswith("min(2, 3) = 2")
    shown = Player(ring, op="max", ranks=3)
    shown.ranks = 2
    assert shown.frames["steps"][0]["log"][0].endswith("max(10, 1) = 10")
    with pytest.raises(ValueError, match="unknown op 'median'"):
        Player(ring(2), x, op="median")
