"""A learner's own program in JupyterLab: it hangs and says why, loops and is stopped, and plays."""

from __future__ import annotations

import re

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect

HANGS = """import numpy as np
from allreduce_edu import Player, Waits, spmd

def my_all_reduce(comm, x):
    chunks = np.array_split(x, comm.size)
    comm.send(chunks[0], (comm.rank + 1) % comm.size)
    return comm.recv((comm.rank - 1) % comm.size)

spmd.run(my_all_reduce, np.ones((4, 8)))"""
PICTURE = "Waits(spmd.hang(my_all_reduce, np.ones((4, 8))))"
LOOPS = """def loops(comm):
    while True:
        try:
            while True:
                pass
        except:
            pass

spmd.run(loops, ranks=2)"""
PLAYS = """def ring(comm, x):
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        parts[(r - k - 1) % n] += comm.sendrecv(parts[(r - k) % n], (r + 1) % n, (r - 1) % n)
    for k in range(n - 1):
        parts[(r - k) % n][:] = comm.sendrecv(parts[(r + 1 - k) % n], (r + 1) % n, (r - 1) % n)
    return x

print(spmd.run(ring, np.ones((4, 8))))
Player(spmd.schedule(ring, 4))"""
STOP = "() => window.jupyterapp.commands.execute('notebook:interrupt-kernel')"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_program_hangs_is_drawn_loops_is_stopped_and_plays(lab, open_notebook, theme, shot):
    notebook = open_notebook(lab.write("own.ipynb", HANGS, PICTURE, LOOPS, PLAYS), theme=theme)
    notebook.run_cell(0)
    expect(notebook.cell(0)).to_contain_text("Deadlock: all 4 ranks wait, in a circle: 0 -> 1")
    expect(notebook.cell(0)).to_contain_text("line 6 of my_all_reduce: comm.send(chunks[0]")
    expect(notebook.cell(0)).not_to_contain_text("Traceback")

    notebook.run_cell(1)
    image = notebook.cell(1).get_by_role("img")
    expect(image).to_have_attribute("alt", re.compile("Look first: everybody sends before"))

    notebook.cell(2).locator(".cm-content").click()
    notebook.page.keyboard.press("Control+Enter")
    notebook.page.wait_for_timeout(700)
    notebook.page.evaluate(STOP)
    expect(notebook.cell(2)).to_contain_text("Stopped: rank 0 was still running.", timeout=10_000)
    expect(notebook.cell(2)).to_contain_text("of loops: ")

    notebook.run_cell(3)
    expect(notebook.cell(3)).to_contain_text("Run: 4 ranks, 24 messages, 384 bytes")
    expect(notebook.cell(3).locator(".ar-player")).to_be_visible()
    notebook.unfold()
    shot(notebook.page, f"own program {theme}")
