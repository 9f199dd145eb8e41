"""A fit that is graded on a size that it has not seen."""

import importlib.util

import numpy as np
import pytest

from allreduce_edu import Link, Links, cost, ring
from allreduce_edu.lessons.measuring import SIZES, examine, measured
from allreduce_edu.realdist.sweep import Point, Sweep


def modelled(link, bend=1.0):
    """Return a sweep whose seconds are the model's, longer by `bend` above 100 kB."""
    links = Links.uniform(4, link)
    points = [
        Point.of(size, [t, 3 * t, 5 * t])
        for size in SIZES
        for t in [cost.time(ring(4), size, links) * (bend if size > 1e5 else 1)]
    ]
    return Sweep("all_reduce", 4, "gloo", "all_reduce", tuple(points))


def test_what_follows_the_model_gets_the_best_grade():
    exam = examine(modelled(Link.of(50e-6, 1e9)), 256 * 1024)
    assert exam.grade == pytest.approx(1)
    assert exam.fit.link.alpha == pytest.approx(50e-6)
    assert exam.fit.link.beta == pytest.approx(1e-9)
    np.testing.assert_allclose(exam.seconds, exam.predicted)


def test_the_held_out_size_is_not_in_the_fit_and_its_grade_is_honest():
    sweep = modelled(Link.of(50e-6, 1e9))
    points = [Point.of(p.size, [p.fastest * (4 if p.size == 4096 else 1)]) for p in sweep.points]
    exam = examine(Sweep("x", 4, "gloo", "all_reduce", tuple(points)), 4096)
    assert 4096 not in exam.fit.sizes
    assert len(exam.fit.sizes) == len(SIZES) - 1
    assert exam.grade == pytest.approx(4)


def test_a_bend_shows_in_the_residuals():
    exam = examine(modelled(Link.of(50e-6, 1e9), bend=2), 1024)
    assert exam.ratio.max() > 1.1
    assert exam.ratio.min() < 0.95


def test_the_table_marks_the_size_that_was_held_out():
    lines = repr(examine(modelled(Link.of(50e-6, 1e9)), 65536)).splitlines()
    assert [line for line in lines if line.endswith("<- held out")] == [lines[4]]
    assert lines[4].split()[0] == "65,536"
    assert lines[-1] == "alpha 50 µs, beta 1 ns/byte"


def test_a_size_that_was_not_measured_is_refused():
    with pytest.raises(ValueError, match=r"held_out must be one of the sizes 1,024, .*, got 1000"):
        examine(modelled(Link.of(1e-6, 1e9)), 1000)


def test_without_torch_recorded_times_are_called_so(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sweep = measured()
    assert "recorded on another machine" in capsys.readouterr().out
    assert "recorded" in repr(sweep)
    assert sweep.sizes.tolist() == list(SIZES)
    assert 0.5 < examine(sweep, 256 * 1024).grade < 2


def test_real_ranks_are_measured():
    pytest.importorskip("torch")
    sweep = measured(ranks=2, sizes=[1024, 65536])
    assert (sweep.ranks, sweep.sizes.tolist()) == (2, [1024, 65536])
    assert (sweep.seconds > 0).all()
