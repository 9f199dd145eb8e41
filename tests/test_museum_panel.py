"""A visit shows every exhibit, keeps what is written, judges edits, and never raises."""

from __future__ import annotations

import re
from html import unescape

import pytest

from allreduce_edu import Visit, museum, spmd, take
from allreduce_edu.lessons.museum import WINGS
from allreduce_edu.lessons.museum.searched import SEARCHED
from allreduce_edu.show.museum import ASKED, diff, words


@pytest.fixture
def visit():
    return Visit("skip")


def wish(part, what, more=""):
    part.busy = "Waiting for the kernel …"
    part.wish = {"n": part.wish.get("n", 0) + 1, "what": what, "more": more}
    assert part.busy == ""


def test_the_catalogue_has_every_symptom_in_its_wing():
    visit = Visit()
    assert [each["name"] for each in visit.case.symptoms] == list(museum)
    assert {each["wing"] for each in visit.case.symptoms} <= {e["key"] for e in visit.case.wings}
    for exhibit in museum.values():
        assert exhibit.symptom in unescape(visit.twin())
        assert exhibit.symptom in repr(visit)
    for title in WINGS.values():
        assert title in unescape(visit.twin())
    bundle = visit._repr_mimebundle_()
    assert {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"} <= set(bundle)


@pytest.mark.parametrize("name", museum)
def test_the_filter_knows_the_symptom_and_its_wing_and_no_cause(name):
    exhibit = museum[name]
    said = words(exhibit).lower()
    assert exhibit.symptom.lower() in said
    assert exhibit.cause.lower() not in said
    typed = {"hangs": "timed out waiting", "disagree": "replicas hash", "wrong": "loss"}
    for word in typed[exhibit.wing].split():
        assert word in said


FOUND = {
    "checkpoint fsdp": "save",
    "early stopping": "nan",
    "out of memory": "swallowed",
    "segfault": "crash",
    "straggler": "late",
    "find_unused_parameters": "head",
    "find_unused": "branch",
    "dict order": "order",
    "new_group": "pairs",
    "frozen": "thawed",
    "resume": "loaded",
    "batchnorm": "statistics",
    "accumulate no_sync": "inside",
    "set_epoch": "epoch",
    "distributedsampler": "sampler",
    "multi-node": "local_rank",
    "padding": "padding",
    "infonce": "negatives",
}


@pytest.mark.parametrize(("typed", "name"), FOUND.items())
def test_what_people_type_finds_their_fault_among_few(typed, name):
    hits = [n for n in museum if all(w in words(museum[n]).lower() for w in typed.split())]
    assert name in hits
    assert len(hits) <= 6


def test_there_are_words_to_search_for_each_exhibit():
    assert {*SEARCHED} == {*museum}


@pytest.mark.parametrize("name", museum)
def test_the_difference_is_the_fix(name):
    lines = diff(museum[name])
    old = [line[1:] for line in lines if line[0] in " -"]
    new = [line[1:] for line in lines if line[0] in " +"]
    assert "\n".join(old) == museum[name].source.rstrip("\n")
    assert "\n".join(new) == museum[name].fixed.rstrip("\n")


def test_a_hang_is_told_drawn_and_said_as_the_tools_say_it(visit):
    wish(visit.case, "run")
    shown = visit.case.outcome
    assert "rank 2 has returned" in shown["text"]
    titles = [re.search("<title[^>]*>(.*?)<", each)[1] for each in shown["pictures"]]
    assert titles == ["Who waits for whom", "Fingerprint tape"]
    tools = {each["tool"]: each for each in shown["told"]}
    assert "missing ranks: {2}" in tools["flight recorder"]["text"]
    assert "Timed out waiting" in tools["gloo"]["text"]
    assert all(each["read"] for each in tools.values())
    assert "TORCH_FR_BUFFER_SIZE" in tools["flight recorder"]["ask"]


def test_what_does_not_help_is_refused_and_the_fix_brings_the_answer(visit):
    exhibit = visit.exhibit
    wish(visit.bench, "check", exhibit.edited(next(iter(exhibit.tried.values()))))
    assert not visit.bench.verdict["ok"]
    assert "with 4 ranks" in visit.bench.verdict["text"]
    assert visit.bench.answer == {}
    assert visit.case.mended == []
    wish(visit.bench, "check", exhibit.fixed)
    assert visit.bench.verdict["ok"]
    assert visit.case.mended == ["skip"]
    assert visit.bench.answer["cause"] == exhibit.cause
    assert visit.bench.answer["tried"] == list(exhibit.tried)
    assert visit.bench.answer["reports"][0]["where"] == exhibit.reports[0].where


def test_the_answer_can_be_asked_for(visit):
    wish(visit.bench, "reveal")
    assert visit.bench.answer["diff"] == diff(visit.exhibit)


BAD = {
    "def f(:": "line 1 is not Python: ",
    "x = 1": "the program must define a function, and defines none",
    "1 / 0": "ZeroDivisionError: division by zero",
    "def train(comm, x):\n    raise SystemExit": "rank 0 called for the end of the program",
    "def train(comm, x):\n    while True:\n        pass": "rank 0 was still running",
    "": "the program must define a function, and defines none",
}


@pytest.mark.parametrize("text", BAD)
def test_no_edit_raises(visit, text):
    wish(visit.bench, "check", text)
    assert not visit.bench.verdict["ok"]
    assert BAD[text] in visit.bench.verdict["text"]
    assert "Traceback" not in visit.bench.verdict["text"]


def test_what_is_written_is_kept_when_another_is_chosen():
    visit = Visit()
    first, second = list(museum)[:2]
    visit.bench.text = "mine"
    wish(visit.case, "choose", second)
    assert visit.bench.text == museum[second].source
    assert visit.question.question == museum[second].question
    assert visit.children == (visit.case, visit.question, visit.bench)
    wish(visit.case, "choose", first)
    assert visit.bench.text == "mine"
    wish(visit.bench, "again")
    assert visit.bench.text == museum[first].source


def test_one_exhibit_can_be_read_without_a_kernel(visit):
    twin = unescape(re.sub("</?code>", "", visit.twin()))
    for part in (visit.exhibit.symptom, visit.exhibit.source, visit.exhibit.cause):
        assert part in twin
    assert visit.exhibit.question.replace("`", "") in twin
    assert repr(visit) == f"Visit to skip: {visit.exhibit.symptom}"
    with pytest.raises(KeyError, match="unknown exhibit"):
        Visit("skp")


def test_outside_a_notebook_a_program_is_printed(capsys):
    take("skip")
    printed = capsys.readouterr().out
    assert printed == f'{museum["skip"].source}\n\nmuseum["skip"].check(train)\n'


def test_what_is_said_of_a_tool_is_said_of_one_that_exists():
    assert set(ASKED) <= set(spmd.tools.TOLD_BY)
