"""The same hang as the tools of PyTorch would tell it, so that their words are met here first.

`told_by` asks them all. Each returns what is printed, or "" where there is nothing to say: all but
the first see collectives alone. Read from torch 2.13 (c10d/TraceUtils.h, ProcessGroupWrapper.cpp,
ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp, flight_recorder/components).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from allreduce_edu.engine.dtypes import dtype
from allreduce_edu.engine.spmd.comm import Kind
from allreduce_edu.engine.spmd.errors import Deadlock, Mismatch
from allreduce_edu.engine.spmd.hang import Hang
from allreduce_edu.engine.spmd.states import Part, State

_DTYPE = {
    "float64": "Double",
    "float32": "Float",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
}


def gloo_timeout(hang: Hang, milliseconds: int = 1_800_000) -> str:
    """Return what gloo raises on the first rank that waits: no collective, no line, no rank."""
    first = next((s for s in hang.states if s.status == "waits"), None)
    if first is None:
        return ""
    milliseconds = _set(hang, milliseconds)
    side = "send" if first.needs and first.needs[0].side == "send" else "recv"
    return f"Timed out waiting {milliseconds}ms for {side} operation to complete"


def nccl_watchdog(hang: Hang, milliseconds: int = 600_000) -> str:
    """Return what NCCL's watchdog prints on the first rank that is stuck; it counts from 1.

    The number is the one to compare between the logs of all ranks.
    """
    milliseconds = _set(hang, milliseconds)
    for rank, part in _in_progress(hang.states).items():
        numel = math.prod(part.kind[1]) if part.kind else 1
        return (
            f"[Rank {rank}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum={part.number}, OpType={_op(part.name)}, NumelIn={numel}, "
            f"NumelOut={numel}, Timeout(ms)={milliseconds}) ran for {milliseconds} milliseconds "
            "before timing out."
        )
    return ""


def desync_report(hang: Hang) -> str:
    """Return what NCCL's watchdog adds with TORCH_NCCL_DESYNC_DEBUG=1; it counts from 1."""
    latest = _latest(hang.states)
    stuck = _in_progress(hang.states)
    if not stuck:
        return ""
    me, part = next(iter(stuck.items()))
    lines = [f" - [{me}] Timeout at collective: {_op(part.name)}, #{part.number}"]
    missing = [s.rank for s in hang.states if s.rank not in latest]
    if missing:
        lines.append(
            f" - To our best knowledge, ranks {_list(missing)} are the lagging ranks that caused "
            "this timeout. They never joined any collectives"
        )
        return "\n".join(lines)
    return "\n".join([*lines, *_lagging(latest), *_snapshot(latest)])


_Latest = dict[int, tuple[int, str, bool]]  # rank -> number, operation, whether it has finished


def _latest(states: Iterable[State]) -> _Latest:
    found: _Latest = {}
    for s in states:
        if s.part and s.part.group == 0:
            found[s.rank] = s.part.number, _op(s.part.name), False
        elif s.last and s.last.group == 0:
            found[s.rank] = s.last.number, _op(s.last.name), True
    return found


def _lagging(latest: _Latest) -> list[str]:
    least = min(number for number, _, _ in latest.values())
    joined = [r for r, (number, _, over) in latest.items() if number == least and not over]
    finished = [r for r, (number, _, over) in latest.items() if number == least and over]
    lines = [
        " - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
    ]
    if joined:
        lines.append(f"   - {_list(joined)} joined but didn't finish collective #{least}")
        lines[-1] += " (count from 1)"
    if finished:
        lines.append(
            f"     {_list(finished)} finished collective #{least}, but didn't join collective "
            f"#{least + 1} (count from 1)"
        )
    return lines


def _snapshot(latest: _Latest) -> list[str]:
    lines = [" - Snapshot of ranks' latest states:"]
    for number in sorted({number for number, _, _ in latest.values()}):
        for over, verb in ((False, "started"), (True, "finished")):
            who: dict[str, list[int]] = {}
            for rank, (its, op, ended) in latest.items():
                if (its, ended) == (number, over):
                    who.setdefault(op, []).append(rank)
            lines += [f"   #{number} {verb} ranks:"] * bool(who)
            lines += [f"     {_list(ranks)} {verb} {op}" for op, ranks in who.items()]
    return lines


def fingerprint(found: Hang | Deadlock | Mismatch) -> str:
    """Return what TORCH_DISTRIBUTED_DEBUG=DETAIL raises on the first rank; it counts from 0.

    "" where all ranks that are in a collective are in the same one. It does not see that one rank
    sums and another takes the maximum: the operator is no part of a fingerprint.
    """
    hang = found.hang if isinstance(found, Deadlock) else found
    parts = hang.parts if isinstance(hang, Mismatch) else _in_progress(hang.states)
    if not parts:
        return ""
    me, mine = next(iter(parts.items()))
    for rank, other in parts.items():
        if aspects := _differing(mine, other):
            return (
                f"Detected mismatch between collectives on ranks. Rank {me} is running "
                f"collective: {_print_of(mine)}, but Rank {rank} is running collective: "
                f"{_print_of(other)}.Collectives differ in the following aspects: {aspects}"
            )
    return ""


def _print_of(part: Part) -> str:
    kind = part.kind
    tensor = f", TensorShape={_shape(kind)}, TensorDtypes={_dtype(kind)}, ..." if kind else ""
    number = part.number - 1
    return f"CollectiveFingerPrint(SequenceNumber={number}, OpType={_op(part.name)}{tensor})"


def _differing(a: Part, b: Part) -> str:
    aspects = []
    if a.number != b.number:
        aspects.append(f"Sequence number: {a.number - 1}vs {b.number - 1}")
    if a.name != b.name:
        aspects.append(f"Op type: {_op(a.name)}vs {_op(b.name)}")
    if a.kind and b.kind and a.kind[1] != b.kind[1]:
        shapes = (" ".join(map(str, kind[1])) for kind in (a.kind, b.kind))
        aspects.append("Tensor Tensor shapes: {}vs {}".format(*shapes))
    if a.kind and b.kind and a.kind[0] != b.kind[0]:
        aspects.append(f"Tensor Tensor dtypes: {_dtype(a.kind)}vs {_dtype(b.kind)}")
    return " ".join(aspects)


def monitored_barrier(hang: Hang, milliseconds: int = 4000) -> str:
    """Return what ``monitored_barrier(wait_all_ranks=True)`` says before the stuck collective.

    On rank 0, which collects; if rank 0 itself is missing, what the others say.
    """
    stuck = _in_progress(hang.states)
    if not stuck:
        return ""
    number = max(part.number for part in stuck.values())
    late = [s.rank for s in hang.states if s.rank not in stuck or stuck[s.rank].number < number]
    if not late:
        return ""
    if late[0] > 0:
        who = ", ".join(map(str, late))
        return f"[Rank 0]: Ranks {who} failed to pass monitoredBarrier in {milliseconds} ms"
    there = next(rank for rank in stuck if rank not in late)
    return (
        f"Rank {there} successfully reached monitoredBarrier, but received errors while waiting "
        "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )


def flight_recorder(hang: Hang) -> str:
    """Return what the analyzer of the flight recorder's dumps says of the first odd collective."""
    stuck = _in_progress(hang.states)
    if not stuck:
        return ""
    me, part = min(stuck.items(), key=lambda item: item[1].number)
    same = {r for r, other in stuck.items() if other.place == part.place}
    passed = {r for r, (number, _, over) in _latest(hang.states).items() if number >= part.number}
    missing = set(part.members) - same - passed
    culprits = [r for r in sorted(same) if stuck[r].name != part.name]
    title = f"Not all ranks joining collective, sequence number: {part.number}"
    if not missing:
        title = f"Collective sequence number: {part.number} has errors"
    lines = [title, "group info: 0:default_pg", f"collective: {part.name}"]
    lines += [f"missing ranks: {missing}"] * bool(missing)
    lines += [f"input sizes: [{_shape(part.kind)}]"] * bool(part.kind)
    lines += [f"world size: {len(part.members)}", f"expected ranks: {set(part.members)}"]
    lines += ["collective state: scheduled"]
    if culprits and not missing:
        told = (
            f"Culprit rank {r}; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: "
            f"'{part.name}' does not match found collective type: '{stuck[r].name}'"
            for r in culprits
        )
        lines.append(f"error msg: {', '.join(told)}")
    if site := hang.states[me].site:
        lines += ["collective stack trace:", f"  {site}"]
    return "\n".join(lines)


def gloo_mismatch(mismatch: Mismatch) -> str:
    """Return what gloo does with parts that do not fit together; it seldom says so.

    Which ranks abort is sure for calls whose parts lie in one message; an all-reduce cuts its
    array up, and at some sizes no message is too long for its receiver.
    """
    kinds = {rank: part.kind for rank, part in mismatch.parts.items() if part.kind}
    if not kinds:
        groups = any(part.name == "group" for part in mismatch.parts.values())
        return "Gloo connectFullMesh failed with [...] Connect timeout" if groups else ""
    sizes = {rank: _nbytes(kind) for rank, kind in kinds.items()}
    if len(set(sizes.values())) == 1:
        return "(nothing: it reads the bytes as they come, and goes on with wrong numbers)"
    name = next(iter(mismatch.parts.values())).name
    if name not in ("all_gather", "broadcast"):
        return (
            "(no message to rely on: at some sizes a rank is aborted, at others the ranks wait "
            "until the time-out, or go on with wrong numbers)"
        )
    least = min(sizes, key=lambda rank: sizes[rank])
    return (
        f"[rank {least}] terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        f"[rank {least}]   what():  [enforce fail at ...] op.preamble.length <= op.nbytes. ... "
        "Received data size doesn't match expected size. Is there a distributed collective "
        "mismatch in your code?"
    )


TOLD_BY: Mapping[str, Callable[[Hang], str]] = {
    "gloo": gloo_timeout,
    "NCCL watchdog": nccl_watchdog,
    "desync report": desync_report,
    "flight recorder": flight_recorder,
    "monitored barrier": monitored_barrier,
    "fingerprint": fingerprint,
}


def told_by(found: Hang | Deadlock | Mismatch) -> dict[str, str]:
    """Return what each tool prints, by its name; those that have nothing to say are left out."""
    if isinstance(found, Mismatch):
        said = {"gloo": gloo_mismatch(found), "fingerprint": fingerprint(found)}
    else:
        hang = found.hang if isinstance(found, Deadlock) else found
        said = {name: tell(hang) for name, tell in TOLD_BY.items()}
    return {name: text for name, text in said.items() if text}


def _set(hang: Hang, milliseconds: int) -> int:
    """Return the program's own time-out, if it has set one."""
    return milliseconds if hang.timeout is None else round(1000 * hang.timeout)


def _nbytes(kind: Kind) -> int:
    return math.prod(kind[1]) * dtype(kind[0]).itemsize


def _in_progress(states: Iterable[State]) -> dict[int, Part]:
    """Return the collectives of all ranks in which somebody is stuck, by rank.

    To make a group is none for these tools: torch does it through its store.
    """
    return {
        s.rank: s.part for s in states if s.part and s.part.group == 0 and s.part.name != "group"
    }


def _op(name: str) -> str:
    return name.replace("_", "", 1).upper() if name.startswith("all") else name.upper()


def _dtype(kind: Kind | None) -> str:
    return _DTYPE.get(kind[0], kind[0]) if kind else ""


def _shape(kind: Kind | None) -> str:
    return f"[{', '.join(map(str, kind[1]))}]" if kind else "[]"


def _list(ranks: list[int]) -> str:
    return f"[{', '.join(map(str, ranks))}]"
