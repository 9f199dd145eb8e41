"""A program is counted as the algorithm that it is."""

import pytest
import spmd_programs as programs

from allreduce_edu import spmd
from allreduce_edu.lessons.beside import beside


@pytest.mark.parametrize(
    ("program", "name", "ranks"),
    [
        (programs.ring, "ring", 4),
        (programs.ring_with_requests, "ring", 8),
        (programs.doubling, "recursive_doubling", 8),
        (programs.halving, "halving_doubling", 8),
        (programs.tree, "binomial_tree", 8),
    ],
)
def test_a_program_has_the_figures_of_its_algorithm(program, name, ranks):
    mine, theirs = beside(program, ranks, name).rows
    assert mine[1:5] == theirs[1:5]
    assert mine.time == pytest.approx(theirs.time)


def test_the_table_is_text():
    text = repr(beside(programs.ring_by_turns, 4, "ring", "parameter_server"))
    assert text.splitlines() == [
        "4 ranks, S = 53,760 bytes on each, 100 GbE, modelled",
        "                  rounds  messages  sent / S  port / S      time",
        "ring_by_turns         12        24       1.5       1.5  180.9 µs",
        "ring                   6        24       1.5       1.5   90.5 µs",
        "parameter_server       2         6         3         3   53.8 µs",
    ]


def test_what_is_no_schedule_has_no_rounds():
    (row,) = beside(programs.whole_arrays, 4).rows
    assert row.rounds is None
    assert (row.messages, row.sent) == (12, 3 * 53_760)
    assert "–" in repr(beside(programs.whole_arrays, 4))


def test_unknown_names_and_hangs_are_told():
    with pytest.raises(ValueError, match="did you mean 'ring'"):
        beside(programs.ring, 4, "rign")
    with pytest.raises(spmd.Deadlock):
        beside(programs.sends_first, 4)
