"""The wing "it hangs": real ranks hang at the same lines, and several right fixes are taken."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from allreduce_edu import Pool, museum, spmd
from allreduce_edu.engine.spmd.logs import how_to_read
from allreduce_edu.lessons.museum.dying import lengths
from allreduce_edu.lessons.museum.program import Program
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.simulated import Simulated

SIMULATED = [
    exhibit
    for exhibit in museum.values()
    if exhibit.wing == "hangs" and isinstance(exhibit.stage, Simulated)
]
ON_GLOO = ("skip", "validate", "swallowed", "sends", "order")
SECONDS = 1.5  # of a call that hangs, if the machine is not busy


def ident(value):
    return getattr(value, "name", value)


@pytest.mark.parametrize("exhibit", SIMULATED, ids=ident)
def test_what_the_tools_print_can_be_read(exhibit):
    outcome = exhibit.run()
    assert isinstance(outcome.error, (spmd.Deadlock, spmd.Mismatch))
    said = outcome.told_by()
    assert "gloo" in said
    for text in said.values():
        assert how_to_read(text), text


@pytest.mark.parametrize("exhibit", SIMULATED, ids=ident)
def test_the_same_program_hangs_in_the_same_way_every_time(exhibit):
    assert len({exhibit.run().hangs for _ in range(5)}) == 1


def test_real_ranks_are_heard_in_their_own_words():
    pytest.importorskip("torch", reason="real ranks need torch")
    said = museum["late"].run().told_by()
    assert any("Timed out waiting 600ms" in text for text in said.values())
    crash = museum["crash"].run().told_by()
    assert crash["rank 2"] == "crashed (SIGSEGV)"
    for text in [*said.values(), *crash.values()]:
        assert how_to_read(text), text
    (everybody,) = museum["head"].run().told_by()
    assert everybody == "ranks 0-3"


LEAVES = """
import torch
import torch.distributed as dist

def train(texts):
    if dist.get_rank() != 1:
        dist.all_reduce(torch.zeros(4))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
def test_a_real_rank_that_has_left_is_named():
    pytest.importorskip("torch", reason="real ranks need torch")
    for seconds in (SECONDS, 5 * SECONDS, 20 * SECONDS):  # more, on a busy machine
        told = Real(lengths, ranks=3, seconds=seconds).run(Program(LEAVES)).hangs
        if "Look first" in told:
            break
    assert "line 6 of train: dist.all_reduce(torch.zeros(4))" in told
    last = told.splitlines()[-1]
    assert last == (
        "Look first: rank 1 has come to the end of the program. Which call of ranks 0, 2 has it "
        "left out?"
    )


@pytest.fixture(scope="module")
def four():
    pytest.importorskip("torch", reason="real ranks need torch")
    with Pool(4, backend="gloo") as pool:
        yield pool


def hang_on(pool, exhibit):
    """Return the hang of real ranks; on a busy machine they may need longer until all wait."""
    program = Program(exhibit.source).entry
    x = exhibit.stage.data(4)
    for seconds in (SECONDS, 5 * SECONDS, 20 * SECONDS):
        with pytest.raises((spmd.Deadlock, RuntimeError)) as info:
            pool.spmd(program, x, timeout=seconds)
        if isinstance(info.value, spmd.Deadlock):
            return info.value.hang
    raise AssertionError(f"{exhibit.name} is not found to hang: {info.value}")


@pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
@pytest.mark.parametrize("name", ON_GLOO)
def test_real_ranks_hang_at_the_same_lines(four, name, capsys):
    exhibit = museum[name]
    simulated, real = exhibit.run().error.hang, hang_on(four, exhibit)
    assert real.text == simulated.text
    assert real.edges == simulated.edges


# ------------------------------------------------------------------ other right fixes

OTHER_FIXES = {
    "freeze the head": (
        "head",
        {"    ddp, sgd": "    model.odd.requires_grad_(False)\n    ddp, sgd"},
    ),
    "a zero through the head": (
        "head",
        {"  # `odd` comes next month": " + 0 * odd.sum()"},
    ),
    "a zero on all ranks": (
        "branch",
        {
            "cross_entropy(digit, y)": "cross_entropy(digit, y) + 0 * odd.sum()",
        },
    ),
    "catch it before it goes into C": (
        "crash",
        {"length(text)] += 1": "length(text) if text else 0] += 1"},
    ),
    "wait where more time is given": (
        "late",
        {
            "    dist.all_reduce(x, group=group)  # the next": "    dist.barrier()\n"
            "    dist.all_reduce(x, group=group)  # the next"
        },
    ),
    "count on all ranks, sum once": (
        "uneven",
        {
            "        total += comm.all_reduce(batch.sum(keepdims=True))\n": "        total += "
            "batch.sum()\n",
            "    return total": "    return comm.all_reduce(total)",
        },
    ),
    "ask in each step whether anybody has data": (
        "uneven",
        {
            "    for start in range(0, len(samples), 2):\n": "    steps = comm.all_gather("
            "np.array([-(-len(samples) // 2)]))\n"
            "    for start in range(0, 2 * int(max(steps)[0]), 2):\n",
        },
    ),
    "the barrier on all ranks": (
        "barrier",
        {
            "            comm.barrier()  # wait until": "        comm.barrier()  # wait until",
        },
    ),
    "rank 0 gathers and validates alone": (
        "validate",
        {
            "    comm.all_reduce(both)  # of all ranks\n": "",
            "        if comm.rank == 0:  # one": "        hits_of = comm.gather(np.resize("
            "np.r_[hits, np.full(9, np.nan)], 9))\n"
            "        if comm.rank == 0:  # one",
            "accuracy(comm, hits)\n            print": "accuracy(comm, np.concatenate([h[~np."
            "isnan(h)] for h in hits_of]))\n            print",
        },
    ),
    "without the barrier, on all ranks": (
        "validate",
        {
            "        if comm.rank == 0:  # one rank is enough to validate\n"
            "            metric = accuracy(comm, hits)\n"
            '            print(f"epoch {epoch}: {metric:.3f}")\n'
            "        comm.barrier()  # until rank 0 has validated\n": "        metric = accuracy("
            "comm, hits)\n",
        },
    ),
    "gather on the root": (
        "save",
        {
            "    return np.concatenate(comm.all_gather(shard))": "    parts = comm.gather(shard)\n"
            "    return None if parts is None else np.concatenate(parts)",
            "    if comm.rank == 0:  # as everybody knows, one rank saves\n"
            '        print("saving ...")\n'
            "        return whole_state(comm, shard)  # goes to the disk\n"
            "    return None\n": "    return whole_state(comm, shard)\n",
        },
    ),
    "agree on a flag": (
        "nan",
        {
            "        if np.isnan(loss):  # it makes no sense to go on\n": "        bad = comm."
            'all_reduce(np.array([float(np.isnan(loss))]), "max")\n'
            "        if bad:\n",
        },
    ),
    "decide on the root and tell": (
        "best",
        {
            "        if total < best:": "        better = comm.broadcast(np.array([float(total < "
            "best)]))\n        if better:",
        },
    ),
    "the collective in the handler too": (
        "swallowed",
        {
            '            print("skipped a bad line:", error)\n': "            total += comm."
            "all_reduce(np.zeros(1))\n",
        },
    ),
    "an order that is written down": (
        "order",
        {
            "in metrics.items():": 'in [(k, metrics[k]) for k in ("score", "loss")]:',
        },
    ),
    "the lengths first": (
        "ragged",
        {
            "        found += comm.all_gather(batch)\n": "        counts = comm.all_gather(np."
            "array([len(batch)]))\n"
            "        full = np.zeros(int(max(counts)[0]))\n"
            "        full[: len(batch)] = batch\n"
            "        found += [g[: int(c[0])] for g, c in zip(comm.all_gather(full), counts)]\n",
        },
    ),
    "no groups at all": (
        "pairs",
        {
            "    if comm.rank < 2:  # each pair shares a machine\n"
            "        machine = comm.group([0, 1])\n"
            "    else:\n"
            "        machine = comm.group(range(2, comm.size))\n"
            '    machine.all_reduce(x, "avg")  # first within the machine\n': "",
        },
    ),
    "send the parts to rank 0": (
        "save",
        {
            "        return whole_state(comm, shard)  # goes to the disk\n"
            "    return None": "        parts = [comm.recv(rank) for rank in range(1, comm.size)]\n"
            "        return np.concatenate([shard, *parts])\n"
            "    return comm.send(shard, 0)",
        },
    ),
    "columns first for all": (
        "mesh",
        {"    if (i + j) % 2:  # half": "    if True:  # half"},
    ),
    "every second rank receives first": (
        "sends",
        {
            "        comm.send(passed, right)  # my neighbour takes it when it can\n"
            "        passed = comm.recv(left)\n": "        if comm.rank % 2:\n"
            "            came = comm.recv(left)\n"
            "            comm.send(passed, right)\n"
            "        else:\n"
            "            comm.send(passed, right)\n"
            "            came = comm.recv(left)\n"
            "        passed = came\n",
        },
    ),
    "isend, and wait": (
        "sends",
        {
            "        comm.send(passed, right)  # my neighbour takes it when it can\n"
            "        passed = comm.recv(left)\n": "        sent = comm.isend(passed, right)\n"
            "        passed = comm.recv(left)\n"
            "        sent.wait()\n",
        },
    ),
}


@pytest.mark.parametrize(("name", "edits"), OTHER_FIXES.values(), ids=OTHER_FIXES)
def test_other_right_fixes_are_taken(name, edits):
    if name in ("head", "branch", "crash", "late"):
        pytest.importorskip("torch", reason="real ranks need torch")
    verdict = museum[name].check(museum[name].edited(edits))
    assert verdict.ok, verdict


LOOP = "for kind, values in metrics.items():\n"
SETS = ('{"loss", "score"}', "set(metrics)", "{kind for kind, _ in measured}", "frozenset(metrics)")


@pytest.mark.parametrize("names", SETS)
def test_a_set_of_names_has_another_order_on_another_rank(names):
    order = museum["order"]
    loop = f"for kind in {names}:\n        values = metrics[kind]\n"
    verdict = order.check(order.edited({LOOP: loop}))
    assert "all_reduce sum on ranks 0, 2, but" in " ".join(verdict.why.split())
    assert order.check(order.edited({LOOP: loop.replace(names, f"sorted({names})")})).ok


def in_the_order_of_a_set(comm, measured):
    loss, score = ([v for k, v in measured if k == kind] for kind in ("loss", "score"))
    result = {}
    for kind in {"loss", "score"}:  # noqa: PLC0208 - that is the fault
        calls = {"loss": comm.all_reduce, "score": comm.all_gather}
        result[kind] = calls[kind](np.array([sum(loss)] if kind == "loss" else score))
    return np.array([result["loss"][0], np.median(result["score"])])


def test_so_it_has_in_a_function_whose_lines_stay_as_they_are():
    why = museum["order"].check(in_the_order_of_a_set).why
    line = in_the_order_of_a_set.__code__.co_firstlineno + 5
    assert f"line {line} of in_the_order_of_a_set: result[kind] = calls[kind]" in why
    assert "all_reduce sum on ranks 0, 2, but" in " ".join(why.split())


CHEATS = {"return zeros": "return np.zeros(1)", "return nothing": "return None"}


@pytest.mark.parametrize("exhibit", SIMULATED, ids=ident)
@pytest.mark.parametrize("what", CHEATS.values(), ids=CHEATS)
def test_taking_the_work_away_is_no_fix(exhibit, what):
    head = Program(exhibit.source).entry.__code__.co_varnames[:2]
    cheat = f"import numpy as np\n\ndef train({', '.join(head)}):\n    {what}\n"
    assert not exhibit.check(cheat).ok
