"""Every exhibit shows its symptom, is mended by its fix, and by nothing else that people try."""

from __future__ import annotations

import re

import pytest

from allreduce_edu import museum
from allreduce_edu.lessons.museum import KINDS, WINGS
from allreduce_edu.lessons.museum.program import Program

EXHIBITS = list(museum.values())
TRIED = [(exhibit, name) for exhibit in EXHIBITS for name in exhibit.tried]


def ident(value):
    return getattr(value, "name", value)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=ident)
def test_the_symptom_shows_where_the_exhibit_says(exhibit):
    outcome = exhibit.run()
    assert outcome.wing == exhibit.wing
    said = " ".join(getattr(outcome, exhibit.wing).split())
    for part in exhibit.shows:
        assert part in said, said


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=ident)
def test_the_fix_passes(exhibit):
    verdict = exhibit.check(exhibit.fixed)
    assert verdict.ok, verdict
    assert exhibit.cause in verdict.why


@pytest.mark.parametrize(("exhibit", "name"), TRIED, ids=ident)
def test_what_does_not_help_is_rejected(exhibit, name):
    assert not exhibit.check(exhibit.edited(exhibit.tried[name])).ok


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=ident)
def test_an_exhibit_is_complete(exhibit):
    assert exhibit.wing in WINGS
    assert len(exhibit.tried) >= 2
    assert len(exhibit.choices) >= 3
    assert exhibit.answer in exhibit.choices
    assert exhibit.shows
    assert exhibit.reports
    for report in exhibit.reports:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report.where), report
    lines = exhibit.source.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 88
    assert "comm" in exhibit.source or "torch" in exhibit.source
    assert not exhibit.symptom.endswith(".")
    assert len(exhibit.symptom) <= 96


@pytest.mark.parametrize("wing", WINGS)
def test_each_wing_is_open(wing):
    assert any(exhibit.wing == wing for exhibit in EXHIBITS)


def test_an_unknown_name_is_told():
    with pytest.raises(KeyError, match="unknown exhibit 'skp'; did you mean 'skip'"):
        museum["skp"]


def test_lines_are_numbered_as_in_the_text():
    entry = Program("import os\n\ndef first():\n    pass\n\ndef second():\n    pass").entry
    assert entry.__name__ == "second"
    assert entry.__code__.co_firstlineno == 6


def test_a_program_without_a_function_is_told():
    with pytest.raises(ValueError, match="the program must define a function"):
        Program("x = 1").entry  # noqa: B018 - reading it is what fails


def test_no_two_exhibits_share_a_name():
    names = [exhibit.name for kind in KINDS for exhibit in kind.EXHIBITS]
    assert sorted(names) == sorted(museum)
