"""Work that takes long, in a real kernel: progress is seen, the newest wish wins, Stop stops."""

from __future__ import annotations

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect

SLOW = """
import time
from allreduce_edu.show.charts import Axis, BarChart
from allreduce_edu.show.explorers import Explorer, View, slider

begun = []

def work(n):
    begun.append(n)
    for k in range(1000 if n > 2 else 1):
        time.sleep(0.01)
        yield k / 1000
    return View([BarChart("Work", Axis("ranks"), ["n"], {"n": [n]})], f"done with {n}")

explorer = Explorer("Long work", work, slider("n", "Ranks", range(2, 9)))
explorer
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_long_work_shows_progress_gives_way_and_stops(lab, open_notebook, theme):
    notebook = open_notebook(lab.write("slow.ipynb", SLOW, "print(begun)"), theme=theme)
    notebook.run_all()
    explorer = notebook.cell(0).locator(".ar-explorer")
    ranks, words = explorer.get_by_role("slider", name="Ranks"), explorer.locator(".words")
    expect(words).to_have_text("done with 2")

    ranks.press("ArrowRight")
    expect(explorer.get_by_role("progressbar")).to_be_visible()
    ranks.press("Home")
    expect(explorer.get_by_role("progressbar")).to_be_hidden(timeout=5_000)
    expect(words).to_have_text("done with 2")

    ranks.press("End")
    expect(explorer.get_by_role("progressbar")).to_be_visible()
    explorer.get_by_role("button", name="Stop").press("Enter")
    expect(explorer.get_by_role("alert")).to_contain_text("Stopped", timeout=5_000)
    expect(explorer.get_by_role("progressbar")).to_be_hidden()
    expect(ranks).to_have_attribute("aria-valuetext", "2")
    notebook.run_cell(1)
    expect(notebook.cell(1)).to_contain_text("[2, 3, 2, 8]")
