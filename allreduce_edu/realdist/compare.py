"""Whether the ranks hold the same bits: the first of two questions to ask of silent trouble."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from allreduce_edu.engine import check
from allreduce_edu.engine.spmd.words import ranks_text, verb
from allreduce_edu.realdist.entries import KINDS, Entry, entries
from allreduce_edu.realdist.meeting import Meeting

_SHOWN = 4  # different values of one entry
_LARGE = 1 << 24  # numbers; what is larger is not sent to say how far apart it is
_BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")

Key = tuple[str, str]  # kind and name of an entry
Tables = dict[int, dict[Key, Entry]]  # what each rank holds
Groups = list[tuple[tuple[int, ...], Entry | None]]  # ranks, and what they all hold


@dataclass(frozen=True, repr=False)
class Replicas:
    """What `compare_replicas` found; true if all ranks hold the same bits, and ``why`` says it.

    If not, it is about the first entry that differs: its `kind` and `name`, the `ranks` that
    agree with each other, group by group, and what each group of them `held`: a hash or a number.
    `differing` lists every entry that differs, that one included, as kind and name.
    """

    equal: bool
    why: str
    kind: str = ""
    name: str = ""
    ranks: tuple[tuple[int, ...], ...] = ()
    held: tuple[str, ...] = ()
    differing: tuple[Key, ...] = ()

    def __bool__(self) -> bool:
        return self.equal

    def __repr__(self) -> str:
        return self.why

    @property
    def where(self) -> str:
        """Between which ranks the first entry differs, without a digit: the same in every run."""
        if not self.differing:
            return self.why
        *others, last = map(ranks_text, self.ranks)
        among = f"differs between {', '.join(others)} and {last}"
        how = "is another on each rank" if all(len(ranks) == 1 for ranks in self.ranks) else among
        rest = len(self.differing) - 1
        more = f"; {rest} more {'entry differs' if rest == 1 else 'entries differ'}"
        return f"{self.kind} `{self.name}` {how}{more if rest else ''}"


def compare_replicas(model: Any, optimizer: Any = None, group: Any = None) -> Replicas:
    """Say whether all ranks hold the same bits, and if not, which entry is the first that differs.

    A collective call: every rank of `group` makes it, and each gets the same answer. Compared are
    parameters, buffers, what the optimizer holds (its learning rate too) and gradients, in this
    order. Nothing is changed, and no pickle is read. Equal bits are not yet the right ones: see
    `one_step`.

    Buffers of BatchNorm may differ after a step: each rank's follow its own batches until DDP
    copies those of rank 0 in the next forward.

    Parameters
    ----------
    model : torch.nn.Module
        Plain, or wrapped by DistributedDataParallel or torch.compile; not sharded.
    optimizer : torch.optim.Optimizer, optional
    group : ProcessGroup, optional
        Default: all ranks.

    Raises
    ------
    RuntimeError
        On every rank, if one cannot say what it holds; on that one the exception is its own.

    Examples
    --------
    >>> import torch
    >>> from allreduce_edu import Pool, compare_replicas
    >>> def forgotten_seed():
    ...     return compare_replicas(torch.nn.Linear(2, 1))
    >>> with Pool(2, backend="gloo") as pool:
    ...     found, _ = pool.run(forgotten_seed)
    >>> found.equal, found.kind, found.name, found.ranks
    (False, 'parameter', 'weight', ((0,), (1,)))
    """
    meeting = Meeting("compare_replicas", group, model)
    mine, trouble = list[Entry](), None
    try:
        mine = entries(model, optimizer)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for us
        trouble = error
    meeting.agree(trouble)
    tables = exchange(meeting, mine)
    if tables is None:
        return Replicas(equal=True, why=_same(mine, len(meeting.ranks)))
    differing = differences(tables)
    if not differing:
        return _in_another_order(tables)
    groups = holders(tables, differing[0])
    apart = _apart(meeting, mine, differing[0], groups)
    return Replicas(
        equal=False,
        why=in_words(tables, differing[0]) + apart + _rest(differing),
        kind=differing[0][0],
        name=differing[0][1],
        ranks=tuple(ranks for ranks, _ in groups),
        held=tuple(_held(groups)),
        differing=tuple(differing),
    )


# ----------------------------------------------------------------------- what all ranks hold


def exchange(meeting: Meeting, mine: Sequence[Entry]) -> Tables | None:
    """Return what each rank holds, or None if all hold the same."""
    text = json.dumps([entry[:4] for entry in mine])
    digest = hashlib.sha256(text.encode()).digest()[:8]
    if len(set(map(tuple, meeting.numbers([int.from_bytes(digest, "little", signed=True)])))) == 1:
        return None
    told = zip(meeting.ranks, map(json.loads, meeting.texts(text)), strict=True)
    return {rank: {(kind, name): Entry(kind, name, *x) for kind, name, *x in t} for rank, t in told}


def differences(tables: Tables) -> list[Key]:
    """Return the entries that not all ranks hold alike, in the order of their kinds."""
    keys = {key: None for table in tables.values() for key in table}
    ordered = sorted(keys, key=lambda key: KINDS.index(key[0]))
    return [key for key in ordered if len(holders(tables, key)) > 1]


def holders(tables: Tables, key: Key) -> Groups:
    """Return the ranks that agree on an entry, group by group; None is held by who has none."""
    found: dict[Entry | None, list[int]] = {}
    for rank, table in tables.items():
        found.setdefault(table.get(key), []).append(rank)
    return [(tuple(ranks), entry) for entry, ranks in found.items()]


def in_words(tables: Tables, key: Key) -> str:
    """Say which ranks hold what of an entry that differs."""
    (kind, name), groups = key, holders(tables, key)
    if lacking := next((ranks for ranks, entry in groups if entry is None), ()):
        having = [rank for ranks, entry in groups if entry is not None for rank in ranks]
        return f"{kind} {name!r} is on {ranks_text(having)} and not on {ranks_text(lacking)}"
    pairs = zip(groups, _held(groups), strict=True)
    told = [f"{ranks_text(r)} {verb(r, 'holds', 'hold')} {held}" for (r, _), held in pairs]
    rest = sum(len(ranks) for ranks, _ in groups[_SHOWN:])
    more = [f"{check.count(rest, 'rank')} still others"] if rest else []
    return f"{kind} {name!r} differs: {', '.join(told[:_SHOWN] + more)}"


def _held(groups: Groups) -> Iterator[str]:
    """Yield what each group holds: in the short, if it is not already another kind of thing."""
    alike = len({entry.form for _, entry in groups if entry is not None}) == 1
    for _, entry in groups:
        if entry is None:
            yield "nothing"
        elif entry.form:
            yield entry.held[:8] if alike else entry.form
        else:
            yield entry.held


def _apart(meeting: Meeting, mine: Sequence[Entry], key: Key, groups: Groups) -> str:
    """Say how far the other ranks' numbers are from those of the first, if that can be told.

    Every rank comes to the same decision, since all know what all hold.
    """
    forms = {entry.form if entry is not None else "" for _, entry in groups}
    tensor = next((entry.tensor for entry in mine if entry[:2] == key), None)
    if len(forms) > 1 or tensor is None or _is_large(tensor):
        return ""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    first = meeting.firsts(tensor).to(wide)
    far = (first - tensor.detach().to(wide)).abs().max().cpu()
    bits = [each for (each,) in meeting.numbers([int(far.double().view(torch.int64))])]
    most = np.array(bits).view(np.float64).max()
    if not math.isfinite(most):
        return ", with numbers among them that are not finite"
    return f", up to {most:.2g} apart"


def _is_large(tensor: torch.Tensor) -> bool:
    return tensor.layout != torch.strided or not 0 < tensor.numel() <= _LARGE


def _rest(differing: Sequence[Key]) -> str:
    """Count what else differs, and say what need not worry."""
    counts = Counter(kind for kind, _ in differing[1:])
    more = [_count(n, kind, "more " * (kind == differing[0][0])) for kind, n in counts.items()]
    said = f"; so {'does' if sum(counts.values()) == 1 else 'do'} {_listed(more)}" if more else ""
    if differing[0][1].endswith(_BATCH_NORM):
        said += ". Each rank's BatchNorm follows its own batches until DDP's next forward"
    return said


def _same(mine: Iterable[Entry], ranks: int) -> str:
    counts = Counter(entry.kind for entry in mine if entry.held != "None")
    told = _listed([_count(n, kind) for kind, n in counts.items()]) or "nothing"
    return f"only 1 rank: {told}" if ranks == 1 else f"same bits on all {ranks} ranks: {told}"


def _in_another_order(tables: Tables) -> Replicas:
    """Return what there is to say if all hold the same, and not in the same order."""
    first, orders = next(iter(tables)), {rank: list(table) for rank, table in tables.items()}
    other = next(rank for rank, order in orders.items() if order != orders[first])
    here, there = next(p for p in zip(orders[first], orders[other], strict=True) if p[0] != p[1])
    return Replicas(
        equal=False,
        why=f"equal bits, in another order: where rank {first} has {here[0]} {here[1]!r}, "
        f"rank {other} has {there[1]!r}",
        kind=here[0],
        name=here[1],
        ranks=((first,), (other,)),
        held=(here[1], there[1]),
    )


def _count(number: int, kind: str, more: str = "") -> str:
    plural = kind.removesuffix("y") + "ies" if kind.endswith("y") else f"{kind}s"
    return f"{number:,} {more}{kind if number == 1 else plural}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + list(words[-1:]))
