"""What notebooks say in words: no result is typed in, and the minutes are those of the rule."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
UNITS = (
    "%|per cent|times|-?fold|S|B|[kKMGTP]i?B|bytes?|[kMGT]?b/s|[kMGT]?B/s|bits?"
    "|[nµm]?s|seconds?|minutes?|hours?"
)
NUMBER = re.compile(rf"(?<![\w.,/·⁻-])(\d[\d,]*(?:\.\d+)?)(?:[  -]?({UNITS})(?![\w/]))?(?![\w(])")

# Numbers that no output shows, each with the reason why it may be typed in.
TYPED = {
    ("00_start_here", "321"): "the goal that an exercise sets",
    ("01_watch_replicas_diverge", "900"): "given in the cell below it",
}

# Minutes, judged from teaching: opening and closing, a prediction, an exercise. A tag `minutes=2`
# on a cell says otherwise; on any other cell it is added.
OPENING, PREDICTION, EXERCISE, TOLERANCE = 4, 3, 7, 5


@pytest.fixture(params=NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return list(notebook["cells"])


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def results(text: str) -> list[str]:
    """Return the numbers of a text that look like results: with a unit, or with three digits."""
    for what in (r"```.*?```", r"`[^`]*`", r"\]\([^)]*\)", r"<[^>]*>"):
        text = re.sub(what, " ", text, flags=re.DOTALL)
    found = []
    for written, unit in NUMBER.findall(text):
        number = written.rstrip(",").replace(",", "")
        if unit or len(number.replace(".", "").lstrip("0")) >= 3:
            found.append(number)
    return found


def shown(cells: list[dict[str, Any]]) -> set[str]:
    """Return every number in the outputs."""
    parts = []
    for output in (o for cell in cells for o in cell.get("outputs", [])):
        data = output.get("data", {})
        texts = (output.get("text"), data.get("text/plain"), data.get("text/html"))
        parts += ["".join(text or "") for text in texts]
    text = re.sub(r'src="[^"]*"', "", unescape("\n".join(parts)))
    return {n.rstrip(",.").replace(",", "") for n in re.findall(r"\d[\d,]*(?:\.\d+)?", text)}


def told(cells: list[dict[str, Any]]) -> str:
    """Return the prose, without the label in minutes and without the years of what to read."""
    texts = [source(cell) for cell in cells if cell["cell_type"] == "markdown"]
    texts[0] = re.sub(r"About \d+ minutes", "", texts[0])
    whole = "\n\n".join(texts)
    return re.sub(r"## Further reading.*?(?=\n---|\n#|\Z)", "", whole, flags=re.DOTALL)


def test_no_result_is_typed_in(path: Path, cells: list[dict[str, Any]]) -> None:
    allowed = shown(cells) | {number for name, number in TYPED if name == path.stem}
    assert [number for number in results(told(cells)) if number not in allowed] == []


def test_no_exception_outlives_its_reason() -> None:
    stems = {path.stem: path for path in NOTEBOOKS}
    for name, number in TYPED:
        cells = json.loads(stems[name].read_text(encoding="utf-8"))["cells"]
        assert number in results(told(cells)), f"{number} is no longer in {name}"
        assert number not in shown(cells), f"an output of {name} shows {number} by now"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 39.2 s, or 7 % more, 28 GB", ["39.2", "7", "28"]),
        ("4 ranks, 16 images, `1e-3`, 2(N-1) rounds, step 50", []),
        ("reads 0.925 of 1,797", ["0.925", "1797"]),
        ("in 2.13 and notebook 05, [03](a_360.ipynb)", ["2.13"]),
        ("1.75 S, 3 S and 2.0 of 0.05", ["1.75", "3"]),
        ("an 8-bit number, threefold, 21 times", ["8", "21"]),
    ],
)
def test_results_are_told_from_counts(text: str, found: list[str]) -> None:
    assert results(text) == found


# --------------------------------------------------------------------------------- minutes


def label(cells: list[dict[str, Any]]) -> int:
    found = re.search(r"About (\d+) minutes", source(cells[0]))
    assert found, "the opening says `About N minutes`"
    return int(found[1])


def minutes(cells: list[dict[str, Any]]) -> int:
    """Return the minutes that the rule gives to the core."""
    total = OPENING
    for cell in cells:
        tags = cell["metadata"].get("tags", [])
        if "core" not in tags:
            continue
        usual = EXERCISE if "exercise" in tags else 0
        if cell["cell_type"] == "code":
            usual += PREDICTION * len(re.findall(r"\bPredict(?:\.number)?\(", source(cell)))
        declared = [int(tag.removeprefix("minutes=")) for tag in tags if tag.startswith("minutes=")]
        total += sum(declared) if declared else usual
    return total


def test_the_label_is_within_five_minutes_of_the_rule(cells: list[dict[str, Any]]) -> None:
    assert abs(label(cells) - minutes(cells)) <= TOLERANCE


def test_maps_say_the_same_minutes(path: Path, cells: list[dict[str, Any]]) -> None:
    start = json.loads((ROOT / "notebooks/00_start_here.ipynb").read_text(encoding="utf-8"))
    maps = {
        "README.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "notebook 00": "\n".join(source(cell) for cell in start["cells"]),
    }
    for name, text in maps.items():
        row = next(row for row in text.splitlines() if row.startswith("|") and path.stem[:2] in row)
        assert f"| {label(cells)} |" in row, f"{name}: {row}"


def test_core_comes_first_and_one_line_divides_it_from_more(cells: list[dict[str, Any]]) -> None:
    kinds = ["more" if "more" in cell["metadata"]["tags"] else "core" for cell in cells]
    assert all({"core", "more"} & set(cell["metadata"]["tags"]) for cell in cells)
    assert kinds == sorted(kinds)
    if "more" in kinds:
        last = source(cells[kinds.index("more") - 1])
        assert re.search(r"\n---\n\n\W+Everything below is for a second visit", last)
