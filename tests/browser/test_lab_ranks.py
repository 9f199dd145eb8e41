"""``%%ranks`` in JupyterLab: what the ranks do is shown while they do it, and leaves no trace."""

from __future__ import annotations

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("torch", reason="real ranks need torch")
expect = api.expect

CELLS = (
    "%load_ext allreduce_edu",
    "%%ranks 3\nimport time\nif rank == 2:\n    time.sleep(1000)\ndist.all_reduce(torch.ones(3))",
    "%%ranks\nrank",
)
STOP = """() => window.jupyterapp.commands.execute("notebook:interrupt-kernel")"""
SAVE = """() => window.jupyterapp.commands.execute("docmanager:save")"""
SAVED = """() => !window.jupyterapp.shell.currentWidget.context.model.dirty"""


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 800)])
def test_stop_ends_the_ranks_and_the_status_goes_with_them(lab, open_notebook, shot, theme, width):
    name = lab.write(f"ranks_{theme}.ipynb", *CELLS)
    notebook = open_notebook(name, theme=theme, width=width)
    notebook.run_cell(0)
    stuck = notebook.cell(1)
    stuck.locator(".cm-content").click()
    notebook.page.keyboard.press("Control+Enter")
    status = stuck.get_by_role("group", name="3 ranks, gloo: what each rank is doing")
    expect(status).to_contain_text("rank 2: running", timeout=60_000)
    expect(status).to_contain_text("of at most 60 s")
    shot(notebook.page, f"ranks-{theme}-running")

    notebook.page.evaluate(STOP)
    expect(stuck).to_contain_text("KeyboardInterrupt: stopped; the ranks were ended", timeout=9_000)
    expect(status).to_have_count(0)
    shot(notebook.page, f"ranks-{theme}-stopped")
    notebook.run_cell(2)
    for rank in range(3):
        expect(notebook.cell(2)).to_contain_text(f"[rank {rank}] {rank}")

    notebook.page.evaluate(SAVE)
    notebook.page.wait_for_function(SAVED)
    again = open_notebook(name, theme=theme, width=width)
    expect(again.cell(1)).to_contain_text("KeyboardInterrupt: stopped")
    expect(again.cell(1)).not_to_contain_text("widget")
