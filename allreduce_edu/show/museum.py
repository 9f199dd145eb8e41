"""A visit to the museum of faults: find a symptom, run its program, diagnose it, mend it, check it.

Three widgets below each other, for each works alone: the case with the symptoms and the program, a
question, and the bench with an editor. Where there is no kernel the catalogue can still be read.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from html import escape
from typing import Any

import anywidget
import ipywidgets
import traitlets

from allreduce_edu.engine.spmd.errors import Deadlock, Mismatch
from allreduce_edu.engine.spmd.logs import ASKED, how_to_read
from allreduce_edu.lessons.checks import wrong
from allreduce_edu.lessons.museum import WINGS, Exhibit, Outcome, museum
from allreduce_edu.lessons.museum.program import said
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.searched import SEARCHED
from allreduce_edu.show import paint
from allreduce_edu.show.checklist import ELEMENTS
from allreduce_edu.show.predict import STATIC, Predict
from allreduce_edu.show.tape import Tape
from allreduce_edu.show.waits import Waits

# What people type who have met it, besides the symptom's own words.
_WORDS = {
    "hangs": "hang hangs stuck deadlock freeze timeout timed out waiting watchdog nccl gloo "
    "barrier connection closed reset by peer collective crash error",
    "disagree": "replicas ranks differ diverge hash checkpoint desync parameters",
    "wrong": "silent loss accuracy metric slow worse converge same hash bug",
}
_COUNTS = {2: "two", 3: "three", 4: "four", 8: "eight"}
_OPEN = {"ok": False, "text": ""}
_NOTHING = {"text": "", "pictures": [], "told": []}


class _Part(anywidget.AnyWidget):
    """What case and bench share: a wish of the browser's, and a word while it is being met."""

    _esm = ELEMENTS + (STATIC / "museum.js").read_text(encoding="utf-8")
    _css = paint.css(".ar-museum") + (STATIC / "museum.css").read_text(encoding="utf-8")
    wish = traitlets.Dict().tag(sync=True)  # {"n": which, "what": word, "more": text}
    busy = traitlets.Unicode("").tag(sync=True)


class Case(_Part):
    """The upper half: the catalogue, the program of one exhibit, and what became of it."""

    part = traitlets.Unicode("case").tag(sync=True)
    wings = traitlets.List(traitlets.Dict()).tag(sync=True)
    symptoms = traitlets.List(traitlets.Dict()).tag(sync=True)
    at = traitlets.Unicode().tag(sync=True)
    symptom = traitlets.Unicode().tag(sync=True)
    program = traitlets.Unicode().tag(sync=True)
    outcome = traitlets.Dict(_NOTHING).tag(sync=True)
    mended = traitlets.List(traitlets.Unicode()).tag(sync=True)  # names

    def __repr__(self) -> str:
        return f"Case: {self.at}"


class Bench(_Part):
    """The lower half: the editor, the verdict, and the answer once it is asked for or earned."""

    part = traitlets.Unicode("bench").tag(sync=True)
    original = traitlets.Unicode().tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    verdict = traitlets.Dict(_OPEN).tag(sync=True)
    answer = traitlets.Dict().tag(sync=True)

    def __repr__(self) -> str:
        return f"Bench: {len(self.text.splitlines())} lines"


class Visit(ipywidgets.VBox):  # type: ignore[misc]
    """The museum, or one exhibit of it, to run, diagnose and mend.

    Parameters
    ----------
    name
        An exhibit; without it the whole catalogue, by symptom.

    Examples
    --------
    >>> Visit("skip")
    Visit to skip: Three ranks wait in an all-reduce until the time-out; the fourth has ended in ...
    """

    def __init__(self, name: str | None = None) -> None:
        self._alone = name is not None
        shown = [museum[name]] if name is not None else list(museum.values())
        self.case, self.bench = Case(), Bench()
        self.case.wings = [{"key": key, "title": title} for key, title in WINGS.items()]
        self.case.symptoms = [
            {"name": e.name, "wing": e.wing, "symptom": e.symptom, "words": words(e)} for e in shown
        ]
        self._edits: dict[str, str] = {}
        self.case.observe(self._heard, "wish")
        self.bench.observe(self._heard, "wish")
        super().__init__()
        self.choose(shown[0].name)

    @property
    def exhibit(self) -> Exhibit:
        """The exhibit on show."""
        return museum[self.case.at]

    def choose(self, name: str) -> None:
        """Show an exhibit; what was written about another is kept."""
        exhibit = museum[name]
        if self.case.at:
            self._edits[self.case.at] = self.bench.text
        with self.case.hold_sync():
            self.case.at, self.case.symptom = name, exhibit.symptom
            self.case.program, self.case.outcome = exhibit.source, _NOTHING
        with self.bench.hold_sync():
            self.bench.original = exhibit.source
            self.bench.text = self._edits.get(name, exhibit.source)
            self.bench.answer, self.bench.verdict = {}, _OPEN
        self.question = Predict(
            exhibit.question, exhibit.choices, exhibit.answer, key=f"museum {name}"
        )
        self.children = [self.case, self.question, self.bench]

    def run(self) -> None:
        """Run the faulty program and show what becomes of it."""
        with self._busy(self.case):
            outcome = _or_sentence(self.exhibit.run)
            self.case.outcome = seen(outcome)

    def check(self, text: str | None = None) -> None:
        """Judge an edit; one that passes brings the answer with it."""
        if text is not None:
            self.bench.text = text
        with self._busy(self.bench):
            verdict = _or_sentence(lambda: self.exhibit.check(self.bench.text))
            if isinstance(verdict, Outcome):
                verdict = wrong(verdict.hangs or "")
            said = "the program does what it must" if verdict.ok else verdict.why
            self.bench.verdict = {"ok": verdict.ok, "text": said}
            if verdict.ok:
                self.case.mended = [*dict.fromkeys([*self.case.mended, self.exhibit.name])]
                self.reveal()

    def reveal(self) -> None:
        """Show the reference fix, the cause, what does not help, and who has met it."""
        e = self.exhibit
        self.bench.answer = {
            "diff": diff(e),
            "cause": e.cause,
            "instrument": e.instrument,
            "tried": list(e.tried),
            "reports": [{"where": r.where, "what": r.what} for r in e.reports],
        }

    def _busy(self, part: _Part) -> _Busy:
        stage = self.exhibit.stage
        ranks = getattr(stage, "ranks", 4)
        many = _COUNTS.get(ranks, str(ranks))
        real = isinstance(stage, Real)
        return _Busy(part, f"starting {many} processes ..." if real else "running ...")

    def _heard(self, change: Any) -> None:
        """Meet a wish of the browser's."""
        what, more = change.new["what"], change.new.get("more", "")
        try:
            match what:
                case "choose":
                    self.choose(more)
                case "run":
                    self.run()
                case "check":
                    self.check(more)
                case "again":
                    self.bench.text, self.bench.verdict = (
                        self.bench.original,
                        _OPEN,
                    )
                case "reveal":
                    self.reveal()
        finally:
            change.owner.busy = ""

    def twin(self) -> str:
        """Return what can be read without a kernel: one exhibit, or the catalogue."""
        if self._alone:
            return _exhibit_html(self.exhibit, self.question)
        return _catalogue_html(museum.values())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/plain": repr(self), "text/html": self.twin()}

    def __repr__(self) -> str:
        if self._alone:
            return f"Visit to {self.exhibit.name}: {self.exhibit.symptom}"
        return f"Visit to the museum of faults\n\n{museum!r}"


class _Busy:
    """Says what is going on, until it is over."""

    def __init__(self, part: _Part, text: str) -> None:
        self._part, self._text = part, text

    def __repr__(self) -> str:
        return f"Busy: {self._text}"

    def __enter__(self) -> None:
        self._part.busy = self._text

    def __exit__(self, *_: object) -> None:
        self._part.busy = ""


def _or_sentence(act: Callable[[], Any]) -> Any:
    """Return what an act gives, or, whatever it raises, an outcome with a sentence."""
    try:
        return act()
    except KeyboardInterrupt:
        return Outcome(hangs="Stopped.")
    except Exception as error:  # noqa: BLE001 - an edit may raise anything
        return Outcome(hangs=said(error))


def seen(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as what the case shows: words, pictures, and what the tools print."""
    error = outcome.error
    pictures = [Waits(error).svg()] if isinstance(error, Deadlock) else []
    if isinstance(error, Deadlock | Mismatch) and any(state.calls for state in error.states):
        pictures.append(Tape(error).svg())
    return {"text": repr(outcome), "pictures": pictures, "told": told(outcome)}


def told(outcome: Outcome) -> list[dict[str, str]]:
    """Return what each tool, or each real rank, prints; how to get it, and how to read it."""
    return [
        {"tool": tool, "text": text, "ask": ASKED.get(tool, ""), "read": how_to_read(text)}
        for tool, text in outcome.told_by().items()
    ]


def words(exhibit: Exhibit) -> str:
    """Return what the filter looks through; only its hits are seen, and so it tells nothing."""
    searched = exhibit.name, SEARCHED.get(exhibit.name, ""), _WORDS[exhibit.wing]
    return " ".join([exhibit.symptom, exhibit.question, exhibit.source, *searched])


def diff(exhibit: Exhibit) -> list[str]:
    """Return the program's lines with the fix: each begins with " ", "-" or "+"."""
    old, new = exhibit.source.splitlines(), exhibit.fixed.splitlines()
    lines = difflib.ndiff(old, new)
    return [line[0] + line[2:] for line in lines if line[0] != "?"]


def take(name: str) -> None:
    """Put an exhibit's program into a new cell below, with its check; elsewhere print it."""
    exhibit = museum[name]
    entry = exhibit.source.rpartition("\ndef ")[2].partition("(")[0].removeprefix("def ")
    text = f'{exhibit.source}\n\nmuseum["{name}"].check({entry})'
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel"):
        shell.set_next_input(text, replace=False)
    else:
        print(text)


def _catalogue_html(exhibits: Iterable[Exhibit]) -> str:
    shown, parts = list(exhibits), ["<p><strong>The museum of faults, by symptom</strong></p>"]
    for wing, title in WINGS.items():
        items = "".join(
            f"<li>{escape(e.symptom)} (<code>{escape(e.name)}</code>)</li>"
            for e in shown
            if e.wing == wing
        )
        parts.append(f"<p>{escape(title)}</p><ul>{items}</ul>")
    return "\n".join(parts)


def _exhibit_html(exhibit: Exhibit, question: Predict) -> str:
    fix = f"<pre>{escape(chr(10).join(diff(exhibit)))}</pre><p>{escape(exhibit.cause)}.</p>"
    return "\n".join(
        [
            f"<p><strong>{escape(exhibit.symptom)}</strong></p>",
            f"<pre>{escape(exhibit.source)}</pre>",
            question.twin(),
            f"<details><summary>One fix</summary>{fix}</details>",
        ]
    )
