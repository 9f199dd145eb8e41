"""The checklist by keyboard, on an empty page without any kernel."""

from __future__ import annotations

import pytest

from allreduce_edu.lessons.investigation import ORDER
from allreduce_edu.show import paint

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect


@pytest.fixture
def drawn(widget_page):
    from allreduce_edu.show.checklist import Checklist

    checklist = Checklist()

    def draw(**how):
        state = {"steps": checklist.steps, "answers": []}
        page = widget_page("checklist", state, script=Checklist._esm, **how)
        page.add_style_tag(content=paint.css(".ar-checklist"))
        return page

    return draw


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 800)])
def test_answers_lead_on_and_a_no_leads_to_the_wing(drawn, shot, theme, width):
    page = drawn(theme=theme, width=width)
    root = page.locator(".ar-checklist")
    expect(root.locator("li.here")).to_contain_text("py-spy dump")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # yes
    expect(root.locator("li.here")).to_contain_text("compare_replicas")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # no
    expect(root.locator("li.no")).to_contain_text(ORDER[1].no.split("`")[0])
    for name, _ in ORDER[1].exhibits:
        expect(root.locator("li.no")).to_contain_text(f'Visit("{name}")')
    expect(root.get_by_role("status")).to_contain_text("Mend this first")
    expect(root.locator("li.here")).to_have_count(0)
    shot(page, f"checklist {theme} {width}")
    page.keyboard.press("Enter")  # the focus is on Change
    expect(root.locator("li.here")).to_contain_text("compare_replicas")
    for _ in range(4):
        page.keyboard.press("Enter")
    expect(root.get_by_role("status")).to_contain_text("Five times yes")
    assert page.evaluate("window.model.get('answers')") == ["yes"] * 5


def test_every_button_has_a_name_and_belongs_to_its_question(drawn):
    page = drawn()
    group = page.get_by_role("group", name=ORDER[0].question)
    group.get_by_role("button", name="No").click()
    change = page.get_by_role("button", name="Change the answer to question 1")
    expect(change).to_be_focused()
