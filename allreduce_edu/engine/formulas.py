"""The closed forms: rounds, bytes, messages and time of every algorithm, written down, not counted.

N ranks, S bytes in each rank's array, links that are all alike (or of two tiers, for
hierarchical), chunks of one size. ``python -m allreduce_edu.engine.table`` counts the same in the
schedules and prints both, row by row; the tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

from allreduce_edu.engine import algorithms as make
from allreduce_edu.engine.check import Registry, integer, kind, numbers
from allreduce_edu.engine.links import Links
from allreduce_edu.engine.schedule import Schedule


class Formula(NamedTuple):
    """What one collective costs.

    Attributes
    ----------
    rounds, messages : int
    sent : float
        Bytes sent by the rank that sends most.
    port : float
        Bytes through the busiest port in one direction.
    total : float
        Bytes sent by all ranks together.
    time : float
        Modelled seconds, rounds as barriers: exact, or the most it can be where `least` is less.
    least : float
        The least that the time can be.
    """

    rounds: int
    messages: int
    sent: float
    port: float
    total: float
    time: float
    least: float


class Row(NamedTuple):
    """A closed form, and the schedule whose counts must equal it."""

    label: str
    formula: Callable[..., Formula]
    schedule: Callable[..., Schedule]
    sizes: Callable[[int, int], Any] = lambda n, size: size  # noqa: ARG005 - bytes per rank

    def __repr__(self) -> str:
        return f"Row({self.label})"


def closed_form(name: str, n: int, size: float, links: Links, **options: int) -> Formula:
    """Return the closed form of ``ROWS[name]`` for n ranks and `size` bytes per rank.

    Parameters
    ----------
    name : str
        A key of ROWS: the names in ALGORITHMS and COLLECTIVES, and a few more.
    n, size, links
        Only ``alpha`` and ``beta`` of `links.inside` and `links.across`, and `links.gamma`, count.
    options
        What the algorithm takes: ``chunks``, ``node``, ``servers``.
    """
    row, n = ROWS[name], integer("n", n, 1)
    if not isinstance(links, Links):
        raise TypeError(
            f"links must be Links such as Links.uniform(8, '100 GbE'), got {kind(links)}"
        )
    if not numbers("size", size) >= 0:
        raise ValueError(f"size must be bytes >= 0, got {size!r:.40}")
    for option, value in options.items():
        taken = list(signature(row.formula).parameters)[3:]
        if option not in taken:
            raise ValueError(
                f"{name} has no option {option!r}; it has {', '.join(taken) or 'none'}"
            )
        integer(option, value, 1)
    if n % (options.get("node") or 1):
        raise ValueError(f"node must divide the number of ranks ({n}), got {options['node']}")
    return row.formula(n, float(size), links, **options)


def _exactly(
    links: Links, rounds: int, messages: int, sent: float, total: float, reduced: float, **more: Any
) -> Formula:
    """Time = rounds alpha + port beta + reduced gamma: one port is busy in every round."""
    port = more.get("port", sent)
    time = rounds * links.inside.alpha + port * links.inside.beta + reduced * links.gamma
    return Formula(rounds, messages, sent, port, total, time, time)


def _ring(n: int, S: float, links: Links) -> Formula:
    share = (n - 1) / n * S
    return _exactly(links, 2 * (n - 1), 2 * n * (n - 1), 2 * share, 2 * n * share, share)


def _bidirectional(n: int, S: float, links: Links) -> Formula:
    f = _ring(n, S, links)
    return f._replace(messages=f.messages * (2 if n > 2 else 1))


def _half_of_ring(n: int, S: float, links: Links, adds: float = 1) -> Formula:
    share = (n - 1) / n * S
    return _exactly(links, n - 1, n * (n - 1), share, n * share, adds * share)


def _naive(n: int, S: float, links: Links) -> Formula:
    return _exactly(links, min(n - 1, 1), n * (n - 1), (n - 1) * S, n * (n - 1) * S, (n - 1) * S)


def _gather_and_add(n: int, S: float, links: Links) -> Formula:
    return _exactly(links, n - 1, n * (n - 1), (n - 1) * S, n * (n - 1) * S, (n - 1) * S)


def _sharded(n: int, S: float, links: Links) -> Formula:
    share = (n - 1) / n * S
    return _exactly(links, 2 * min(n - 1, 1), 2 * n * (n - 1), 2 * share, 2 * n * share, share)


def _server(n: int, S: float, links: Links) -> Formula:
    there = (n - 1) * S
    time = 2 * min(n - 1, 1) * links.inside.alpha + there * (2 * links.inside.beta + links.gamma)
    return Formula(2 * min(n - 1, 1), 2 * (n - 1), there, there, 2 * there, time, time)


def _servers(n: int, S: float, links: Links, servers: int = 1) -> Formula:
    port, one = max(S, n * S / servers), links.inside
    push = max(S * one.beta, S / servers * (n * one.beta + (n - 1) * links.gamma))
    time = 2 * one.alpha + push + port * one.beta
    return Formula(2, 2 * n * servers, port, port, 2 * n * S, time, time)


def _levels(n: int) -> int:
    return (n - 1).bit_length()


def _binomial_half(n: int, S: float, links: Links, adds: float = 1) -> Formula:
    d = _levels(n)
    sends = d * S if not adds else min(d, 1) * S  # the root sends in each round of a broadcast
    return _exactly(links, d, n - 1, sends, (n - 1) * S, adds * d * S, port=d * S)


def _binomial(n: int, S: float, links: Links) -> Formula:
    d = _levels(n)
    f = _exactly(links, 2 * d, 2 * (n - 1), d * S, 2 * (n - 1) * S, d * S, port=2 * d * S)
    return f._replace(port=d * S)


def _depth(n: int) -> int:
    return n.bit_length() - 1 + (n & (n - 1) > 0) if n > 1 else 0


def _pipelined(n: int, S: float, links: Links, chunks: int = 8) -> Formula:
    return _pipeline(n, S, links, chunks, chunks, min(n - 1, 3))


def _double(n: int, S: float, links: Links, chunks: int = 8) -> Formula:
    """Messages at most: where both trees use a link in the same round, it carries one."""
    return _pipeline(n, S, links, chunks, (chunks + 1) // 2, min(n, 4) * (n > 1))


def _pipeline(n: int, S: float, links: Links, chunks: int, steps: int, most: int) -> Formula:
    """Trees: in a round a port carries at most `most` chunks, and in a full pipeline just that.

    Exact in rounds and bytes (for an even number of chunks). In time only bounded, because while
    the pipeline fills and drains a round costs between one chunk and `most`.
    """
    d, c = _depth(n), S / chunks
    rounds = steps + 2 * d - 1 if n > 1 else 0
    full = max(steps - 2 * d + 1, 0) if n > 1 else 0
    beta, alpha = links.inside.beta, links.inside.alpha
    time = rounds * (alpha + most * c * beta + min(most, 2) * c * links.gamma)
    least = rounds * (alpha + c * beta) + full * (most - 1) * c * beta
    sent = most * S * steps / chunks
    total = 2 * (n - 1) * S
    return Formula(rounds, 2 * (n - 1) * chunks, sent, sent, total, time, least)


def _folded(n: int, S: float, links: Links, core: Formula) -> Formula:
    """Two more rounds of S for the p < N ranks and their partners, if N is no power of two."""
    extra = n - (1 << (n.bit_length() - 1))
    if not extra:
        return core
    time = core.time + 2 * (links.inside.alpha + S * links.inside.beta) + S * links.gamma
    return Formula(
        core.rounds + 2,
        core.messages + 2 * extra,
        core.sent + S,
        core.port + S,
        core.total + 2 * extra * S,
        time,
        time,
    )


def _doubling(n: int, S: float, links: Links) -> Formula:
    p = 1 << (n.bit_length() - 1)
    rounds = _levels(p)
    core = _exactly(links, rounds, p * rounds, rounds * S, p * rounds * S, rounds * S)
    return _folded(n, S, links, core)


def _halving(n: int, S: float, links: Links) -> Formula:
    p = 1 << (n.bit_length() - 1)
    rounds, share = 2 * _levels(p), (p - 1) / p * S
    core = _exactly(links, rounds, p * rounds, 2 * share, 2 * p * share, share)
    return _folded(n, S, links, core)


def _nodes(n: int, node: int | None) -> tuple[int, int]:
    g = node or max((g for g in range(1, min(n, 9)) if n % g == 0), default=1)
    return n // g, g


def _hierarchical(n: int, S: float, links: Links, node: int | None = None) -> Formula:
    m, g = _nodes(n, node)
    one, two, gamma = links.inside, links.across, links.gamma
    time = (g - 1) * (2 * one.alpha + S / g * (2 * one.beta + gamma))
    time += (m - 1) * (2 * two.alpha + S / n * (2 * two.beta + gamma))
    rounds, sent = 2 * (g - 1) + 2 * (m - 1), 2 * (n - 1) / n * S
    return Formula(rounds, n * rounds, sent, sent, n * sent, time, time)


def _leaders(n: int, S: float, links: Links, node: int | None = None) -> Formula:
    m, g = _nodes(n, node)
    d, one, two, gamma = _levels(g), links.inside, links.across, links.gamma
    time = d * (2 * one.alpha + S * (2 * one.beta + gamma))
    time += (m - 1) * (2 * two.alpha + S / m * (2 * two.beta + gamma))
    port = d * S + 2 * (m - 1) / m * S
    messages = 2 * (g - 1) * m + 2 * m * (m - 1)
    return Formula(2 * d + 2 * (m - 1), messages, port, port, 2 * (n - 1) * S, time, time)


def _into_one(n: int, S: float, links: Links) -> Formula:
    """Of which every other rank sends only its own piece."""
    return _out_of_one(n, S, links)._replace(sent=min(n - 1, 1) * S / n)


def _out_of_one(n: int, S: float, links: Links) -> Formula:
    share = (n - 1) / n * S
    return _exactly(links, min(n - 1, 1), n - 1, share, share, 0)


def _copies(form: Callable[..., Formula]) -> Callable[..., Formula]:
    return lambda n, S, links: form(n, S, links, 0)


ROWS: Registry[Row] = Registry(
    "closed form",
    {
        "dedicated_server": Row(
            "F1 parameter server, one dedicated", _servers, lambda n: make.parameter_server(n, 1)
        ),
        "dedicated_servers": Row(
            "F2 parameter server, k dedicated", _servers, make.parameter_server
        ),
        "parameter_server": Row("F1' parameter server on rank 0", _server, make.parameter_server),
        "sharded_server": Row("F3 parameter server, sharded", _sharded, make.sharded_server),
        "naive": Row("F4 everyone to everyone", _naive, make.naive),
        "one_shot": Row("F4' one-shot", _naive, make.one_shot),
        "gather_and_add": Row(
            "F5 ring all-gather, local sum",
            _gather_and_add,
            make.ring_all_gather,
            lambda n, size: n * size,
        ),
        "ring": Row("F6 ring", _ring, make.ring),
        "gloo_ring": Row("F6 gloo's ring", _ring, make.gloo_ring),
        "pairwise_exchange": Row("F6 pairwise exchange", _ring, make.pairwise_exchange),
        "bidirectional_ring": Row(
            "F6b bidirectional ring", _bidirectional, make.bidirectional_ring
        ),
        "recursive_doubling": Row("F7 recursive doubling", _doubling, make.recursive_doubling),
        "halving_doubling": Row("F8 halving-doubling", _halving, make.halving_doubling),
        "binomial_tree": Row("F9a binomial tree", _binomial, make.binomial_tree),
        "pipelined_tree": Row("F9b pipelined tree", _pipelined, make.pipelined_tree),
        "double_binary_tree": Row("F9c double binary tree", _double, make.double_binary_tree),
        "hierarchical": Row("F10 hierarchical", _hierarchical, make.hierarchical),
        "hierarchical_leader": Row("F10b with leaders", _leaders, make.hierarchical_leader),
        "ring_reduce_scatter": Row("F11a reduce-scatter", _half_of_ring, make.ring_reduce_scatter),
        "pairwise_reduce_scatter": Row(
            "F11a reduce-scatter, raw shares", _half_of_ring, make.pairwise_reduce_scatter
        ),
        "ring_all_gather": Row("F11a all-gather", _copies(_half_of_ring), make.ring_all_gather),
        "binomial_reduce": Row("F11b reduce", _binomial_half, make.binomial_reduce),
        "binomial_broadcast": Row(
            "F11b broadcast", _copies(_binomial_half), make.binomial_broadcast
        ),
        "gather": Row("F11c gather", _into_one, make.gather),
        "scatter": Row("F11c scatter", _out_of_one, make.scatter),
        "all_to_all": Row(
            "F11d all-to-all", _copies(_half_of_ring), make.all_to_all, lambda n, size: n * size
        ),
    },
)
