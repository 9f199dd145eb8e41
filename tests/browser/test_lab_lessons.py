"""The notebooks as learners use them: by keyboard, choosing, solving exercises."""

from __future__ import annotations

import re

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect

ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
SLEEP = """() => {
  const session = window.jupyterapp.shell.currentWidget.sessionContext.session;
  const cell = session.kernel.requestExecute({ code: "import time; time.sleep(30)" });
  window.asleep = true;
  cell.done.finally(() => { window.asleep = false; });
}"""
WRITE = """([begins, source]) => {
  const cells = [...window.jupyterapp.shell.currentWidget.content.widgets];
  const cell = cells.find((c) => c.model.sharedModel.getSource().includes(begins));
  cell.model.sharedModel.setSource(source);
}"""
COMPOSED = """def my_all_reduce(comm, x):
    parts = comm.all_gather(comm.reduce_scatter(x))
    return np.concatenate([parts[-1], *parts[:-1]])


builds_all_reduce(my_all_reduce)
"""
RING = """from allreduce_edu.lessons.checks import Step


def my_ring(n):
    r = np.arange(n)
    for k in range(n - 1):
        yield Step(send=(r - k) % n, into=(r - k - 1) % n, add=True)
    for k in range(n - 1):
        yield Step(send=(r + 1 - k) % n, into=(r - k) % n, add=False)


checks.my_ring(my_ring)
"""

SENT = """def sent(n, elements, rank):
    size = ring(n).cut(elements)
    return 2 * elements - size[(rank + 1) % n] - size[(rank + 2) % n]


sent_exactly(sent)
"""
HUNT = """found = {"A": 2, "B": 5, "C": 4, "D": "right", "E": 7, "F": 4}
hunt(found)
"""

OWN_FIRST = """def synchronise(grads):
    n, mean = len(grads), []
    for r in range(n):
        mean.append(sum(grads[(r + k) % n] for k in range(n)) / n)
    return mean


synchronises(synchronise)
"""
SUM = """def a_sum(model):
    def hook(p):
        dist.all_reduce(p.grad)

    for p in model.parameters():
        dist.broadcast(p.data, 0)
        p.register_post_accumulate_grad_hook(hook)


own_ddp.own_ddp(a_sum)
"""
KEPT = """keeps_digits(pairwise_exchange(64), wire="bf16", accumulate="fp32", round_owner=True)
"""
SOLVED = """from allreduce_edu.lessons.solutions import my_ddp

own_ddp.own_ddp(my_ddp)
"""


def test_00_steps_by_keyboard_takes_choices_and_plays_without_the_kernel(open_notebook):
    notebook = open_notebook("notebooks/00_start_here.ipynb")
    notebook.run_all()
    widget = notebook.page.locator(".ar-player").first
    steps_by_keyboard(notebook, widget)
    numbers_are_choices(widget)
    plays_while_the_kernel_is_busy(notebook, widget)


def test_03_steps_by_keyboard_slows_a_link_and_judges_rings(open_notebook):
    notebook = open_notebook("notebooks/03_step_through_the_ring.ipynb")
    notebook.run_all()
    steps_by_keyboard(notebook, notebook.page.locator(".ar-player").nth(1))
    waits_for_a_slow_link(notebook)
    shows_where_it_goes_wrong(notebook)
    judges_a_ring(notebook)
    judges_a_hunt(notebook)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 800)])
def test_04_counts_times_and_judges(open_notebook, theme, width):
    notebook = open_notebook("notebooks/04_count_the_bytes.ipynb", theme=theme, width=width)
    notebook.run_all()
    bars_follow_the_ranks(notebook)
    the_size_slides_along_the_curves(notebook)
    asks_for_seconds(notebook)
    judges_a_count(notebook)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_01_moves_its_controls_by_keyboard_and_tells_bits_apart(open_notebook, theme):
    notebook = open_notebook("notebooks/01_watch_replicas_diverge.ipynb", theme=theme)
    notebook.run_all()
    explorer = notebook.page.locator(".ar-explorer").first
    rows_fill_and_controls_open(notebook, explorer)
    stops_or_ends(explorer)
    tells_bits_apart(notebook)


def test_05_answers_a_question_looks_inside_a_backward_and_judges_a_ddp(open_notebook):
    notebook = open_notebook("notebooks/05_run_ddp_for_real.ipynb")
    notebook.run_all(240)
    answers_a_question(notebook)
    shows_pictures_with_words(notebook)
    judges_a_ddp(notebook)


def test_02_sets_up_the_board_by_keyboard_plays_three_ways_and_judges(open_notebook):
    notebook = open_notebook("notebooks/02_compare_reduce_with_all_reduce.ipynb")
    notebook.run_all()
    board = notebook.page.locator(".ar-board").nth(1)
    the_board_follows_its_controls(notebook, board)
    what_does_not_go_together_is_a_sentence(board)
    values_are_typed_while_the_kernel_answers(notebook, board)
    three_ways_end_alike(notebook)
    judges_a_composition(notebook)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 800)])
def test_06_follows_the_hops_finds_disagreeing_ranks_and_judges(open_notebook, theme, width):
    notebook = open_notebook("notebooks/06_follow_precision_drift.ipynb", theme=theme, width=width)
    notebook.run_all(240)
    hops_are_followed_by_keyboard(notebook)
    errors_follow_the_numbers(notebook)
    ranks_disagree_until_the_owner_rounds(notebook)
    a_scale_moves_the_heap(notebook)
    judges_kept_digits(notebook)


def hops_are_followed_by_keyboard(notebook):
    explorer = notebook.page.locator(".ar-explorer", has_text="The additions behind one number")
    words, tree = explorer.locator(".words"), explorer.locator(".pictures > svg").first
    hop = explorer.get_by_role("slider", name="After hop")
    hop.focus()
    cell = notebook.page.evaluate(ACTIVE_CELL)
    hop.press("ArrowRight")
    expect(words).to_contain_text("After hop 1 of 4")
    expect(tree).to_have_attribute("aria-label", re.compile("256 \\+ 1 = 256, −0.5 ulp. 3 still"))
    hop.press("End")
    expect(words).to_contain_text("The exact sum is 259; the result is 256, off by −1.5 ulp")
    explorer.get_by_role("button", name="Show all controls").press("Enter")
    explorer.get_by_label("Algorithm").select_option("raw shares, pairwise")
    explorer.get_by_label("Rounding").select_option("bf16 on the wire, fp32 kept")
    expect(words).to_contain_text("the result is 260, off by +0.5 ulp")
    explorer.get_by_role("slider", name="Ranks").press("End")
    expect(tree).to_contain_text("rank 7")
    assert notebook.page.evaluate(ACTIVE_CELL) == cell, "the arrow keys moved the notebook"


def errors_follow_the_numbers(notebook):
    explorer = notebook.page.locator(".ar-explorer", has_text="The error of a sum against")
    words = explorer.locator(".words")
    expect(words).to_contain_text("ring 0.875")
    before = explorer.locator(".pictures > svg").first.inner_html()
    explorer.get_by_label("Numbers").select_option("zero mean")
    expect(words).to_contain_text("ring 0.0", timeout=60_000)
    assert explorer.locator(".pictures > svg").first.inner_html() != before


def ranks_disagree_until_the_owner_rounds(notebook):
    explorer = notebook.page.locator(".ar-explorer", has_text="Wire against accumulator")
    words = explorer.locator(".words")
    expect(words).to_contain_text("Ranks hold different bits with bf16 sent, fp32 kept")
    explorer.get_by_role("checkbox", name="The owner rounds").press("Space")
    expect(words).to_have_text("All ranks hold the same bits in all nine.", timeout=20_000)


def a_scale_moves_the_heap(notebook):
    explorer = notebook.page.locator(".ar-explorer", has_text="Loss scaling")
    picture = explorer.locator(".pictures > svg")
    before = picture.inner_html()
    explorer.get_by_role("slider", name="Loss scale").press("ArrowRight")
    expect(picture).to_contain_text("Real gradients times 4 in fp16")
    assert picture.inner_html() != before


def judges_kept_digits(notebook):
    exercise = notebook.page.locator(".jp-CodeCell", has_text="keeps_digits(")
    expect(exercise).to_contain_text("Not yet: the error is 0.0095, not below 0.002")
    solve(notebook, exercise, "keeps_digits(ring(64)", KEPT)
    expect(exercise).to_contain_text("✓ Right: error 0.0016, the same bits", timeout=20_000)


def chosen(board, label):
    return board.locator(".ar-row").get_by_label(label, exact=True)


def after(board, rank):
    return board.locator("table tbody tr").nth(rank).locator("td").nth(1)


def the_board_follows_its_controls(notebook, board):
    picture = board.locator(".ar-stage > svg")
    expect(after(board, 0)).to_have_text("(1) | 2222 | (3303) | (4004)")
    start, collective = picture.inner_html(), chosen(board, "Collective")
    expect(chosen(board, "Op")).to_be_hidden()
    expect(board.locator(".ar-rest")).to_contain_text("Op: SUM · Data type: int64 · Ranks: 4")
    board.get_by_role("button", name="Show all controls").press("Enter")
    expect(chosen(board, "Op")).to_be_focused()
    collective.focus()
    notebook.page.keyboard.press("ArrowUp")  # from reduce-scatter to broadcast
    expect(after(board, 3)).to_have_text("1 | 2 | 3 | 4")
    assert picture.inner_html() != start
    board.locator(".ar-stage").press("End")
    expect(said(board)).to_contain_text("16 of 16 cells are complete")
    chosen(board, "Ranks").select_option("8")
    expect(board.locator("table tbody tr")).to_have_count(8)
    collective.select_option("all-reduce")
    chosen(board, "Ranks").select_option("4")
    expect(board.locator(".ar-words")).to_contain_text("6 S cross the links, at most 1.5 S")


def what_does_not_go_together_is_a_sentence(board):
    chosen(board, "Op").select_option("avg")
    expect(board.locator(".ar-problem")).to_contain_text("needs a floating-point dtype, got int64")
    expect(after(board, 2)).to_have_text("1111 | 2222 | 3333 | 4444")
    chosen(board, "Data type").select_option("fp32")
    expect(board.locator(".ar-problem")).to_be_empty()
    expect(after(board, 2)).to_have_text("277.75 | 555.5 | 833.25 | 1111")


def values_are_typed_while_the_kernel_answers(notebook, board):
    values = chosen(board, "Values")
    values.focus()
    notebook.page.keyboard.type("1, 2, 3, nan", delay=5)  # faster than it answers
    expect(after(board, 1)).to_have_text("nan | nan | nan | nan")
    values.fill("")
    chosen(board, "Ranks").select_option("5")  # at once: neither wish may be lost
    expect(board.locator("table tbody tr")).to_have_count(5)
    expect(board.locator(".ar-problem")).to_be_empty()
    values.fill("1, <b>2</b>, 3, 4, 5")
    expect(board.locator(".ar-problem")).to_contain_text("must be numbers, got '<b>2</b>'")


def three_ways_end_alike(notebook):
    together = notebook.page.locator(".ar-together")
    expect(together.locator("figure")).to_have_count(3)
    together.locator(".ar-several").press("ArrowRight")
    expect(together.locator(".ar-say").nth(2)).to_have_text("Done after 1 round.")
    together.locator(".ar-several").press("End")
    for said_, rounds in zip(together.locator(".ar-say").all(), (2, 14, 1), strict=True):
        expect(said_).to_contain_text(f"Done after {rounds} round")
    together.get_by_label("Ranks", exact=True).select_option("3")
    expect(together.locator(".ar-meta").first).to_contain_text("4 S in all, busiest port 2 S")
    together.get_by_role("button", name="Play").click()
    expect(together.locator(".ar-where")).to_have_text("4 / 4", timeout=20_000)


def judges_a_composition(notebook):
    exercise = notebook.page.locator(".jp-CodeCell", has_text="def my_all_reduce(comm, x)")
    expect(exercise).to_contain_text("Not yet: with 4 ranks: my_all_reduce returned Ellipsis")
    notebook.page.evaluate(WRITE, ["def my_all_reduce", COMPOSED])
    exercise.locator(".cm-content").click()
    notebook.page.keyboard.press("Control+Enter")
    expect(exercise).to_contain_text("✓ Right: the sum on every rank", timeout=30_000)


def said(widget):
    return widget.locator(".ar-say")


def press(widget, key):
    widget.locator(".ar-stage").press(key)


def steps_by_keyboard(notebook, widget):
    picture = widget.locator(".ar-stage > svg")
    widget.scroll_into_view_if_needed()
    widget.locator(".ar-stage").focus()
    cell, start = notebook.page.evaluate(ACTIVE_CELL), picture.inner_html()
    press(widget, "ArrowRight")
    expect(said(widget)).to_contain_text("Round 1 of 6, adding")
    assert picture.inner_html() != start
    press(widget, "End")
    expect(said(widget)).to_contain_text("16 of 16 cells are complete")
    press(widget, "ArrowLeft")
    expect(said(widget)).to_contain_text("Round 5 of 6, copying")
    press(widget, "Home")
    expect(said(widget)).to_contain_text("Start")
    press(widget, "Space")
    expect(said(widget)).to_contain_text("Round 1 of 6")
    assert notebook.page.evaluate(ACTIVE_CELL) == cell, "the arrow keys moved the notebook"


def numbers_are_choices(widget):
    for ranks in ("2", "16", "5"):
        widget.get_by_label("Ranks").select_option(ranks)
        expect(widget.locator(".ar-meta")).to_contain_text(f"{ranks} ranks", timeout=10_000)
    widget.get_by_label("Chunks per block").select_option("3")
    expect(widget.locator(".ar-meta")).to_contain_text("15 chunks", timeout=10_000)
    expect(widget.locator(".ar-where")).to_have_text("0 / 8")


def plays_while_the_kernel_is_busy(notebook, widget):
    """The kernel's status says little here: comms have a subshell that is idle all the while."""
    notebook.page.evaluate(SLEEP)
    widget.get_by_role("button", name="Play").click()
    expect(said(widget)).to_contain_text("Round 2 of 8", timeout=10_000)
    assert notebook.page.evaluate("() => window.asleep"), "the kernel woke before the second round"


def waits_for_a_slow_link(notebook):
    """The bars of everybody follow one link, moved by a key."""
    explorer = notebook.page.locator(".ar-explorer", has_text="One slow link")
    words, picture = explorer.locator(".words"), explorer.locator(".pictures > svg")
    expect(words).to_contain_text("2.98 times as long")
    before = picture.inner_html()
    explorer.get_by_role("slider", name="That link takes").press("ArrowRight")
    expect(words).to_contain_text("4.96 times as long")
    assert picture.inner_html() != before
    explorer.get_by_label("The slow link").select_option("rank 2 to the next")
    expect(picture).to_have_attribute("aria-label", re.compile("rank 2: 6 rounds"))


def shows_where_it_goes_wrong(notebook):
    widget = notebook.page.get_by_role("group", name="Player: ring A", exact=True)
    press(widget, "ArrowRight")
    expect(widget.locator(".ar-faults li")).to_have_count(0)
    press(widget, "ArrowRight")
    expect(widget.locator(".ar-faults li").first).to_contain_text("share twice")


def judges_a_hunt(notebook):
    exercise = notebook.page.locator(".jp-CodeCell", has_text="hunt(found)")
    expect(exercise).to_contain_text("Not yet: ring A: replace the dots")
    notebook.page.evaluate(WRITE, ["hunt(found)", HUNT])
    exercise.locator(".cm-content").click()
    notebook.page.keyboard.press("Control+Enter")
    expect(exercise).to_contain_text("Not yet: ring F: round 4 is where it shows", timeout=20_000)


def judges_a_ring(notebook):
    exercise = notebook.page.locator(".jp-CodeCell", has_text="def my_ring(n)")
    expect(exercise).to_contain_text("Not yet: With 4 ranks: fill in `send`")
    solve(notebook, exercise, "def my_ring", RING)
    expect(exercise).to_contain_text("Right: every share once and in its place", timeout=20_000)


def bars_follow_the_ranks(notebook):
    """Bars, bound and table follow a key; every other control is there after one press."""
    explorer = notebook.page.locator(".ar-explorer", has_text="Four all-reduces, counted")
    ring = explorer.locator("tbody tr", has_text="ring")
    most = explorer.locator(".pictures > svg").first
    expect(ring).to_contain_text("7 MB")
    before = most.inner_html()
    slider = explorer.get_by_role("slider", name="Ranks")
    slider.press("End")
    expect(ring).to_contain_text("126")
    expect(most).to_contain_text("lower bound 7.88 MB")
    assert most.inner_html() != before
    explorer.get_by_role("button", name="Show all controls").press("Enter")
    explorer.get_by_label("Numbers on each rank").select_option("7 billion")
    explorer.get_by_label("Each number").select_option("bf16, 2 bytes")
    expect(explorer.locator(".words")).to_contain_text("S = 14 GB on each of 64 ranks")
    explorer.get_by_label("Link").select_option("NVLink 4")
    expect(explorer.locator(".words")).to_contain_text("modelled: NVLink 4.")
    fits = "(e) => e.scrollWidth <= e.clientWidth + 1"
    assert explorer.locator(".rows").evaluate(fits), "the table is wider than its cell"


def the_size_slides_along_the_curves(notebook):
    explorer = notebook.page.locator(".ar-explorer", has_text="Time against size, modelled")
    curves, bars = (explorer.locator(".pictures > svg").nth(i) for i in (0, 1))
    slider = explorer.get_by_role("slider", name="S, bytes on each rank")
    slider.focus()
    cell = notebook.page.evaluate(ACTIVE_CELL)
    before = curves.inner_html()
    for _ in range(3):
        slider.press("ArrowRight")
    expect(bars).to_contain_text("S = 10 MB")
    expect(explorer.locator(".words")).to_contain_text("fastest is: ring")
    assert curves.inner_html() != before
    assert notebook.page.evaluate(ACTIVE_CELL) == cell, "the arrow keys moved the notebook"


def asks_for_seconds(notebook):
    question = notebook.page.locator(".ar-predict, section", has_text="7 billion parameters").last
    question.get_by_role("spinbutton").or_(question.get_by_role("textbox")).first.fill("22.4")
    notebook.page.keyboard.press("Enter")
    expect(question).to_contain_text("each rank sent its gradients once")


def judges_a_count(notebook):
    exercise = notebook.page.locator(".jp-CodeCell", has_text="def sent(n, elements, rank)")
    expect(exercise).to_contain_text("rank 1 sends 16. 2(N-1)S/N is the mean over the ranks")
    notebook.page.evaluate(WRITE, ["def sent", SENT])
    exercise.locator(".cm-content").click()
    notebook.page.keyboard.press("Control+Enter")
    expect(exercise).to_contain_text("Right: element for element", timeout=20_000)


def rows_fill_and_controls_open(notebook, explorer):
    """The diagonal fills by two keys; the arrows stay in the explorer."""
    words, sync = explorer.locator(".words"), explorer.get_by_label("Averaged between ranks")
    expect(words).to_contain_text("Averaged: nothing")
    sync.focus()
    cell = notebook.page.evaluate(ACTIVE_CELL)
    sync.press("ArrowDown")
    expect(words).to_contain_text("Averaged: gradients in every step", timeout=20_000)
    expect(explorer.locator("tbody tr").first).to_have_text("parameterssame bits")
    explorer.get_by_role("button", name="Show all controls").press("Enter")
    ranks = explorer.get_by_role("slider", name="Ranks")
    ranks.press("ArrowRight")
    expect(explorer.locator("svg").first).to_contain_text("rank 4, saw", timeout=20_000)
    explorer.get_by_role("checkbox", name="BatchNorm").press("Space")
    expect(explorer.locator("tbody tr").nth(2)).to_have_text(
        "buffersdifferent bits", timeout=20_000
    )
    assert notebook.page.evaluate(ACTIVE_CELL) == cell, "the arrow keys moved the notebook"


def stops_or_ends(explorer):
    """A drag over all positions ends where it was let go, without a queue."""
    batch = explorer.get_by_role("slider", name="Images per rank and step")
    for key in ("Home", *["ArrowRight"] * 4, "ArrowLeft"):
        batch.press(key)
    expect(explorer.locator(".value").nth(1)).to_have_text("16")
    expect(explorer.locator(".work")).to_be_hidden(timeout=30_000)
    expect(explorer.locator(".problem")).to_have_text("")


def tells_bits_apart(notebook):
    exercise = notebook.page.locator(".jp-CodeCell", has_text="def synchronise(grads)")
    expect(exercise).to_contain_text("Not yet: with 4 ranks: replace the dots with a list")
    solve(notebook, exercise, "def synchronise", OWN_FIRST)
    expect(exercise).to_contain_text("Let all ranks add in one order", timeout=20_000)


def solve(notebook, exercise, holds, source):
    """Write into the cell that holds a text, and run it as a learner does."""
    notebook.page.evaluate(WRITE, [holds, source])
    exercise.locator(".cm-content").click()
    notebook.page.keyboard.press("Control+Enter")


def answers_a_question(notebook):
    page = notebook.page
    card = page.locator(".jp-CodeCell", has_text="questions.DOUBLE_DIVISION")
    card.get_by_text("a quarter; both curves show it").click()
    card.get_by_role("button", name="Lock in").click()
    expect(card).to_contain_text("The factor is right. But AdamW divides each gradient")
    expect(page.locator(".jp-CodeCell", has_text="guesses()").last).to_contain_text(
        "a quarter; both curves"
    )


def shows_pictures_with_words(notebook):
    for words in ("One backward() under DDP: 4 ranks, 2 buckets", "One backward to scale, 4 ranks"):
        picture = notebook.page.locator(f'img[alt^="{words}"]')
        picture.scroll_into_view_if_needed()
        assert picture.evaluate("(img) => img.complete && img.naturalWidth") > 600
    backward = notebook.page.locator('img[alt^="One backward() under DDP"]').get_attribute("alt")
    assert backward.count("backward() returns, holding K") == 4, backward


def judges_a_ddp(notebook):
    exercise = notebook.page.locator(".jp-CodeCell", has_text="own_ddp.own_ddp(")
    expect(exercise).to_contain_text("(a) Not yet: with 4 ranks nothing is sent in `backward()`")
    solve(notebook, exercise, "def my_ddp", SUM)
    expect(exercise).to_contain_text("it is the sum. DDP's is the mean", timeout=90_000)
    solve(notebook, exercise, "def a_sum", SOLVED)
    expect(exercise).to_contain_text("✓ (b) Right: every bit of torch's DDP on 2", timeout=90_000)
