"""What a run of simulated ranks raises, with words that name ranks, lines and what they held."""

from __future__ import annotations

import contextlib
import sys
import textwrap
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from allreduce_edu.engine.spmd.clues import mismatch_clue
from allreduce_edu.engine.spmd.hang import WIDTH, Hang
from allreduce_edu.engine.spmd.sites import is_ours, site_of
from allreduce_edu.engine.spmd.states import Last, Need, Offer, Part, State
from allreduce_edu.engine.spmd.strips import part_of, strips
from allreduce_edu.engine.spmd.words import kind_text, ranks_text, verb

if TYPE_CHECKING:
    from allreduce_edu.engine.spmd.events import Outcome, Posted
    from allreduce_edu.engine.spmd.world import SimulatedWorld


class ProgramError(RuntimeError):
    """A program on ranks did not come to its end.

    Attributes
    ----------
    states : tuple of State
        Where each rank was.
    """

    def __init__(self, text: str, states: Sequence[State] = ()) -> None:
        super().__init__(text)
        self.states = tuple(states)

    def _render_traceback_(self) -> list[str]:
        """Show the message alone: IPython asks for this, and our own frames help no learner."""
        return [f"{type(self).__name__}: {self}"]


class Deadlock(ProgramError):  # noqa: N818 - the field's word, like the three below
    """Nobody can go on; ``hang`` says who waits for whom."""

    def __init__(self, hang: Hang) -> None:
        super().__init__(hang.text, hang.states)
        self.hang = hang

    def __reduce__(self) -> Any:
        return type(self), (self.hang,)


class Mismatch(ProgramError):  # noqa: N818
    """Two sides of one message, or the parts of one collective, do not fit together.

    Attributes
    ----------
    parts : dict
        rank -> `Part`, if it is a collective.
    """

    def __init__(
        self, text: str, states: Sequence[State] = (), parts: Mapping[int, Part] | None = None
    ) -> None:
        super().__init__(text, states)
        self.parts = dict(parts or {})


class Hazard(ProgramError):  # noqa: N818
    """What is right today and wrong tomorrow: an array touched while it is on its way."""


class Endless(ProgramError):  # noqa: N818
    """A rank runs on and on."""


class Interrupted(KeyboardInterrupt):
    """The stop button was pressed; says where the ranks were."""

    def _render_traceback_(self) -> list[str]:
        return [f"Stopped: {self}"]


class NotASchedule(ValueError):  # noqa: N818 - the sentence says the rest
    """A program does what no schedule can say; the message says what, and where."""


class Limits(NamedTuple):
    """What is taken for an endless loop."""

    seconds: float  # of the processor
    wall: float  # of the clock
    messages: int


def throw(world: SimulatedWorld, outcome: Outcome, left: Sequence[int], limits: Limits) -> NoReturn:
    """Raise what became of a run that did not come to its end."""
    states = states_of(world)
    if outcome.kind == "deadlock":
        raise Deadlock(Hang(states))
    if outcome.kind == "mismatch":
        parts = {q.rank: part_of(q) for q in outcome.requests if q.side == "all"}
        raise Mismatch(_mismatch(outcome.requests), states, parts)
    if outcome.kind in ("changed before wait", "never waited for"):
        raise Hazard(_hazard(outcome), states)
    if outcome.kind == "raised":
        _throw_learners(world, outcome, states)
    text = _endless(outcome, states, left, limits)
    if outcome.kind == "stopped":
        raise Interrupted(text)
    raise Endless(text, states)


# ------------------------------------------------------------------ where the ranks are


def states_of(world: SimulatedWorld) -> list[State]:
    """Return where each rank is."""
    calls = strips(world.trace, world.size)
    return [replace(_state(world, rank), calls=calls[rank]) for rank in range(world.size)]


def _state(world: SimulatedWorld, rank: int) -> State:
    end = world.last.get(rank)
    last = Last(end.call, end.group, end.number, end.site) if end else None
    sent = (q for queue in world.sends.values() for q in queue if q.rank == rank)
    offers = tuple(Offer(q.peer or 0, q.tag, q.kind, q.site) for q in sent)
    if rank not in world.live:
        raised = world.outcome and world.outcome.kind == "raised" and world.outcome.rank == rank
        return State(rank, "raised" if raised else "returned", last=last, offers=offers)
    waiting = world.waiting.get(rank)
    if waiting is None or all(each.done for each in waiting.requests):
        return State(rank, "runs", last=last, offers=offers)
    todo = [q for q in waiting.requests if not q.done]
    needs = tuple(Need(q.side, q.peer, q.tag, q.kind) for q in todo if q.side != "all")
    part = next((part_of(q) for q in todo if q.side == "all"), None)
    site, limit = site_of(waiting.stack), waiting.requests[0].comm.timeout
    return State(rank, "waits", waiting.call, needs, part, site, last, offers, timeout=limit)


# ----------------------------------------------------------------------------- the words


def _mismatch(requests: Sequence[Posted]) -> str:
    """Say what was expected and what came."""
    if requests[0].side != "all":
        recv, send = requests
        return (
            f"rank {recv.rank} made room for {kind_text(recv.kind)}, "
            f"rank {send.rank} sent {kind_text(send.kind)}.\n\n"
            f"  expected  {kind_text(recv.kind)} by rank {recv.rank}: {recv.site}\n"
            f"  actual    {kind_text(send.kind)} from rank {send.rank}: {send.site}\n\n"
            "Real gloo does not say this: it aborts, fills a part of the array, or reads the "
            "bytes as another type."
        )
    usual = Counter(_fingerprint(q) for q in requests).most_common(1)[0][0]
    odd = [q.rank for q in requests if _fingerprint(q) != usual]
    places: dict[tuple[str, str], list[int]] = {}
    for q in requests:
        places.setdefault((_fingerprint(q), str(q.site)), []).append(q.rank)
    lines = [
        f"  {'expected' if what == usual else 'actual  '}  {what} on {ranks_text(who)}: {site}"
        for (what, site), who in sorted(places.items(), key=lambda item: item[0][0] != usual)
    ]
    first = requests[0]
    clue = mismatch_clue([part_of(q) for q in requests], [q.site for q in requests])
    look = textwrap.fill(f"Look first: {clue}", WIDTH)
    return (
        f"{first.call}, number {first.number}: {ranks_text(odd)} "
        f"{verb(odd, 'asks', 'ask')} for something else.\n\n"
        + "\n".join(lines)
        + f"\n\n{look}\n\nReal gloo does not say this: it aborts, hangs, or gives wrong numbers."
    )


def _fingerprint(q: Posted) -> str:
    part = part_of(q)
    return f"{part.what} of {kind_text(part.kind)}" if part.kind else part.what


def _hazard(outcome: Outcome) -> str:
    (q,) = outcome.requests
    peer = "any rank" if q.peer is None else f"rank {q.peer}"
    way = f"{q.call} {'to' if q.side == 'send' else 'from'} {peer}"
    if outcome.kind == "never waited for":
        return (
            f"rank {q.rank} returned without waiting for its {way}.\n\n  {q.site}\n\n"
            "Until wait() has returned, nobody knows whether the data have left or come: keep "
            "what the call returns, and wait for it."
        )
    return (
        f"rank {q.rank} changed an array that was still on its way ({way}).\n\n"
        f"  begun   {q.site}\n  waited  {site_of(outcome.where)}\n\n"
        "The data may leave at any moment between these two lines, so the other side gets the old "
        "numbers or the new ones, as it happens. Wait first, or send a copy."
    )


def _endless(outcome: Outcome, states: Sequence[State], left: Sequence[int], limits: Limits) -> str:
    rank = outcome.rank
    when = {
        "seconds": f" after {limits.seconds:g} s",
        "wall": f" after {limits.wall:g} s",
        "too many": f" after more than {limits.messages:,} messages",
    }.get(outcome.kind, "")
    if rank < 0:
        lines = [f"the ranks were still running{when}, between two calls.", ""]
    else:
        lines = [f"rank {rank} was still running{when}.", ""]
        lines += [f"  rank {rank}: {site_of(outcome.where)}"]
    lines += others(states, rank)
    if left:
        lines += [
            "",
            f"{ranks_text(left)} could not be ended yet: {verb(left, 'it is', 'they are')}",
        ]
        lines[-1] += " in code that does not come back to Python, and will end when it does."
    return "\n".join(lines)


def others(states: Sequence[State], but: int) -> list[str]:
    """Return a line for each place where the other ranks are."""
    places: dict[str, list[int]] = {}
    for s in states:
        where = "could go on" if s.status == "runs" else s.status
        if s.status == "waits":
            where = f"in {s.call}, {s.site}"
        if s.rank != but:
            places.setdefault(where, []).append(s.rank)
    return [f"  {ranks_text(who)}: {where}" for where, who in places.items()]


def _throw_learners(world: SimulatedWorld, outcome: Outcome, states: Sequence[State]) -> NoReturn:
    """Raise the learner's exception with the learner's frames, and a word on the others."""
    error, rank = outcome.error, outcome.rank
    assert error is not None
    if not isinstance(error, Exception):  # sys.exit() must not end the notebook
        name = type(error).__name__
        ended = RuntimeError(f"rank {rank} called for the end of the program: {name}({error})")
        error = ended.with_traceback(error.__traceback__)
    note = "\n".join([f"(on rank {rank} of {world.size})", *others(states, rank)])
    at = _own_frames(error.__traceback__)
    with contextlib.suppress(Exception):  # an exception may refuse attributes
        _render_as_learners(error, at)
        if hasattr(error, "add_note"):
            error.add_note(note)
    raise error.with_traceback(at) from error.__cause__


def _own_frames(at: types.TracebackType | None) -> types.TracebackType | None:
    own = []
    while at is not None:
        if not is_ours(at.tb_frame.f_code.co_filename):
            own.append(at)
        at = at.tb_next
    chain = None
    for each in reversed(own):
        chain = types.TracebackType(chain, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return chain


def _render_as_learners(error: BaseException, at: types.TracebackType | None) -> None:
    """Let IPython show the learner's frames alone."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or at is None or isinstance(error, SyntaxError):
        return

    def render() -> Any:
        return shell.InteractiveTB.structured_traceback(type(error), error, at)

    error._render_traceback_ = render  # type: ignore[attr-defined]
