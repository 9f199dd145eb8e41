"""Every notebook as a reader meets it: opened in JupyterLab, run from top to bottom, answered."""

from __future__ import annotations

import pytest
from rig import REPOSITORY

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect
NOTEBOOKS = sorted(path.name for path in (REPOSITORY / "notebooks").glob("*.ipynb"))


def answer_by_keyboard(card):
    """Give a question its first choice, or 1, and see that it answers."""
    field = card.locator("input").first
    field.focus()
    field.press("1" if field.get_attribute("type") == "number" else "a")
    field.press("Enter")
    expect(card.get_by_role("button", name="Answer again")).to_be_focused()
    expect(card.locator(".outcome p").first).not_to_be_empty()


def wide_outputs(page):
    """Return the numbers of the outputs that are wider than the room they have."""
    outputs = page.locator(".jp-OutputArea-output").all()
    return [i for i, o in enumerate(outputs) if o.evaluate("o => o.scrollWidth > o.clientWidth")]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs_fits_a_narrow_window_and_its_questions_answer(open_notebook, shot, name):
    notebook = open_notebook(f"notebooks/{name}", width=800)
    notebook.run_all()
    shot(notebook.page, f"{name}-800")
    wide = wide_outputs(notebook.page)
    assert not wide, f"outputs {wide} are wider than the window"
    notebook.page.set_viewport_size({"width": 1280, "height": 900})
    notebook.unfold()
    shot(notebook.page, f"{name}-light")
    for card in notebook.page.locator(".allreduce-predict").all():
        answer_by_keyboard(card)
    notebook.change_theme("dark")
    shot(notebook.page, f"{name}-dark")
