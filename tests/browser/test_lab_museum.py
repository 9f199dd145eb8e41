"""The museum in JupyterLab: found by symptom, run, mended and checked, all by keyboard."""

from __future__ import annotations

import re

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect

ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
FAULT = """        if comm.rank != 2 or step < 2:  # "rank 2 has nothing to add in the last step"
            comm.all_reduce(x)"""


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 800)])
def test_a_symptom_is_found_run_and_mended_by_keyboard(lab, open_notebook, theme, width, shot):
    path = lab.write("visit.ipynb", "from allreduce_edu import Visit\n\nVisit()")
    notebook = open_notebook(path, theme=theme, width=width)
    notebook.run_cell(0)
    case, bench = (notebook.page.locator(f".ar-museum.{part}") for part in ("case", "bench"))
    expect(case).to_be_visible()
    cell = notebook.page.evaluate(ACTIVE_CELL)

    finds_by_words(case)
    runs_and_reads(case)
    mends(bench)
    assert notebook.page.evaluate(ACTIVE_CELL) == cell, "keys moved the notebook"
    assert notebook.page.locator(".jp-Cell").count() == 1
    fits = "(e) => e.scrollWidth <= e.clientWidth + 1"
    assert case.evaluate(fits)
    assert bench.evaluate(fits)
    notebook.unfold()
    for part in (case, bench):
        shot(part, f"visit {part.get_attribute('class')} {theme} {width}")


def finds_by_words(case):
    symptoms, count = case.get_by_role("radio"), case.locator(".count")
    every = symptoms.count()
    filter_ = case.get_by_role("searchbox", name="What do you see?")
    filter_.press_sequentially("no such symptom")
    expect(count).to_have_text("No symptom has all these words: try fewer.")
    filter_.fill("loss four")
    expect(case.get_by_role("radio", name="falls four times as slowly")).to_be_visible()
    filter_.fill("Timed out waiting")
    expect(case.get_by_role("radio", name="falls four times as slowly")).to_be_hidden()
    assert 0 < case.locator(".symptoms label:visible").count() < every
    case.get_by_role("combobox", name="Wing").select_option("disagree")
    expect(count).to_have_text("No symptom has all these words: try fewer.")
    case.get_by_role("combobox", name="Wing").select_option("")
    skip = case.get_by_role("radio", name="Three ranks wait in an all-reduce")
    skip.focus()
    skip.press("Space")
    expect(case.get_by_role("heading", name="Three ranks wait in an all-reduce")).to_be_visible()


def runs_and_reads(case):
    case.get_by_role("button", name="Run it").press("Enter")
    expect(case.locator(".said")).to_contain_text("Look first: rank 2 has returned", timeout=20_000)
    expect(case.get_by_role("img", name="Who waits for whom")).to_be_visible()
    expect(case.get_by_role("img", name="Fingerprint tape")).to_be_visible()
    summary = case.locator("summary", has_text="flight recorder")
    summary.focus()
    summary.press("Enter")
    expect(case.locator("details[open]")).to_contain_text("missing ranks: {2}")


def mends(bench):
    area = bench.get_by_role("textbox", name="Your edit of the program")
    area.press("Control+Enter")
    expect(bench.locator(".verdict")).to_contain_text("Not yet: with 4 ranks", timeout=20_000)
    area.fill(area.input_value().replace(FAULT, "        comm.all_reduce(x)"))
    area.press("Control+End")
    area.press("ArrowUp")
    area.press("End")
    area.press("Enter")
    assert area.input_value().endswith("    return x\n    \n")
    bench.get_by_role("button", name="Check").press("Enter")
    expect(bench.locator(".verdict")).to_contain_text("Right: the program does")
    expect(bench.locator(".answer")).to_contain_text("A collective has no list of who came")
    expect(bench.get_by_role("region", name="The fix")).to_contain_text("-        if comm.rank")
    expect(bench).to_contain_text("pytorch/pytorch#")
    bench.get_by_role("button", name="Start again").press("Enter")
    expect(area).to_have_value(re.compile(re.escape(FAULT)))
