"""The algorithms, each as a schedule of a few lines, correct for every number of ranks.

N is the number of ranks, S the bytes of one rank's array; "sends" is per rank, and in a
full-duplex network as much is received. F1 to F11 are the rows of `formulas`, which has rounds,
bytes and time of each in closed form, compared with what is counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from allreduce_edu.engine.check import Registry, integer, unknown
from allreduce_edu.engine.mesh import Mesh
from allreduce_edu.engine.rounds import Alike, Ints, Round
from allreduce_edu.engine.schedule import Schedule

_MOST_RANKS = 1 << 20  # enough for any machine, and lists one owner per rank in a blink
_MOST_PAIRS = 1 << 24  # transfers that no Alike shortens: 4,096 ranks, each to each


# Rings


def ring_reduce_scatter(n: int, chunks: int | None = None) -> Schedule:
    """Rank r ends with block r+1 complete, after n-1 rounds of one block each.

    Sends (N-1)S/N, the least there is (F11a). Source: Patarasuk & Yuan 2009.
    """
    n, k = _blocks(n, chunks)
    r = np.arange(n)
    return Schedule(
        "ring reduce-scatter",
        n,
        n,
        lambda: [Alike(n - 1, lambda i: Round.of(r, (r + 1) % n, (r - i) % n, True))],
        collective="reduce_scatter",
        owner=(r - 1) % n,
    ).split(k)


def ring_all_gather(n: int, chunks: int | None = None) -> Schedule:
    """Every rank ends with every block; rank r starts with block r+1.

    Sends (N-1)S/N, the least there is (F11a). Source: Patarasuk & Yuan 2009.
    """
    n, k = _blocks(n, chunks)
    r = np.arange(n)
    return Schedule(
        "ring all-gather",
        n,
        n,
        lambda: [Alike(n - 1, lambda i: Round.of(r, (r + 1) % n, (r + 1 - i) % n, False))],
        collective="all_gather",
        owner=(r - 1) % n,
    ).split(k)


def ring(n: int, chunks: int | None = None) -> Schedule:
    """Pass one block of N to the right neighbour in each of 2(N-1) rounds: no rank is special.

    F6. Sends 2(N-1)S/N, the least any exchange between pairs can do: wins where bytes count. Pays
    2(N-1) latencies: loses for small arrays on many ranks. ``chunks=k*n`` cuts each block into
    k pieces. Source: Patarasuk & Yuan 2009.
    """
    return (ring_reduce_scatter(n, chunks) >> ring_all_gather(n, chunks)).named("ring all-reduce")


def bidirectional_ring(n: int) -> Schedule:
    """Play one ring to the right with half of the array, and one to the left with the other half.

    F6b. The ring's bytes and rounds. Wins, by a factor of two, only where a rank's two neighbours
    are on wires of their own; behind one port nothing changes. Source: Jain & Sabharwal 2010.
    """
    one, r = ring(n), np.arange(_ranks(n))
    both = one.on(r, 2 * r) | one.on(-r % n, 2 * r + 1)
    return both.named("bidirectional ring", "all_reduce")


def gloo_ring(n: int) -> Schedule:
    """Play the ring as gloo does, with gloo's own chunk bounds: equal to it bit for bit.

    F6: wins and loses as the ring does. Data travel from rank r to rank r-1 and chunk r is finished
    on rank r.
    Source: pytorch/gloo, gloo/allreduce.cc (ring, which torch uses for every size).
    """
    n = _ranks(n)
    r = np.arange(n)
    return Schedule(
        "gloo's ring all-reduce",
        n,
        n,
        lambda: [
            Alike(n - 1, lambda i: Round.of(r, (r - 1) % n, (r + 1 + i) % n, True)),
            Alike(n - 1, lambda i: Round.of(r, (r - 1) % n, (r + i) % n, False)),
        ],
        cutter=_gloo_cut,
    )


# Each with each


def naive(n: int) -> Schedule:
    """Everyone sends the whole array to everyone: one round, (N-1)S sent per rank.

    F4. Each rank starts with its own share and adds its right neighbour's, the next one's and so
    on: N orders of addition, so floating-point replicas may *differ*. Wins where an array is so
    small that only the number of rounds counts; loses everywhere else.
    Source: the definition of all-reduce.
    """
    n = _ranks(n)
    _room(n)
    one = _each_to_each(n, 0)
    return Schedule("everyone to everyone", n, 1, lambda: one)


def one_shot(n: int) -> Schedule:
    """Everyone reads the whole array of everyone and adds in rank order: one round, (N-1)S sent.

    F4'. One order of addition everywhere, so replicas are bit-identical. Wins for a few kilobytes
    inside a node, as inference engines use it; loses as soon as bytes count. Source: vLLM,
    csrc/custom_all_reduce.cuh (one-stage).
    """
    n = _ranks(n)
    pairs, r = _room(n), np.arange(n)

    def listed() -> Round:
        src, dst = np.divmod(np.arange(1, pairs), n)  # 0 to itself is left out
        return Round.of(src, dst, 0, src > 0)

    one = Mesh.between(r, r, 0, r[:, None] > 0, listed, pairs - 1)
    return Schedule("one-shot", n, 1, lambda: _unless_empty(one))


def pairwise_reduce_scatter(n: int) -> Schedule:
    """Rank r receives everybody's raw share of chunk r, one rank's in each of n-1 rounds.

    F11a. The ring's bytes; partial sums never travel, so nothing is rounded on the way.
    Source: Thakur, Rabenseifner & Gropp 2005 (pairwise exchange).
    """
    n = _ranks(n)
    r = np.arange(n)
    _room(n)
    return Schedule(
        "pairwise reduce-scatter",
        n,
        n,
        lambda: (Round.of((r + i) % n, r, r, True) for i in range(1, n)),
        collective="reduce_scatter",
    )


def pairwise_exchange(n: int) -> Schedule:
    """Collect raw shares of a chunk where it is owned, add, send the result: 2(N-1) rounds.

    F6. Rounds and bytes of the ring, 2(N-1)S/N, but every pair of ranks talks: loses where far
    pairs share slow links, wins in precision (raw shares cross the wire, not partial sums).
    Source: Thakur, Rabenseifner & Gropp 2005 (pairwise exchange).
    """
    scatter = pairwise_reduce_scatter(n)
    return (scatter >> scatter.mirrored()).named("pairwise exchange")


def sharded_server(n: int) -> Schedule:
    """Let every rank serve one chunk of N to all others: two rounds, 2(N-1)S/N sent.

    F3. `pairwise_exchange` with all pairs at once. The ring's bytes with two latencies: wins where
    N-1 messages at once cost no more than one, loses where each costs a latency. Source: Li et al.
    2014 (parameter server), servers placed on the workers.
    """
    n = _ranks(n)
    _room(n)
    push = _each_to_each(n, np.arange(n))
    scatter = Schedule("push", n, n, lambda: push, collective="reduce_scatter")
    return (scatter >> scatter.mirrored()).named("sharded parameter server")


def parameter_server(n: int, servers: int | None = None) -> Schedule:
    """Everyone sends to one rank, which adds and sends the sum back: one hot port.

    F1', F1, F2. Two rounds; rank 0 serves and works, and sends (N-1)S, every other rank S. With
    ``servers=k``, k more ranks, n to n+k-1, that have no share of their own serve S/k each: a
    server sends NS/k. Wins in latencies alone; loses to the ring by the factor N/2 wherever bytes
    count. Source: Li et al. 2014.
    """
    n = _ranks(n)
    if servers is None:
        worker = np.arange(1, n)
        push = Round.of(worker, 0, 0, True)
        both = [push, Round.of(0, worker, 0, False)] if n > 1 else []
        return Schedule("parameter server", n, 1, lambda: both)
    k = integer("servers", servers, 1)
    worker, shard = np.divmod(np.arange(_room(n, k)), k)
    both = [
        Round.of(worker, n + shard, shard, worker > 0),
        Round.of(n + shard, worker, shard, False),
    ]
    return Schedule(f"parameter server on {k} more", n + k, k, lambda: both, servers=k)


# Trees


def binomial_reduce(n: int, root: int = 0) -> Schedule:
    """Sum everything on `root` in ceil(log2 N) rounds: in round i, neighbours at distance 2**i.

    F11b. Every other rank sends S, once. Source: Thakur, Rabenseifner & Gropp 2005.
    """
    n, root = _rooted(n, root)
    rank = np.arange(n)

    def rounds() -> Iterator[Round]:
        for distance in _powers_below(n):
            src = rank[rank % (2 * distance) == distance]
            yield Round.of((src + root) % n, (src - distance + root) % n, 0, True)

    return Schedule("binomial reduce", n, 1, rounds, collective="reduce", root=root)


def binomial_broadcast(n: int, root: int = 0) -> Schedule:
    """Copy root's array to everyone in ceil(log2 N) rounds: `binomial_reduce` backwards.

    F11b. The root sends S ceil(log2 N). Source: Thakur, Rabenseifner & Gropp 2005.
    """
    return binomial_reduce(n, root).mirrored().named("binomial broadcast")


def binomial_tree(n: int) -> Schedule:
    """Reduce to rank 0 along a binomial tree, then broadcast back: 2 ceil(log2 N) rounds.

    F9a. The root sends S ceil(log2 N). Wins where latency counts, loses where bytes do.
    Source: Thakur, Rabenseifner & Gropp 2005 (reduce and broadcast).
    """
    return (binomial_reduce(n) >> binomial_broadcast(n)).named("binomial tree")


def pipelined_tree(n: int, chunks: int = 8) -> Schedule:
    """Reduce up a binary tree and broadcast down it, chunk after chunk without waiting.

    F9b. chunks + 2 depth - 1 rounds; a rank inside the tree sends and receives up to 3S. Few
    latencies and, with many chunks, 3S at the busiest port: wins over `binomial_tree`, loses to
    the ring's 2S for large arrays, and to `double_binary_tree`. Source: NVIDIA/nccl,
    src/graph/trees.cc (the tree).
    """
    n, chunks = _ranks(n), integer("chunks", chunks, 1)
    parent, depth = _binary_tree(n)
    child, up, deepest = np.arange(1, n), parent[1:], int(depth.max())
    src, dst = np.concatenate([child, up]), np.concatenate([up, child])
    waits = np.concatenate([deepest - depth[child], deepest + depth[up]])  # for chunk 0
    rises = np.arange(2 * n - 2) < n - 1
    fill = 2 * deepest - 1  # rounds until chunk 0 is about to be everywhere

    def at(t: int) -> Round:
        chunk = t - waits
        on = (chunk >= 0) & (chunk < chunks)
        return Round(src[on], dst[on], chunk[on], rises[on])

    def rounds() -> Iterator[Round | Alike]:
        steady = max(chunks - fill, 0) if n > 1 else 0
        yield from map(at, range((fill if steady else chunks + fill) if n > 1 else 0))
        if steady:
            yield Alike(steady, lambda i: at(fill + i))
            yield from map(at, range(chunks, chunks + fill))

    return Schedule("pipelined binary tree", n, chunks, rounds)


def double_binary_tree(n: int, chunks: int = 8) -> Schedule:
    """Play two pipelined trees at once, each with half of the chunks; leaves of one work in both.

    F9c. No rank that has a parent and children in one tree has them in the other, so none sends
    more than 2S. Wins between the latency-bound and the bandwidth-bound sizes on many ranks; loses
    to the ring on few, where its rounds are no fewer. Sources: Sanders, Speck & Träff 2009;
    NVIDIA/nccl, src/graph/trees.cc (the second tree is the first one mirrored, or shifted by one
    if N is odd).
    """
    c, r = np.arange(integer("chunks", chunks, 2)), np.arange(_ranks(n))
    second = (r + 1) % n if n % 2 else n - 1 - r
    one, other = (pipelined_tree(n, len(half)) for half in (c[::2], c[1::2]))
    both = one.on(r, c[::2]) | other.on(second, c[1::2])
    return both.named("double binary tree", "all_reduce")


# Hypercubes


def recursive_doubling(n: int) -> Schedule:
    """Exchange the whole array with rank r xor 2**i in round i: log2 N rounds, S log2 N sent.

    F7. Both partners add the same two numbers, so replicas are bit-identical. Wins for small
    arrays, loses where bytes count. For N no power of two the surplus ranks fold in first and get
    the result last (two rounds and S more). Source: Thakur, Rabenseifner & Gropp 2005.
    """
    n, p = _power_of_two(n)
    r = np.arange(p)
    return _folded(
        "recursive doubling",
        n,
        Schedule("", p, 1, lambda: (Round.of(r, r ^ d, 0, True) for d in _powers_below(p))),
    )


def halving_doubling(n: int) -> Schedule:
    """Reduce-scatter by halving the distance and the data, all-gather by doubling them.

    F8. 2 log2 N rounds and 2(N-1)S/N sent: wins by the ring's bytes with fewer latencies, loses
    where partners far apart share slow links. The fold for N no power of two costs two rounds and
    S more. Source: Thakur, Rabenseifner & Gropp 2005 (Rabenseifner).
    """
    n, p = _power_of_two(n)
    return _folded("halving-doubling", n, _halving(p) >> _halving(p).mirrored())


# Nodes


def hierarchical(
    n: int, node: int | None = None, inside: str = "ring", across: str = "ring"
) -> Schedule:
    """Reduce-scatter inside each node, all-reduce across nodes piece by piece, all-gather inside.

    F10. Ranks of a node are neighbours: 0 to node-1, and so on. Sends 2(N-1)S/N as the ring does,
    of which only 2(M-1)/M S/G leave the node (M nodes of G ranks), in 2(G-1) + 2(M-1) rounds: wins
    where links across are slower, or N large; loses nothing to the ring but simplicity. Source:
    horovod/horovod, common/ops/nccl_operations.cc (HOROVOD_HIERARCHICAL_ALLREDUCE).

    Parameters
    ----------
    n : int
    node : int, optional
        Ranks per node, a divisor of n; the largest below n that is not more than 8 if not given.
    inside, across : "ring" or "halving_doubling"
        halving_doubling inside needs `node` to be a power of two.
    """
    ranks = _by_node(n, node)
    m, g = ranks.shape
    scatter = _choose("inside", inside, ring_reduce_scatter, _halving)(g)
    middle = _choose("across", across, ring, halving_doubling)(m)
    k = middle.chunks
    finished = np.argsort(np.arange(g) if scatter.owner is None else scatter.owner)
    pieces = finished[:, None] * k + np.arange(k)  # [rank inside, chunk]: what it brings across
    down, up = scatter.split(k), scatter.mirrored().split(k)
    parts = down.on(ranks) >> middle.on(ranks.T, pieces) >> up.on(ranks)
    return parts.named("hierarchical", "all_reduce")


def hierarchical_leader(n: int, node: int | None = None) -> Schedule:
    """Reduce to one leader per node, ring across the leaders, broadcast inside.

    F10b. For comparison with `hierarchical`, to which it loses: a leader alone brings 2(M-1)/M S
    across, G times as much as there, and the other ranks' ports to the network idle. Wins in
    messages alone, since only leaders talk across. Parameters as there.
    Source: the picture of multi-node training that is drawn most often.
    """
    ranks = _by_node(n, node)
    m, g = ranks.shape
    up, across = binomial_reduce(g).split(m), ring(m).on(ranks[:, 0]).named("", ranks=ranks.size)
    parts = up.on(ranks) >> across >> up.mirrored().on(ranks)
    return parts.named("hierarchical with leaders", "all_reduce")


# Collectives that only move


def gather(n: int, root: int = 0) -> Schedule:
    """Bring chunk r of every rank r to `root`, at once: (N-1)S/N into its port (F11c)."""
    n, root = _rooted(n, root)
    others = np.delete(np.arange(n), root)
    one = Round.of(others, root, others, False)
    return Schedule("gather", n, n, lambda: _unless_empty(one), collective="gather", root=root)


def scatter(n: int, root: int = 0) -> Schedule:
    """Send chunk r of root's array to rank r, at once: (N-1)S/N out of its port (F11c)."""
    n, root = _rooted(n, root)
    others = np.delete(np.arange(n), root)
    one = Round.of(root, others, others, False)
    return Schedule("scatter", n, n, lambda: _unless_empty(one), collective="scatter", root=root)


def all_to_all(n: int) -> Schedule:
    """Bring chunk i*n+j from rank i to rank j, one partner in each of n-1 rounds.

    Chunks i*n to i*n+n-1 are rank i's own array of S bytes, so one rank's buffer is N S long.
    F11d. Sends (N-1)S/N. Source: Thakur, Rabenseifner & Gropp 2005 (pairwise exchange).
    """
    n = _ranks(n)
    r = np.arange(n)
    _room(n)
    return Schedule(
        "all-to-all",
        n,
        n * n,
        lambda: (Round.of(r, (r + i) % n, r * n + (r + i) % n, False) for i in range(1, n)),
        collective="all_to_all",
    )


def _ranks(n: int) -> int:
    if integer("n", n, 1) > _MOST_RANKS:
        raise ValueError(f"n must be at most {_MOST_RANKS:,}, got {n:,}")
    return integer("n", n, 1)


def _rooted(n: int, root: int) -> tuple[int, int]:
    n = _ranks(n)
    return n, integer("root", root, 0, n - 1)


def _room(n: int, others: int | None = None) -> int:
    """Return how many transfers there are between all pairs, if so many can be held."""
    pairs = n * (n if others is None else others)
    if pairs > _MOST_PAIRS:
        raise ValueError(
            f"each with each over {n:,} ranks needs {pairs:,} transfers of their own, at most "
            f"{_MOST_PAIRS:,}; use fewer ranks, or its closed form in formulas"
        )
    return pairs


def _each_to_each(n: int, chunk: Ints | int) -> list[Round]:
    """Let each add what all others send of its chunk: its right neighbour's share comes first."""

    def listed() -> Round:
        away, dst = np.divmod(np.arange(n, n * n), n)
        return Round.of((dst + away) % n, dst, np.broadcast_to(chunk, n)[dst], True)

    r = np.arange(n)
    return _unless_empty(Mesh.between(r, r, chunk, True, listed, n * (n - 1)))


def _unless_empty(one: Round) -> list[Round]:
    return [one] if len(one) else []


def _blocks(n: int, chunks: int | None) -> tuple[int, int]:
    """Return ranks, and how many chunks make one of the N blocks."""
    n = _ranks(n)
    chunks = n if chunks is None else integer("chunks", chunks, 1)
    if chunks % n:
        raise ValueError(f"chunks must be a multiple of the number of ranks ({n}), got {chunks}")
    return n, chunks // n


def _powers_below(n: int) -> list[int]:
    return [1 << i for i in range((n - 1).bit_length())]


def _power_of_two(n: int) -> tuple[int, int]:
    """Return n and the largest power of two in it."""
    n = _ranks(n)
    return n, 1 << (n.bit_length() - 1)


def _halving(p: int) -> Schedule:
    """Reduce-scatter over 2**i ranks: half of what is left, to the rank half as far, each round."""
    r = np.arange(p)
    if p & (p - 1):
        raise ValueError(f"halving_doubling inside needs a power of two ranks per node, got {p}")
    return Schedule(
        "recursive halving",
        p,
        p,
        lambda: (
            Round.of(r, r ^ d, (r ^ d) // d * d, True, span=d) for d in reversed(_powers_below(p))
        ),
        collective="reduce_scatter",
    )


def _folded(name: str, n: int, core: Schedule) -> Schedule:
    """Let ranks p..n-1 send to ranks 0.. first and get the result last."""
    extra = np.arange(core.ranks, n)
    fold = Round.of(extra, extra - core.ranks, 0, True, span=core.chunks)
    unfold = Round.of(fold.dst, fold.src, 0, False, span=core.chunks)

    def rounds() -> Iterator[Round | Alike]:
        yield from _unless_empty(fold)
        yield from core.alikes()
        yield from _unless_empty(unfold)

    return Schedule(name, n, core.chunks, rounds)


def _binary_tree(n: int) -> tuple[Ints, Ints]:
    """Return parent and depth of each rank; odd ranks are leaves, rank 0 is the root."""
    r = np.arange(n)
    bit = r & -r
    parent = (r ^ bit) | (bit << 1)
    parent = np.where(parent < n, parent, r ^ bit)
    depth, above = np.zeros_like(r), r
    while above.any():
        depth += above > 0
        above = parent[above]
    return parent, depth


def _by_node(n: int, node: int | None) -> Ints:
    """Return the ranks [node, rank inside]."""
    n = _ranks(n)
    if node is None:
        node = max((g for g in range(1, min(n, 9)) if n % g == 0), default=1)
    if n % integer("node", node, 1):
        raise ValueError(f"node must divide the number of ranks ({n}), got {node}")
    return np.arange(n).reshape(-1, node)


def _choose(
    name: str, value: str, ring: Callable[..., Schedule], halving: Callable[..., Schedule]
) -> Callable[..., Schedule]:
    choices = {"ring": ring, "halving_doubling": halving}
    if value not in choices:
        raise ValueError(unknown(name, value, choices))
    return choices[value]


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


def _table(kind: str, *makers: Callable[..., Schedule]) -> Registry[Callable[..., Schedule]]:
    return Registry(kind, {make.__name__: make for make in makers})


ALGORITHMS: Registry[Callable[..., Schedule]] = _table(
    "algorithm",
    ring,
    bidirectional_ring,
    gloo_ring,
    naive,
    one_shot,
    pairwise_exchange,
    parameter_server,
    sharded_server,
    binomial_tree,
    pipelined_tree,
    double_binary_tree,
    recursive_doubling,
    halving_doubling,
    hierarchical,
    hierarchical_leader,
)
COLLECTIVES: Registry[Callable[..., Schedule]] = _table(
    "collective",
    ring_reduce_scatter,
    ring_all_gather,
    pairwise_reduce_scatter,
    binomial_reduce,
    binomial_broadcast,
    gather,
    scatter,
    all_to_all,
)
