"""The tape shows each rank's collectives in order, and lights up where the ranks differ."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape

import numpy as np
import pytest
import test_hang

from allreduce_edu import Pool, Tape, spmd
from allreduce_edu.realdist.recorder import recorded

SVG = "{http://www.w3.org/2000/svg}"


def forgets(comm, x):
    a, b = x[:1].copy(), x[1:2].copy()
    if comm.rank != 1:
        comm.all_reduce(a)
    return comm.all_reduce(b)


def other_shape(comm, x):
    comm.barrier()
    comm.all_reduce(x[: 3 if comm.rank == 2 else 4].copy())


def other_dtype(comm, x):
    comm.all_reduce(x.astype("float32" if comm.rank else "float64"))


def opposite_groups(comm, x):
    first, second = comm.group([0, 1, 2]), comm.group([0, 1])
    pair = (second, first) if comm.rank == 1 else (first, second)
    for group in pair:
        if group is not None:
            group.all_reduce(x)


def many(comm, x):
    for _ in range(12):
        comm.all_reduce(x)
    if comm.rank:
        comm.barrier()


def found(fn, ranks, x=None):
    try:
        return spmd.run(fn, np.zeros((ranks, 4)) if x is None else x, show=False)
    except spmd.ProgramError as error:
        return error


CASES = {  # program, ranks: place of the first difference, who is missing, who is odd
    (forgets, 2): ((0, 2), [1], []),
    (test_hang.skips, 4): ((0, 3), [2], []),
    (test_hang.swaps, 3): ((0, 2), [], [0]),
    (other_shape, 4): ((0, 2), [], [2]),
    (other_dtype, 3): ((0, 1), [], [0]),
    (opposite_groups, 3): ((1, 1), [1], []),
    (many, 4): ((0, 13), [0], []),
}


def ident(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("fn", "ranks"), CASES, ids=ident)
def test_the_first_column_that_differs_is_the_place_where_ranks_part(fn, ranks):
    place, missing, odd = CASES[fn, ranks]
    column = Tape(found(fn, ranks)).differing[0]
    assert (column.place, column.missing, column.odd) == (place, missing, odd)


@pytest.mark.parametrize(("fn", "ranks"), CASES, ids=ident)
def test_the_picture_has_every_rank_and_frames_what_differs(fn, ranks):
    tape = Tape(found(fn, ranks))
    root = ET.fromstring(tape.svg())
    rects = list(root.iter(f"{SVG}rect"))
    said = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    for rank in range(ranks):
        assert f"rank {rank}" in said
    shown = tape.columns[-5:]
    framed = [each for each in rects if each.get("class") == "ar-twice"]
    assert len(framed) == len([each for each in shown if each in tape.differing]) > 0
    assert sum(text.endswith(": differs") for text in said) == len(framed)
    current = [each for each in rects if each.get("class") == "ar-done"]
    calls = [call for column in shown for call in column.calls.values()]
    assert len(current) == sum(not call.done for call in calls) > 0
    width, height = (float(root.get(name)) for name in ("width", "height"))
    for rect in rects:
        x, y, w, h = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        assert min(x, y) >= 0
        assert x + w <= width
        assert y + h <= height
    for text in root.iter(f"{SVG}text"):
        assert float(text.get("y")) < height


def test_words_in_place_of_the_picture():
    tape = Tape(found(forgets, 2, np.array([[1.0, 2], [10, 20]])))
    html = tape._repr_mimebundle_()["text/html"]
    assert unescape(re.search('alt="([^"]*)"', html)[1]) == tape.alt
    assert repr(tape) == (
        "Tape: At number 2 rank 0 calls all_reduce sum of float64 (1,); rank 1 has returned."
    )
    line = forgets.__code__.co_firstlineno + 4
    told = f"rank 1: 1 all_reduce sum of float64 (1,) in line {line}, over; 2 not there: it has"
    assert told in tape.alt
    assert "Number 1 fits, and comes from different lines" in tape.alt


def test_of_a_long_tape_the_end_is_drawn():
    tape = Tape(found(many, 3))
    assert "8 earlier columns are not drawn." in tape.alt
    assert len(tape.columns) == 13


def test_many_ranks_share_rows():
    root = ET.fromstring(Tape(found(test_hang.skips, 32)).svg())
    said = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    assert "rank 2" in said
    assert "0, 1, 3-31" in said


def test_a_run_that_ends_has_no_difference():
    run = spmd.run(lambda comm, x: comm.all_reduce(x), np.ones((3, 2)))
    assert repr(Tape(run)) == "Tape: 3 ranks, 1 collective each, no difference."
    assert Tape(run).differing == []


def test_what_it_cannot_show_is_told():
    with pytest.raises(ValueError, match="found must hold collectives, and no rank has begun one"):
        Tape(spmd.hang(lambda comm: comm.recv(1 - comm.rank), ranks=2))
    with pytest.raises(TypeError, match="found must be a Run, a Hang or states, got list"):
        Tape([3])


def test_real_ranks_have_the_same_tape():
    torch = pytest.importorskip("torch")
    dist = torch.distributed

    def really_forgets(group):
        rank = dist.get_rank()
        a, b = torch.tensor([10.0**rank]), torch.tensor([2 * 10.0**rank])
        if rank != 1:
            dist.all_reduce(a, group=group)
        dist.all_reduce(b, group=group)
        return b.item()

    with Pool(2, backend="gloo") as pool:
        record = recorded(really_forgets, pool, 0.5)
        with pytest.raises(spmd.Deadlock) as info:
            pool.spmd(forgets, np.array([[1.0, 2], [10, 20]]), timeout=2)
    simulated = Tape(found(forgets, 2))
    real = Tape(info.value)
    assert record.results[1] == 21
    assert "Timed out waiting" in record.results[0]
    assert real.alt == simulated.alt
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch has no flight recorder")
    (column,) = Tape(record.states).differing
    assert (column.place, column.missing) == ((0, 2), [1])
    assert repr(record) == "Recording of 2 ranks, with 2, 1 collectives"
