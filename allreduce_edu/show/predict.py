"""Ask before showing: a question that hides its answer until the reader has guessed or skipped."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import anywidget
import ipywidgets
import traitlets

if TYPE_CHECKING:
    from collections.abc import Mapping

STATIC = Path(__file__).parent / "static"

# What is said to some guesses: {"about": which, "right": bool, "reply": text}, and for numbers the
# bounds "low" and "high". The first verdict that a guess fits is its own; no bounds fit the rest.
Verdict = dict[str, Any]


class Predict(anywidget.AnyWidget):
    """A question with choices, or for a number, whose answer the notebook has computed.

    Every choice has a reply of its own, and the answer must be among the choices: a question that
    no longer fits what the engine counts fails where it stands. The kernel remembers the guesses
    to a question, so a cell that runs again shows them again; they go nowhere else. Backticks mark
    code in every text.

    Parameters
    ----------
    question
        What is asked; the kernel remembers guesses by it.
    choices
        The reply to each choice, in the order in which they are shown.
    answer
        The right choice: a value that the engine counted, not one typed in.
    key
        A name to remember guesses by instead, for a question whose words change with a control.

    Examples
    --------
    >>> Predict("After how many rounds is any chunk complete?", {
    ...     3: "Each round adds one share, and three were missing.",
    ...     6: "After 6 rounds every rank holds everything.",
    ... }, answer=3)
    Predict: After how many rounds is any chunk complete? (3; 6) Answer: 3.
    """

    _esm = STATIC / "predict.js"
    _css = STATIC / "predict.css"
    kind = traitlets.Enum(["choice", "number"]).tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)
    verdicts = traitlets.List(traitlets.Dict()).tag(sync=True)
    answer = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    status = traitlets.Enum(["open", "answered", "skipped"], "open").tag(sync=True)
    guess = traitlets.Unicode().tag(sync=True)  # the latest, as the reader gave it; "" is none
    first = traitlets.Unicode().tag(sync=True)  # the first one; later guesses do not change it

    def __init__(
        self, question: str, choices: Mapping[Any, str], answer: object, *, key: str | None = None
    ) -> None:
        right = str(answer)
        verdicts: list[Verdict] = [
            {"about": str(choice), "right": str(choice) == right, "reply": reply}
            for choice, reply in choices.items()
        ]
        names = [verdict["about"] for verdict in verdicts]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(f"choices must be two or more different ones, got {names}")
        if right not in names:
            raise ValueError(f"answer must be one of the choices {names}, got {right!r}")
        self._ask(key, kind="choice", question=question, verdicts=verdicts, answer=right)

    @classmethod
    def number(
        cls,
        question: str,
        answer: float,
        *,
        right: str,
        replies: Mapping[float, str],
        otherwise: str,
        unit: str = "",
        tolerance: float = 0.05,
        key: str | None = None,
    ) -> Predict:
        """Ask for a number; a guess within `tolerance` of a value gets that value's reply.

        Parameters
        ----------
        question, answer, key
            As for a question with choices.
        right
            The reply to a guess that is near enough to the answer.
        replies
            For each wrong number that a belief leads to: what is said to it.
        otherwise
            The reply to all other numbers.
        unit
            Written behind every number.
        tolerance
            The share of a value by which a guess may miss it; 0 asks for the exact number.
        """
        verdicts = [_around("answer", answer, tolerance) | {"right": True, "reply": right}]
        for value, reply in replies.items():
            verdict = _around("replies", value, tolerance)
            if taken := _find(verdicts, "number", value):
                raise ValueError(f"replies has {verdict['about']}, too near {taken['about']}")
            verdicts.append(verdict | {"right": False, "reply": reply})
        verdicts.append({"about": "anything else", "right": False, "reply": otherwise})
        self = cls.__new__(cls)
        shown = verdicts[0]["about"]
        self._ask(key, kind="number", question=question, verdicts=verdicts, answer=shown, unit=unit)
        return self

    def _ask(self, key: str | None, **traits: Any) -> None:
        """Check the replies, make the widget, and take over what was guessed before."""
        _check_replies(traits["verdicts"])
        super().__init__(**traits)
        self.key = key or self.question
        if (before := _asked.get(self.key)) and self._offers(before):
            self.status, self.guess, self.first = before.status, before.guess, before.first
        _asked[self.key] = self
        self.observe(_redraw_tables, ["status", "guess", "first"])

    def _offers(self, before: Predict) -> bool:
        """Whether what was guessed before could still be guessed."""
        guessed = filter(None, [before.guess, before.first])
        return self.kind == before.kind and all(self.verdict(guess) for guess in guessed)

    @property
    def first_guess(self) -> str | float | None:
        """The first guess: the text of a choice, or a number; None as long as there is none."""
        if not self.first:
            return None
        return float(self.first) if self.kind == "number" else self.first

    def with_unit(self, text: str) -> str:
        """Write a guess or an answer as the reader sees it."""
        return f"{text} {self.unit}".rstrip()

    def verdict(self, guess: str) -> Verdict:
        """Return what is said to a guess; nothing if it is not among the choices."""
        return _find(self.verdicts, self.kind, guess)

    def twin(self) -> str:
        """Return the question and its folded answer as HTML that needs neither style nor script."""
        offers = [f"{_letter(i)}&ensp;{_html(v['about'])}" for i, v in enumerate(self.verdicts)]
        if self.kind == "number":
            offers = [f"A number, in {_html(self.unit)}." if self.unit else "A number."]
        right_first = sorted(self.verdicts, key=lambda verdict: not verdict["right"])
        replies = [f"<p>{self._lead(v)}: {_html(v['reply'])}</p>" for v in right_first]
        return "\n".join(
            [
                f"<p><strong>{_html(self.question)}</strong></p>",
                f"<p>{'<br>'.join(offers)}</p>",
                "<details><summary>Answer</summary>",
                *replies,
                "</details>",
            ]
        )

    def _lead(self, verdict: Verdict) -> str:
        """Name the guesses that a verdict is about, the right one in bold."""
        about = self.with_unit(verdict["about"]) if "low" in verdict else verdict["about"]
        return f"<strong>{_html(about)}</strong>" if verdict["right"] else _html(about)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({"text/plain": repr(self)}, {})
        return data | {"text/html": self.twin()}, metadata

    def __repr__(self) -> str:
        names = [verdict["about"] for verdict in self.verdicts]
        offers = f" ({'; '.join(names)})" if self.kind == "choice" else ""
        return f"Predict: {self.question}{offers} Answer: {self.with_unit(self.answer)}."


class Guesses(ipywidgets.HTML):  # type: ignore[misc]
    """A table of the reader's first guesses beside the answers; it grows with every guess."""

    def __init__(self) -> None:
        super().__init__(value=_table())
        _tables.add(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/plain": repr(self), "text/html": self.value}

    def __repr__(self) -> str:
        told = [f"{predict.question} {predict.with_unit(predict.first)}" for predict in _guessed()]
        return f"First guesses: {'; '.join(told) or 'none yet'}."


def guesses() -> Guesses:
    """Show every first guess of this kernel session beside its answer, once it is revealed."""
    return Guesses()


_asked: dict[str, Predict] = {}  # the latest widget of each question, in the order of asking
_tables: WeakSet[Guesses] = WeakSet()


def _redraw_tables(_change: object) -> None:
    for table in _tables:
        table.value = _table()


def _guessed() -> list[Predict]:
    return [predict for predict in _asked.values() if predict.first]


# Written out in every cell because an output's HTML brings no style sheet.
_CELL = "padding: 3px 24px 3px 0; text-align: left; vertical-align: top; line-height: 1.5"


def _table() -> str:
    if not (rows := [_row(predict) for predict in _guessed()]):
        return "<p>Your first guesses will be listed here, once there are any.</p>"
    names = ("Question", "Your first guess", "Answer")
    head = "".join(f'<th scope="col" style="{_CELL}">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(predict: Predict) -> str:
    """Write one question's row; a question that is being answered again keeps its answer hidden."""
    guess, answer = predict.with_unit(predict.first), ""
    if predict.status != "open":
        mark = "✓" if predict.verdict(predict.first).get("right") else "≠"
        guess, answer = f"{mark} {guess}", predict.with_unit(predict.answer)
    cells = [predict.question, guess, answer]
    return f"<tr>{''.join(f'<td style={_CELL!r}>{_html(cell)}</td>' for cell in cells)}</tr>"


def _check_replies(verdicts: list[Verdict]) -> None:
    """Refuse a verdict without a reply, or with the reply of another."""
    said: dict[str, str] = {}
    for verdict in verdicts:
        about, reply = verdict["about"], verdict["reply"]
        if not (isinstance(reply, str) and reply.strip()):
            raise ValueError(f"every choice needs a reply of its own, {about!r} has {reply!r}")
        if reply in said:
            raise ValueError(
                f"every choice needs a reply of its own, {about!r} has that of {said[reply]!r}"
            )
        said[reply] = about


def _around(name: str, value: float, tolerance: float) -> Verdict:
    """Return the bounds of the guesses that count as this value."""
    try:
        x = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(x):
        raise ValueError(f"{name} must be finite, got {x}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1, got {tolerance!r}")
    room = abs(x) * max(tolerance, 1e-9)  # a computed 22.4 may end in ...02
    return {"about": _text(x), "low": x - room, "high": x + room}


def _find(verdicts: list[Verdict], kind: str, guess: str | float) -> Verdict:
    if kind == "choice":
        fits = [verdict for verdict in verdicts if verdict["about"] == guess]
    else:
        x = float(guess)
        fits = [v for v in verdicts if "low" not in v or v["low"] <= x <= v["high"]]
    return fits[0] if fits else {}


def _text(x: float) -> str:
    """Write a number as a reader would: whole ones in full, others to three digits."""
    whole = x == round(x) or abs(x) >= 1000
    return f"{round(x)}" if whole else f"{x:.3g}"


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _html(text: str) -> str:
    """Escape a text for HTML, with what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
    return "".join(parts)
