"""An exhibit of the museum of faults: a short program that goes wrong, and what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from allreduce_edu.engine.spmd.errors import Deadlock, Mismatch
from allreduce_edu.engine.spmd.tools import told_by
from allreduce_edu.engine.spmd.words import ranks_text
from allreduce_edu.lessons.checks import Verdict, right, wrong
from allreduce_edu.lessons.museum.program import Program

WINGS = {
    "hangs": "It hangs, or it stops with an error",
    "disagree": "It runs, and the ranks disagree",
    "wrong": "It runs, all ranks agree, and the answer is wrong",
}
INSTRUMENTS = {"hangs": "the explainer", "disagree": "compare_replicas", "wrong": "the oracle"}

Edits = Mapping[str, str]  # old text, that is there once -> new text
Examined = tuple[str | None, str | None]  # where ranks disagree; what is wrong


class Report(NamedTuple):
    """Where people met it: a public thread, and in our words what it says."""

    where: str  # "pytorch/pytorch#33148"
    what: str

    def __repr__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, repr=False)
class Outcome:
    """What became of a program: for each wing what its instrument says, or None.

    Attributes
    ----------
    hangs
        Why it did not come to its end, in the words of the explainer.
    disagree
        The first entry in which ranks hold different bits.
    wrong
        In what way the answer that all ranks agree on is wrong.
    calls
        How many collectives and messages its ranks began, if they are counted.
    printed
        What the ranks printed.
    error
        What ended it, if it did not come to its end: a `Deadlock` has a picture.
    """

    hangs: str | None = None
    disagree: str | None = None
    wrong: str | None = None
    calls: int = 0
    printed: str = ""
    error: BaseException | None = None

    def __repr__(self) -> str:
        said = self.hangs or "\n".join(filter(None, (self.disagree, self.wrong)))
        return f"{self.printed}{said or 'It ends, all ranks agree, and the answer is right.'}"

    @property
    def wing(self) -> str | None:
        """The first of the three questions that is answered with no; None if all is well."""
        return next((wing for wing in WINGS if getattr(self, wing)), None)

    def told_by(self) -> dict[str, str]:
        """Return what gloo, NCCL and their tools print for this, by who says it.

        For a program on real ranks this is what was printed there. `how_to_read` explains a line.
        """
        if isinstance(self.error, (Deadlock, Mismatch)):
            return told_by(self.error)
        said: dict[str, list[int]] = {}
        for fate in getattr(self.error, "fates", ()):
            said.setdefault(fate.said, []).append(fate.rank)
        return {ranks_text(ranks): text for text, ranks in said.items() if text}


class Stage(Protocol):
    """Where a program runs, with what, and what is asked of it."""

    def run(self, program: Program) -> Outcome:
        """Run the program as the visitor meets it."""

    def problem(self, program: Program, fixed: Program) -> str | None:
        """Say what is still wrong with an edited program, beside one that is right.

        Whatever an edit does, what is said of it is a sentence.
        """


@dataclass(frozen=True, repr=False)
class Exhibit:
    """A fault to meet, diagnose, mend and check.

    Attributes
    ----------
    name
        Its name in the museum.
    wing
        One of `WINGS`; it says which instrument finds the fault.
    symptom
        What an engineer meets, and nothing of the cause: a line of the catalogue.
    program
        The faulty program; its last function is called.
    stage
        Runs and judges it.
    question, choices, answer
        The diagnosis: the reply to each choice, and the right one.
    cause
        What it was, in a sentence or two: shown after the diagnosis, with how to notice it.
    fix
        The edits that mend it.
    tried
        Fixes that people try and that do not help: their edits, by what they are called.
    reports
        Public reports of the same kind.
    shows
        Parts of what the instrument says of the faulty program: the ranks and the line at fault.
    """

    name: str
    wing: str
    symptom: str
    program: str
    stage: Stage
    question: str
    choices: Mapping[str, str]
    answer: str
    cause: str
    fix: Edits
    tried: Mapping[str, Edits]
    reports: tuple[Report, ...]
    shows: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Exhibit {self.name}: {self.symptom}\n\n{self.source}"

    @property
    def source(self) -> str:
        """The program's text."""
        return str(Program(self.program))

    @property
    def instrument(self) -> str:
        """What finds the fault."""
        return INSTRUMENTS[self.wing]

    def edited(self, edits: Edits) -> str:
        """Return the program's text with edits made."""
        text = self.source
        for old, new in edits.items():
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} must be there once, is {text.count(old)}")
            text = text.replace(old, new)
        return text

    @property
    def fixed(self) -> str:
        """The program's text with the reference fix."""
        return self.edited(self.fix)

    def run(self, program: str | Callable[..., Any] | None = None) -> Outcome:
        """Run the exhibit's program, or one of your own in its place."""
        return self.stage.run(Program(self.source if program is None else program))

    def check(self, program: str | Callable[..., Any]) -> Verdict:
        """Judge an edited program."""
        mine, fixed = Program(program), Program(self.fixed)
        problem = self.stage.problem(mine, fixed)
        return wrong(problem) if problem else right(self.cause)
