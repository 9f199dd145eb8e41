from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("anywidget")

from allreduce_edu.show import predict as module
from allreduce_edu.show.predict import Predict, guesses

QUESTION = "After how many rounds is any chunk complete?"
CHOICES = {"6": "6 is when all are.", "3": "Each round adds one share.", "1": "One share only."}
REPOSITORY = Path(module.__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def new_kernel(monkeypatch):
    """Let every test start as a kernel does: without a memory."""
    monkeypatch.setattr(module, "_asked", {})


def ask(**changes):
    return Predict(**{"question": QUESTION, "choices": CHOICES, "answer": 3} | changes)


def ask_number(**changes):
    return Predict.number(
        **{
            "question": "How long?",
            "answer": 39.2,
            "right": "Twice seven eighths of it.",
            "replies": {22.4: "Sent once?", 44.8: "For many ranks."},
            "otherwise": "Bits or bytes?",
            "unit": "s",
        }
        | changes
    )


def rows(table):
    """Read the cells of a table of guesses."""
    return [re.findall(r"<td.*?>(.*?)</td>", row) for row in table.value.split("<tr>")[2:]]


def press(predict, guess="", status="answered"):
    """Send what the browser sends when the reader locks a guess in, or skips."""
    state = {"status": status}
    if guess:
        state |= {"guess": guess, "first": predict.first or guess}
    predict.set_state(state)


@pytest.mark.parametrize("reply", ["", "  ", None])
def test_a_choice_without_a_reply_of_its_own_is_refused(reply):
    with pytest.raises(ValueError, match=r"every choice needs a reply of its own, '6' has"):
        ask(choices=CHOICES | {"6": reply})
    with pytest.raises(ValueError, match=r"every choice needs a reply of its own, '44.8' has"):
        ask_number(replies={44.8: reply})
    with pytest.raises(ValueError, match="'anything else' has"):
        ask_number(otherwise=reply)


def test_one_reply_for_two_choices_is_refused():
    with pytest.raises(ValueError, match="'1' has that of '6'"):
        ask(choices=CHOICES | {"1": CHOICES["6"]})


def test_an_answer_that_no_choice_offers_is_refused():
    with pytest.raises(ValueError, match=r"answer must be one of the choices .*, got '4'"):
        ask(answer=4)
    with pytest.raises(ValueError, match="choices must be two or more different ones, got"):
        ask(choices={"3": "yes"})
    with pytest.raises(ValueError, match=r"two or more different ones, got \['3', '3'\]"):
        ask(choices={3: "yes", "3": "no"})


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (TypeError, "answer must be a number, got 'soon'", {"answer": "soon"}),
        (ValueError, "answer must be finite, got nan", {"answer": float("nan")}),
        (TypeError, "replies must be a number, got 'x'", {"replies": {"x": "y"}}),
        (ValueError, "replies has 40, too near 39.2", {"replies": {40: "too near"}}),
        (ValueError, "tolerance must be at least 0 and below 1, got 1.5", {"tolerance": 1.5}),
    ],
)
def test_a_number_question_says_what_is_wrong_with_it(error, words, changes):
    with pytest.raises(error, match=re.escape(words)):
        ask_number(**changes)


def test_choices_keep_their_order_and_each_has_its_own_reply():
    predict = ask()
    assert [verdict["about"] for verdict in predict.verdicts] == ["6", "3", "1"]
    for choice, reply in CHOICES.items():
        assert predict.verdict(choice)["reply"] == reply
        assert predict.verdict(choice)["right"] == (choice == "3")


@pytest.mark.parametrize(
    ("guess", "reply"),
    [
        ("39.2", "Twice seven eighths of it."),
        ("40", "Twice seven eighths of it."),
        ("22", "Sent once?"),
        ("4.48e1", "For many ranks."),
        ("1", "Bits or bytes?"),
        ("-39.2", "Bits or bytes?"),
    ],
)
def test_a_number_near_a_value_gets_that_value_s_reply(guess, reply):
    assert ask_number().verdict(guess)["reply"] == reply


def test_without_tolerance_only_the_number_itself_is_right():
    predict = ask_number(answer=0.1 + 0.2, tolerance=0, replies={})
    assert predict.verdict("0.3")["right"]
    assert not predict.verdict("0.3001")["right"]
    assert ask_number(answer=0, replies={}).verdict("0")["right"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1111.0, "1111"), (39.2000001, "39.2"), (0.0123456, "0.0123"), (49e9, "4" + "9" + "0" * 9)],
)
def test_numbers_are_written_for_readers(value, text):
    assert ask_number(answer=value, replies={}).answer == text


def test_the_first_guess_stays_when_a_later_one_is_right():
    predict = ask()
    assert predict.first_guess is None
    press(predict, "6")
    press(predict, "3")
    assert (predict.first_guess, predict.guess) == ("6", "3")


def test_the_first_guess_of_a_number_is_a_number():
    predict = ask_number()
    press(predict, "22.4")
    assert predict.first_guess == 22.4


def test_a_cell_that_runs_again_shows_the_guess_again():
    press(ask(), "6")
    again = ask()
    assert (again.status, again.guess, again.first) == ("answered", "6", "6")
    other = ask(question="Another question?")
    assert (other.status, other.first) == ("open", "")


def test_skipping_survives_running_again():
    press(ask(), status="skipped")
    assert ask().status == "skipped"


def test_a_key_keeps_the_guess_when_the_words_change():
    press(ask(key="complete"), "6")
    assert ask(question="And with 8 ranks?", key="complete").first == "6"


def test_a_guess_that_is_no_longer_offered_is_forgotten():
    press(ask(), "6")
    changed = ask(choices={"3": "yes", "7": "no"})
    assert (changed.status, changed.first) == ("open", "")
    press(changed, "7")
    assert ask_number(question=QUESTION).first == ""


def test_the_twin_says_everything_and_never_what_was_guessed():
    predict = ask()
    before = predict.twin()
    for text in [QUESTION, *CHOICES, *CHOICES.values()]:
        assert text in before
    folded = before.split("<details>")[1]
    assert "<strong>3</strong>" in folded
    assert all(reply in folded for reply in CHOICES.values())
    press(predict, "6")
    assert ask().twin() == before


def test_the_twin_of_a_number_says_its_unit_and_every_reply():
    twin = ask_number().twin()
    asked, folded = twin.split("<details>")
    assert "A number, in s." in asked
    assert "39.2" not in asked
    for text in ["<strong>39.2 s</strong>", "22.4 s: Sent once?", "anything else: Bits"]:
        assert text in folded


def test_text_is_escaped_and_backticks_are_code():
    predict = ask(question="<b>What</b> does `x < y` say?", choices={"<i>": "a & b", "3": "c"})
    twin = predict.twin()
    assert "&lt;b&gt;What&lt;/b&gt; does <code>x &lt; y</code> say?" in twin
    assert "&lt;i&gt;: a &amp; b" in twin
    press(predict, "<i>")
    assert "&lt;i&gt;" in guesses().value
    assert "<i>" not in guesses().value


def test_an_output_holds_widget_html_and_one_plain_line():
    data, _ = ask()._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert data["text/plain"] == f"Predict: {QUESTION} (6; 3; 1) Answer: 3."
    assert repr(ask_number()) == "Predict: How long? Answer: 39.2 s."


def test_the_table_lists_first_guesses_and_follows_them():
    predict, number = ask(), ask_number()
    table = guesses()
    assert "once there are any" in table.value
    assert repr(table) == "First guesses: none yet."
    press(predict, "6")
    press(predict, "3")
    assert rows(table) == [[QUESTION, "≠ 6", "3"]]
    press(number, "40")
    assert rows(table)[1] == ["How long?", "✓ 40 s", "39.2 s"]
    assert repr(table) == f"First guesses: {QUESTION} 6; How long? 40 s."


def test_the_table_gives_no_answer_away_while_a_question_is_open():
    predict = ask()
    press(predict, "6")
    press(predict, status="open")
    assert rows(guesses()) == [[QUESTION, "6", ""]]


def test_a_cleaned_notebook_compares_equal_under_nbval(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("nbval")
    start = "from allreduce_edu.show.predict import Predict, guesses"
    choices = f"Predict({QUESTION!r}, {CHOICES!r}, answer=3)"
    number = "Predict.number('How long?', 39.2, right='a', replies={22.4: 'b'}, otherwise='c')"
    sources = [start, choices, number, "guesses()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    client = nbclient.NotebookClient(notebook, store_widget_state=False, record_timing=False)
    client.execute(env=environment)
    for cell in notebook.cells[1:]:
        (output,) = cell.outputs
        del output["data"]["application/vnd.jupyter.widget-view+json"]
        assert set(output["data"]) == {"text/html", "text/plain"}
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(notebook), "utf-8")
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-q", str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "4 passed" in done.stdout, done.stdout
