"""What the tools of PyTorch say of a hang: compared with what they really say, where gloo can."""

from __future__ import annotations

import re
import sys
import time

import numpy as np
import pytest
import spmd_programs as programs
import test_hang

from allreduce_edu import Pool, spmd
from allreduce_edu.engine.spmd import tools
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.engine.spmd.logs import ASKED, how_to_get, how_to_read


def hang_of(fn, ranks=4):
    return spmd.hang(fn, np.zeros((ranks, 4)))


def test_the_desync_report_names_who_lags_behind():
    assert tools.desync_report(hang_of(test_hang.skips)) == (
        " - [0] Timeout at collective: ALLREDUCE, #3\n"
        " - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "     [2] finished collective #2, but didn't join collective #3 (count from 1)\n"
        " - Snapshot of ranks' latest states:\n"
        "   #2 finished ranks:\n"
        "     [2] finished ALLREDUCE\n"
        "   #3 started ranks:\n"
        "     [0, 1, 3] started ALLREDUCE"
    )


def test_the_desync_report_of_another_order():
    report = tools.desync_report(hang_of(test_hang.swaps, 3))
    assert "[0, 1, 2] joined but didn't finish collective #2 (count from 1)" in report
    assert "[0] started BROADCAST" in report
    assert "[1, 2] started ALLREDUCE" in report


def test_the_desync_report_of_a_rank_that_never_came():
    report = tools.desync_report(hang_of(test_hang.stuck_before, 3))
    assert report.endswith(
        "ranks [2] are the lagging ranks that caused this timeout. They never joined any "
        "collectives"
    )


def test_the_flight_recorder_names_who_is_missing_or_differs():
    told = tools.flight_recorder(hang_of(test_hang.skips)).splitlines()
    assert told[0] == "Not all ranks joining collective, sequence number: 3"
    assert "missing ranks: {2}" in told
    assert "input sizes: [[4]]" in told
    assert "comm.all_reduce(x)" in told[-1]
    told = tools.flight_recorder(hang_of(test_hang.swaps, 3))
    assert told.startswith("Collective sequence number: 2 has errors")
    assert (
        "Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: "
        "'broadcast' does not match found collective type: 'all_reduce'"
    ) in told


def test_tools_that_see_collectives_alone_say_nothing_of_messages():
    said = {name: told(hang_of(programs.sends_first)) for name, told in tools.TOLD_BY.items()}
    assert said.pop("gloo") == "Timed out waiting 1800000ms for send operation to complete"
    assert set(said.values()) == {""}


def test_the_watchdog_gives_the_number_to_compare():
    assert tools.nccl_watchdog(hang_of(test_hang.skips)) == (
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, "
        "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600000 milliseconds "
        "before timing out."
    )


def test_no_tool_raises_whatever_the_hang():
    for seed in range(1000):
        hang = test_hang.random_hang(seed)
        assert isinstance(hang, Hang)
        for told in tools.TOLD_BY.values():
            assert isinstance(told(hang), str)


def sums_or_takes_the_maximum(comm, x):
    comm.all_reduce(x, "max" if comm.rank == 1 else "sum")


def other_shape(comm, x):
    comm.all_reduce(np.zeros(4 + comm.rank))


def other_dtype(comm, x):
    comm.all_reduce(x.astype("float32" if comm.rank == 1 else "float64"))


def mismatch_of(fn, ranks=3):
    with pytest.raises(spmd.Mismatch) as info:
        spmd.run(fn, np.zeros((ranks, 4)))
    return info.value


def test_the_operator_is_no_part_of_a_fingerprint():
    assert tools.fingerprint(mismatch_of(sums_or_takes_the_maximum)) == ""


# ------------------------------------------------------------ against the real tools


def really_swaps():
    import torch
    import torch.distributed as dist

    dist.barrier()
    x = torch.zeros(4, dtype=torch.float64)
    dist.broadcast(x, 0) if dist.get_rank() == 0 else dist.all_reduce(x)


def really_another_shape():
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(4 + dist.get_rank(), dtype=torch.float64))


def really_another_dtype():
    import torch
    import torch.distributed as dist

    kind = torch.float32 if dist.get_rank() == 1 else torch.float64
    dist.all_reduce(torch.zeros(4, dtype=kind))


def really_late():
    import datetime as dt

    import torch.distributed as dist

    if dist.get_rank() == 2:
        time.sleep(2)
    else:
        wait = dt.timedelta(milliseconds=500)
        dist.monitored_barrier(timeout=wait, wait_all_ranks=True)


def told_by(fn):
    """Return the text of the exception that a real function raises on each rank."""
    try:
        fn()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
@pytest.mark.parametrize(
    ("program", "real"),
    [
        (test_hang.swaps, really_swaps),
        (other_shape, really_another_shape),
        (other_dtype, really_another_dtype),
    ],
    ids=lambda f: f.__name__,
)
def test_fingerprints_are_told_as_by_torch(program, real, monkeypatch):
    pytest.importorskip("torch")
    found = hang_of(program, 3) if program is test_hang.swaps else mismatch_of(program)
    mine = tools.fingerprint(found)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    with Pool(3, backend="gloo", timeout=20) as pool:
        theirs = " ".join(pool.run(told_by, real)[0].split())
    pattern = re.escape(mine).replace(
        re.escape("..."), r"TensorDeviceTypes=[^)]*(\([^)]*\)[^)]*)*\)"
    )
    assert re.fullmatch(pattern, theirs), (mine, theirs)


def really_skips():
    import datetime as dt

    import torch
    import torch.distributed as dist

    group = dist.new_group(timeout=dt.timedelta(milliseconds=500))
    if dist.get_rank() != 2:
        dist.all_reduce(torch.zeros(4), group=group)
    time.sleep(2)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
def test_gloos_time_out_is_told_as_by_gloo():
    pytest.importorskip("torch")
    with Pool(3, backend="gloo", timeout=20) as pool:
        theirs = pool.run(told_by, really_skips)
    mine = tools.gloo_timeout(hang_of(test_hang.skips, 3), 500)
    assert any(mine in each for each in theirs[:2]), theirs


@pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
def test_a_monitored_barrier_is_told_as_by_torch(capsys):
    pytest.importorskip("torch")
    hang = hang_of(test_hang.skips, 3)
    with Pool(3, backend="gloo", timeout=20) as pool:
        theirs = pool.run(told_by, really_late)
    assert tools.monitored_barrier(hang, 500) == theirs[0]

    def first_is_late(comm, x):
        if comm.rank:
            comm.barrier()

    assert theirs[1].startswith(tools.monitored_barrier(hang_of(first_is_late, 3)))


# --------------------------------------------------------------------- all of them


def other_length(comm, x):
    comm.all_gather(x[: 4 - (comm.rank == 2)])


def test_all_tools_are_asked_and_those_that_are_silent_left_out():
    said = tools.told_by(hang_of(test_hang.skips))
    assert set(said) == set(tools.TOLD_BY) - {"fingerprint"}
    assert set(tools.told_by(hang_of(programs.sends_first))) == {"gloo"}
    assert set(tools.told_by(mismatch_of(other_shape))) == {"gloo", "fingerprint"}
    assert set(tools.told_by(mismatch_of(sums_or_takes_the_maximum))) == {"gloo"}


def test_a_time_out_of_the_programs_own_is_the_one_that_is_told():
    said = tools.told_by(hang_of(test_hang.waits_longer))
    assert "7200000ms" in said["gloo"]
    assert "Timeout(ms)=7200000" in said["NCCL watchdog"]


def test_every_tool_says_how_to_get_it():
    assert {*ASKED} < {*tools.TOLD_BY}
    speaks = [tool for tool in tools.TOLD_BY if how_to_get(tool) == "It comes by itself."]
    assert speaks == ["gloo", "NCCL watchdog"]
    assert "TORCH_NCCL_DESYNC_DEBUG=1" in how_to_get("desync report")


def test_every_line_of_a_tool_can_be_read():
    hangs = [test_hang.skips, test_hang.swaps, test_hang.stuck_before, programs.sends_first]
    found = [hang_of(each, 3) for each in hangs]
    found += [mismatch_of(each) for each in (other_shape, other_length, sums_or_takes_the_maximum)]
    lines = {line for each in found for line in tools.told_by(each).values()}
    assert all(map(how_to_read, lines)), [line for line in lines if not how_to_read(line)]
    assert len({how_to_read(line) for line in lines}) >= 7
    assert how_to_read("loss is 0.3") == ""


def really_gathers():
    import torch
    import torch.distributed as dist

    x = torch.zeros(4 - (dist.get_rank() == 2))
    dist.all_gather([torch.zeros(len(x)) for _ in range(dist.get_world_size())], x)
    dist.barrier()


def really_takes_the_maximum():
    import torch
    import torch.distributed as dist

    x = torch.full((6,), 1.0 + dist.get_rank())
    dist.all_reduce(x, dist.ReduceOp.MAX if dist.get_rank() == 1 else dist.ReduceOp.SUM)
    return x.tolist()


@pytest.mark.skipif(sys.platform == "win32", reason="gloo there is not promised")
def test_what_gloo_does_with_parts_that_do_not_fit(capsys):
    pytest.importorskip("torch")
    from allreduce_edu.realdist.report import RankError

    mine = tools.gloo_mismatch(mismatch_of(other_length))
    with Pool(3, backend="gloo", timeout=20) as pool:
        with pytest.raises(RankError, match=r"rank 2 was aborted"):
            pool.run(really_gathers)
        wrote = capsys.readouterr().out
        for part in re.split(r"\.\.\.|\n", mine):
            assert part.strip() in wrote, (mine, wrote)
        first, *others = pool.run(really_takes_the_maximum)
    assert all(each == first for each in others)
    assert set(first) != {6.0}
    assert set(first) != {3.0}
    assert tools.gloo_mismatch(mismatch_of(sums_or_takes_the_maximum)).startswith("(nothing")
