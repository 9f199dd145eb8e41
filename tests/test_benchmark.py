"""What the benchmark says, with clocks that tick as told: nothing here is timed."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest

from allreduce_edu import ALGORITHMS, ring
from allreduce_edu.benchmark import data_engine, rivals
from allreduce_edu.benchmark.__main__ import GROUPS, main, tables
from allreduce_edu.benchmark.measure import Meter, Row, Table, Target, ratio, span
from allreduce_edu.benchmark.time_model import uneven
from allreduce_edu.engine import cost

HAS_TORCH = rivals.find_spec("torch") is not None


class Told:
    """A clock that each candidate moves on by what it is said to take."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def takes(self, *seconds):
        turns = itertools.cycle(seconds)

        def candidate():
            self.now += next(turns)

        return candidate


def test_a_ratio_is_taken_within_each_repetition():
    clock = Told()
    meter = Meter(repetitions=3, least=0, cpu=clock)
    slow, fast = meter.seconds(clock.takes(9, 2, 40, 6), clock.takes(9, 1, 10, 2))  # a warm-up each
    assert slow.tolist() == [2, 40, 6]
    assert fast.tolist() == [1, 10, 2]
    assert ratio(slow, fast) == 3  # of 2, 4 and 3; the medians alone would also give 3
    assert ratio(fast, slow) == pytest.approx(1 / 3)


def test_short_candidates_are_called_until_a_sample_is_long_enough():
    clock, calls = Told(), []
    meter = Meter(repetitions=2, least=0.01, cpu=clock)
    tick = clock.takes(0.001)
    (taken,) = meter.seconds(lambda: (calls.append(1), tick()))
    assert len(calls) == 1 + 2 * 10
    assert taken == pytest.approx([0.001, 0.001])


def test_each_kind_of_work_has_its_clock():
    cpu, wall = Told(), Told()
    meter = Meter(repetitions=1, least=0, cpu=cpu, wall=wall)
    assert meter.seconds(wall.takes(5))[0] == 0
    assert meter.seconds(wall.takes(5), on_the_wall=True)[0] == 5


def test_candidates_take_turns():
    order = []
    Meter(repetitions=2, least=0).seconds(lambda: order.append("a"), lambda: order.append("b"))
    assert "".join(order) == "ab" + "abab"


def test_a_verdict_says_met_or_missed():
    assert Target(2.0).verdict(2.0) == "met"
    assert Target(2.0).verdict(2.1) == "missed"
    assert Target(2.0, at_least=True).verdict(1.9) == "missed"
    rows = [Row("a", ("1",), 3.0, Target(2.0)), Row("b", ("2",), 1.0)]
    text = Table("T", ("what", "n", "x"), rows).markdown()
    assert "| a | 1 | 3 | ≤ 2 | missed |" in text
    assert "| b | 2 | 1 | – | – |" in text
    assert text.endswith("0 of 1 targets met.")


def test_times_are_written_with_a_unit():
    assert [span(x) for x in (2, 0.0123, 4.5e-6, 7e-9)] == ["2 s", "12.3 ms", "4.5 µs", "7 ns"]


@pytest.mark.parametrize("group", GROUPS)
def test_every_row_comes_with_quick_and_with_a_clock_of_ours(group):
    ticks = itertools.count()
    clock = lambda: float(next(ticks))  # noqa: E731 - every reading is one second later
    meter = Meter(1, 0.0, clock, clock, quick=True)
    made = list(tables(group, meter))
    assert made
    for table in made:
        assert table.rows
        for row in table.rows:
            assert len(row.beside) + 2 == len(table.head)
            assert np.isfinite(row.value)
    figures = {row.what: row for table in made for row in table.rows}
    if group == "A":
        assert {re.sub(r" \(.*", "", what) for what in figures} >= set(ALGORITHMS)
        assert {row.value for row in made[0].rows} == {1.0}  # all took one tick
        assert ("torch's threaded group" in figures) == HAS_TORCH
    if group == "B":
        assert {row.what for row in made[0].rows} == set(ALGORITHMS)
        assert {row.value for row in made[0].rows} == {1000.0}  # ms
        assert figures["heapq event loop"].value == 1.0
    if group == "F":
        assert {row.value for row in made[0].rows} == {1.0}
        assert ("torch bf16" in figures) == HAS_TORCH


def test_a_group_is_chosen_by_its_letter(capsys):
    with pytest.raises(SystemExit):
        main(["X"])
    assert "GROUP must be one of A, B, E, F, got 'X'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--repetitions", "0"])
    assert "--repetitions must be at least 1, got 0" in capsys.readouterr().err


def test_it_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "allreduce_edu.benchmark", "--quick", "f"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "load average" in done.stdout
    assert re.search(r"\| numpy bf16 \| 16 \|", done.stdout)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("n", [1, 4, 7])
def test_the_limit_adds_and_copies_as_many_bytes_as_the_schedule(name, n):
    schedule = ALGORITHMS[name](n)
    buf = data_engine.zeros(schedule, 64)
    done = data_engine.rows(schedule, buf)
    assert all(not np.shares_memory(held, came) for held, came, _ in done)
    moved = {adds: sum(held.nbytes for held, _, a in done if a == adds) for adds in (True, False)}
    counted = {
        adds: 64 * sum(int((r.reduce == adds).sum()) for r in schedule) for adds in (True, False)
    }
    assert moved == counted


def test_the_rivals_do_the_same_work():
    n, rng = 4, np.random.default_rng(0)
    buf = rng.integers(0, 9, (n, n, 3)).astype(np.float32)
    play, ranks = rivals.ring_of_objects(buf)
    play()
    assert all((np.array(rank.chunks) == buf.sum(0)).all() for rank in ranks)
    if HAS_TORCH:
        play, stop, tensors = rivals.threaded_group(buf.reshape(n, -1))
        play()
        stop()
        assert all((t.numpy() == buf.reshape(n, -1).sum(0)).all() for t in tensors)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_event_loop_and_processes_reckon_the_time_that_the_engine_does(n):
    links = uneven(n)
    ports = links.inside.alpha, links.inside.beta
    want = cost.time(ring(n), 1000 * n, links)
    assert rivals.event_loop(*ports, 1000) == pytest.approx(want, rel=1e-12)
    pytest.importorskip("simpy")
    assert rivals.simpy_ring(*ports, 1000) == pytest.approx(want, rel=1e-12)
