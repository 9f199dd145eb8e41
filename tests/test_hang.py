"""Every hang is explained: the circle, each rank's line, its last collective, what to look at."""

from __future__ import annotations

import json

import numpy as np
import pytest
import spmd_programs as programs

from allreduce_edu import spmd
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.engine.spmd.sites import NOWHERE
from allreduce_edu.engine.spmd.states import Last, Need, Part, State


def hang_of(fn, ranks=4, size=4, **keys):
    with pytest.raises(spmd.Deadlock) as info:
        spmd.run(fn, np.arange(ranks * size, dtype=float).reshape(ranks, size), **keys)
    hang = info.value.hang
    assert str(info.value) == hang.text
    return hang


def line_of(fn, text):
    """Return the number of the line of `fn` that holds `text`."""
    import inspect

    lines, first = inspect.getsourcelines(fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_everybody_sends_first():
    hang = hang_of(programs.sends_first)
    line = line_of(programs.sends_first, "comm.send(")
    assert hang.text == (
        "all 4 ranks wait, in a circle: 0 -> 1 -> 2 -> 3 -> 0.\n"
        "\n"
        "  ranks 0-3: send to rank r+1: float64 (1,)\n"
        f"      spmd_programs.py, line {line} of sends_first: "
        "comm.send(parts[(r - k) % n], right_of(comm))\n"
        "\n"
        "Look first: everybody sends before anybody receives, and a send waits until\n"
        "the other side receives (so does gloo, at every size). Use comm.sendrecv, or\n"
        "isend, recv and wait, or let every second rank receive first."
    )
    assert hang.edges == {0: [1], 1: [2], 2: [3], 3: [0]}


def test_64_ranks_stay_readable():
    text = hang_of(programs.sends_first, 64, 64).text
    assert "in a circle: 0 -> 1 -> 2 -> ... -> 63 -> 0." in text
    assert "ranks 0-63: send to rank r+1" in text
    assert len(text.splitlines()) < 12


def skips(comm, x):
    for _ in range(2):
        comm.all_reduce(x)
    if comm.rank != 2:
        comm.all_reduce(x)


def test_a_rank_skips_a_collective():
    hang = hang_of(skips)
    assert hang.summary == "ranks 0, 1, 3 wait and rank 2 has returned."
    assert "ranks 0, 1, 3: all_reduce sum of float64 (4,), number 3" in hang.text
    assert "rank 2: returned; completed before: all_reduce, number 2" in hang.text
    assert hang.look_first.startswith("rank 2 has returned and does not call all_reduce number 3.")
    assert hang.states[0].site.line == line_of(skips, "comm.all_reduce(x)") + 2
    assert [s.last.number for s in hang.states] == [2, 2, 2, 2]


def swaps(comm, x):
    comm.barrier()
    if comm.rank == 0:
        comm.broadcast(x)
        comm.all_reduce(x)
    else:
        comm.all_reduce(x)
        comm.broadcast(x)


def test_collectives_in_another_order_expected_against_actual():
    hang = hang_of(swaps, 3)
    assert hang.look_first.startswith(
        "collective number 2 is broadcast from root 0 on rank 0, but all_reduce sum on ranks 1, 2."
    )
    states = hang.data()["states"]
    assert [s["odd"] for s in states] == [True, False, False]
    assert (states[0]["expected"], states[0]["actual"]) == (
        "all_reduce sum",
        "broadcast from root 0",
    )
    assert states[0]["line"] == line_of(swaps, "comm.broadcast")
    assert states[0]["last"] == "barrier, number 1"


def wrong_source(comm, x):
    if comm.rank == 0:
        comm.recv(2)
    elif comm.rank == 1:
        comm.send(x, 0)


def wrong_tag(comm, x):
    if comm.rank == 0:
        comm.recv(1)
    elif comm.rank == 1:
        comm.send(x, 0, tag=7)


def receives_first(comm, x):
    came = comm.recv((comm.rank - 1) % comm.size)
    comm.send(x, (comm.rank + 1) % comm.size)
    return came


def two_groups(comm, x):
    a, b = comm.group([0, 1]), comm.group([0, 1])
    if comm.rank == 0:
        a.barrier()
        b.barrier()
    elif comm.rank == 1:
        b.barrier()
        a.barrier()


def stuck_before(comm, x):
    if comm.rank == 2:
        comm.recv(1)
    comm.barrier()


def one_send_too_many(comm, x):
    if comm.rank == 0:
        comm.send(x, 1)
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(0)


def uneven_steps(comm, x):
    for _ in range(3 - (comm.rank == 1)):
        comm.all_reduce(x)


def group_of_some(comm, x):
    if comm.rank < 2:
        comm.group([0, 1])
    comm.barrier()


def any_source(comm, x):
    if comm.rank == 0:
        comm.recv()
        comm.recv()
    elif comm.rank == 1:
        comm.send(x, 0)


CLUES = [
    (wrong_source, "rank 0 listens to rank 2, but the message that is there for it comes from"),
    (wrong_tag, "rank 0 asks rank 1 for tag 0, but it sends with tag 7."),
    (receives_first, "everybody receives before anybody sends."),
    (two_groups, "groups are used in opposite order. Rank 0 waits in group 1 for rank 1, which"),
    (stuck_before, "rank 2 did not get as far as barrier number 1: see above where it waits."),
    (one_send_too_many, "rank 1 has returned without the other half of this message."),
    (uneven_steps, "rank 1 has returned and does not call all_reduce number 3."),
    (group_of_some, "collective number 1 is group of ranks 0, 1 on ranks 0, 1, but barrier on"),
    (any_source, "ranks 1-3 have returned without the other half of this message."),
]


@pytest.mark.parametrize(("fn", "clue"), CLUES, ids=lambda v: getattr(v, "__name__", ""))
def test_what_to_look_at_first(fn, clue):
    assert hang_of(fn).look_first.startswith(clue)


def test_who_makes_a_group_is_told():
    clue = hang_of(group_of_some).look_first
    assert "barrier on ranks 2, 3. To make a group is a collective of all ranks" in clue


def test_one_send_too_many_blames_only_its_partner():
    assert hang_of(one_send_too_many).edges == {0: [1]}


def test_a_message_that_nobody_takes_is_told():
    def program(comm, x):
        if comm.rank == 0:
            request = comm.isend(x, 1, tag=3)
            comm.barrier()
            request.wait()

    text = hang_of(program).text
    assert "not received: float64 (4,) from rank 0 to rank 1, tag 3, test_hang.py, line" in text


def test_helpers_are_told_as_called_from():
    def exchange(comm, x):
        comm.send(x, 1 - comm.rank)

    def program(comm, x):
        exchange(comm, x)

    site = hang_of(program, 2).states[0].site
    assert site.name == "exchange"
    assert site.via == f"line {line_of(program, 'exchange(comm, x)')} of program"


def test_lines_of_a_cell_have_no_file():
    import linecache

    source = "def cell(comm, x):\n    comm.barrier() if comm.rank else comm.recv(1)\n"
    name = "/nowhere/ipykernel_12/345.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {}
    exec(compile(source, name, "exec"), space)
    text = hang_of(space["cell"], 2).text
    assert "      line 2 of cell: comm.barrier() if comm.rank else comm.recv(1)" in text
    assert "nowhere" not in text


def test_the_data_are_json_and_the_same_every_time():
    for fn in (skips, swaps, programs.sends_first):
        assert json.dumps(hang_of(fn).data()) == json.dumps(hang_of(fn).data())


def test_the_shortest_circle_is_told():
    def program(comm, x):
        comm.recv({0: 1, 1: 2, 2: 3, 3: 2}[comm.rank])

    assert hang_of(program).circle == [2, 3]


def random_hang(seed):
    """Any states at all, also ones that no run would give."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    kinds = [None, ("float64", (3,)), ("int8", ())]
    parts = [("barrier", None), ("all_reduce", "sum"), ("reduce", ("max", 0)), ("broadcast", 1)]
    parts += [("group", (0, 1)), ("all_gather", None)]

    def state(rank):
        status = str(rng.choice(["waits", "waits", "waits", "returned", "raised", "runs"]))
        needs, part = (), None
        if status == "waits" and rng.random() < 0.5:
            name, argument = parts[rng.integers(len(parts))]
            number, kind = int(rng.integers(1, 3)), kinds[rng.integers(3)]
            part = Part(int(rng.integers(2)), tuple(range(n)), number, name, argument, kind)
        elif status == "waits":
            needs = tuple(
                Need(
                    str(rng.choice(["send", "recv"])),
                    [None, *range(n)][rng.integers(n + 1)],
                    int(rng.integers(2)),
                    kinds[rng.integers(3)],
                )
                for _ in range(rng.integers(3))
            )
        last = Last("barrier", 0, 1, NOWHERE) if rng.random() < 0.5 else None
        return State(rank, status, "call", needs, part, NOWHERE, last)

    return Hang([state(rank) for rank in range(n)])


def test_the_explainer_never_raises():
    for seed in range(2000):
        hang = random_hang(seed)
        assert hang.look_first
        assert json.dumps(hang.data())
        assert hang.text.splitlines()[0] == hang.summary


def waits_longer(comm, x):
    comm.timeout = 7200
    skips(comm, x)


def test_a_longer_time_out_is_told_to_be_a_later_message():
    hang = hang_of(waits_longer)
    assert hang.timeout == 7200
    assert hang.text.endswith(
        "With this time-out a real job would stand still for 7,200 s and then give up;\n"
        "nobody comes meanwhile."
    )
    assert hang_of(skips).timeout is None


def test_a_time_out_is_a_number_of_seconds():
    def program(comm, x):
        comm.timeout = -1

    with pytest.raises(ValueError, match="timeout must be a number of seconds > 0, got -1"):
        spmd.run(program, np.zeros((2, 1)))


def other_shape(comm, x):
    comm.all_gather(x[: 4 - (comm.rank == 2)])


def other_dtype(comm, x):
    comm.all_reduce(x.astype("float32" if comm.rank == 2 else "float64"))


def other_operator(comm, x):
    comm.all_reduce(x, "max" if comm.rank == 2 else "sum")


def other_groups(comm, x):
    comm.group([0, 1] if comm.rank < 2 else [2, 3])


def other_line(comm, x):
    comm.all_reduce(x[:1]) if comm.rank == 2 else None
    comm.all_reduce(x)


UNFIT = [
    (other_line, "these are different lines of the program, that only met because each is"),
    (other_shape, "the shapes differ. Is it the last batch"),
    (other_dtype, "the dtypes differ."),
    (other_operator, "every rank must ask for the same operation"),
    (other_groups, "every rank must make every group"),
]


@pytest.mark.parametrize(("fn", "clue"), UNFIT, ids=lambda v: getattr(v, "__name__", ""))
def test_what_to_look_at_first_if_parts_do_not_fit(fn, clue):
    with pytest.raises(spmd.Mismatch) as info:
        spmd.run(fn, np.zeros((4, 4)))
    text = " ".join(str(info.value).split())
    assert f"Look first: {clue}" in text
    assert f"line {line_of(fn, 'comm.')}" in text
