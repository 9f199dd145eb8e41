"""What a `Mesh` costs, by kinds of ranks: those that neither links nor bytes tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.mesh import Mesh, at_end
from allreduce_edu.engine.rounds import Ints

if TYPE_CHECKING:
    from allreduce_edu.engine.links import Links

Floats = npt.NDArray[np.float64]


class _Side(NamedTuple):
    """One end of all transfers, array[ranks] each: who takes part, and by how much its own."""

    on: npt.NDArray[np.bool_]
    bytes: Floats  # of each of its transfers, as far as they depend on it

    @classmethod
    def of(cls, end: Ints, sizes: Any, ranks: int) -> _Side:
        on, own = np.zeros(ranks, bool), np.ones(ranks)
        on[end.ravel()] = True
        own[end.ravel()] = np.ravel(sizes)
        return cls(on, own)


def mesh_seconds(links: Links, r: Mesh, sizes: Any) -> Floats:
    """Return the seconds that a mesh takes each rank, array[ranks]: the rule of ``Links.cost``.

    `sizes` is a number, or array of the shape of ``r.src`` or ``r.dst``, or array[lots, 1, 1] for
    array[lots, ranks].
    """
    alike = np.ndim(sizes) == 3 or np.size(sizes) == 1
    size = np.reshape(sizes, (-1, 1)) if alike else np.ones((1, 1))
    slowest = np.zeros((len(size), links.ranks))
    for most, total in zip(*_ports(links, r, 1 if alike else sizes), strict=True):
        np.maximum(slowest, most + total * size, out=slowest)
    slowest *= size > 0
    return slowest if np.ndim(sizes) == 3 else slowest[0]


def _ports(links: Links, r: Mesh, sizes: Any) -> tuple[Floats, Floats]:
    """Return the alpha of each of a rank's ports, and the rest of its seconds: [ports, ranks]."""
    by_sender = np.shape(sizes) == r.src.shape
    out = _Side.of(r.src, sizes if by_sender else 1, links.ranks)
    into = _Side.of(r.dst, 1 if by_sender else sizes, links.ranks)
    sides: Any
    if links.inside is links.across and not links.slow and not links.own_wires:
        sides = _of_uniform(links, out, into), _of_uniform(links, into, out)
    else:
        sides = _of_kinds(links, out, into)
    most, total = (np.concatenate(each) for each in zip(*sides, strict=True))
    if links.gamma:
        total = total + links.gamma * _reduced(r, sizes, links.ranks)
    return most, total


def _reduced(r: Mesh, sizes: Any, ranks: int) -> Floats:
    """Return the bytes that each rank reduces, array[ranks]."""
    alone = r.src == r.dst  # not a transfer, unless there are more of those than messages
    there = ~alone | (len(r) > alone.size - alone.sum())
    total = np.zeros(ranks)
    rank, each = at_end(r.dst, there * r.reduce * sizes)
    total[rank] = each
    return total


def _of_uniform(links: Links, side: _Side, other: _Side) -> tuple[Floats, Floats]:
    """Return `_ports` of one side, where all are reached alike.

    What a rank does with each of the others takes the larger of two numbers, its own and the
    other's: sums of those need no pairs, only the ranks in order.
    """
    alpha, beta = (
        np.broadcast_to(np.asarray(each, float), links.ranks)
        for each in (links.inside.alpha, links.inside.beta)
    )
    full = other.on & (other.bytes > 0)
    total = _sum_of_larger(beta, np.where(full, other.bytes, 0.0)) * side.bytes
    others = full.sum() - full
    first = int(np.argmax(np.where(full, alpha, -1)))
    second = np.max(np.where(full, alpha, 0), where=np.arange(links.ranks) != first, initial=0)
    most = np.maximum(alpha, np.where(np.arange(links.ranks) == first, second, alpha[first]))
    used = side.on & (side.bytes > 0) & (others > 0)
    return (used * most)[None], (used * total)[None]


def _sum_of_larger(value: Floats, weight: Floats) -> Floats:
    """Return, for each i, the sum over all other j of max(value[i], value[j]) weight[j]."""
    order = np.argsort(value)
    v, w = value[order], weight[order]
    total = np.empty_like(v)
    total[order] = v * _before(w) + _before((v * w)[::-1])[::-1]
    return total


def _before(each: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(each)[:-1]])


def _of_kinds(links: Links, out: _Side, into: _Side) -> list[list[Floats]]:
    """Return `_ports` of both sides, from what one of each kind sends to one of each."""
    kind, one = _kinds(links, out, into)
    senders, receivers = (
        np.bincount(kind[side.on], minlength=len(one)) * (side.bytes[one] > 0)
        for side in (out, into)
    )
    sizes = out.bytes[one][:, None] * into.bytes[one]
    shape = sizes.shape
    alpha = np.broadcast_to(links.alpha(one[:, None], one[None]), shape)
    seconds = links.beta(*np.broadcast_arrays(one[:, None], one[None])) * sizes
    sides = (
        _ports_of_kinds(links, one, alpha, seconds, senders, receivers),
        _ports_of_kinds(links, one, alpha.T, seconds.T, receivers, senders),
    )
    return [[np.asarray(each)[:, kind] for each in side] for side in sides]


def _kinds(links: Links, out: _Side, into: _Side) -> tuple[Ints, Ints]:
    """Return each rank's kind, and the first rank of each kind."""
    named = np.zeros(links.ranks, np.intp)
    for end in {end for src, dst, _ in links.slow for end in (src, dst) if end is not None}:
        named[end] = 1 + end
    of_links = [each for link in (links.inside, links.across) for each in (link.alpha, link.beta)]
    traits = [*out, *into, named, *(each for each in of_links if np.ndim(each))]
    if links.inside is not links.across:
        traits += [links.node, links.nic]
    order = np.lexsort(traits)
    new = np.any([trait[order[1:]] != trait[order[:-1]] for trait in traits], axis=0)
    kind = np.empty_like(order)
    kind[order] = np.concatenate([[0], np.cumsum(new)])
    return kind, order[np.concatenate([[True], new])]


def _ports_of_kinds(
    links: Links, one: Ints, alpha: Floats, seconds: Floats, here: Ints, there: Ints
) -> tuple[Any, Any]:
    """Return `_ports` of one of each kind, on the side of the rows."""
    count = np.outer(here > 0, there.astype(float))  # of each kind, without the rank itself
    np.fill_diagonal(count, np.where(here > 0, np.maximum(there - 1, 0), 0))
    if links.own_wires:
        return (alpha * (count > 0)).T, (seconds * (count > 0)).T
    if links.inside is links.across:
        return [_most(alpha, count)], [_total(seconds, count)]
    same = links.node[one][:, None] == links.node[one]
    stays, leaves = np.where(same, count, 0.0), np.where(same, 0.0, count)
    most, total, nic = np.zeros(links.ranks), np.zeros(links.ranks), links.nic[one]
    np.maximum.at(most, nic, _most(alpha, leaves))
    np.add.at(total, nic, _total(seconds, leaves) * here)
    used = leaves.any(1)
    return (
        [_most(alpha, stays), used * most[nic]],
        [_total(seconds, stays), used * total[nic]],
    )


def _most(alpha: Floats, count: Floats) -> Floats:
    return np.asarray(np.max(alpha * (count > 0), axis=1))


def _total(seconds: Floats, count: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", seconds, count))
