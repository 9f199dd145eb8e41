"""The player in a real JupyterLab: it gets the keys, the kernel gets the questions."""

from __future__ import annotations

import json

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")

from allreduce_edu.engine.algorithms import ring  # noqa: E402
from allreduce_edu.show.player import Player  # noqa: E402

expect = api.expect
ACTIVE = """() => {
    const { content } = window.jupyterapp.shell.currentWidget;
    return [content.activeCellIndex, content.mode, content.widgets.length];
}"""
BUSY = """(seconds) => {
    const { session } = window.jupyterapp.shell.currentWidget.sessionContext;
    session.kernel.requestExecute({ code: `import time; time.sleep(${seconds})` });
}"""
STATUS = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
PLAYER = "from allreduce_edu import Player, ring\nplayer = Player(ring)\nplayer"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_keys_step_the_player_and_leave_the_notebook_where_it_is(lab, open_notebook, shot, theme):
    notebook = open_notebook(lab.write("player.ipynb", PLAYER, "player.index"), theme=theme)
    notebook.run_all()
    page, player = notebook.page, notebook.cell(0).locator(".ar-player")
    where = player.locator(".ar-where")
    player.locator(".ar-stage").click()
    before = page.evaluate(ACTIVE)
    names = ["First", "Step back", "Play", "Step", "Last", "Round"]
    for control in [
        player.locator(".ar-stage"),
        *(player.get_by_label(n, exact=True) for n in names),
    ]:
        control.focus()
        for key, k in (
            ("ArrowRight", 1),
            ("ArrowRight", 2),
            ("ArrowLeft", 1),
            ("End", 6),
            ("Home", 0),
        ):
            page.keyboard.press(key)
            expect(where).to_have_text(f"{k} / 6")
        assert page.evaluate(ACTIVE) == before
    player.locator(".ar-stage").press("Space")
    expect(where).not_to_have_text("0 / 6")
    player.locator(".ar-stage").press("Space")
    player.locator(".ar-stage").press("End")
    assert page.evaluate(ACTIVE) == before
    shot(page, f"player-lab-{theme}")
    notebook.run_cell(1)
    expect(notebook.cell(1).locator(".jp-OutputArea-output")).to_have_text("6")


def test_the_kernel_answers_other_numbers_and_says_what_it_cannot(lab, open_notebook):
    source = (
        "from allreduce_edu import Player, ring\n"
        "def even(n, chunks=None):\n"
        "    assert n % 2 == 0, 'even numbers only'\n"
        "    return ring(n, chunks)\n"
        "Player(even)"
    )
    notebook = open_notebook(lab.write("even.ipynb", source))
    notebook.run_all()
    player = notebook.cell(0).locator(".ar-player")
    ranks, meta = player.get_by_label("Ranks", exact=True), player.locator(".ar-meta")
    expect(meta).to_have_text("4 ranks, 4 chunks, 6 rounds")
    ranks.select_option("6")
    expect(meta).to_have_text("6 ranks, 6 chunks, 10 rounds")
    player.get_by_label("Chunks per block", exact=True).select_option("2")
    expect(meta).to_have_text("6 ranks, 12 chunks, 10 rounds")
    for _ in range(2):
        ranks.select_option("7")
        expect(player.locator(".ar-wait")).to_have_text("With 7 ranks: even numbers only")
        expect(ranks).to_have_value("6")
    ranks.select_option("8")
    expect(player.locator(".ar-wait")).to_be_empty()
    expect(meta).to_have_text("8 ranks, 16 chunks, 14 rounds")


def test_it_plays_while_the_kernel_is_busy_and_two_views_go_together(lab, open_notebook):
    notebook = open_notebook(lab.write("busy.ipynb", PLAYER, "player", "player.index"))
    notebook.run_all()
    page = notebook.page
    first, second = (notebook.cell(i).locator(".ar-player") for i in (0, 1))
    page.evaluate(BUSY, 4)
    first.get_by_label("Speed", exact=True).select_option("4")
    first.get_by_label("Play", exact=True).click()
    expect(second.get_by_label("Pause", exact=True)).to_be_visible()
    for player in (first, second):
        expect(player.locator(".ar-where")).to_have_text("6 / 6")
    assert page.evaluate(STATUS) == "busy"
    expect(second.get_by_label("Play", exact=True)).to_be_visible()
    page.wait_for_function(f"({STATUS})() === 'idle'")
    notebook.run_cell(2)
    expect(notebook.cell(2).locator(".jp-OutputArea-output")).to_have_text("6")


def test_a_stored_notebook_shows_the_film_strip_before_it_is_trusted(lab, open_notebook, shot):
    path = lab.root / lab.write("stored.ipynb", PLAYER)
    notebook = json.loads(path.read_text("utf-8"))
    data, _ = Player(ring(4))._repr_mimebundle_()
    del data["application/vnd.jupyter.widget-view+json"]
    output = {"output_type": "execute_result", "metadata": {}, "execution_count": 1, "data": data}
    notebook["cells"][0] |= {"outputs": [output], "execution_count": 1}
    path.write_text(json.dumps(notebook), "utf-8")
    cell = open_notebook("stored.ipynb").cell(0).locator(".jp-OutputArea")
    picture = cell.get_by_alt_text("Round 6 of 6")
    expect(picture).to_be_visible()
    assert picture.evaluate("(img) => img.naturalWidth") > 1000
    shot(cell, "player-stored")
