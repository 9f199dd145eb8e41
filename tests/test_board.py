"""The board without a browser: wishes come in as the browser sends them, texts go out."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest

pytest.importorskip("anywidget")

from allreduce_edu import run
from allreduce_edu.engine.cost import received_bytes, sent_bytes
from allreduce_edu.engine.dtypes import DTYPES, OPS
from allreduce_edu.engine.verify import explain
from allreduce_edu.lessons.family import FAMILY, starting_values
from allreduce_edu.show.before_after import show
from allreduce_edu.show.board import CHOICES, Board

ENDS = {name: (next(iter(options)), list(options)[-1]) for name, options in CHOICES.items()}
START = {"collective": "all-reduce", "op": "sum", "dtype": "int64", "ranks": 4, "values": ""}


def wish(board, **settings):
    """Send what the browser sends when a control has moved."""
    before = board.wish.get("asked", 0)
    board.set_state({"wish": START | settings | {"asked": before + 1}})
    assert board.heard == before + 1


def cells(board, column):
    """Return a column of the table as lists of chunks."""
    return [row[column].split(" | ") for row in board.table["rows"]]


def refused(op, dtype, collective):
    """Whether these cannot go together, by torch's own rule."""
    return op == "avg" and FAMILY[collective].adds and not dtype.startswith(("fp", "bf"))


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("n", range(1, 9))
def test_every_member_of_the_family_keeps_its_promise(name, n):
    assert explain(FAMILY[name].make(n)) == []


def test_it_shows_before_and_after_rank_by_rank_and_chunk_by_chunk():
    board = Board()
    assert cells(board, 1)[2] == ["100", "200", "300", "400"]
    assert cells(board, 2) == [["1111", "2222", "3333", "4444"]] * 4
    assert [row[3:] for row in board.table["rows"]] == [["48 B", "48 B"]] * 4
    assert "6 S cross the links, at most 1.5 S out of one port" in board.words


@pytest.mark.parametrize(
    ("collective", "before", "after"),
    [
        ("reduce", ["10 | 20 | 30"], ["111 | 222 | 333", "(10) | (20) | (30)"]),
        ("broadcast", ["· | · | ·"], ["1 | 2 | 3"] * 3),
        ("reduce-scatter", ["10 | 20 | 30"], ["(1) | 222 | (303)", "(11) | (20) | 333"]),
        ("all-gather", ["· | · | 30"], ["100 | 2 | 30"] * 3),
        ("gather", ["· | 20 | ·"], ["1 | 20 | 300", "· | · | ·", "· | · | ·"]),
        ("scatter", ["· | · | ·"], ["1 | · | ·", "· | 2 | ·", "· | · | 3"]),
        ("all-to-all", ["10 | 20 | 30"], ["1 | 10 | 100", "2 | 20 | 200", "3 | 30 | 300"]),
        ("all-gather + add", ["10 | 20 | 30"], ["111 | 222 | 333"] * 3),
    ],
)
def test_each_collective_by_hand_over_three_ranks(collective, before, after):
    rows = show(collective, "sum", "int64", 3, "").table.rows
    assert [rows[1][1]] == before
    assert [row[2] for row in rows][: len(after)] == after


@pytest.mark.parametrize("collective", FAMILY)
@pytest.mark.parametrize("op", OPS)
def test_after_is_what_the_engine_gives_and_bytes_are_counted(collective, op):
    shown = show(collective, op, "fp64", 5, "")
    np.testing.assert_array_equal(shown.after, run(shown.schedule, shown.x, shown.op))
    sizes = shown.schedule.cut(shown.x.shape[1]) * 8
    sent, received = sent_bytes(shown.schedule, sizes), received_bytes(shown.schedule, sizes)
    assert [row[3] for row in shown.table.rows] == [f"{each} B" for each in sent]
    assert [row[4] for row in shown.table.rows] == [f"{each} B" for each in received]


@pytest.mark.parametrize("collective", FAMILY)
def test_the_player_ends_with_what_the_table_says(collective):
    board = Board(collective, ranks=4, op="max", dtype="fp32")
    value = list(board.frames["start"]["value"])
    for step in board.frames["steps"]:
        for cell, text in zip(step["cell"], step["value"], strict=True):
            value[cell] = text
    held = np.array(value).reshape(4, -1)
    meaning = np.array(board.frames["goal"]).reshape(4, -1) >= 0
    for rank, row in enumerate(cells(board, 2)):
        told = [text for text in row if text != "·" and not text.startswith("(")]
        assert told == held[rank][meaning[rank]].tolist()


def positions():
    """Yield the ends of every control, then random positions of all."""
    for name, ends in ENDS.items():
        for end in ends:
            yield {name: end}
    rng = np.random.default_rng(0)
    for _ in range(60):
        yield {name: list(options)[rng.integers(len(options))] for name, options in CHOICES.items()}


def test_no_position_fails_and_each_answers_in_a_tenth_of_a_second():
    board, slow = Board(), []
    for moved in positions():
        settings = START | moved
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            wish(board, **settings)
        slow.append(time.process_time() - start)
        assert board.settings == settings
        told = refused(settings["op"], settings["dtype"], settings["collective"])
        assert bool(board.problem) == told
        if not told:
            assert board.frames["ranks"] == board.ranks == settings["ranks"]
            assert len(board.table["rows"]) == settings["ranks"]
    assert np.median(slow) < 0.1
    assert sorted(slow)[-3] < 0.1


def test_a_refusal_is_one_sentence_and_the_picture_stays():
    board = Board()
    before = board.frames, board.table
    wish(board, op="avg")
    assert board.problem == "op 'avg' needs a floating-point dtype, got int64; use 'sum'"
    assert (board.frames, board.table) == before
    assert board.settings["op"] == "avg"  # so that another dtype makes it right
    wish(board, op="avg", dtype="fp32")
    assert board.problem == ""
    assert cells(board, 2)[0] == ["277.75", "555.5", "833.25", "1111"]
    assert "The sum is divided once, by 4" in board.words


def test_100_four_times_wraps_around_in_a_byte_and_that_is_said():
    board = Board(dtype="uint8")
    assert cells(board, 1)[0] == ["100"] * 4
    assert cells(board, 2)[3] == ["144"] * 4
    assert "does not fit uint8 and wraps around: rank 0, chunk 0 should hold 400" in board.words
    board.turn(dtype="int8")
    assert cells(board, 2)[3] == ["-112"] * 4


def test_a_copy_needs_no_op():
    board = Board("broadcast", op="avg")
    assert board.problem == ""
    assert "the op plays no part" in board.words


@pytest.mark.parametrize(
    ("values", "dtype", "row"),
    [
        ("1, 10, 100, 1000", "int64", "1111 | 1111 | 1111 | 1111"),
        ("1 2; 3 4; 5 6; 7 8;", "int64", "16 | 20 | – | –"),
        ("1 2 3 4 5; 0 0 0 0 0; 0 0 0 0 0; 0 0 0 0 1", "int8", "1 2 | 3 | 4 | 6"),
        ("0.5\n0.25\n1\n-1", "fp64", "0.75 | 0.75 | 0.75 | 0.75"),
        ("1 nan 2 inf", "fp32", "nan | nan | nan | nan"),
        ("1 0 true FALSE", "bool", "True | True | True | True"),
    ],
)
def test_typed_values_are_played(values, dtype, row):
    board = Board()
    wish(board, values=values, dtype=dtype)
    assert (board.problem, board.table["rows"][1][2]) == ("", row)


@pytest.mark.parametrize(
    ("values", "dtype", "sentence"),
    [
        ("1, 2", "int64", "values must be one number for each of the 4 ranks, or a list for"),
        ("1 2; 3; 4; 5", "int64", "as many on every rank; rank 0 has 2, rank 1 has 1"),
        ("1 2 x 4", "int64", "values of int64 must be whole numbers, got 'x'"),
        ("1 2 2.5 4", "int64", "values of int64 must be whole numbers, got '2.5'"),
        ("1 2 nan 4", "uint8", "values of uint8 must be whole numbers, got 'nan'"),
        ("1 2 300 4", "uint8", "values of uint8 must be between 0 and 255, got 300"),
        ("1 2 -1 4", "uint8", "between 0 and 255, got -1"),
        ("1 2 1e9 4", "fp16", "values of fp16 must be between -65504 and 65504, got 1e9"),
        ("1 0 5 4", "bool", "values of bool must be 0 or 1, got '5'"),
        ("1;;2;3", "int64", "a number is missing"),
        (";;;", "int64", "for each of the 4 ranks, or a list for each with ; between, got 1"),
        ("9" * 3000, "fp64", "at most 2,000 characters, got 3,000"),
        ("1 " * 40 + ";1;1;1", "int8", "as many on every rank"),
        (";".join(["1 " * 40] * 4), "int8", "at most 32 on a rank, got 40"),
        ("<b>1</b> 2 3 4", "fp32", "values of fp32 must be numbers, got '<b>1</b>'"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(values, dtype, sentence):
    board = Board()
    wish(board, values=values, dtype=dtype)
    assert sentence in board.problem
    assert board.frames["ranks"] == 4


def test_an_all_to_all_says_what_it_cannot_cut():
    board = Board()
    wish(board, collective="all-to-all", values="1 2 3;1 2 3;1 2 3;1 2 3")
    assert "as many numbers on a rank as 4 divides, got 3" in board.problem


def test_no_text_at_all_can_break_it():
    rng = np.random.default_rng(1)
    letters = list("0123456789.,;- \n\te+xnaif·٣(){}")
    board = Board()
    for _ in range(300):
        text = "".join(rng.choice(letters, rng.integers(1, 30)))
        wish(board, values=text, dtype=DTYPES[rng.integers(len(DTYPES))])


@pytest.mark.parametrize(
    ("unknown", "sentence"),
    [
        ({"op": "median"}, "op must be one of sum, avg, max, min, prod, got 'median'"),
        ({"ranks": 9}, "ranks must be one of 2, 3, 4, 5, 6, 7, 8, got 9"),
        ({"ranks": [4]}, "got [4]"),
        ({"values": 3}, "values must be text, got int"),
        ({"knob": 1}, "unknown control 'knob'"),
    ],
)
def test_a_position_that_is_not_offered_is_refused_in_a_sentence(unknown, sentence):
    board = Board()
    wish(board, **unknown)
    assert sentence in board.problem
    assert board.frames["ranks"] == 4
    with pytest.raises((TypeError, ValueError)):
        board.turn(**unknown)


def test_its_static_twin_and_its_repr_say_what_is_shown():
    board = Board("reduce", ranks=3)
    html = board._repr_mimebundle_()[0]["text/html"]
    assert html == board.twin()
    assert "reduce, SUM of int64 over 3 ranks" in html
    assert "(10) | (20) | (30)" in html
    assert '<img alt="' in html
    assert repr(board).startswith("Board: reduce, SUM of int64 over 3 ranks. Rank 0 ends with")
    board.turn(values="1; <i>; 3")
    assert "got &#x27;&lt;i&gt;&#x27;" in board.twin()


def test_values_that_begin_fit_every_dtype():
    for dtype in DTYPES:
        for n in range(2, 9):
            x, what = starting_values(n, dtype)
            assert x.shape == (n, n), what
            assert np.isfinite(x.astype(np.float64)).all()
            assert (x > 0).all()
