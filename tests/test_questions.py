import pytest

from allreduce_edu import Predict
from allreduce_edu.lessons import faults, questions

ALL = {
    name: value
    for each in (questions, faults)
    for name, value in vars(each).items()
    if name.isupper()
}
ALL["who is slow"] = faults.who_is_slow([1.01, 0.01, 1.01, 1.01])


@pytest.mark.parametrize("name", ALL)
def test_every_choice_has_a_reply_of_its_own(name):
    question, choices = ALL[name]
    assert question.rstrip().endswith("?")
    assert len(choices) >= 3
    assert len(set(choices.values())) == len(choices)
    assert all(len(reply.split()) >= 8 for reply in choices.values())


def test_no_question_is_asked_twice():
    assert len({question for question, _ in ALL.values()}) == len(ALL)


def test_a_number_has_a_reply_for_each_belief_and_one_for_the_rest():
    asked = questions.seven_billion(22.4, ranks=8)
    predict = Predict.number(answer=39.2, **asked)
    wrong = {"22.4": "once", "44.8": "limit", "2.8": "Bits", "5.6": "Bits", "4.9": "unit"}
    wrong |= {"314": "all ranks through one port", "179": "server", "78.4": "same time"}
    for guess, words in wrong.items():
        verdict = predict.verdict(guess)
        assert not verdict["right"]
        assert words in verdict["reply"]
    assert predict.verdict("39")["right"]
    assert predict.verdict("1000")["about"] == "anything else"
