"""Hygiene of the committed notebooks; nbval runs them and compares their outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from allreduce_edu.clean import KERNEL, cell_ids

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
LONGEST_CELL = 15
MEDIAN_CELL = 4
MOST_BYTES = 400_000
OPENING = "What you'll do", "What you'll learn", "What you'll need"
# Minutes of a notebook's core: 4, 3 for each question, 7 for each exercise, and what is said here.
EXTRA = {"00_start_here": -12}  # its two exercises only show what a check is
CLOSING = "Takeaways", "On your own", "In practice", "Further reading"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS, "no notebooks found in notebooks/"


@pytest.fixture(params=NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def notebook(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.fixture
def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def prose(notebook: dict[str, Any]) -> str:
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def lines(cell: dict[str, Any]) -> int:
    """Return how many lines of a cell are neither blank nor comment."""
    source = "".join(cell["source"]).splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in source)


def test_it_was_run_from_top_to_bottom(code: list[dict[str, Any]]) -> None:
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))


def test_it_shows_outputs_and_no_error(code: list[dict[str, Any]]) -> None:
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) >= len(code) / 3
    assert [o for o in outputs if o["output_type"] == "error"] == []
    assert [o for o in outputs if o.get("name") == "stderr"] == []


def test_its_metadata_and_ids_are_those_of_a_clean_run(notebook: dict[str, Any]) -> None:
    assert notebook["metadata"] == {"kernelspec": KERNEL}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    ids = [cell["id"] for cell in cells]
    assert len(set(ids)) == len(ids)
    assert ids == cell_ids(["".join(cell["source"]) for cell in cells])


def test_it_carries_no_widget_state(path: Path) -> None:
    assert "application/vnd.jupyter.widget" not in path.read_text(encoding="utf-8")


def test_it_names_no_folder_of_anybodys_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"(?:/home/|/root/|/Users/|/tmp/|/private/|[A-Z]:\\\\)[\w.-]*", text)
    assert found == []


def test_it_is_small_enough_to_be_read_on_the_web(path: Path) -> None:
    assert path.stat().st_size <= MOST_BYTES


def test_code_cells_are_short(code: list[dict[str, Any]]) -> None:
    sizes = sorted(map(lines, code))
    assert sizes[-1] <= LONGEST_CELL
    assert sizes[len(sizes) // 2] <= MEDIAN_CELL


def test_it_opens_and_closes_as_all_do(notebook: dict[str, Any], prose: str) -> None:
    first = "".join(notebook["cells"][0]["source"])
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert re.match(r"# \S", first)
    positions = [prose.find(heading) for heading in (*OPENING, *CLOSING)]
    assert -1 not in positions, f"{[*OPENING, *CLOSING][positions.index(-1)]} is missing"
    assert positions == sorted(positions)
    assert re.search(r"\d+ min", prose[: positions[3]]), "minutes stand in the opening"


def test_claims_are_asserted(code: list[dict[str, Any]]) -> None:
    assert any("assert " in "".join(cell["source"]) for cell in code)


def test_no_exercise_is_solved_by_its_starter(code: list[dict[str, Any]]) -> None:
    for cell in code:
        if "exercise" in cell["metadata"].get("tags", []):
            said = "".join(cell["outputs"][-1]["data"]["text/plain"])
            assert said.startswith("✗")
            assert "Not yet" in said


def test_the_minutes_are_those_of_its_core(
    path: Path, code: list[dict[str, Any]], prose: str
) -> None:
    core = [cell for cell in code if "core" in cell["metadata"].get("tags", [])]
    questions = sum("Predict" in "".join(cell["source"]) for cell in core[1:])
    exercises = sum("exercise" in cell["metadata"]["tags"] for cell in core)
    minutes = 4 + 3 * questions + 7 * exercises + EXTRA.get(path.stem, 0)
    label = re.search(r"(\d+) min", prose)
    assert label
    assert abs(int(label[1]) - minutes) <= 5
