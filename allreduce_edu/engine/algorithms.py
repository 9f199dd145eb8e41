"""The algorithms, each as a schedule of a few lines, correct for every number of ranks.

S is the size of one rank's array, N the number of ranks; "sent" is per rank, and in a
full-duplex network as much is received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from allreduce_edu.engine.check import Registry, integer
from allreduce_edu.engine.schedule import Ints, Round, Schedule

_MOST_RANKS = 1 << 20  # enough for any machine, and lists one owner per rank in a blink


def ring_reduce_scatter(n: int, chunks: int | None = None) -> Schedule:
    """Rank r ends with block r+1 complete, after n-1 rounds of one block each.

    Sends (N-1)S/N. Source: Patarasuk & Yuan 2009.
    """
    n, k = _blocks(n, chunks)
    r = np.arange(n)
    return Schedule(
        "ring reduce-scatter",
        n,
        n * k,
        lambda: (_pass_on(r, (r + 1) % n, (r - i) % n, k, reduce=True) for i in range(n - 1)),
        collective="reduce_scatter",
        owner=_owners(n, k),
    )


def ring_all_gather(n: int, chunks: int | None = None) -> Schedule:
    """Every rank ends with every block; rank r starts with block r+1. Sends (N-1)S/N."""
    n, k = _blocks(n, chunks)
    r = np.arange(n)
    return Schedule(
        "ring all-gather",
        n,
        n * k,
        lambda: (_pass_on(r, (r + 1) % n, (r + 1 - i) % n, k, reduce=False) for i in range(n - 1)),
        collective="all_gather",
        owner=_owners(n, k),
    )


def ring(n: int, chunks: int | None = None) -> Schedule:
    """Pass one block of N to the right neighbour in each of 2(N-1) rounds: no rank is special.

    Sends 2(N-1)S/N, the least any exchange between pairs can do; pays 2(N-1) latencies.
    ``chunks=k*n`` cuts each block into k pieces. Source: Patarasuk & Yuan 2009.
    """
    return (ring_reduce_scatter(n, chunks) >> ring_all_gather(n, chunks)).named("ring all-reduce")


def gloo_ring(n: int) -> Schedule:
    """Play the ring as gloo does, with gloo's own chunk bounds: equal to it bit for bit.

    Data travel from rank r to rank r-1 and chunk r is finished on rank r.
    Source: pytorch/gloo, gloo/allreduce.cc (ring, which torch uses for every size).
    """
    n = _ranks(n)
    r = np.arange(n)

    def rounds() -> Iterator[Round]:
        yield from (Round.of(r, (r - 1) % n, (r + 1 + i) % n, True) for i in range(n - 1))
        yield from (Round.of(r, (r - 1) % n, (r + i) % n, False) for i in range(n - 1))

    return Schedule("gloo's ring all-reduce", n, n, rounds, cutter=_gloo_cut)


def naive(n: int) -> Schedule:
    """Everyone sends the whole array to everyone: one round, (N-1)S sent per rank.

    Each rank starts with its own share and adds its right neighbour's, the next one's and so
    on: N orders of addition, so floating-point replicas may *differ*.
    """
    n = _ranks(n)

    def rounds() -> Iterator[Round]:
        away, dst = np.divmod(np.arange(n, n * n), n)
        if n > 1:
            yield Round.of((dst + away) % n, dst, 0, True)

    return Schedule("everyone to everyone", n, 1, rounds)


def parameter_server(n: int) -> Schedule:
    """Everyone sends to rank 0, which adds and sends the sum back: one hot port.

    Two rounds; rank 0 serves and works, and sends (N-1)S, every other rank S.
    """
    n = _ranks(n)
    worker = np.arange(1, n)
    both = [Round.of(worker, 0, 0, True), Round.of(0, worker, 0, False)] if n > 1 else []
    return Schedule("parameter server", n, 1, lambda: both)


def binomial_reduce(n: int, root: int = 0) -> Schedule:
    """Sum everything on `root` in ceil(log2 N) rounds: in round i, neighbours at distance 2**i."""
    n = _ranks(n)
    root = integer("root", root, 0, n - 1)
    rank = np.arange(n)

    def rounds() -> Iterator[Round]:
        for distance in _powers_below(n):
            src = rank[rank % (2 * distance) == distance]
            yield Round.of((src + root) % n, (src - distance + root) % n, 0, True)

    return Schedule("binomial reduce", n, 1, rounds, collective="reduce", root=root)


def binomial_broadcast(n: int, root: int = 0) -> Schedule:
    """Copy root's array to everyone in ceil(log2 N) rounds: `binomial_reduce` backwards."""
    return binomial_reduce(n, root).mirrored().named("binomial broadcast")


def binomial_tree(n: int) -> Schedule:
    """Reduce to rank 0 along a binomial tree, then broadcast back: 2 ceil(log2 N) rounds.

    The root sends S ceil(log2 N). Wins where latency counts, loses where bytes do.
    """
    return (binomial_reduce(n) >> binomial_broadcast(n)).named("binomial tree")


def recursive_doubling(n: int) -> Schedule:
    """Exchange the whole array with rank r xor 2**i in round i: log2 N rounds, S log2 N sent.

    Both partners add the same two numbers, so replicas are bit-identical. For N no power of
    two the surplus ranks fold in first and get the result last (two rounds more).
    Source: Thakur, Rabenseifner & Gropp 2005.
    """
    n, p = _power_of_two(n)
    r = np.arange(p)
    core = [Round.of(r, r ^ distance, 0, True) for distance in _powers_below(p)]
    return _folded("recursive doubling", n, p, 1, core)


def halving_doubling(n: int) -> Schedule:
    """Reduce-scatter by halving the distance and the data, all-gather by doubling them.

    2 log2 N rounds and 2(N-1)S/N sent, the ring's bytes with fewer latencies. The fold for N
    no power of two costs S more. Source: Thakur, Rabenseifner & Gropp 2005 (Rabenseifner).
    """
    n, p = _power_of_two(n)
    r = np.arange(p)
    halving = [_pass_on(r, r ^ d, (r ^ d) // d, d, reduce=True) for d in reversed(_powers_below(p))]
    doubling = [Round.of(x.dst, x.src, x.chunk, False) for x in reversed(halving)]
    return _folded("halving-doubling", n, p, p, halving + doubling)


def _ranks(n: int) -> int:
    if integer("n", n, 1) > _MOST_RANKS:
        raise ValueError(f"n must be at most {_MOST_RANKS:,}, got {n:,}")
    return integer("n", n, 1)


def _blocks(n: int, chunks: int | None) -> tuple[int, int]:
    """Return ranks, and how many chunks make one of the N blocks."""
    n = _ranks(n)
    chunks = n if chunks is None else integer("chunks", chunks, 1)
    if chunks % n:
        raise ValueError(f"chunks must be a multiple of the number of ranks ({n}), got {chunks}")
    return n, chunks // n


def _owners(n: int, k: int) -> tuple[int, ...]:
    return tuple((c // k - 1) % n for c in range(n * k))


def _pass_on(src: Ints, dst: Ints, block: Ints, k: int, *, reduce: bool) -> Round:
    """Send a block, which is k chunks in a row."""
    chunk = block[:, None] * k + np.arange(k)
    return Round.of(np.repeat(src, k), np.repeat(dst, k), chunk.ravel(), reduce)


def _powers_below(n: int) -> list[int]:
    return [1 << i for i in range((n - 1).bit_length())]


def _power_of_two(n: int) -> tuple[int, int]:
    """Return n and the largest power of two in it."""
    n = _ranks(n)
    return n, 1 << (n.bit_length() - 1)


def _folded(name: str, n: int, p: int, chunks: int, core: list[Round]) -> Schedule:
    """Let ranks p..n-1 send to ranks 0.. first and get the result last."""
    extra = np.arange(p, n)
    if extra.size:
        fold = _pass_on(extra, extra - p, np.zeros_like(extra), chunks, reduce=True)
        core = [fold, *core, Round.of(fold.dst, fold.src, fold.chunk, False)]
    return Schedule(name, n, chunks, lambda: core)


def _gloo_cut(elements: int, itemsize: int, chunks: int) -> Ints:
    """Cut as gloo's ring does: at least two segments a chunk, none over 1 MiB, rounded up."""
    if not elements:
        return np.zeros(chunks, np.intp)
    segment = itemsize * max(1, 2**20 // itemsize)
    segments = max(_up(elements * itemsize, segment), 2 * chunks)
    per_chunk = _up(segments, chunks)
    length = _up(_up(elements * itemsize, per_chunk * chunks), itemsize) * per_chunk
    bounds = np.minimum(np.arange(chunks + 1) * length, elements)
    return np.diff(bounds).astype(np.intp)


def _up(a: int, b: int) -> int:
    return -(-a // b)


ALGORITHMS: Registry[Callable[[int], Schedule]] = Registry(
    "algorithm",
    {
        "ring": ring,
        "gloo_ring": gloo_ring,
        "naive": naive,
        "parameter_server": parameter_server,
        "binomial_tree": binomial_tree,
        "recursive_doubling": recursive_doubling,
        "halving_doubling": halving_doubling,
    },
)
COLLECTIVES: Registry[Callable[[int], Schedule]] = Registry(
    "collective",
    {
        "ring_reduce_scatter": ring_reduce_scatter,
        "ring_all_gather": ring_all_gather,
        "binomial_reduce": binomial_reduce,
        "binomial_broadcast": binomial_broadcast,
    },
)
