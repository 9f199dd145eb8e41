"""Several schedules at once: the same numbers in, the same numbers out, other bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("anywidget")

from allreduce_edu import busiest_port, sent_bytes
from allreduce_edu.lessons.family import WAYS
from allreduce_edu.show.together import Together, in_words


def ends(board):
    """Return what every cell holds after the last step."""
    value = list(board["frames"]["start"]["value"])
    for step in board["frames"]["steps"]:
        for cell, text in zip(step["cell"], step["value"], strict=True):
            value[cell] = text
    return value


@pytest.mark.parametrize("n", range(2, 9))
def test_three_ways_end_alike_and_send_what_is_counted(n):
    boards = Together(*WAYS, ranks=n).boards
    sums = [str((c + 1) * int("1" * n)) for _ in range(n) for c in range(n)]
    assert [ends(board) for board in boards] == [sums] * 3
    for board, way in zip(boards, WAYS, strict=True):
        last = board["frames"]["steps"][-1]["sent"]
        assert last == pytest.approx((sent_bytes(way(n), 840) / 840).tolist())
        assert f"busiest port {busiest_port(way(n), 840) / 840:.3g} S" in board["words"]


def test_one_tall_bar_eight_low_bars_eight_tall_bars():
    bars = [board["frames"]["steps"][-1]["sent"] for board in Together(*WAYS, ranks=8).boards]
    assert bars == [[7] + [1] * 7, [1.75] * 8, [7] * 8]
    assert in_words(WAYS[0](8)) == "2 rounds, 14 S in all, busiest port 7 S"


def test_other_ranks_begin_again():
    several = Together(*WAYS)
    several.index = 6
    several.set_state({"ranks": 5, "playing": False})
    assert (several.index, several.boards[0]["frames"]["ranks"]) == (0, 5)
    for name, value in (("ranks", 9), ("ranks", 1), ("index", 9)):
        with pytest.raises(Exception, match=f"{name} must be an integer between"):
            setattr(several, name, value)


def test_its_static_twin_and_its_repr_say_what_is_shown():
    several = Together(*WAYS, ranks=3)
    html = several._repr_mimebundle_()[0]["text/html"]
    assert html.count('<img alt="') == 3
    assert "<strong>all-gather + add</strong>: 1 round, 6 S in all, busiest port 2 S" in html
    assert repr(several).startswith("Together over 3 ranks. reduce + broadcast: 2 rounds, 4 S")
    with pytest.raises(ValueError, match="one or more functions"):
        Together()
