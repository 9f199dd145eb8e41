"""The judge of programs passes every right one, and names what is wrong with every wrong one."""

from __future__ import annotations

import numpy as np
import pytest
import spmd_programs as programs

from allreduce_edu import ring
from allreduce_edu.lessons.programs import my_all_reduce


def ident(value):
    return getattr(value, "__name__", "")


@pytest.mark.parametrize("program", programs.LINEAR, ids=ident)
def test_right_programs_pass(program):
    verdict = my_all_reduce(program)
    assert verdict.ok, verdict
    assert "for 8 numbers of ranks from 1 to 8, 5 sizes and 5 dtypes" in verdict.why


def test_programs_for_powers_of_two_pass_for_those():
    for program in programs.POWERS_OF_TWO:
        assert my_all_reduce(program, ranks=(1, 2, 4, 8)).ok


def test_the_verdict_counts():
    assert my_all_reduce(programs.ring).why.endswith(
        "With 4 ranks its busiest port carries 1.5 S in 6 rounds; replicas agree to the last bit"
    )
    assert "carries 3 S in 6 rounds" in my_all_reduce(programs.server).why
    assert "carries 1.5 S in 12 rounds" in my_all_reduce(programs.ring_by_turns).why


def each_in_its_own_order(comm, x):
    n, r = comm.size, comm.rank
    came = [comm.sendrecv(x, (r + k) % n, (r - k) % n) for k in range(1, n)]
    return sum(came, x)


def test_replicas_that_differ_in_their_last_bits_are_told():
    verdict = my_all_reduce(each_in_its_own_order)
    assert verdict.ok
    assert "its replicas differ in their last bits" in verdict.why


def returns_a_list(comm, x):
    return programs.server_with_a_list(comm, x).tolist()


def forgets_to_return(comm, x):
    programs.server_with_a_list(comm, x)


def takes_the_mean(comm, x):
    return programs.server_with_a_list(comm, x) / comm.size


def loops(comm, x):
    while comm.size > 2:
        pass
    return programs.ring(comm, x)


def touches_too_early(comm, x):
    if comm.size == 1:
        return x
    request = comm.isend(x, programs.right_of(comm))
    x += comm.recv(programs.left_of(comm))
    request.wait()
    return x


WRONG = [
    (programs.sends_first, "with 2 ranks and 8 float64 numbers on each it hangs: all 2 ranks wait"),
    (programs.adds_in_the_gather, "rank 0, chunk 0 holds rank 0's share twice"),
    (programs.one_round_too_few, "rank 0, chunk 2 lacks rank 1's share"),
    (programs.rebinds, "Rank 0 received piece 0, and its result is without it. `part = ...` gives"),
    (programs.adds_into_what_it_sends, "with 4 ranks and 16 float64 numbers on each rank 0 ends"),
    (programs.forgets_the_rest, "with 4 ranks and 1 float64 number on each rank 0, chunk 0 lacks"),
    (programs.shifts, "mixes different places of x"),
    (programs.in_floats, "rank 0 returns float64 of shape (17,), and x is float32 of shape (17,)"),
    (programs.library, "comm.all_reduce is the library's; write yours with messages"),
    (returns_a_list, "rank 0 returns list and no array"),
    (forgets_to_return, "Rank 1 never uses what it received ("),
    (takes_the_mean, "rank 0 ends with"),
    (loops, "right for 2 ranks; with 3 ranks and 12 float64 numbers on each it does not come to"),
    (touches_too_early, "changed an array that was still on its way"),
    (3, "give the function itself, my_all_reduce, got int"),
]


@pytest.mark.parametrize(("program", "says"), WRONG, ids=ident)
def test_wrong_programs_are_told_what_is_wrong(program, says):
    verdict = my_all_reduce(program)
    assert not verdict.ok
    assert says in verdict.why, verdict.why


def test_what_is_right_but_sends_too_much_is_told():
    assert my_all_reduce(programs.whole_arrays).ok
    verdict = my_all_reduce(programs.whole_arrays, like=ring)
    assert not verdict.ok
    assert "every value is right. But with 4 ranks the busiest port carries 3 S; 1.5 S are" in (
        verdict.why
    )
    verdict = my_all_reduce(programs.ring_by_turns, like=ring)
    assert "it takes 12 rounds; 6 are enough" in verdict.why
    assert my_all_reduce(programs.ring, like=ring).ok


def test_what_the_learners_code_raises_is_let_through():
    def program(comm, x):
        return x.reshape(7, 7)

    with pytest.raises(ValueError, match="cannot reshape"):
        my_all_reduce(program)


@pytest.mark.parametrize("narrow", ["float32", "float16", "int32", "int64"])
def test_who_casts_to_a_narrower_dtype_is_found(narrow):
    def program(comm, x):
        y = x.astype(narrow)
        programs.ring(comm, y)
        return y.astype(x.dtype)

    verdict = my_all_reduce(program)
    assert not verdict.ok
    assert "rank 0 ends with" in verdict.why


def test_the_data_of_the_judge_add_up_exactly_in_any_order():
    from allreduce_edu.lessons.programs import _trials

    for n in (2, 8):
        for trial in _trials(n):
            x = trial.data()
            total = x.astype(object).sum(0) if x.size else x.sum(0)
            assert (sum(list(x)) == total).all()
            assert (sum(list(x[::-1])) == total).all()
            assert x.size < 9 or len(np.unique(x)) > 5
