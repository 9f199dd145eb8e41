"""Runs notebooks and brings them into their one committed form: two runs give the same bytes.

Kept: sources, tags, text, SVG, HTML, pictures. Dropped: timings, widget state and views, what
editors add. A cell tagged `nbval-ignore-output` (a measured time, say) keeps its committed output
as long as no code up to it has changed; `--fresh` measures again.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # nbformat and nbclient come with JupyterLab, and only `clean` needs them
    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEPT_METADATA = ("tags", "jupyter", "slideshow", "editable", "deletable")
WIDGET = "application/vnd.jupyter.widget-view+json"
MEASURED = "nbval-ignore-output"
SECONDS_PER_CELL = 120


class NotebookError(Exception):
    """A notebook did not run to its end; the message names file, cell and cause."""


def main(argv: list[str] | None = None) -> int:
    """Clean the notebooks named, or all; with --check write nothing and fail where one differs."""
    parser = argparse.ArgumentParser(
        prog="python3 -m allreduce_edu clean", description=main.__doc__
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("notebooks", nargs="*", type=Path)
    options = parser.parse_args(argv)
    paths = options.notebooks or sorted(ROOT.glob("notebooks/*.ipynb"))
    verdicts = [_clean_and_say(path, check=options.check, fresh=options.fresh) for path in paths]
    return 0 if all(verdicts) else 1


def _clean_and_say(path: Path, *, check: bool, fresh: bool) -> bool:
    start = time.monotonic()
    try:
        changes = clean(path, check=check, fresh=fresh)
    except UnicodeDecodeError:
        print(f"{path.name}: it is not a notebook: not UTF-8", flush=True)
        return False
    except (NotebookError, OSError) as error:
        print(f"{path.name}: {error}", flush=True)
        return False
    how = ("would change" if check else "changed") if changes else "unchanged"
    print(
        f"{path.name}: {how} ({time.monotonic() - start:.0f} s)", *changes, sep="\n  ", flush=True
    )
    return not (check and changes)


def clean(path: Path, *, check: bool = False, fresh: bool = False) -> list[str]:
    """Run one notebook, write its committed form, and return what changed, one sentence each.

    The file is replaced whole at the end, so that an error or Ctrl-C leaves it as it was. With
    `check` it is left in any case, and pictures are not compared: their bytes are not the same
    on every machine.
    """
    text = path.read_text(encoding="utf-8")
    before = _parse(text)
    after = normalised(before)
    _run(after, path)
    for cell in after.cells:
        _tidy_outputs(cell)
    if not fresh:
        _keep_measured(before, after)
    if check:
        return list(differences(_without_pictures(before), _without_pictures(after)))
    written = _text(after)
    if written != text:
        fresh_file = path.with_name(path.name + ".cleaning")
        try:
            fresh_file.write_text(written, encoding="utf-8", newline="\n")
            fresh_file.replace(path)
        finally:
            fresh_file.unlink(missing_ok=True)
    return list(differences(before, after))


def _parse(text: str) -> NotebookNode:
    import nbformat

    try:
        return nbformat.reads(text, as_version=4)
    except Exception as error:  # noqa: BLE001 - nbformat raises many kinds
        raise NotebookError(f"it is not a notebook: {error}") from None


def _text(notebook: NotebookNode) -> str:
    import nbformat

    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


def cell_ids(sources: list[str]) -> list[str]:
    """Return one id per cell, made from its source: an edit changes one id, an insertion none.

    An id that fits its source so also says that the cell was not edited since it was cleaned.
    """
    seen: dict[str, int] = {}
    ids = []
    for source in sources:
        seen[source] = nth = seen.get(source, 0) + 1
        marked = source if nth == 1 else f"{nth}\0{source}"
        ids.append(hashlib.sha256(marked.encode()).hexdigest()[:8])
    return ids


def normalised(notebook: NotebookNode) -> NotebookNode:
    """Return a copy with fixed ids and metadata, and without outputs."""
    copy = deepcopy(notebook)
    copy.metadata = {"kernelspec": dict(KERNEL)}
    copy.nbformat, copy.nbformat_minor = 4, 5
    for cell, fixed in zip(copy.cells, cell_ids([c.source for c in copy.cells]), strict=True):
        cell.id = fixed
        cell.metadata = {k: cell.metadata[k] for k in KEPT_METADATA if k in cell.metadata}
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    # Through text and back, so that all parts are of nbformat's own kind.
    return _parse(_text(copy))


def _run(notebook: NotebookNode, path: Path) -> None:
    """Run all cells, in the notebook's own folder."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    at = 0
    try:
        # Not client.execute(): it answers Ctrl-C itself, with errors of its own.
        with client.setup_kernel(stderr=subprocess.DEVNULL):  # the kernel's log, not the cells'
            for at, cell in enumerate(notebook.cells):
                client.execute_cell(cell, at)
    except CellExecutionError as error:
        raise NotebookError(f"cell {at + 1}: {error.ename}: {error.evalue}") from None
    except CellTimeoutError:
        raise NotebookError(f"cell {at + 1}: not done after {SECONDS_PER_CELL} s") from None
    except DeadKernelError:
        raise NotebookError(f"cell {at + 1}: the kernel died") from None


def _tidy_outputs(cell: NotebookNode) -> None:
    """Drop the views of widgets, which mean nothing without a kernel; their text stays."""
    cell.metadata.pop("execution", None)
    for output in cell.get("outputs", []):
        output.get("data", {}).pop(WIDGET, None)
        output.get("metadata", {}).pop(WIDGET, None)
    if "outputs" in cell:
        cell.outputs = [o for o in cell.outputs if o.get("data", True)]


def _keep_measured(before: NotebookNode, after: NotebookNode) -> None:
    """Put committed outputs back into measured cells whose code, and all above, is unchanged."""
    for old, new in zip(before.cells, after.cells, strict=True):
        if new.cell_type != "code":
            continue
        if old.get("id") != new.id:
            return
        if MEASURED in new.metadata.get("tags", []) and _kinds(old) == _kinds(new):
            new.outputs = old.outputs


def _kinds(cell: NotebookNode) -> list[tuple[str, str, list[str]]]:
    return [(o.output_type, o.get("name", ""), sorted(o.get("data", {}))) for o in cell.outputs]


def _without_pictures(notebook: NotebookNode) -> NotebookNode:
    copy = deepcopy(notebook)
    for cell in copy.cells:
        for output in cell.get("outputs", []):
            for mime in output.get("data", {}):
                if mime in ("image/png", "image/jpeg"):
                    output.data[mime] = "a picture"
    return copy


def differences(before: NotebookNode, after: NotebookNode) -> Iterator[str]:
    """Yield what differs and where, as in `outputs: cells 3, 5`."""
    cells: dict[str, list[str]] = {}
    for number, (old, new) in enumerate(zip(before.cells, after.cells, strict=True), start=1):
        for part in sorted({*old, *new}):
            if old.get(part) != new.get(part):
                cells.setdefault(part, []).append(str(number))
    for part, numbers in cells.items():
        yield f"{part}: cell{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
    for part in ("metadata", "nbformat", "nbformat_minor"):
        if before.get(part) != after.get(part):
            yield f"{part} of the notebook"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped; the notebook at hand is as it was", file=sys.stderr)
        sys.exit(130)
