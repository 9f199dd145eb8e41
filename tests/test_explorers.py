"""Explorers without a browser: positions come in as the browser sends them, pictures go out."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("anywidget")

from allreduce_edu.show.charts import Axis, BarChart
from allreduce_edu.show.explorers import Control, Explorer, Table, View, slider, switch

CONTROLS = (
    slider("n", "Ranks", range(2, 9), start=4),
    Control("kind", "Kind", {"star": "a star", "ring": "a ring"}, start="ring"),
    switch("double", "Double"),
)


def view(n, kind, double):
    """Return what the tests can read back: one bar as long as n."""
    chart = BarChart(kind, Axis("ranks"), ["n"], {"n": [2 * n if double else n]})
    return View([chart], f"{kind} of {n}", Table(("what", "value"), [("n", str(n))]))


def ask(explorer, *at):
    """Send what the browser sends when a control has moved."""
    explorer.set_state({"at": list(at), "asked": explorer.asked + 1})


def length(explorer):
    return explorer.shown.charts[0].totals[0]


def test_it_starts_drawn_and_follows_its_controls():
    explorer = Explorer("Bytes", view, *CONTROLS)
    assert length(explorer) == 4
    assert explorer.values == {"n": 4, "kind": "ring", "double": False}
    ask(explorer, 6, 0, 1)
    assert length(explorer) == 16
    assert explorer.view["words"] == "star of 8"
    assert explorer.view["table"] == {"head": ["what", "value"], "rows": [["n", "8"]]}
    assert explorer.view["charts"] == [explorer.shown.charts[0].svg(live=True)]
    assert (explorer.heard, explorer.progress, explorer.problem) == (1, 1.0, "")


def test_every_position_of_every_control_draws():
    explorer = Explorer("Bytes", view, *CONTROLS)
    for i in range(7):
        for j in range(2):
            for k in range(2):
                ask(explorer, i, j, k)
                assert length(explorer) == (i + 2) * (k + 1)
                assert explorer.problem == ""


def test_controls_are_told_with_names_and_words():
    told = Explorer("Bytes", view, *CONTROLS).controls
    assert [c["label"] for c in told] == ["Ranks", "Kind", "Double"]
    assert [c["kind"] for c in told] == ["slider", "choice", "switch"]
    assert told[1]["options"] == ["a star", "a ring"]
    assert told[2]["options"] == ["off", "on"]


def test_with_more_than_three_controls_one_is_open():
    assert Explorer("Few", view, *CONTROLS).opened

    def more(extra, **rest):
        return view(**rest)

    assert not Explorer("Many", more, *CONTROLS, switch("extra", "Extra")).opened


def test_its_static_twin_and_its_repr_say_what_is_shown():
    explorer = Explorer("Bytes <of>", view, *CONTROLS)
    assert repr(explorer) == "Explorer: Bytes <of>. Ranks: 4; Kind: a ring; Double: off. ring of 4"
    html = explorer._repr_mimebundle_()[0]["text/html"]
    assert html == explorer.twin()
    assert "Bytes &lt;of&gt;" in html
    assert '<img alt="ring. ranks. n: 4."' in html
    assert "<p>ring of 4</p>" in html
    assert '<th scope="row"' in html
    explorer.turn(n=8)
    assert "n: 8." in explorer.twin()


def test_turn_sets_by_name_and_says_what_there_is():
    explorer = Explorer("Bytes", view, *CONTROLS)
    explorer.turn(n=2, kind="star")
    assert (length(explorer), explorer.at) == (2, [0, 0, 0])
    with pytest.raises(ValueError, match=r"unknown control 'ranks'; .*choose from"):
        explorer.turn(ranks=3)
    with pytest.raises(ValueError, match="kind must be one of 'star', 'ring', got 'tree'"):
        explorer.turn(kind="tree")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Control("a", "A", [1]), "options of 'a' must be two or more, got [1]"),
        (lambda: Control("a", "A", [1, 2], 3), "a must be one of 1, 2, got 3"),
        (lambda: Control("a", "A", [1, 2], kind="dial"), "unknown kind 'dial'"),
        (lambda: Explorer("x", view), "controls must be one or more with different names"),
        (lambda: Explorer("x", view, CONTROLS[0], CONTROLS[0]), "with different names, got"),
    ],
)
def test_bad_controls_are_told_in_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert sentence in str(caught.value)


def test_what_draws_no_view_is_told_at_once():
    with pytest.raises(TypeError, match="draw must return a View, got int"):
        Explorer("x", lambda n: n, CONTROLS[0])


@pytest.mark.parametrize("slow", [False, True])
def test_a_refusal_is_one_sentence_and_the_picture_stays_with_its_positions(slow):
    def draw(n):
        if n == 5:
            raise ValueError("5 is a prime")
        return view(n, "ring", double=False)

    def work(n):
        yield 0.5
        return draw(n)

    explorer = Explorer("Primes", work if slow else draw, CONTROLS[0])
    ask(explorer, 3)
    assert explorer.problem == "5 is a prime"
    assert explorer.at == [2]
    assert length(explorer) == 4
    ask(explorer, 4)
    assert (explorer.problem, length(explorer)) == ("", 6)


class Slow:
    """Work that lasts until it is told to go on; it remembers who was closed early."""

    def __init__(self):
        self.go = False
        self.begun, self.closed = [], []

    def __call__(self, n):
        self.begun.append(n)
        try:
            while n != 4 and not self.go:
                yield 0.25
        finally:
            self.closed.append(n)
        return view(n, "ring", double=False)


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within five seconds")


def test_the_newest_wish_wins_and_none_queues_up():
    async def scene():
        slow = Slow()
        explorer = Explorer("Slow", slow, CONTROLS[0])
        ask(explorer, 0)
        await until(lambda: 2 in slow.begun)
        for i in (1, 5, 3):
            ask(explorer, i)
        assert explorer.heard == 4
        await until(lambda: explorer.progress < 1)
        assert explorer.progress == 0.25
        assert length(explorer) == 4  # until there is a new picture
        assert slow.begun == [4, 2, 5]  # what was wished in between was never begun
        assert slow.closed == [4, 2]
        slow.go = True
        await until(lambda: explorer.progress == 1)
        assert length(explorer) == 5
        return explorer

    assert asyncio.run(scene()).at == [3]


def test_stop_stops_at_once_and_goes_back():
    async def scene():
        slow = Slow()
        explorer = Explorer("Slow", slow, CONTROLS[0])
        ask(explorer, 0)
        await until(lambda: explorer.progress < 1)
        explorer.set_state({"stops": 1})
        assert explorer.problem.startswith("Stopped")
        assert (explorer.at, explorer.progress) == ([2], 1.0)
        await until(lambda: slow.closed == [4, 2])
        slow.go = True
        ask(explorer, 0)
        await until(lambda: length(explorer) == 2)
        assert explorer.problem == ""

    asyncio.run(scene())


def test_slow_work_without_a_loop_is_done_at_once():
    slow = Slow()
    slow.go = True
    explorer = Explorer("Slow", slow, CONTROLS[0])
    ask(explorer, 0)
    assert length(explorer) == 2


def test_a_position_that_is_not_offered_is_refused():
    explorer = Explorer("Bytes", view, *CONTROLS)
    for at in ([9, 0, 0], [0, 0], [0, 0, -1]):
        with pytest.raises(Exception, match="at must hold one position of each control"):
            explorer.at = at
