"""A JupyterLab that shares nothing with the user's own, and a notebook open in it."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Locator, Page

REPOSITORY = Path(__file__).resolve().parents[2]
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


@dataclass
class Lab:
    """A running JupyterLab that shares no setting, kernel or file with the user's own."""

    home: Path
    token: str
    url: str = ""
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.home / "root"

    def setting(self, plugin: str, values: dict[str, Any]) -> None:
        """Write a plugin's user settings; a page opened afterwards reads them."""
        package, name = plugin.split(":")
        path = self.home / "settings" / package / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))

    def theme(self, theme: str) -> None:
        self.setting("@jupyterlab/apputils-extension:themes", {"theme": THEMES[theme]})

    def write(self, name: str, *sources: str) -> str:
        """Write a notebook with one code cell per source and return its path for opening it."""
        kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        blank: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": []}
        blank["execution_count"] = None
        cells = [blank | {"id": f"c{i}", "source": source} for i, source in enumerate(sources)]
        notebook = {"cells": cells, "metadata": {"kernelspec": kernel}}
        text = json.dumps(notebook | {"nbformat": 4, "nbformat_minor": 5})
        (self.root / name).write_text(text, "utf-8")
        return name

    def call(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or "null")

    def end_sessions(self) -> None:
        for session in self.call("api/sessions"):
            self.call(f"api/sessions/{session['id']}", "DELETE")


@contextmanager
def running_lab() -> Iterator[Lab]:
    """Run a JupyterLab on a free loopback port; its root holds copies of notebooks and assets.

    Whatever happens inside, no process and no folder is left when it ends.
    """
    lab = Lab(Path(tempfile.mkdtemp(prefix="allreduce-lab-")), secrets.token_hex(16))
    lab.root.mkdir()
    for folder in ("notebooks", "assets"):  # copies: JupyterLab saves by itself
        if (REPOSITORY / folder).is_dir():
            shutil.copytree(REPOSITORY / folder, lab.root / folder)
    news = {"fetchNews": "false", "checkForUpdates": False}
    lab.setting("@jupyterlab/apputils-extension:notification", news)
    lab.setting("@jupyterlab/notebook-extension:tracker", {"windowingMode": "none"})
    server = _start(lab)
    try:
        lab.url = _wait_for(lab, server)
        yield lab
    finally:
        left = _stop(lab, server)
        shutil.rmtree(lab.home, ignore_errors=True)
    assert not left, f"JupyterLab left {len(left)} processes behind: {left}"


def _start(lab: Lab) -> subprocess.Popen[bytes]:
    # Nothing of the user's Jupyter leaks in, and inside the kernel it does not look like pytest:
    # ipykernel captures a child's output differently when it believes that a test runs it.
    ours = ("JUPYTER", "PYTEST_", "IPYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    for name in ("CONFIG", "DATA", "RUNTIME"):
        env[f"JUPYTER_{name}_DIR"] = str(lab.home / name.lower())
    env["JUPYTERLAB_SETTINGS_DIR"] = str(lab.home / "settings")
    env["JUPYTERLAB_WORKSPACES_DIR"] = str(lab.home / "workspaces")
    env["IPYTHONDIR"] = str(lab.home / "ipython")
    env["JUPYTER_TOKEN"] = lab.token
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), env.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0"]
    command += [f"--ServerApp.root_dir={lab.root}", "--LabApp.expose_app_in_browser=True"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    with (lab.home / "lab.log").open("wb") as log:
        return subprocess.Popen(
            command,
            env=env,
            cwd=lab.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
        )


def _end_with_parent() -> None:
    """Let the server end even when pytest is killed and cannot stop it; its kernels follow it."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _wait_for(lab: Lab, server: subprocess.Popen[bytes]) -> str:
    """Return the address that the server wrote down itself, once it answers there."""
    for _ in range(600):
        for info in (lab.home / "runtime").glob("jpserver-*.json"):
            try:
                lab.url = json.loads(info.read_text())["url"]
                lab.call("api/status")
            except (OSError, ValueError):  # half written, or not listening yet
                continue
            return lab.url
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start: {(lab.home / 'lab.log').read_text()[-2000:]}")


def _stop(lab: Lab, server: subprocess.Popen[bytes]) -> list[int]:
    """Stop the server politely, then end what is left of it; return what was left."""
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    deadline = time.monotonic() + 15
    while (left := _processes_of(lab)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def _processes_of(lab: Lab) -> list[int]:
    """Find processes that inherited this server's token (Linux; elsewhere it finds none)."""
    mark = f"JUPYTER_TOKEN={lab.token}".encode()
    found = [path.parent for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]
    return [int(process.name) for process in found]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # another user's process, or gone meanwhile
        return b""


# The toolbar says "idle" before there is a kernel, so the session itself is asked. No `await` in
# what a page waits for: a promise counts as true.
READY = """() => {
  const panel = window.jupyterapp?.shell.currentWidget;
  const session = panel?.sessionContext, kernel = session?.session?.kernel;
  return panel?.context?.isReady && session?.isReady
    && kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
RUN = """() => {
  window.ranAll = false;
  window.jupyterapp.commands.execute("notebook:run-all-cells").finally(() => window.ranAll = true);
}"""
DRAWN = """() => window.ranAll && ![...document.querySelectorAll(".jp-OutputArea-output")].some(
  (output) => output.textContent.startsWith("Loading widget"))"""
ERRORS = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
  .flatMap((cell, i) => cell.type !== "code" ? [] : [...Array(cell.outputs.length).keys()]
    .map((k) => cell.outputs.get(k).toJSON())
    .filter((output) => output.output_type === "error")
    .map((output) => `cell ${i}: ${output.ename}: ${output.evalue}`))"""
RAN = """([index, before]) => {
  const cell = document.querySelectorAll(".jp-Notebook .jp-Cell")[index];
  const prompt = cell.querySelector(".jp-InputPrompt").innerText;
  return prompt !== before && !prompt.includes("*");
}"""
CHANGE_THEME = """(theme) => {
  window.jupyterapp.commands.execute("apputils:change-theme", { theme });
}"""
HEIGHT = """() => document.querySelector(".jp-WindowedPanel-outer").scrollHeight"""


@dataclass
class Notebook:
    """A notebook that is open in JupyterLab, its kernel idle."""

    page: Page

    @classmethod
    def open(cls, page: Page, lab: Lab, path: str) -> Notebook:
        # /doc is one document without side bars; reset forgets what an earlier test left open.
        page.goto(f"{lab.url}doc/tree/{path}?token={lab.token}&reset")
        page.wait_for_function(READY, timeout=60_000)
        return cls(page)

    def run_all(self, seconds: float = 120) -> None:
        """Run every cell, wait until the widgets are drawn, and fail on any error output."""
        self.page.evaluate(RUN)
        self.page.wait_for_function(DRAWN, timeout=seconds * 1000)
        errors = self.page.evaluate(ERRORS)
        assert not errors, "\n".join(errors)
        broken = self.page.locator(".jp-OutputArea-output", has_text="Error displaying widget")
        assert broken.count() == 0, "a widget could not be drawn"

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def run_cell(self, index: int, seconds: float = 60) -> None:
        """Run one cell the way a reader does: click into it and press Ctrl-Enter."""
        before = self.cell(index).locator(".jp-InputPrompt").first.inner_text()
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(RAN, arg=[index, before], timeout=seconds * 1000)

    def change_theme(self, theme: str) -> None:
        """Change the theme the way the Settings menu does, and wait until it is on."""
        self.page.evaluate(CHANGE_THEME, THEMES[theme])
        light = "true" if theme == "light" else "false"
        self.page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def unfold(self) -> None:
        """Make the window as tall as the notebook, so that one screenshot shows all of it."""
        width = (self.page.viewport_size or {"width": 1280})["width"]
        height = min(120 + self.page.evaluate(HEIGHT), 16_000)
        self.page.set_viewport_size({"width": width, "height": height})
