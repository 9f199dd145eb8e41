"""The order of investigation as a list to answer, question by question, about one's own job.

Everything happens in the browser: it goes on answering while the kernel is busy, or gone.
"""

from __future__ import annotations

from html import escape
from typing import Any

import anywidget
import traitlets

from allreduce_edu.lessons.investigation import ORDER, Step
from allreduce_edu.lessons.museum import museum
from allreduce_edu.show import paint
from allreduce_edu.show.predict import STATIC

ELEMENTS = (STATIC / "elements.js").read_text(encoding="utf-8")  # in front of other scripts


class Checklist(anywidget.AnyWidget):
    """Five questions in the order that saves most time; a "no" stops, and says where to look.

    Examples
    --------
    >>> Checklist()
    Checklist: 1 Does every rank make the same calls, in the same order? 2 Do all ranks hold ...
    """

    _esm = ELEMENTS + (STATIC / "checklist.js").read_text(encoding="utf-8")
    _css = paint.css(".ar-checklist") + (STATIC / "checklist.css").read_text(encoding="utf-8")
    steps = traitlets.List(traitlets.Dict()).tag(sync=True)
    answers = traitlets.List(traitlets.Unicode()).tag(sync=True)  # "yes" or "no", in turn

    def __init__(self) -> None:
        super().__init__(steps=[_told(step) for step in ORDER])

    def twin(self) -> str:
        """Return all questions and both meanings as HTML that needs no script."""
        items = "\n".join(f"<li>{_item(step)}</li>" for step in ORDER)
        return f"<p><strong>What to ask, in this order</strong></p>\n<ol>\n{items}\n</ol>"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return data | {"text/plain": repr(self), "text/html": self.twin()}, metadata

    def __repr__(self) -> str:
        return "Checklist: " + " ".join(f"{i} {s.question}" for i, s in enumerate(ORDER, 1))


def _told(step: Step) -> dict[str, Any]:
    exhibits = [{"name": name, "symptom": symptom} for name, symptom in step.exhibits]
    return {**step._asdict(), "exhibits": exhibits}


def _item(step: Step) -> str:
    ways = "".join(f"<li>{_html(way)}</li>" for way in step.ways)
    many = sum(e.wing == step.wing for e in museum.values())
    where = f" The museum has a wing for it ({many} exhibits)." if many else ""
    return (
        f"<strong>{_html(step.question)}</strong><details><summary>How to ask, and what it means"
        f"</summary><ul>{ways}</ul><p>Yes: {_html(step.yes)}</p>"
        f"<p>No: {_html(step.no)}{where}</p></details>"
    )


def _html(text: str) -> str:
    """Escape a text for HTML, with what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
    return "".join(parts)
