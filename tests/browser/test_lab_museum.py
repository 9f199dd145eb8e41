"""The museum in JupyterLab: found by symptom, run, mended and checked, all by keyboard."""

from __future__ import annotations

import json
import re

import pytest
from rig import REPOSITORY

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect

ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
FAULT = """        if comm.rank != 2 or step < 2:  # "rank 2 has nothing to add in the last step"
            comm.all_reduce(x)"""

AGAIN = "(e) => e.addEventListener('click', () => setTimeout(() => e.click()), { once: true })"
WRITE = """([begins, source]) => {
  const cells = [...window.jupyterapp.shell.currentWidget.content.widgets];
  const cell = cells.find((c) => c.model.sharedModel.getSource().includes(begins));
  cell.model.sharedModel.setSource(source);
}"""
MENDED = """def accuracy(comm, hits):
    both = np.array([hits.sum(), len(hits)])
    comm.all_reduce(both)
    return both[0] / both[1]


def train(comm, hits):
    gradient = np.ones(4)
    for epoch in range(2):
        comm.all_reduce(gradient)
        metric = accuracy(comm, hits)
    return metric if comm.rank == 0 else None


museum["validate"].check(train)
"""


def test_a_symptom_is_found_run_and_mended_by_keyboard(lab, open_notebook, shot):
    cells = (
        "from allreduce_edu import Visit, museum, take\n\nvisit = Visit()\nvisit",
        'take("skip")',
    )
    cells += ('visit.case.wish["n"]',)
    path = lab.write("visit.ipynb", *cells)
    notebook = open_notebook(path, theme="dark", width=800)
    notebook.run_cell(0)
    case, bench = visits_by_keyboard(notebook)
    notebook.unfold()
    shot(case, "museum case dark 800")
    shot(bench, "museum bench dark 800")
    notebook.run_cell(1)
    taken = notebook.cell(2)
    expect(taken).to_contain_text('museum["skip"].check(train)')
    notebook.run_cell(2)
    expect(taken).to_contain_text("Not yet: with 4 ranks: ranks 0, 1, 3 wait")
    notebook.run_cell(3)
    expect(notebook.cell(3).locator(".jp-OutputArea-output")).to_have_text("1")


NEEDED = "import numpy as np", "def forgets(comm, x)", "Waits(found)", "Tape(found)"
NEEDED += "def accuracy(comm, hits)", "Checklist()", "Visit()"


def test_09_draws_its_tape_lets_visitors_in_and_judges(lab, open_notebook):
    """Only the cells that are needed: `test_lab_notebooks` runs all of them."""
    whole = json.loads((REPOSITORY / "notebooks/09_find_out_why_it_hangs.ipynb").read_text("utf-8"))
    sources = ["".join(cell["source"]) for cell in whole["cells"]]
    needed = [next(source for source in sources if source.startswith(text)) for text in NEEDED]
    notebook = open_notebook(lab.write("09.ipynb", *needed))
    notebook.run_all()
    page = notebook.page
    for words in ("Fingerprint tape. At number 2 rank 0 calls", "rank 0 waits and rank 1 has"):
        assert page.locator(f'img[alt^="{words}"]').count() > 0
    visits_by_keyboard(notebook)
    checklist = page.locator(".ar-checklist")
    checklist.get_by_role("button", name="No").press("Enter")
    expect(checklist.locator("li.no")).to_contain_text('Visit("validate")')
    exercise = page.locator(".jp-CodeCell", has_text="def accuracy(comm, hits)").last
    expect(exercise).to_contain_text("Not yet: with 4 ranks: all 4 ranks wait, in a circle")
    page.evaluate(WRITE, ["def accuracy(comm, hits)", MENDED])
    exercise.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    expect(exercise).to_contain_text("✓ Right: What rank 0 does alone", timeout=20_000)


def visits_by_keyboard(notebook):
    """Find a symptom in the last panel, run its program, mend it; the notebook hears no key."""
    case = notebook.page.locator(".ar-museum.case").last
    bench = notebook.page.locator(".ar-museum.bench").last
    expect(case).to_be_visible()
    case.get_by_role("searchbox").focus()
    cells = notebook.page.locator(".jp-Cell").count()
    cell = notebook.page.evaluate(ACTIVE_CELL)
    finds_by_words(case)
    runs_and_reads(case)
    mends(bench)
    expect(case.locator("label.symptom:has(:checked)")).to_contain_text("✓ mended")
    assert notebook.page.evaluate(ACTIVE_CELL) == cell, "keys moved the notebook"
    assert notebook.page.locator(".jp-Cell").count() == cells
    fits = "(e) => e.scrollWidth <= e.clientWidth + 1"
    assert case.evaluate(fits)
    assert bench.evaluate(fits)
    return case, bench


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
    run = case.get_by_role("button", name="Run it")
    run.evaluate(AGAIN)
    run.press("Enter")
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
