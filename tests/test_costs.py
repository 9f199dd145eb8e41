"""The explorers of notebook 04: every number is the engine's, for every position."""

import time

import numpy as np
import pytest

pytest.importorskip("anywidget")

from allreduce_edu import LINKS, Link, Links, closed_form, cost, ring, sent_bytes
from allreduce_edu.lessons.counting import FOUR, least_sent
from allreduce_edu.show.costs import (
    NAMES,
    RANKS,
    SIZES,
    counting,
    crossovers,
    fastest,
    in_bytes,
    in_seconds,
    terms,
    terms_chart,
    time_chart,
    timing,
)


def names(explorer):
    return [control.name for control in explorer._controls]


def positions(explorer, count=25):
    """Return the ends of every control, and random positions of all."""
    values = [control.values for control in explorer._controls]
    start, rng = list(explorer.values.values()), np.random.default_rng(0)
    for i, options in enumerate(values):
        for end in (options[0], options[-1]):
            yield [*start[:i], end, *start[i + 1 :]]
    for _ in range(count):
        yield [options[rng.integers(len(options))] for options in values]


@pytest.mark.parametrize("make", [counting, timing])
def test_every_control_moves_something_and_no_position_fails(make):
    explorer = make()
    before, slowest = explorer.view, 0.0
    for k, values in enumerate(positions(explorer)):
        wanted = dict(zip(names(explorer), values, strict=True))
        start = list(explorer.values.values())
        begun = time.process_time()
        explorer.turn(**wanted)
        slowest = max(slowest, time.process_time() - begun)
        assert (explorer.problem, explorer.values) == ("", wanted)
        assert "nan" not in "".join(explorer.view["charts"])
        if k < 2 * len(values) and values != start:
            assert explorer.view != before
        before = explorer.view
    assert slowest < 1.0  # some ten times what it takes: a quadratic slip, not a busy machine


@pytest.mark.parametrize("ranks", [2, 7, 64])
@pytest.mark.parametrize(("elements", "width"), [(1, 4), (1000, 2), (10**6, 8)])
def test_bars_and_table_show_what_the_engine_counts(ranks, elements, width):
    explorer = counting()
    explorer.turn(ranks=ranks, elements=elements, width=width)
    most, total = explorer.shown.charts
    for i, (name, make) in enumerate(FOUR.values()):
        schedule = make(ranks)
        sizes = np.asarray(schedule.cut(elements, width)) * width
        sent = sent_bytes(schedule, sizes)
        assert (most.names[i], most.parts["sent"][i]) == (name, sent.max())
        assert total.parts["sent"][i] == sent.sum()
        row = dict(zip(explorer.shown.table.head, explorer.shown.table.rows[i], strict=True))
        assert row["sent by all"] == in_bytes(sent.sum())
        seconds = cost.time(schedule, sizes, Links.uniform(ranks, "100 GbE"))
        assert row["time, modelled"] == in_seconds(seconds)
    (bound,) = most.guides
    assert bound.at == least_sent(ranks, elements * width)
    assert min(most.parts["sent"]) >= bound.at


def test_the_server_is_uneven_and_its_table_says_so():
    server, many, cut, _ = counting().shown.table.rows
    assert (server[5], many[5], cut[5]) == ("4 MB to 28 MB", "28 MB", "7 MB")


def test_long_times_are_written_in_seconds():
    written = [in_seconds(x) for x in (0, 2e-5, 0.5, 22.4, 1000)]
    assert written == ["0 s", "20 µs", "500 ms", "22.4 s", "1,000 s"]


def test_more_chunks_change_neither_rounds_nor_bytes_where_they_divide():
    explorer = counting()
    explorer.turn(elements=7 * 10**9, ranks=8)
    before = explorer.shown.table.rows[2]
    explorer.turn(pieces=4)
    after = explorer.shown.table.rows[2]
    assert (before[1], after[1]) == ("8", "32")
    assert before[2:] == after[2:]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["1 GbE", "100 GbE", "NVLink 4"])
def test_the_fastest_changes_at_the_crossovers_and_nowhere_else(ranks, name):
    link = LINKS[name]
    found = crossovers(ranks, link)
    edges = [1.0, *(at for at, _ in found), 1e12]
    kinds = [fastest(ranks, 1e-3, link), *(key for _, key in found)]
    for key, low, high in zip(kinds, edges, edges[1:], strict=False):
        for size in np.geomspace(low * 1.001, high * 0.999, 7):
            best = sum(terms(fastest(ranks, size, link), ranks, size, link))
            assert sum(terms(key, ranks, size, link)) == pytest.approx(best)
    assert kinds[-1] == "ring" or ranks == 2


def test_the_crossing_of_ring_and_recursive_doubling_is_the_closed_form():
    link = Link.of(10e-6, 12.5e9)
    for n, log2 in ((8, 3), (64, 6)):
        at = link.alpha * (2 * (n - 1) - log2) / link.beta / (log2 - 2 * (n - 1) / n)
        assert {key: size for size, key in crossovers(n, link)}["ring"] == pytest.approx(at)


@pytest.mark.parametrize("key", FOUR)
@pytest.mark.parametrize("ranks", [2, 5, 64])
def test_two_terms_make_the_time(key, ranks):
    link = LINKS["25 GbE"]
    for size in (4, 10**6):
        whole = closed_form(key, ranks, size, Links.uniform(ranks, link)).time
        assert sum(terms(key, ranks, size, link)) == pytest.approx(whole)


def test_curves_bars_and_guide_follow_the_controls():
    explorer = timing()
    explorer.turn(size=2000, ranks=8, link="10 GbE", latency=0.1, speed=2.0)
    curves, bars = explorer.shown.charts
    link = Link(LINKS["10 GbE"].alpha / 10, LINKS["10 GbE"].beta / 2)
    assert [line.name for line in curves.lines] == list(NAMES.values())
    for key, line in zip(FOUR, curves.lines, strict=True):
        at = line.y[SIZES.index(2000)]
        assert at == pytest.approx(sum(terms(key, 8, 2000, link)))
    assert curves.guides[0].at == 2000
    both = [terms(key, 8, 2000, link) for key in ("ring", "recursive_doubling")]
    assert bars.parts["latency"] == [latency for latency, _ in both]
    assert bars.totals == pytest.approx([sum(each) for each in both])


def test_a_change_of_one_term_leaves_the_other():
    explorer = timing()
    explorer.turn(ranks=8)
    before = explorer.shown.charts[1].parts
    explorer.turn(speed=10.0)
    after = explorer.shown.charts[1].parts
    assert after["latency"] == before["latency"]
    np.testing.assert_allclose(np.multiply(after["bytes"], 10), before["bytes"])


def test_the_words_name_the_fastest_and_where_the_rings_terms_are_equal():
    explorer = timing()
    explorer.turn(ranks=8, size=10**9)
    assert "the model's fastest is: ring" in explorer.shown.words
    assert "Of the ring's time 0 % is latency; it is half of it at 1.4 MB." in explorer.shown.words
    explorer.turn(size=5)
    assert "Of the ring's time 100 % is latency" in explorer.shown.words
    even = 8 * 14e-6 * 12.5e9
    assert np.isclose(*terms("ring", 8, even, LINKS["100 GbE"]))


def test_every_crossover_in_sight_is_a_point():
    link = LINKS["100 GbE"]
    chart = time_chart(64, 10**6, link)
    assert [p.x for p in chart.points] == [at for at, _ in crossovers(64, link)]
    for point, (_, key) in zip(chart.points, crossovers(64, link), strict=True):
        assert point.y == pytest.approx(sum(terms(key, 64, point.x, link)))
    assert terms_chart(64, 10**6, link).names == ["ring", "recursive doubling"]
    assert ring(64).ranks == 64
