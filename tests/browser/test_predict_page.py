"""`Predict` in a browser: its JavaScript alone, then in JupyterLab with a kernel."""

from __future__ import annotations

import json

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")

from allreduce_edu.show.predict import Predict  # noqa: E402

expect = api.expect
QUESTION = "After how many rounds is any chunk complete, and which does rank 0 then hold?"
CHOICES = {
    "6, all of them": "6 is when every rank holds everything: the second half only copies.",
    "3, chunk 1": "Each round adds one more share, and three were missing.",
    "3, chunk 0": "No chunk comes home: `chunk 0` is finished on rank 3.",
}
ASK = f"""
from allreduce_edu.show.predict import Predict, guesses
predict = Predict({QUESTION!r}, {CHOICES!r}, answer="3, chunk 1")
predict
"""


def state(predict, **changes):
    names = ["kind", "question", "verdicts", "answer", "unit", "status", "guess", "first"]
    return {name: getattr(predict, name) for name in names} | changes


@pytest.fixture
def choice():
    return state(Predict(QUESTION, CHOICES, "3, chunk 1", key="fresh"), status="open")


@pytest.fixture
def number():
    predict = Predict.number(
        "28 GB on 8 ranks over 10 Gb/s: how long?",
        39.2,
        unit="s",
        right="Each rank sends seven quarters of its array.",
        replies={22.4: "22.4 s would be right if each rank sent its gradients once."},
        otherwise="Bits or bytes? 10 Gb/s is 1.25 GB/s.",
        key="fresh",
    )
    return state(predict, status="open")


def saved(page):
    return [{k: s[k] for k in ("status", "guess", "first")} for s in page.evaluate("saved")]


def test_it_is_answered_by_keyboard_alone(widget_page, choice):
    page = widget_page("predict", choice)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="C 3, chunk 0")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page.get_by_text("No chunk comes home")).to_be_visible()
    assert saved(page) == [{"status": "answered", "guess": "3, chunk 0", "first": "3, chunk 0"}]
    expect(page.get_by_role("button", name="Answer again")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("No chunk comes home")).to_have_count(0)
    expect(page.get_by_role("radio").first).to_be_focused()
    page.keyboard.press("b")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Lock in")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Each round adds one more share")).to_be_visible()
    expect(page.get_by_text("Your first guess was 3, chunk 0.")).to_be_visible()
    assert saved(page)[-1] == {"status": "answered", "guess": "3, chunk 1", "first": "3, chunk 0"}


def test_every_choice_shows_its_own_reply_beside_the_answer(widget_page, choice, shot):
    page = widget_page("predict", choice)
    for guess, reply in CHOICES.items():
        page.get_by_role("radio", name=guess).check(force=True)
        page.get_by_role("button", name="Lock in").click()
        outcome = page.locator(".outcome")
        expect(outcome).to_contain_text(reply.replace("`", ""))
        expect(outcome.locator(".value")).to_contain_text(
            [f"Your guess {'✓' if guess == '3, chunk 1' else '≠'} {guess}", "Answer ✓ 3, chunk 1"]
        )
        shot(page, f"predict-{guess}")
        page.get_by_role("button", name="Answer again").click()


def test_nothing_is_given_away_before(widget_page, choice):
    page = widget_page("predict", choice)
    for reply in CHOICES.values():
        assert reply.split("`")[0] not in page.inner_text("main")
    page.get_by_role("button", name="Lock in").click()
    expect(page.get_by_text("Choose one first, or skip.")).to_be_visible()
    expect(page.get_by_role("radio").first).to_be_focused()
    assert saved(page) == []


def test_skipping_shows_the_answer_and_keeps_no_guess(widget_page, choice):
    page = widget_page("predict", choice)
    page.get_by_role("button", name="Skip: show me").press("Enter")
    expect(page.get_by_text("Each round adds one more share")).to_be_visible()
    expect(page.get_by_text("Your guess")).to_have_count(0)
    assert saved(page) == [{"status": "skipped", "guess": "", "first": ""}]
    expect(page.get_by_role("button", name="Answer after all")).to_be_focused()


@pytest.mark.parametrize(
    ("typed", "reply"),
    [("39.2", "Each rank sends seven"), ("22", "22.4 s would be right"), ("300", "Bits or bytes")],
)
def test_a_number_is_typed_and_answered(widget_page, number, shot, typed, reply):
    page = widget_page("predict", number)
    field = page.get_by_role("spinbutton", name="Your guess")
    field.press("Enter")
    expect(page.get_by_text("Type a number first, or skip.")).to_be_visible()
    field.press_sequentially(typed)
    field.press("Enter")
    expect(page.locator(".outcome")).to_contain_text(reply)
    expect(page.locator(".value").first).to_contain_text(f"{typed} s")
    expect(page.locator(".value").last).to_contain_text("✓ 39.2 s")
    shot(page, f"predict-number-{typed}")


def test_what_the_kernel_remembered_is_shown_at_once(widget_page, choice):
    remembered = {"status": "answered", "guess": "3, chunk 1", "first": "6, all of them"}
    page = widget_page("predict", choice | remembered)
    expect(page.get_by_text("Each round adds one more share")).to_be_visible()
    expect(page.get_by_text("Your first guess was 6, all of them.")).to_be_visible()
    assert saved(page) == []


def test_a_screen_reader_hears_question_choices_and_reply(widget_page, choice):
    page = widget_page("predict", choice)
    expect(page.get_by_role("group", name=QUESTION)).to_be_visible()
    expect(page.get_by_role("radio")).to_have_count(3)
    page.get_by_role("radio", name="A 6, all of them").press("Enter")
    page.get_by_role("radio", name="A 6, all of them").press("a")
    page.keyboard.press("Enter")
    spoken = page.get_by_role("status").filter(has_text="6 is when every rank")
    expect(spoken).to_be_visible()
    expect(spoken.get_by_role("img", name="differs from the answer")).to_have_count(1)


def test_every_control_keeps_its_keys_from_jupyterlab(widget_page, choice, number):
    for traits in (choice, number):
        page = widget_page("predict", traits)
        controls = page.locator("input, button")
        marked = page.locator('[data-lm-suppress-shortcuts="true"]')
        assert controls.count() == marked.count() > 3


def test_text_is_text_and_backticks_are_code(widget_page):
    nasty = "<img src=x onerror='document.title = 1'> `a < b`"
    choices = {nasty: "`c` <b>d</b>", "no": "e"}
    page = widget_page("predict", state(Predict(nasty, choices, "no", key="nasty")))
    page.keyboard.press("Tab")
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    expect(page.locator(".outcome p")).to_have_text("c <b>d</b>")
    expect(page.locator("legend code")).to_have_text("a < b")
    assert page.locator("img, b").count() == 0
    assert page.title() == "predict"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1280])
def test_it_fits_the_window(widget_page, choice, shot, theme, width):
    answered = {"status": "answered", "guess": "3, chunk 0", "first": "3, chunk 0"}
    for name, traits in {"open": choice, "answered": choice | answered}.items():
        page = widget_page("predict", traits, theme=theme, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shot(page, f"predict-{name}-{theme}-{width}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_jupyterlab_keys_answer_it_and_the_kernel_remembers(lab, open_notebook, shot, theme):
    sources = [ASK, "predict.first_guess", "guesses()"]
    notebook = open_notebook(lab.write("predict.ipynb", *sources), theme=theme)
    notebook.run_all()
    page, card = notebook.page, notebook.cell(0).locator(".allreduce-predict")
    expect(card).to_be_visible()
    expect(notebook.cell(0).locator("details")).to_have_count(0)
    shot(page, f"predict-lab-{theme}-before")

    card.get_by_role("radio").first.focus()
    for key in ("b", "a", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(card).to_contain_text("No chunk comes home")
    expect(card.get_by_role("button", name="Answer again")).to_be_focused()
    expect(notebook.cell(2).locator("table")).to_contain_text("≠ 3, chunk 0")
    assert page.locator(".jp-Notebook .jp-Cell").count() == 3
    notebook.unfold()
    shot(page, f"predict-lab-{theme}-after")

    notebook.run_cell(1)
    expect(notebook.cell(1).locator(".jp-OutputArea-output")).to_have_text("'3, chunk 0'")
    notebook.run_cell(0)
    expect(notebook.cell(0).locator(".allreduce-predict")).to_contain_text("No chunk comes home")


def test_a_stored_notebook_shows_question_and_folded_answer(lab, open_notebook, shot):
    path = lab.root / lab.write("stored.ipynb", ASK)
    notebook = json.loads(path.read_text("utf-8"))
    data, _ = Predict(QUESTION, CHOICES, "3, chunk 1")._repr_mimebundle_()
    del data["application/vnd.jupyter.widget-view+json"]
    output = {"output_type": "execute_result", "metadata": {}, "execution_count": 1, "data": data}
    notebook["cells"][0] |= {"outputs": [output], "execution_count": 1}
    path.write_text(json.dumps(notebook), "utf-8")

    cell = open_notebook("stored.ipynb").cell(0).locator(".jp-OutputArea")
    expect(cell.get_by_text(QUESTION)).to_be_visible()
    expect(cell.get_by_text("Each round adds")).not_to_be_visible()
    cell.get_by_text("Answer", exact=True).click()
    expect(cell.get_by_text("Each round adds")).to_be_visible()
    expect(cell.locator("strong").last).to_have_text("3, chunk 1")
    shot(cell, "predict-stored")
