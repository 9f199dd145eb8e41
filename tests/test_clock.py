"""The clock view shows what the engine reckons, for every position of its controls."""

import time
from itertools import product

import numpy as np
import pytest

pytest.importorskip("anywidget")

from allreduce_edu import Links, clocks, parameter_server, ring, timeline
from allreduce_edu.show.clock import LINK, RANKS, SIZE, gantt, late_rank, slow_link


def ends(chart):
    """Return when each rank is done, in seconds."""
    return [max(b.end for b in chart.bars if b.rank == r) / 1e3 for r in range(chart.ranks)]


def names(explorer):
    return [control.name for control in explorer._controls]


def positions(explorer, count=30):
    """Return the ends of every control, and random positions of all."""
    values = [control.values for control in explorer._controls]
    start, rng = list(explorer.values.values()), np.random.default_rng(0)
    for i, options in enumerate(values):
        for end in (options[0], options[-1]):
            yield [*start[:i], end, *start[i + 1 :]]
    for _ in range(count):
        yield [options[rng.integers(len(options))] for options in values]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_slow_link_is_drawn_as_the_clocks_say(ranks):
    explorer = slow_link()
    for factor, link in product((1.0, 3.0), (0, -1)):
        explorer.turn(factor=factor, link=link, ranks=ranks)
        src = link % ranks
        links = Links.uniform(ranks, LINK).with_slow(link=(src, (src + 1) % ranks), factor=factor)
        done = clocks(ring(ranks), SIZE, links)
        (chart,) = explorer.shown.charts
        np.testing.assert_allclose(ends(chart), done)


def test_one_slow_link_of_four_triples_the_time_nearly():
    assert "23.1 ms: 2.98 times as long" in slow_link().shown.words


def test_everybody_waits_for_a_late_rank_once():
    explorer = late_rank()
    explorer.turn(late=50.0, ranks=4)
    (chart,) = explorer.shown.charts
    assert "All ranks are 50 ms later." in explorer.shown.words
    waits = [
        sum(b.end - b.start for b in chart.bars if (b.rank, b.kind) == (r, "waits"))
        for r in range(4)
    ]
    np.testing.assert_allclose(waits, [50, 50, 0, 50])
    assert [(b.start, b.end) for b in chart.bars if b.kind == "late"] == [(0, 50)]


def test_the_wave_reaches_one_rank_further_in_each_round():
    (chart,) = late_rank().shown.charts
    first = {b.rank: b.start for b in chart.bars if b.kind == "waits"}
    order = sorted(first, key=first.__getitem__)
    assert {order[0], order[1]} == {1, 3}
    assert {order[2], order[3]} == {0, 4}
    assert order[-1] == 6


def test_a_short_delay_hides_behind_a_far_slow_link_unless_there_are_barriers():
    explorer = late_rank()
    explorer.turn(late=0.0, rank=0, factor=2.0)
    (before,) = explorer.shown.charts
    explorer.turn(late=1.0)
    (free,) = explorer.shown.charts
    np.testing.assert_allclose(ends(free), ends(before))
    explorer.turn(barrier=True)
    (locked,) = explorer.shown.charts
    np.testing.assert_allclose(ends(locked), max(ends(before)) + 1e-3)


@pytest.mark.parametrize("make", [slow_link, late_rank])
def test_no_position_fails_and_each_is_drawn_in_time(make):
    explorer = make()
    seen, slowest = set(), 0.0
    for values in positions(explorer):
        wanted = dict(zip(names(explorer), values, strict=True))
        begun = time.process_time()
        explorer.turn(**wanted)
        slowest = max(slowest, time.process_time() - begun)
        assert (explorer.problem, explorer.values) == ("", wanted)
        assert "nan" not in explorer.view["charts"][0]
        seen.add(explorer.view["charts"][0])
    assert len(seen) > 20
    assert slowest < 1.0  # some ten times what it takes: a quadratic slip, not a busy machine


def test_nothing_is_late_where_nothing_is_wrong():
    explorer = late_rank()
    explorer.turn(late=0.0)
    assert "Nobody is later." in explorer.shown.words
    assert {b.kind for b in explorer.shown.charts[0].bars} == {"adds", "copies"}


def test_any_schedule_has_a_picture_and_ranks_without_messages_have_gaps():
    star, links = parameter_server(4), Links.uniform(4, LINK)
    chart = gantt(star, timeline(star, SIZE, links), "A star")
    assert [b.kind for b in chart.bars if b.rank == 0] == ["adds", "copies"]


@pytest.mark.parametrize("ranks", RANKS)
def test_the_far_link_is_half_round_the_ring_from_the_late_rank(ranks):
    explorer = late_rank()
    for rank in (0, 2, -1):
        explorer.turn(late=2.0, rank=rank, ranks=ranks, factor=5.0)
        far = rank % ranks + ranks // 2
        links = Links.uniform(ranks, LINK)
        links = links.with_slow(link=(far % ranks, (far + 1) % ranks), factor=5)
        done = clocks(ring(ranks), SIZE, links, {rank % ranks: 0.002})
        np.testing.assert_allclose(ends(explorer.shown.charts[0]), done)
