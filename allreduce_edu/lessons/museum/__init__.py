"""The museum of faults: short programs that hang, disagree, or agree on a wrong answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from allreduce_edu.engine.check import unknown
from allreduce_edu.lessons.museum import (
    alone,
    averages,
    buffers,
    data,
    dying,
    gradients,
    groups,
    leaving,
    messages,
    metrics,
    orders,
    skipped,
    state,
    syncing,
    unused,
    wrapping,
)
from allreduce_edu.lessons.museum.exhibit import INSTRUMENTS, WINGS, Exhibit, Outcome, Report

__all__ = ["INSTRUMENTS", "WINGS", "Exhibit", "Museum", "Outcome", "Report", "museum"]


class Museum(Mapping[str, Exhibit]):
    """All exhibits, by name, in the order of the wings: ``museum["skip"]``."""

    def __init__(self, exhibits: tuple[Exhibit, ...]) -> None:
        self._exhibits = {
            each.name: each for wing in WINGS for each in exhibits if each.wing == wing
        }

    def __getitem__(self, name: str) -> Exhibit:
        if name not in self._exhibits:
            raise KeyError(unknown("exhibit", name, self._exhibits))
        return self._exhibits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._exhibits)

    def __len__(self) -> int:
        return len(self._exhibits)

    def __repr__(self) -> str:
        """Return the catalogue: the symptoms, wing by wing."""
        lines: list[str] = []
        for wing, title in WINGS.items():
            lines += ["", title] if lines else [title]
            lines += [
                f"  {e.name:<14} {e.symptom}" for e in self._exhibits.values() if e.wing == wing
            ]
        return "\n".join(lines)


KINDS = (
    skipped,
    alone,
    leaving,
    orders,
    groups,
    unused,
    dying,
    gradients,
    wrapping,
    syncing,
    state,
    averages,
    data,
    messages,
    buffers,
    metrics,
)
museum = Museum(tuple(exhibit for kind in KINDS for exhibit in kind.EXHIBITS))
