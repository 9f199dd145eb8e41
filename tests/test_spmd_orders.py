"""Every order that can differ is tried, none is missed, and the shortest that fails is replayed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import spmd_programs as programs

from allreduce_edu import explain, spmd, summation_order
from allreduce_edu.engine.spmd.chance import fresh
from allreduce_edu.engine.spmd.simulate import Limits, run_in, shares_of
from allreduce_edu.engine.spmd.world import SimulatedWorld


def from_anybody(comm, x):
    """Adds in the order of arrival."""
    if comm.rank:
        comm.send(x, 0)
    else:
        for _ in range(comm.size - 1):
            x += comm.recv()


def then_from_two(comm, x):
    if comm.rank:
        comm.send(x, 0)
    else:
        comm.recv()
        comm.recv(2)


def two_phases(comm, x):
    """A message of the second phase can be taken for one of the first."""
    if comm.rank:
        comm.send(x, 0)
        comm.send(x + 10, 0)
        return None
    return [float(comm.recv()[0]) for _ in range(2 * (comm.size - 1))]


def reuses(comm, x):
    """Changes an array that is on its way."""
    request = comm.isend(x, (comm.rank + 1) % comm.size)
    x *= 2
    came = comm.recv((comm.rank - 1) % comm.size)
    request.wait()
    return came


def in_two_groups(comm, x):
    """Two groups; the first result of either is taken as the first."""
    low, high = comm.group([0, 1]), comm.group([0, 2])
    if comm.rank == 0:
        return [float(g.recv()[0]) for g in (low, high)] + [float(comm.recv()[0]) for _ in "ab"]
    (low or high).send(x, 0)
    comm.send(x + 10, 0)
    return None


def numbers(ranks):
    return np.arange(1.0, ranks + 1)[:, None]


@pytest.mark.parametrize(
    ("fn", "ranks", "runs", "outcomes"),
    [
        (programs.ring, 3, 1, 1),  # a ring leaves nothing to chance
        (programs.direct, 3, 1, 1),
        (from_anybody, 3, 2, 1),  # exact numbers: one sum
        (from_anybody, 4, 6, 1),
        (then_from_two, 3, 2, 2),
        (two_phases, 3, math.comb(4, 2), 6),
        (two_phases, 4, math.factorial(6) // 8, 90),
        (in_two_groups, 3, 2, 2),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_as_many_orders_as_there_are(fn, ranks, runs, outcomes):
    found = spmd.orders(fn, np.repeat(numbers(ranks), 2, 1))
    assert (found.runs, found.complete, len(found.outcomes)) == (runs, True, outcomes)


def test_a_sum_in_the_order_of_arrival_differs_in_its_bits():
    x = np.array([[1e16], [1.0], [-1e16]])
    found = spmd.orders(from_anybody, x)
    assert found.failing.steps == ("rank 0 takes the message of rank 2",)
    assert sorted(o.results[0].tolist() for o in found.outcomes) == [[0.0], [1.0]]
    good = spmd.orders(from_anybody, x, good=lambda results: abs(results[0][0]) < 2)
    assert good.failing is None
    assert repr(good) == "Orders: all 2 orders tried, 2 outcomes; fails: none"


def test_the_shortest_failing_order_is_replayed_by_its_seed():
    found = spmd.orders(then_from_two, numbers(3))
    assert found.failing.seed == (1,)
    assert found.failing.kind == "Deadlock"
    assert "rank 0 listens to rank 2, but the message" in str(found.failing)
    spmd.run(then_from_two, numbers(3))
    spmd.run(then_from_two, numbers(3), order=())
    for _ in range(2):
        with pytest.raises(spmd.Deadlock) as info:
            spmd.run(then_from_two, numbers(3), order=found.failing.seed)
        assert str(info.value) == str(found.failing.error)


def test_every_outcome_is_replayed_by_its_seed():
    for fn, ranks in ((two_phases, 3), (reuses, 3)):
        for order in spmd.orders(fn, numbers(ranks)).outcomes:
            again = spmd.run(fn, numbers(ranks), order=order.seed).results
            assert repr(again) == repr(order.results)


def test_a_changed_array_is_read_before_or_after():
    found = spmd.orders(reuses, numbers(2))
    came = {tuple(float(r[0]) for r in order.results) for order in found.outcomes}
    assert came == {(2.0, 1.0), (4.0, 1.0), (2.0, 2.0), (4.0, 2.0)}
    assert found.complete
    (step,) = found.failing.steps
    assert step.startswith("rank 0's isend (test_spmd_orders.py, line ")
    assert step.endswith("reads its array 1 call later")


def test_the_player_shows_a_failing_order():
    usual = spmd.schedule(from_anybody, 3, collective="reduce", root=0)
    other = spmd.schedule(from_anybody, 3, collective="reduce", root=0, order=(1,))
    assert explain(usual) == explain(other) == []
    assert [str(summation_order(s)) for s in (usual, other)] == ["((0 + 1) + 2)", "((0 + 2) + 1)"]


def test_what_a_program_raises_in_some_order_is_an_outcome():
    def program(comm, x):
        if comm.rank == 0 and comm.recv()[0] > comm.recv()[0]:
            raise LookupError("out of order")
        if comm.rank:
            comm.send(x, 0)

    found = spmd.orders(program, numbers(3))
    assert [o.kind for o in found.outcomes] == ["result", "LookupError"]
    assert str(found.failing.error) == "out of order"


def test_polling_for_anybody_comes_to_an_end():
    def program(comm, x):
        if comm.rank:
            comm.send(x, 0)
            return
        for _ in range(2):
            request = comm.irecv(None, x.copy())
            while not request.is_completed():
                pass
            request.wait()

    found = spmd.orders(program, numbers(3))
    assert (found.runs, found.complete) == (2, True)


def test_it_stops_where_it_is_told_to_and_says_so():
    found = spmd.orders(two_phases, numbers(4), most=10)
    assert (found.runs, found.complete) == (10, False)
    assert repr(found).startswith("Orders: 10 orders tried")


def test_bad_input():
    with pytest.raises(ValueError, match="ranks must be an integer between 1 and 4, got 5"):
        spmd.orders(programs.ring, np.ones((5, 5)))
    with pytest.raises(ValueError, match="choice 0 of order must be between 0 and 1, got 2"):
        spmd.run(then_from_two, numbers(3), order=(2,))
    with pytest.raises(ValueError, match="order must be 0 choices, got 1"):
        spmd.run(programs.ring, numbers(3), order=(1,))
    with pytest.raises(ValueError, match="order must be an integer >= 0, got -1"):
        spmd.run(programs.ring, numbers(3), order=(-1,))


# ------------------------------------------------- against all orders of all calls


class FreeWorld(SimulatedWorld):
    """Any rank that can go on may be the next at every message: nothing is assumed."""

    def __init__(self, size, order):
        super().__init__(size, buffered=False, most=1000, strict=False)
        self.order, self.made = order, []

    def post(self, comm, *args):
        can = [r for r in range(self.size) if r == comm.me or self._can_go(r)]
        at = len(self.made)
        taken = self.order[at] if at < len(self.order) else 0
        self.made.append((taken, len(can)))
        if can[taken] != comm.me:
            self.running = can[taken]
            self.baton.give(can[taken])
            self.baton.take(comm.me)
            self.running = comm.me
            self._check()
        return super().post(comm, *args)


def all_outcomes(fn, x):
    """Return the outcomes of every order of every message, as keys."""
    found, todo, shares = set(), [[]], shares_of(fn, x, None)
    while todo:
        prefix = todo.pop()
        world = FreeWorld(len(shares), prefix)
        try:
            results, error = run_in(world, fn, fresh(shares), Limits(5, 60, 1000)), None
        except spmd.Deadlock as deadlock:
            results, error = None, deadlock
        found.add("hangs" if error else repr(results.results))
        taken = [each for each, _ in world.made]
        for i in range(len(prefix), len(world.made)):
            todo += [[*taken[:i], k] for k in range(1, world.made[i][1])]
    return found


def random_program(seed):
    """Ranks 1 and 2 send rank 0 one or two messages; it hears anybody, or one of them."""
    rng = np.random.default_rng(seed)
    sends = rng.integers(1, 3, 2)
    hears = rng.choice([-1, -1, 1, 2], int(sends.sum())).tolist()

    def program(comm, x):
        if comm.rank:
            for k in range(sends[comm.rank - 1]):
                comm.send(x + 10 * k, 0)
            return None
        return [float(comm.recv(None if src < 0 else src)[0]) for src in hears]

    return program


@pytest.mark.parametrize(
    "fn", [from_anybody, then_from_two, *(random_program(seed) for seed in range(6))]
)
def test_no_outcome_of_any_order_of_all_messages_is_missed(fn):
    x = numbers(3)
    mine = {
        repr(order.results) if order.results else "hangs" for order in spmd.orders(fn, x).outcomes
    }
    assert all_outcomes(fn, x) == mine
