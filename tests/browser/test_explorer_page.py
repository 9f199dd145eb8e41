"""An explorer alone in a browser: named controls, keys, and never more than one wish on its way."""

from __future__ import annotations

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")

from allreduce_edu.show.charts import Axis, BarChart  # noqa: E402
from allreduce_edu.show.explorers import Control, Explorer, Table, View, slider, switch  # noqa: E402

expect = api.expect
TRAITS = (
    "title", "controls", "at", "opened", "view", "progress", "problem", "asked", "heard", "stops"
)  # fmt: skip
CONTROLS = (
    slider("n", "Ranks", range(2, 9), start=4),
    Control("kind", "Kind of network", ("star", "ring")),
    switch("double", "Double"),
)
SAVED = "() => window.saved.map(({ at, asked, stops }) => ({ at, asked, stops }))"


def draw(n, kind, double, **_):
    chart = BarChart(kind, Axis("ranks"), ["n"], {"n": [2 * n if double else n]})
    return View([chart], f"{kind} of {n}", Table(("what", "value"), [("n", str(n))]))


def state(explorer):
    return {name: getattr(explorer, name) for name in TRAITS}


@pytest.fixture
def few(widget_page):
    return widget_page("explorer", state(Explorer("Bytes", draw, *CONTROLS)))


@pytest.fixture
def many(widget_page):
    return widget_page("explorer", state(Explorer("Bytes", draw, *CONTROLS, switch("x", "More"))))


def hear(page, **changes):
    """Let the model change, as if the kernel had answered."""
    page.evaluate("(c) => Object.entries(c).forEach(([k, v]) => window.model.set(k, v))", changes)


def test_every_control_has_a_name_and_moves_by_keyboard(few):
    few.get_by_role("slider", name="Ranks").press("ArrowRight")
    assert few.evaluate(SAVED) == [{"at": [3, 0, 0], "asked": 1, "stops": 0}]
    expect(few.get_by_role("slider", name="Ranks")).to_have_attribute("aria-valuetext", "5")
    hear(few, heard=1)
    few.get_by_role("combobox", name="Kind of network").press("r")
    hear(few, heard=2)
    few.get_by_role("checkbox", name="Double").press("Space")
    assert few.evaluate(SAVED)[-1] == {"at": [3, 1, 1], "asked": 3, "stops": 0}
    bare = "select:not([data-lm-suppress-shortcuts]), input:not([data-lm-suppress-shortcuts])"
    expect(few.locator(f"{bare}, button:not([data-lm-suppress-shortcuts])")).to_have_count(0)


def test_dragging_never_queues_up(few):
    ranks = few.get_by_role("slider", name="Ranks")
    for _ in range(4):
        ranks.press("ArrowRight")
    assert len(few.evaluate(SAVED)) == 1
    expect(few.locator(".value")).to_have_text("8")
    hear(few, heard=1)
    assert few.evaluate(SAVED)[1:] == [{"at": [6, 0, 0], "asked": 2, "stops": 0}]
    hear(few, heard=2)
    assert len(few.evaluate(SAVED)) == 2


def test_a_kernel_that_does_not_answer_is_told(few):
    few.get_by_role("slider", name="Ranks").press("ArrowRight")
    expect(few.locator(".waiting[role=status]")).to_have_text("Asking the kernel …")
    hear(few, heard=1)
    expect(few.locator(".waiting")).to_be_empty()


def test_with_many_controls_one_is_open_and_a_button_opens_the_rest(many):
    expect(many.get_by_label("Kind of network")).to_be_hidden()
    expect(many.locator(".rest")).to_have_text("Kind of network: star · Double: off · More: off")
    many.get_by_role("button", name="Show all controls").press("Enter")
    expect(many.get_by_label("Kind of network")).to_be_focused()
    expect(many.get_by_role("checkbox", name="More")).to_be_visible()
    expect(many.get_by_role("button", name="Show all controls")).to_be_hidden()


def test_picture_words_and_table_are_what_the_kernel_says(few):
    expect(few.get_by_role("img", name="star. ranks. n: 4.")).to_be_visible()
    expect(few.locator(".words")).to_have_text("star of 4")
    other = Explorer("Bytes", draw, *CONTROLS)
    other.turn(n=7, kind="ring")
    hear(few, view=other.view, at=other.at)
    expect(few.get_by_role("img", name="ring. ranks. n: 7.")).to_be_visible()
    expect(few.locator(".words[role=status]")).to_have_text("ring of 7")
    expect(few.get_by_role("row", name="n 7").get_by_role("rowheader")).to_have_text("n")
    expect(few.get_by_label("Kind of network")).to_have_value("1")
    expect(few.locator(".value")).to_have_text("7")


def test_work_shows_progress_and_stops_by_key(few):
    expect(few.get_by_role("button", name="Stop")).to_be_hidden()
    hear(few, progress=0.25)
    bar = few.get_by_role("progressbar", name="Progress")
    assert bar.evaluate("(bar) => bar.value") == 0.25
    few.get_by_role("button", name="Stop").press("Enter")
    assert few.evaluate(SAVED)[-1]["stops"] == 1
    hear(few, progress=1, problem="Stopped: what you see belongs to the settings before.")
    expect(few.get_by_role("alert")).to_contain_text("Stopped")
    expect(bar).to_be_hidden()


def test_words_are_never_parsed(widget_page):
    evil = "<img src=x onerror=\"document.title='broken'\">"

    def loud(**_):
        chart = BarChart(evil, Axis("x"), [evil], {"n": [1]})
        return View([chart], evil, Table((evil,), [(evil, evil)]))

    control = Control("kind", evil, {0: evil, 1: "b"})
    page = widget_page("explorer", state(Explorer(evil, loud, control)))
    hear(page, problem=evil)
    expect(page.locator("img")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_text(evil)
    assert page.title() == "explorer"


def test_a_closed_view_hears_no_more(few):
    few.evaluate("() => window.dispose()")
    hear(few, problem="too late")
    expect(few.get_by_role("alert", include_hidden=True)).to_have_text("")
