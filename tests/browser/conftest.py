"""A throw-away JupyterLab and the system's Chromium, for tests that press real keys.

Three fixtures do the work: `open_notebook` opens a notebook in a real JupyterLab with a kernel
of its own, `widget_page` draws one widget's JavaScript on an empty page without any kernel, and
`lab` is the server behind the first. What goes wrong in the page fails the test when it ends.

Set CHROMIUM to choose the browser, SHOTS to a folder to keep the screenshots.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rig import REPOSITORY, Lab, Notebook, running_lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Locator, Page

STATIC = REPOSITORY / "allreduce_edu" / "show" / "static"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the suite must work offline
]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs playwright, a Chromium and JupyterLab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder, so that `-m "not browser"` leaves it out."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


# ------------------------------------------------------------------------------- the browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One Chromium for the whole session, or a skip that says what is missing."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip("no Chromium here: install chromium, or set CHROMIUM to one")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages; when the test ends, fail it for whatever went wrong in any of them."""
    problems: list[str] = []
    contexts = []

    def new(*, theme: str = "light", width: int = 1280, height: int = 900, **more: Any) -> Page:
        size: Any = {"width": width, "height": height}
        scheme: Any = theme
        context = chromium.new_context(viewport=size, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: problems.extend(_foreign(request.url)))
        return page

    yield new
    for context in contexts:
        context.close()
    assert not problems, "\n".join(problems)


def _foreign(url: str) -> list[str]:
    local = url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "blob:", "data:", "about:"))
    return [] if local else [f"left the machine: {url}"]


@pytest.fixture
def shot() -> Callable[[Page | Locator, str], None]:
    """Keep a screenshot in the folder SHOTS; without one, only check that it can be drawn."""
    folder = os.environ.get("SHOTS")

    def take(what: Page | Locator, name: str) -> None:
        what.screenshot(path=Path(folder) / f"{name}.png" if folder else None)

    return take


# ------------------------------------------------------------- one widget, without a kernel

STUB = """
const url = URL.createObjectURL(new Blob([%(js)s], { type: "text/javascript" }));
const { default: widget } = await import(url);
const state = %(state)s, heard = {};
window.saved = [];
window.model = {
  get: (name) => state[name],
  set: (name, value) => {
    if (state[name] === value) return;
    state[name] = value;
    for (const f of [...(heard["change:" + name] ?? []), ...(heard.change ?? [])]) f();
  },
  save_changes: () => window.saved.push(structuredClone(state)),
  on: (event, f) => event.split(" ").forEach((e) => (heard[e] ??= new Set()).add(f)),
  off: (event, f) => (event ?? "").split(" ").forEach((e) => heard[e]?.delete(f)),
};
const el = document.getElementById("widget");
await widget.initialize?.({ model: window.model });
window.dispose = await widget.render({ model: window.model, el });
window.drawn = true;
"""


@pytest.fixture
def widget_page(new_page: Callable[..., Page]) -> Callable[..., Page]:
    """Draw `static/<name>.js` with the given traits on an empty page; `model` is its model.

    `script` is drawn in its place, for a widget whose script has several parts.
    """

    def draw(name: str, state: dict[str, Any], *, script: str = "", **how: Any) -> Page:
        js = json.dumps(script or (STATIC / f"{name}.js").read_text("utf-8"))
        stub = (STUB % {"js": js, "state": json.dumps(state)}).replace("</", "<\\/")
        css = (STATIC / f"{name}.css").read_text("utf-8")
        page = new_page(**how)
        page.set_content(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>'
            f"<style>{css}</style><style>body {{ margin: 16px; color-scheme: light dark }}</style>"
            f'<main id="widget"></main><script type="module">{stub}</script>'
        )
        page.wait_for_function("window.drawn")
        return page

    return draw


# ------------------------------------------------------------------------ a real JupyterLab


@pytest.fixture(scope="session")
def lab(chromium: Browser) -> Iterator[Lab]:
    """One JupyterLab for the whole session."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    with running_lab() as lab:
        yield lab


@pytest.fixture
def open_notebook(lab: Lab, new_page: Callable[..., Page]) -> Iterator[Callable[..., Notebook]]:
    """Open a notebook of the lab's root in a fresh window with a fresh kernel."""

    def open_(path: str, *, theme: str = "light", **how: Any) -> Notebook:
        lab.theme(theme)
        page = new_page(theme=theme, **how)
        return Notebook.open(page, lab, path)

    yield open_
    lab.end_sessions()
