import pytest

from allreduce_edu.lessons import questions

ALL = {name: value for name, value in vars(questions).items() if name.isupper()}


@pytest.mark.parametrize("name", ALL)
def test_every_choice_has_a_reply_of_its_own(name):
    question, choices = ALL[name]
    assert question.rstrip().endswith("?")
    assert len(choices) >= 3
    assert len(set(choices.values())) == len(choices)
    assert all(len(reply.split()) >= 8 for reply in choices.values())


def test_no_question_is_asked_twice():
    assert len({question for question, _ in ALL.values()}) == len(ALL)
