"""The status shows what each rank does, only in a notebook, and leaves nothing behind."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from allreduce_edu.realdist import status
from allreduce_edu.realdist.status import Status


@pytest.fixture
def notebook(monkeypatch):
    """Stand-ins for what a notebook has; holds what was displayed."""
    shown = []

    class HTML:
        def __init__(self, value):
            self.value, self.model_id, self.open = value, "7", True
            self.layout, self.style = types.SimpleNamespace(close=list), None

        def close(self):
            self.open = False
            self.style = types.SimpleNamespace(close=list)

    shell = types.SimpleNamespace(kernel=object())
    display = types.ModuleType("IPython.display")
    display.display = lambda data, raw, display_id, update=False: shown.append((data, update))
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    widgets = types.ModuleType("ipywidgets")
    widgets.HTML = HTML
    for module in (ipython, display, widgets):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(status, "_AFTER", 0.0)
    monkeypatch.setattr(status, "_EVERY", 0.0)
    return shown


def test_it_shows_each_rank_and_the_clock_and_goes(notebook):
    with Status("2 ranks, gloo") as it:
        it.show(["running", "raised KeyError: '<b>'"], 3.4, 60.0)
        widget = it._widget
        assert "2 ranks, gloo · 3 s of at most 60 s" in widget.value
        assert "▶ </span>rank 0: running" in widget.value
        assert "✗ </span>rank 1: raised KeyError: &#x27;&lt;b&gt;&#x27;" in widget.value
        it.note = "1 MiB"
        it.show(["done", "starting"], 4.0, 60.0)
        assert widget.value.count("✓") == widget.value.count("○") == 1
        assert "gloo · 1 MiB · 4 s" in widget.value
    assert not widget.open


def test_it_sends_a_view_of_a_widget_and_no_text(notebook):
    """Nothing that nbval would compare, and nothing that would stay in the notebook."""
    with Status("2 ranks, gloo") as it:
        for _ in range(3):
            it.show(["running"], 0.0, 60.0)
    (view, first), (nothing, second) = notebook
    assert (list(view), first) == (["application/vnd.jupyter.widget-view+json"], False)
    assert (nothing, second) == ({}, True)


def test_the_outermost_use_ends_it(notebook):
    with Status("2 ranks, gloo") as it:
        with it:
            it.show(["running"], 0.0, 60.0)
        assert it._widget.open


def test_a_short_call_shows_nothing(notebook, monkeypatch):
    monkeypatch.setattr(status, "_AFTER", 60.0)
    with Status("2 ranks, gloo") as it:
        it.show(["running"], 0.0, 60.0)
        assert 59 < it.rest() <= 60
    assert notebook == []


def test_other_threads_show_nothing(notebook):
    made = []
    thread = threading.Thread(target=lambda: made.append(Status("2 ranks, gloo")))
    thread.start()
    thread.join()
    made[0].show(["running"], 0.0, 60.0)
    assert notebook == []


def test_a_notebook_without_widgets_is_no_obstacle(notebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with Status("2 ranks, gloo") as it:
        it.show(["running"], 0.0, 60.0)
        it.show(["running"], 0.0, 60.0)
    assert notebook == []


def test_out_of_a_notebook_nothing_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipywidgets", raising=False)
    monkeypatch.setattr(status, "_AFTER", 0.0)
    with Status("2 ranks, gloo") as it:
        it.show(["running"], 0.0, 60.0)
        assert repr(it) == "Status of 2 ranks, gloo, not shown"
    assert "ipywidgets" not in sys.modules
