"""The player alone in a browser: every control, every key, and the picture itself."""

from __future__ import annotations

import re

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")

from allreduce_edu.engine.algorithms import ALGORITHMS, COLLECTIVES, ring  # noqa: E402
from allreduce_edu.engine.frames import frames  # noqa: E402
from allreduce_edu.engine.rounds import Round  # noqa: E402
from allreduce_edu.engine.schedule import Schedule  # noqa: E402
from allreduce_edu.show.draw import layers, state, ways  # noqa: E402
from allreduce_edu.show.player import page, scenes  # noqa: E402
from allreduce_edu.show.scene import layout, views  # noqa: E402

expect = api.expect

# What the browser has drawn: paths by class, digits, values, arrows.
DRAWN = """() => {
    const paths = (selector) =>
        [...document.querySelectorAll(`.ar-stage > svg > g:not(.ar-soft) > path${selector}`)]
        .map((path) => [path.getAttribute("class").slice(3), path.getAttribute("d")]);
    const texts = (kind) => [...document.querySelectorAll(`.ar-stage .ar-${kind} text`)]
        .map((text) => text.textContent);
    return { cells: Object.fromEntries(paths(":not([marker-end])")), digits: texts("digit"),
        values: texts("value"), arrows: paths("[marker-end]") };
}"""


@pytest.fixture
def played(new_page):
    """Open a page with a player of these frames; nothing moves unless asked."""

    def open_(shown, *, moving=False, view="", **how):
        opened = new_page(reduced_motion="no-preference" if moving else "reduce", **how)
        opened.set_default_timeout(10_000)
        opened.set_content(page(shown, view=view))
        expect(opened.locator(".ar-stage svg")).to_be_visible()
        return opened

    return open_


def adding_ring(n: int) -> Schedule:
    rounds = [Round.of(r.src, r.dst, r.chunk, reduce=True) for r in ring(n)]
    return Schedule("adding ring", n, n, lambda: rounds)


def control(opened, name):
    return opened.get_by_label(name, exact=True)


def at(opened, k, last=6):
    expect(opened.locator(".ar-where")).to_have_text(f"{k} / {last}")


# ----------------------------------------------------------------------------- the picture

SHOWN = {
    **{f"ring {n}": ring(n) for n in (2, 3, 4, 5, 8, 9, 16)},
    "ring 4x4": ring(4, 16),
    "ring 16x4": ring(16, 64),
    "adding ring": adding_ring(4),
    **{name: make(6) for name, make in ALGORITHMS.items() if name != "ring"},
    **{name: make(4) for name, make in COLLECTIVES.items()},
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_browser_draws_what_the_static_picture_draws(played, name):
    shown = frames(SHOWN[name])
    for view in views(shown):
        opened, scene = played(shown, view=view), layout(shown, view)
        last = len(shown["steps"])
        for k in sorted({0, 1, last // 2, last - 1, last} & {*range(last + 1)}):
            control(opened, "Round").fill(str(k))
            at(opened, k, last)
            drawn = opened.evaluate(DRAWN)
            expected = layers(shown, scene, k)
            assert {
                key: d or "" for key, d in drawn["cells"].items() if key in expected
            } == expected
            now = state(shown, k)
            held = ["".join(str(r) for r in range(16) if mask >> r & 1) for mask in now.mask]
            assert drawn["digits"] == (held if scene["digit"] else [])
            chars = scene["value"][3]
            assert drawn["values"] == [v if len(v) <= chars else "" for v in now.value]
            made = ways(scene, shown["steps"][k - 1], k - 1) if k else {}
            arrows = [[kind, d] for kind, paths in made.items() for d in paths]
            assert drawn["arrows"] == arrows


@pytest.mark.parametrize(("n", "width"), [(2, 420), (4, 420), (8, 420), (4, 800), (16, 800)])
def test_nothing_sticks_out_of_the_page(played, n, width, shot):
    opened = played(frames(ring(n)), width=width)
    control(opened, "Last").click()
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    boxes = opened.evaluate(
        "[...document.querySelectorAll('button:not(.ar-log *), select, input')]"
        ".filter((e) => e.offsetParent).map((e) => e.getBoundingClientRect().toJSON())"
    )
    assert all(box["left"] >= 0 and box["right"] <= width for box in boxes)
    shot(opened, f"player-{n}-{width}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_follows_the_reader_s_theme(played, theme, shot):
    opened = played(frames(ring(4)), theme=theme)
    control(opened, "Step").click()
    ground = opened.locator(".ar-player").evaluate("(e) => getComputedStyle(e).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 600) == (theme == "light")
    shot(opened, f"player-{theme}")


# ------------------------------------------------------------------------- keys and clicks


def test_every_control_goes_where_it_says(played):
    opened = played(frames(ring(4)))
    at(opened, 0)
    for name, k in (("Step", 1), ("Step", 2), ("Step back", 1), ("Last", 6), ("Step", 6),
                    ("Step back", 5), ("First", 0), ("Step back", 0)):  # fmt: skip
        control(opened, name).click()
        at(opened, k)
    control(opened, "Round").fill("4")
    at(opened, 4)
    opened.get_by_role("button", name="Round 2: add").click()
    at(opened, 2)


@pytest.mark.parametrize("name", ["Picture", "First", "Step back", "Play", "Step", "Last", "Round"])
def test_the_keys_work_from_every_control(played, name):
    opened = played(frames(ring(4)))
    opened.get_by_label(re.compile(f"^{name}(\\.|$)")).first.focus()
    for key, k in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 6),
                   ("ArrowRight", 6), ("Home", 0), ("ArrowLeft", 0)):  # fmt: skip
        opened.keyboard.press(key)
        at(opened, k)


def test_space_plays_and_pauses_and_on_a_button_presses_that_button(played):
    opened = played(frames(ring(4)))
    opened.locator(".ar-stage").focus()
    opened.keyboard.press("Space")
    expect(control(opened, "Pause")).to_be_visible()
    opened.keyboard.press("Space")
    expect(control(opened, "Play")).to_be_visible()
    control(opened, "Last").focus()
    opened.keyboard.press("Space")
    at(opened, 6)


def test_a_click_on_the_picture_hands_it_the_keys(played):
    opened = played(frames(ring(4)))
    opened.locator(".ar-stage").click()
    opened.keyboard.press("ArrowRight")
    at(opened, 1)


def test_keys_with_a_modifier_and_keys_of_the_menus_are_left_alone(played):
    opened = played(frames(ring(4)))
    opened.locator(".ar-stage").focus()
    opened.keyboard.press("Control+ArrowRight")
    control(opened, "Speed").focus()
    opened.keyboard.press("End")
    at(opened, 0)


@pytest.mark.parametrize("moving", [True, False])
def test_it_plays_to_the_end_and_from_there_anew(played, moving):
    opened = played(frames(ring(2)), moving=moving)
    control(opened, "Speed").select_option("4")
    for _ in range(2):
        control(opened, "Play").click()
        expect(control(opened, "Pause")).to_be_visible()
        at(opened, 2, 2)
        expect(control(opened, "Play")).to_be_visible()


def test_a_step_while_it_plays_stops_it(played):
    opened = played(frames(ring(4)))
    control(opened, "Play").click()
    control(opened, "Last").click()
    expect(control(opened, "Play")).to_be_visible()
    at(opened, 6)


# -------------------------------------------------------------------------------- movement


def flying(opened):
    """Return the pieces on their way."""
    return opened.locator(".ar-flying > g")


@pytest.mark.parametrize("name", ["Step", "Step back"])
def test_pieces_fly_and_the_cells_change_when_they_land(played, name):
    shown = frames(ring(4))
    opened = played(shown, moving=True)
    control(opened, "Speed").select_option("0.5")
    control(opened, "Round").fill("3")  # more than a step: it jumps
    expect(opened.locator(".ar-stage svg title")).to_have_text(re.compile("after 3 of 6"))
    expect(flying(opened)).to_have_count(0)
    control(opened, name).click()
    expect(flying(opened)).to_have_count(4)
    first = flying(opened).first.get_attribute("transform")
    expect(flying(opened).first).not_to_have_attribute("transform", first)
    to, scene = (4 if name == "Step" else 2), layout(shown)
    assert opened.evaluate(DRAWN)["cells"]["r0"] == layers(shown, scene, min(3, to))["r0"]
    expect(flying(opened)).to_have_count(0)
    assert opened.evaluate(DRAWN)["cells"]["r0"] == layers(shown, scene, to)["r0"]


def test_nothing_flies_for_readers_who_want_less_motion(played):
    opened = played(frames(ring(4)))
    control(opened, "Step").click()
    expect(flying(opened)).to_have_count(0)
    assert opened.evaluate(DRAWN)["cells"]["tint"]


def test_hurried_keys_end_where_they_should(played):
    shown = frames(ring(4))
    opened = played(shown, moving=True)
    opened.locator(".ar-stage").focus()
    for key in ["ArrowRight"] * 5 + ["ArrowLeft"] * 2:
        opened.keyboard.press(key)
    at(opened, 3)
    expect(flying(opened)).to_have_count(0)
    assert opened.evaluate(DRAWN)["cells"]["r0"] == layers(shown, layout(shown), 3)["r0"]


# ------------------------------------------------------------------ for eyes, ears and hands


def test_every_step_is_a_sentence_and_a_marked_entry_of_the_log(played):
    shown = frames(ring(4))
    opened = played(shown)
    said = opened.locator("[aria-live=polite]")
    expect(said).to_have_text(layout(shown)["opening"])
    for k, step in enumerate(shown["steps"], 1):
        opened.locator(".ar-stage").press("ArrowRight")
        expect(said).to_contain_text(step["say"])
        marked = opened.locator(".ar-log [aria-current=step]")
        expect(marked).to_have_count(1)
        expect(marked.get_by_role("button")).to_have_text(re.compile(f"Round {k}:"))
        assert marked.locator("ul li").all_text_contents() == step["log"]
        assert control(opened, "Round").get_attribute("aria-valuetext") == f"after {k} of 6 rounds"


def test_what_lies_ahead_stays_hidden(played):
    shown = frames(adding_ring(4))
    opened = played(shown)
    entries = opened.locator(".ar-log > ol > li")
    expect(opened.locator(".ar-log > p")).to_be_visible()
    for k in (0, 3, 4, 1):
        control(opened, "Round").fill(str(k))
        assert [e.is_visible() for e in entries.all()] == [i < k for i in range(6)]
        assert opened.locator(".ar-track .ar-fault").count() == (1 if k == 4 else 0)


def test_the_marked_entry_is_in_sight_and_the_page_stays_where_it_is(played):
    opened = played(frames(ring(16)), height=500)
    control(opened, "Last").click()
    seen = opened.evaluate("""() => {
        const log = document.querySelector(".ar-log").getBoundingClientRect();
        const item = document.querySelector("[aria-current] button").getBoundingClientRect();
        return item.top >= log.top - 1 && item.bottom <= log.bottom + 1;
    }""")
    assert seen
    before = opened.evaluate("window.scrollY")
    control(opened, "First").press("Enter")
    assert opened.evaluate("window.scrollY") == before


def test_a_wrong_schedule_plays_and_says_where_it_goes_wrong(played, shot):
    shown = frames(adding_ring(4))
    opened = played(shown)
    control(opened, "Round").fill("4")
    expect(opened.locator(".ar-faults li")).to_have_text(shown["steps"][3]["wrong"])
    assert opened.evaluate(DRAWN)["cells"]["cross"]
    assert opened.locator(".ar-track span").evaluate_all(
        "(all) => all.map((e) => e.classList.contains('ar-fault'))"
    ) == [k < 4 and bool(step["wrong"]) for k, step in enumerate(shown["steps"])]
    shot(opened, "player-wrong")


def test_all_that_takes_the_keys_has_a_name_and_keeps_them_from_jupyterlab(played):
    opened = played(frames(ring(4)))
    found = opened.evaluate("""() => {
        const all = document.querySelectorAll("button, select, input, [tabindex]");
        return [...all].map((e) => ({ name: e.getAttribute("aria-label") || e.textContent,
            kept: e.dataset.lmSuppressShortcuts }));
    }""")
    assert len(found) >= 15
    assert all(each["name"] and each["kept"] == "true" for each in found)
    for role, name in (("button", "Play"), ("slider", "Round"), ("combobox", "Speed"),
                       ("combobox", "View"), ("region", "Transfers"),
                       ("group", "Player: ring all-reduce")):  # fmt: skip
        expect(opened.get_by_role(role, name=name, exact=True)).to_be_visible()


def test_a_cell_under_the_pointer_is_spelled_out(played):
    shown = frames(ring(4))
    opened = played(shown)
    control(opened, "Round").fill("1")
    cell = opened.evaluate(
        """([x, y]) => {
            const seen = document.querySelector(".ar-stage svg").getScreenCTM();
            const p = new DOMPoint(x, y).matrixTransform(seen);
            return [p.x, p.y];
        }""",
        [v + 5 for v in layout(shown)["cell"][4]],
    )
    opened.mouse.move(*cell)
    expected = "Rank 1, chunk 0: shares of ranks 0, 1; value 11."
    expect(opened.locator(".ar-note")).to_have_text(expected)
    opened.mouse.move(1, 1)
    expect(opened.locator(".ar-note")).to_have_text(f"Values: {shown['note']}.")


def test_the_view_can_be_changed_and_keeps_the_round(played):
    shown = frames(ring(4))
    opened = played(shown)
    control(opened, "Step").click()
    control(opened, "View").select_option("board")
    at(opened, 1)
    scene = scenes(shown)["board"]
    assert opened.evaluate(DRAWN)["cells"]["r0"] == layers(shown, scene, 1)["r0"]
