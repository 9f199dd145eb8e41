"""Saying what went wrong on the ranks: the first cause first, what followed from it after."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from allreduce_edu.realdist import places
from allreduce_edu.realdist.places import Frame

# What gloo and NCCL say on a rank whose partner is gone: never the cause. In a traceback the
# exceptions stand at the left margin, all those of a chain.
_FOLLOWS = re.compile(
    r"^\S.*(Connection (closed|reset) by peer|Application timeout caused pair closure|Broken pipe"
    r"|check rank 0 logs|communicator was aborted|remote process exited)",
    re.MULTILINE,
)
# Addresses, ports and paths of the library's sources: noise that differs from run to run.
_NOISE = (
    (re.compile(r"\nException raised from .*", re.DOTALL), ""),
    (re.compile(r"\[[^\s\]]*\.(cc|cpp|h):\d+\] ?"), ""),
    (re.compile(r"\[enforce fail at [^\]]*\] ?"), ""),
    (re.compile(r"\[[\d.:a-fA-F]+\]:\d+"), "[…]"),
    (places.CELL, "<cell>"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "0x…"),
    # DDP's advice, which is longer than what it has to say.
    (re.compile(r" You can enable unused parameter detection.*?(?=\nParameter)", re.DOTALL), ""),
    (re.compile(r"did not receive grad for rank \d+:"), "did not receive grad on this rank:"),
    (re.compile(r"\s*In addition, you can set the environment variable TORCH_DIST.*"), ""),
)
_SHOWN = 8  # frames of one stack


@dataclass(frozen=True)
class Fate:
    """What became of one rank in a call: returned, raised, died, lost, busy, or silent."""

    rank: int
    kind: str
    what: str = ""
    frames: tuple[Frame, ...] = ()
    traceback: str = ""
    late: bool = False  # it failed when others had already

    @property
    def failed(self) -> bool:
        """Whether this rank went wrong by itself, instead of waiting or returning."""
        return self.kind in ("raised", "died", "lost")

    @property
    def said(self) -> str:
        """What this rank's own log says of its end, without what differs from run to run."""
        return self.what.removeprefix("raised ") if self.failed else ""

    @property
    def follows(self) -> bool:
        """Whether this failure is one that the death of another rank brings about."""
        told = f"{self.what}\n{self.traceback}"
        return self.kind == "raised" and _FOLLOWS.search(told) is not None

    def __repr__(self) -> str:
        return f"rank {self.rank} {self.what}"


class RankError(RuntimeError):
    """A call on the ranks failed; the message tells for each rank what happened, causes first.

    Attributes
    ----------
    fates : tuple of Fate
        One per rank, in rank order; ``fates[r].traceback`` is the whole traceback of rank r.
    """

    def __init__(self, message: str, fates: Iterable[Fate] = ()) -> None:
        super().__init__(message)
        self.fates = tuple(fates)

    def _render_traceback_(self) -> list[str]:
        """Show the message alone: IPython asks for this, and our own frames help no learner."""
        return [f"RankError: {self}"]


def failure(fates: Sequence[Fate]) -> RankError:
    """Return the error for a call in which a rank failed."""
    causes = [fate for fate in fates if fate.failed and not fate.follows]
    if not causes:  # e.g. a rank outside this group cut the connection: then all are causes
        causes = [fate for fate in fates if fate.failed]
    causes.sort(key=lambda fate: (fate.kind == "raised", fate.late))  # deaths first, then by time
    rest = [fate for fate in fates if fate not in causes]
    lines = _tell(causes)
    if rest:
        lost = "lost the connection to another rank, a consequence"
        told = [replace(fate, what=lost) if fate.failed else fate for fate in rest]
        lines += ["The others:", *(f"  {line}" for line in _tell(told))]
    return RankError("\n".join([*lines, *_look_first(fates)]), fates)


def _look_first(fates: Sequence[Fate]) -> list[str]:
    """Say who was waited for in vain, if ranks gave up waiting: not those that say so."""
    gave_up = [fate for fate in fates if fate.failed and "Timed out waiting" in fate.what]
    cut_off = [fate for fate in fates if fate.follows and not fate.late]
    missing = [fate.rank for fate in fates if fate not in [*gave_up, *cut_off]]
    if not gave_up or not missing:
        return []
    return [f"Look first: {_ranks(missing)} came too late for this call, or went elsewhere."]


def past_deadline(fates: Sequence[Fate], seconds: float) -> RankError:
    """Return the error for a call that did not end in time."""
    lines = [f"no result after {seconds:g} s, the deadline of this call", *_tell(fates)]
    return RankError("\n".join(lines), fates)


def raised(rank: int, kind: str, text: str, at: Sequence[Frame], traceback: str) -> Fate:
    """Return the fate of a rank that raised an exception."""
    message = clean(text)
    what = f"raised {kind}: {message}" if message else f"raised {kind}"
    if kind == "SystemExit":
        what = f"called sys.exit({text})"
    return Fate(rank, "raised", what, tuple(at), traceback)


def died(rank: int, code: int | None, at: Sequence[Frame], wrote: str) -> Fate:
    """Return the fate of a rank whose process ended with `code` and last wrote `wrote`."""
    last = [line.strip() for line in wrote.splitlines() if line.strip().startswith("what():")]
    why = f": {clean(last[-1].removeprefix('what():').strip())}" if last and code == -6 else ""
    return Fate(rank, "died", death(code) + why, tuple(at))


def death(code: int | None) -> str:
    """Return how a process ended, as the end of a sentence."""
    if code is None:
        return "ended without a word"
    if code >= 0:
        return f"ended its process with status {code} in the middle of the call"
    words = {
        "SIGKILL": "was killed (SIGKILL; the system does that when memory runs out)",
        "SIGABRT": "was aborted by a library (SIGABRT)",
        "SIGSEGV": "crashed (SIGSEGV)",
    }
    name = _signal_name(-code)
    return words.get(name, f"was ended by a signal ({name})")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def busy(rank: int, at: Sequence[Frame] | None) -> Fate:
    """Return the fate of a rank that was still at work when the call was ended."""
    if at is None:
        return Fate(rank, "silent", "did not say where it was")
    call = places.waiting_in(at)
    return Fate(rank, "busy", f"was in {call}()" if call else "was at work", tuple(at))


def clean(text: str) -> str:
    """Return `text` without what differs from run to run: addresses, ports, library paths."""
    for pattern, instead in _NOISE:
        text = pattern.sub(instead, text)
    return text.strip()


def _tell(fates: Iterable[Fate]) -> list[str]:
    """Return the lines that tell `fates`; ranks with the same fate share theirs."""
    alike: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for fate in fates:
        where = tuple(str(frame) for frame in places.own(fate.frames))
        alike.setdefault((fate.what, where), []).append(fate.rank)
    lines = []
    for (what, where), ranks in alike.items():
        told = what if len(ranks) == 1 else _of_many(what)
        lines.append(f"{_ranks(sorted(ranks))} {told}")
        lines += [f"    {place}" for place in _shorten(where)]
    return lines


def _of_many(what: str) -> str:
    return re.sub(r"^was ", "were ", what).replace("where it was", "where they were")


def _shorten(places: Sequence[str]) -> Sequence[str]:
    if len(places) <= _SHOWN:
        return places
    half = _SHOWN // 2
    return [*places[:half], f"... {len(places) - _SHOWN} more ...", *places[-half:]]


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
