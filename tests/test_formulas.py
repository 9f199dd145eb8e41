"""Every closed form against what is counted in its schedule."""

import math
import re
import subprocess
import sys

import pytest

from allreduce_edu import ALGORITHMS, COLLECTIVES
from allreduce_edu.engine.formulas import ROWS, closed_form
from allreduce_edu.engine.links import Link, Links
from allreduce_edu.engine.table import counted, table

LINKS = Link.of(7e-6, 9e9)
OPTIONS = {
    "dedicated_servers": [{"servers": k} for k in (1, 2, 3)],
    "pipelined_tree": [{}, {"chunks": 1}, {"chunks": 60}],
    "double_binary_tree": [{}, {"chunks": 2}, {"chunks": 60}],
}


def links(name, n, options, gamma=3e-10):
    more = options.get("servers", 1) if name.startswith("dedicated") else 0
    return Links.uniform(n + more, LINKS, gamma)


def test_every_algorithm_and_collective_has_a_row():
    assert set(ALGORITHMS) | set(COLLECTIVES) <= set(ROWS)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("n", range(1, 18))
def test_what_is_counted_is_what_is_written(name, n):
    size = n * 16 * 3 * 60  # cuts into equal chunks, for every row
    for options in OPTIONS.get(name, [{}]):
        # the local sum of gather_and_add comes after its schedule
        net = links(name, n, options, gamma=0 if name == "gather_and_add" else 3e-10)
        have = counted(name, n, size, net, **options)
        want = closed_form(name, n, size, net, **options)
        assert have.rounds == want.rounds
        assert have.messages == want.messages or name == "double_binary_tree"
        assert have.messages <= want.messages
        assert have[2:5] == pytest.approx(want[2:5], rel=1e-12)
        assert want.least * (1 - 1e-12) <= have.time <= want.time * (1 + 1e-12)
        if name not in ("pipelined_tree", "double_binary_tree"):
            assert want.least == want.time


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 8, 17])
@pytest.mark.parametrize("size", [0, 1, 5, 1003, 99_991])
def test_sizes_that_do_not_divide_move_as_much_in_total(name, n, size):
    if name in ("gather", "scatter"):
        return  # one piece stays where it is, and pieces differ
    for options in OPTIONS.get(name, [{}]):
        net = links(name, n, options)
        have = counted(name, n, size, net, **options)
        want = closed_form(name, n, size, net, **options)
        assert have.rounds == want.rounds
        if name != "all_to_all":  # of which the blocks that stay differ
            assert have.total == pytest.approx(want.total, rel=1e-12)
        assert have.messages <= want.messages


@pytest.mark.parametrize(("m", "g"), [(1, 4), (4, 1), (2, 8), (3, 5), (16, 8)])
@pytest.mark.parametrize("name", ["hierarchical", "hierarchical_leader"])
def test_two_tiers(name, m, g):
    net = Links.two_tier(m, g, Link(1e-6, 1e-11), Link(9e-6, 1e-10), gamma=1e-11)
    size = 240 * m * g
    have = counted(name, m * g, size, net, node=g).time
    assert have == pytest.approx(closed_form(name, m * g, size, net, node=g).time, rel=1e-12)


@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_nothing_beats_the_lower_bound_and_the_ring_meets_it(n):
    net = Links.uniform(n, Link.of(0, 1e9))
    size = n * 2880
    for name in ALGORITHMS:
        assert closed_form(name, n, size, net).port >= 2 * (n - 1) / n * size * (1 - 1e-12)
    for name in ("ring", "sharded_server", "pairwise_exchange"):
        assert closed_form(name, n, size, net).port == pytest.approx(2 * (n - 1) / n * size)


@pytest.mark.parametrize(("n", "mebibytes"), [(8, 1.0), (16, 1.5), (64, 3.5), (256, 10)])
def test_where_recursive_doubling_and_ring_take_equally_long(n, mebibytes):
    alpha, speed, steps = 10e-6, 12.5e9, math.log2(n)
    size = alpha * (2 * (n - 1) - steps) * speed / (steps - 2 * (n - 1) / n)
    assert size / 2**20 == pytest.approx(mebibytes, rel=0.06)
    net = Links.uniform(n, Link.of(alpha, speed))
    times = [closed_form(name, n, size, net).time for name in ("ring", "recursive_doubling")]
    assert times[0] == pytest.approx(times[1], rel=1e-12)


def test_an_unknown_row_gets_the_nearest_name():
    with pytest.raises(ValueError, match="unknown closed form 'rign'; did you mean 'ring'"):
        closed_form("rign", 4, 100, Links.uniform(4, LINKS))


@pytest.mark.parametrize("n", [5, 8])
def test_the_table_has_every_row_and_no_difference(n):
    text = table(n, 1 << 10, "10 GbE")
    assert "≠" not in text
    assert "outside" not in text
    assert all(row.label in text for row in ROWS.values())


def test_one_command_prints_it():
    run = subprocess.run(
        [sys.executable, "-m", "allreduce_edu.engine.table", "--ranks", "4"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "| F6 ring | 6 = | 1.5 = | 1.5 = | 6 = | 24 = |" in run.stdout


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_says_its_row_its_source_and_when_it_wins_and_loses(name):
    said = ALGORITHMS[name].__doc__
    assert re.search(rf"\b{ROWS[name].label.split()[0]}(?![\w'])", said)
    assert re.search("Sources?:", said)
    assert re.search("[Ww]ins", said)
    assert re.search("[Ll]oses|nothing changes", said)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_another_collective_says_its_row(name):
    assert re.search(rf"\b{ROWS[name].label.split()[0]}\b", COLLECTIVES[name].__doc__)
