"""Notebooks in their one committed form: two runs give the same bytes, and nothing is ever lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")

from allreduce_edu import clean as module  # noqa: E402 - after the skip
from allreduce_edu.clean import MEASURED, NotebookError, cell_ids, clean, main  # noqa: E402

V4 = nbformat.v4
PNG = "iVBORw0KGgo="


def write(path: Path, *cells: Any, **metadata: Any) -> Path:
    notebook = V4.new_notebook(cells=list(cells), metadata=metadata)
    nbformat.write(notebook, path)
    return path


def code(source: str, *tags: str, outputs: list[Any] | None = None, **metadata: Any) -> Any:
    if tags:
        metadata["tags"] = list(tags)
    return V4.new_code_cell(source, metadata=metadata, outputs=outputs or [])


def result(**data: Any) -> Any:
    return V4.new_output("display_data", data)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let notebooks "run": set what the code cells put out, one list of outputs for each."""

    def set_outputs(*outputs: list[Any]) -> None:
        def run(notebook: Any, _: Path) -> None:
            cells = [c for c in notebook.cells if c.cell_type == "code"]
            for number, (cell, out) in enumerate(zip(cells, outputs, strict=True), start=1):
                cell.outputs, cell.execution_count = [nbformat.from_dict(o) for o in out], number

        monkeypatch.setattr(module, "_run", run)

    return set_outputs


def test_a_real_notebook_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.ipynb",
        V4.new_markdown_cell("# Add numbers"),
        code("print(1)\nprint(2)\n1 + 1", "core", collapsed=True),
        code("import os\nos.getcwd() == " + repr(str(tmp_path))),
        widgets={"state": {}},
        language_info={"name": "python", "version": "3.11.7"},
    )
    assert main([str(path)]) == 0
    first = path.read_bytes()
    notebook = json.loads(first)
    assert notebook["metadata"] == {"kernelspec": module.KERNEL}
    _, sums, here = notebook["cells"]
    assert sums["metadata"] == {"tags": ["core"]}
    assert [o["output_type"] for o in sums["outputs"]] == ["stream", "execute_result"]
    assert sums["outputs"][0]["text"] == ["1\n", "2\n"]
    assert (sums["execution_count"], here["execution_count"]) == (1, 2)
    assert here["outputs"][0]["data"] == {"text/plain": ["True"]}
    assert clean(path) == []
    assert path.read_bytes() == first
    assert main(["--check", str(path)]) == 0


def test_an_error_names_the_cell_and_leaves_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.ipynb", V4.new_markdown_cell("x"), code("1"), code("1 / 0"))
    before = path.read_bytes()
    assert main([str(path)]) == 1
    assert "a.ipynb: cell 3: ZeroDivisionError: division by zero" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_no_notebook_is_named_and_the_others_are_cleaned(
    tmp_path: Path, running: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    running([])
    bad = tmp_path / "a.ipynb"
    bad.write_text("{")
    good = write(tmp_path / "b.ipynb", code("x = 1"))
    raw = tmp_path / "raw.ipynb"
    raw.write_bytes(b"\xff\xfe\x00")
    assert main([str(bad), str(raw), str(good), str(tmp_path / "c.ipynb")]) == 1
    said = capsys.readouterr().out
    assert "a.ipynb: it is not a notebook" in said
    assert "raw.ipynb: it is not a notebook: not UTF-8" in said
    assert "b.ipynb: changed" in said
    assert "c.ipynb: " in said


def test_check_says_what_would_change_and_changes_nothing(
    tmp_path: Path, running: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    running([result(**{"text/plain": "2"})])
    path = write(tmp_path / "a.ipynb", code("1 + 1"))
    before = path.read_bytes()
    assert main(["--check", str(path)]) == 1
    assert "outputs: cell 1\n" in capsys.readouterr().out
    assert path.read_bytes() == before


def test_pictures_are_written_but_not_compared(
    tmp_path: Path, running: Callable[..., None]
) -> None:
    path = write(tmp_path / "a.ipynb", code("plot()"))
    running([result(**{"image/png": PNG})])
    clean(path)
    running([result(**{"image/png": "AAAA"})])
    assert clean(path, check=True) == []
    assert clean(path) == ["outputs: cell 1"]
    assert read(path).cells[0].outputs[0].data["image/png"] == "AAAA"


def test_views_of_widgets_are_dropped_and_their_text_stays(
    tmp_path: Path, running: Callable[..., None]
) -> None:
    path = write(tmp_path / "a.ipynb", code("Player(ring)"), code("view"))
    view = {"model_id": "abc"}
    svg = {"text/plain": "a player", "image/svg+xml": "<svg/>"}
    running([result(**{module.WIDGET: view}, **svg)], [result(**{module.WIDGET: view})])
    clean(path)
    player, only = read(path).cells
    assert player.outputs[0].data == svg
    assert only.outputs == []


MEASURE = ("import time", "time.time()", "print('done')")


def measured(path: Path, first: str = MEASURE[0]) -> Path:
    return write(path, code(first), code(MEASURE[1], MEASURED), code(MEASURE[2]))


def test_measured_outputs_stay_until_asked_for_or_code_above_changes(
    tmp_path: Path, running: Callable[..., None]
) -> None:
    def kept() -> str:
        return str(read(path).cells[1].outputs[0].data["text/plain"])

    path = measured(tmp_path / "a.ipynb")
    running([], [result(**{"text/plain": "1.0"})], [])
    clean(path)
    running([], [result(**{"text/plain": "2.0"})], [])
    assert clean(path) == []
    assert clean(path, check=True) == []
    assert kept() == "1.0"
    clean(path, fresh=True)
    assert kept() == "2.0"
    running([], [result(**{"text/plain": "3.0"})], [])
    notebook = read(path)
    notebook.cells[0].source += "\nimport sys"
    nbformat.write(notebook, path)
    clean(path)
    assert kept() == "3.0"


def test_a_measured_output_of_another_kind_is_taken(
    tmp_path: Path, running: Callable[..., None]
) -> None:
    path = measured(tmp_path / "a.ipynb")
    running([], [result(**{"text/plain": "1.0"})], [])
    clean(path)
    running([], [result(**{"text/plain": "1.0", "text/html": "<b>1.0</b>"})], [])
    assert clean(path) == ["outputs: cell 2"]


@pytest.mark.parametrize("error", [OSError("no room"), KeyboardInterrupt()])
def test_a_crash_while_writing_loses_nothing(
    tmp_path: Path,
    running: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    running([])
    path = write(tmp_path / "a.ipynb", code("x = 1"))
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(type(error)):
        clean(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_ids_are_unique_and_an_insertion_changes_none() -> None:
    ids = cell_ids(["a", "b", "a", "a"])
    assert len(set(ids)) == 4
    assert cell_ids(["new", "a", "b", "a", "a"])[1:] == ids
    changed = cell_ids(["a", "other", "a", "a"])
    assert [old == new for old, new in zip(ids, changed, strict=True)] == [True, False, True, True]


def test_errors_are_of_our_own_kind(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", code("raise SystemExit('enough')"))
    with pytest.raises(NotebookError, match="cell 1: SystemExit: enough"):
        clean(path)
