"""The explorers of notebook 01: every picture shows what the training reports."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("anywidget")

from allreduce_edu.lessons.replicas import train
from allreduce_edu.show import divergence
from allreduce_edu.show.divergence import (
    accuracies,
    distances,
    diverging,
    readings,
    repairing,
    starting,
)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Let trainings be short: what is tested is what is drawn of them."""
    monkeypatch.setattr(divergence, "STEPS", 60)
    monkeypatch.setattr(divergence, "_reports", {})


def test_charts_hold_the_numbers_of_the_report():
    report = train(sync="none", steps=30)
    chart = readings(report)
    np.testing.assert_array_equal(np.array(chart.values)[:, :10], report.by_class)
    np.testing.assert_array_equal(np.array(chart.values)[:, 10], report.accuracy)
    assert chart.columns[9:] == ["9", "all"]
    assert chart.rows[0] == "rank 0, saw 0 to 2"
    assert readings(train(shards="shuffled", steps=10)).rows == [f"rank {r}" for r in range(4)]
    (line,) = distances({"alone": report}).lines
    np.testing.assert_array_equal(line.y, report.apart)
    lines = accuracies(report).lines
    for rank, line in enumerate(lines):
        assert line.x == (10, 20, 30)
        assert line.y[-1] == pytest.approx(report.accuracy[rank])


def test_the_diagonal_fills_when_gradients_are_averaged(monkeypatch):
    monkeypatch.setattr(divergence, "STEPS", 300)
    explorer = diverging()
    seen = np.array(explorer.shown.charts[0].values)[:, :10]
    own = np.zeros_like(seen, bool)
    for rank, digits in enumerate((range(3), range(3, 5), range(5, 8), range(8, 10))):
        own[rank, digits] = True
    assert not seen[~own].any()
    assert seen[own].mean() > 0.8
    explorer.turn(sync=("gradients", 1))
    filled = np.array(explorer.shown.charts[0].values)[:, :10]
    assert (filled == filled[0]).all()
    assert filled[0].min() > 0.6


def test_three_lines_rise_stay_at_zero_and_stay_flat():
    explorer = starting()
    none, gradients, start = explorer.shown.charts[0].lines
    assert none.y[-1] > none.y[1] > 0 == none.y[0]
    assert not np.any(gradients.y)
    assert start.y[0] > 1
    np.testing.assert_allclose(start.y, start.y[0], rtol=1e-5)
    assert "gradients, 0 in every step" in explorer.shown.words


def test_what_is_not_averaged_is_always_there_to_compare_with():
    explorer = diverging()
    assert [line.name for line in explorer.shown.charts[1].lines] == ["nothing"]
    explorer.turn(sync=("gradients", 1))
    nothing, gradients = explorer.shown.charts[1].lines
    assert nothing.y[-1] > 0 == np.max(gradients.y)
    explorer.turn(same_start=False)
    assert explorer.shown.charts[1].lines[1].y[-1] > 1


def test_the_table_changes_with_what_is_averaged():
    explorer = diverging()
    explorer.turn(optimizer="AdamW", batch_norm=True)
    different = ("different bits",) * 4
    assert tuple(value for _, value in explorer.shown.table.rows) == different
    explorer.turn(sync=("gradients", 1))
    kinds = dict(explorer.shown.table.rows)
    assert [kinds[k] for k in ("parameters", "optimizer state")] == ["same bits"] * 2
    assert [kinds[k] for k in ("buffers", "random state")] == ["different bits"] * 2
    explorer.turn(sync=("weights", 10))
    kinds = dict(explorer.shown.table.rows)
    assert [kinds[k] for k in ("parameters", "optimizer state")] == ["same bits", "different bits"]
    assert explorer.shown.charts[1].lines[1].name == "weights every 10 steps"


@pytest.mark.parametrize("make", [diverging, repairing, starting])
def test_every_control_moves_the_picture_and_no_position_fails(make):
    """The ends of each control, and random positions of all."""
    explorer = make()
    counts = [len(control["options"]) for control in explorer.controls]
    start, rng = list(explorer.at), np.random.default_rng(0)
    if make is diverging:
        assert counts == [7, 4, 2, 7, 5, 3, 5, 3, 2, 5]
    ends = [[*start[:i], end, *start[i + 1 :]] for i, n in enumerate(counts) for end in (0, n - 1)]
    anywhere = [[int(rng.integers(n)) for n in counts] for _ in range(8)]
    before = explorer.view
    for at in ends + anywhere:
        explorer.set_state({"at": at, "asked": explorer.asked + 1})
        assert (explorer.problem, explorer.at) == ("", at)
        assert "nan" not in "".join(explorer.view["charts"])
        if at in ends and at != start:
            assert explorer.view != before, at


def test_the_words_say_what_became_of_the_gap(monkeypatch):
    monkeypatch.setattr(divergence, "STEPS", 300)
    explorer = repairing()
    assert explorer.shown.words.endswith(", the same.")
    explorer.turn(optimizer="momentum")
    assert "times as much" in explorer.shown.words
    line = explorer.shown.charts[0].lines[0]
    assert not np.any(line.y[:50])
    assert line.y[-1] == pytest.approx(10 * line.y[50], rel=0.01)
    explorer.turn(fault="none")
    assert explorer.shown.words == "All replicas hold the same bits in every step."


def test_a_training_is_kept_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(divergence, "_KEPT", 3)
    explorer = diverging()
    explorer.turn(sync=("gradients", 1))
    assert len(divergence._reports) == 2
    explorer.turn(seed=1)
    assert len(divergence._reports) == 3
    explorer.turn(sync=("weights", 10))
    assert len(divergence._reports) == 3
    explorer.turn(seed=2)
    assert {setting.seed for setting in divergence._reports} == {1, 2}
