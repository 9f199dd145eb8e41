"""The checklist asks five questions in one order; each answer leads on, or to a wing."""

from __future__ import annotations

import re
from html import unescape

from allreduce_edu import Checklist, museum
from allreduce_edu.lessons.investigation import ORDER
from allreduce_edu.lessons.museum import WINGS


def test_the_order_is_that_of_the_wings_then_the_network_then_determinism():
    assert [step.wing for step in ORDER] == [*WINGS, "", ""]
    assert [step.name for step in ORDER] == ["calls", "same", "right", "network", "twice"]


def test_every_exhibit_is_found_under_one_question():
    found = [name for step in ORDER for name, _ in step.exhibits]
    assert sorted(found) == sorted(museum)


def test_every_question_says_how_to_ask_it_and_what_both_answers_mean():
    for step in ORDER:
        assert step.question.endswith("?")
        assert step.ways
        assert step.yes != step.no
        for text in (step.question, *step.ways, step.yes, step.no):
            assert text.count("`") % 2 == 0
            assert "  " not in text
    ways = " ".join(way for step in ORDER for way in step.ways)
    tools = "py-spy", "flight recorder", "TORCH_DISTRIBUTED_DEBUG=DETAIL", "monitored_barrier"
    tools += "compare_replicas", "one_step", "busbw", "use_deterministic_algorithms"
    for tool in tools:
        assert tool in ways
    assert "Not together with DDP on gloo" in ways


def test_it_can_be_read_without_a_script():
    checklist = Checklist()
    twin = unescape(re.sub("</?code>", "`", checklist.twin()))
    for step in ORDER:
        for text in (step.question, *step.ways, step.yes, step.no):
            assert text in twin
    assert repr(checklist).startswith("Checklist: 1 Does every rank make the same calls")
    data, _ = checklist._repr_mimebundle_()
    assert {"text/plain", "text/html"} <= set(data)


def test_the_browser_gets_what_the_lesson_says():
    told = Checklist().steps
    assert [each["question"] for each in told] == [step.question for step in ORDER]
    assert [e["name"] for each in told for e in each["exhibits"]] == [
        name for step in ORDER for name, _ in step.exhibits
    ]
