"""The player: any schedule, round by round, with its sums written out."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from allreduce_edu.engine.check import count, integer
from allreduce_edu.engine.frames import frames as frames_of
from allreduce_edu.engine.schedule import Schedule
from allreduce_edu.show import paint, scene, svg
from allreduce_edu.show.scene import Frames

STATIC = Path(__file__).parent / "static"
RANKS = range(2, 17)
PIECES = range(1, 5)
SPEEDS = (0.5, 1.0, 2.0, 4.0)
CSS = paint.css() + (STATIC / "player.css").read_text(encoding="utf-8")
_EXPORT = "export default { initialize, render };"
# The script without its last line, for widgets that add something of their own.
SCRIPT = (STATIC / "player.js").read_text(encoding="utf-8").removesuffix(f"{_EXPORT}\n")


class Player(anywidget.AnyWidget):
    """A schedule as a moving picture: play, step, step back, seek; in the browser alone.

    Where a widget cannot be drawn the same picture stands still: a film strip of all rounds, or
    the one frame that `index` names.

    Parameters
    ----------
    schedule : Schedule, or a function of the number of ranks that returns one
        With a function the number of ranks is a control, and if it takes ``chunks=`` so is the
        number of chunks per block; the kernel answers them.
    x : as for ``run``, optional
        Real data, one array per rank, for a schedule.
    op : as for ``run``, optional
        What is made of two numbers that meet.
    index : int
        The frame to start with; frame k is the state after k rounds.
    ranks : int, optional
        The number of ranks to start with, for a function; 4 if not given.
    speed, view
        How fast it plays: 0.5, 1, 2 or 4.  "ring" or "board", where both are to be had.

    Examples
    --------
    >>> Player(ring(4))
    Player: ring all-reduce, 4 ranks, 4 chunks, 6 rounds, at round 0
    """

    _esm: Any = STATIC / "player.js"
    _css = CSS
    frames = traitlets.Dict().tag(sync=True)
    scenes = traitlets.Dict().tag(sync=True)
    index = traitlets.Int(0).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    speed = traitlets.Float(1.0).tag(sync=True)
    view = traitlets.Unicode("").tag(sync=True)
    ranks = traitlets.Int(4).tag(sync=True)
    pieces = traitlets.Int(1).tag(sync=True)
    offered_ranks = traitlets.List(traitlets.Int()).tag(sync=True)
    offered_pieces = traitlets.List(traitlets.Int()).tag(sync=True)
    problem = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        schedule: Schedule | Callable[..., Schedule],
        x: Any = None,
        *,
        op: str = "sum",
        index: int = 0,
        ranks: int | None = None,
        speed: float = 1.0,
        view: str = "",
    ) -> None:
        self._make: Callable[..., Any] | None = None
        self._op = op
        if isinstance(schedule, Schedule):
            if ranks not in (None, schedule.ranks):
                raise ValueError(f"ranks is {schedule.ranks} in this schedule, got {ranks}")
            shown = frames_of(schedule, x, op)
        else:
            self._make = _maker(schedule, x)
            ranks = integer("ranks", 4 if ranks is None else ranks, RANKS[0], RANKS[-1])
            shown = frames_of(_call(self._make, ranks, 1), None, op)
        self._at = shown["ranks"], 1  # the ranks and pieces that are shown
        offered = self._make is not None
        super().__init__(
            frames=shown,
            scenes=scenes(shown),
            ranks=shown["ranks"],
            offered_ranks=list(RANKS) if offered else [],
            offered_pieces=list(PIECES) if offered and _takes_chunks(schedule) else [],
        )
        self.index, self.speed, self.view = index, speed, view

    def __repr__(self) -> str:
        shown = self.frames
        return (
            f"Player: {shown['name']}, {count(shown['ranks'], 'rank')}, "
            f"{count(shown['chunks'], 'chunk')}, {count(len(shown['steps']), 'round')}, "
            f"at round {self.index}"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the widget and its static twin; a front end shows the richest that it can.

        The twin is an image in HTML, not bare SVG: that is what JupyterLab also shows of a
        notebook that it does not trust yet, and only an image can carry words for the ear.
        """
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({"text/plain": repr(self)}, {})
        return data | {"text/html": svg.image(self.still())}, metadata

    def still(self) -> str:
        """Return the static twin as SVG text: a film strip, or one frame once past the start."""
        if not self.index:
            return svg.strip(self.frames)
        return svg.still(self.frames, self.index, self.view if self.view in self.scenes else None)

    def page(self) -> str:
        """Return the player as a web page of its own, without controls that need a kernel."""
        return page(self.frames, view=self.view)

    @traitlets.validate("index")
    def _check_index(self, proposal: Any) -> int:
        return integer("index", proposal["value"], 0, len(self.frames["steps"]))

    @traitlets.validate("ranks", "pieces")
    def _check_number(self, proposal: Any) -> int:
        name, value = proposal["trait"].name, int(proposal["value"])
        offered = RANKS if name == "ranks" else PIECES
        if self._make is None and value != self._at[name == "pieces"]:
            raise ValueError(
                f"{name} cannot change in a player of one schedule; "
                f"give Player a function of the number of ranks, got {value}"
            )
        if self._make is not None:
            integer(name, value, offered[0], offered[-1])
        return value

    @traitlets.validate("speed")
    def _check_speed(self, proposal: Any) -> float:
        if proposal["value"] not in SPEEDS:
            raise ValueError(f"speed must be 0.5, 1, 2 or 4, got {proposal['value']!r}")
        return float(proposal["value"])

    @traitlets.validate("view")
    def _check_view(self, proposal: Any) -> str:
        if proposal["value"] not in ("", "ring", "board"):
            raise ValueError(f"view must be 'ring', 'board' or '', got {proposal['value']!r}")
        return str(proposal["value"])

    @traitlets.observe("ranks", "pieces")
    def _rebuild(self, _: Any) -> None:
        """Show the schedule for other numbers; if there is none, say why and keep what was."""
        wanted = self.ranks, self.pieces
        if wanted == self._at or self._make is None:
            return
        with self.hold_sync():
            try:
                shown = frames_of(_call(self._make, *wanted), None, self._op)
            except Exception as error:  # noqa: BLE001 - a learner's function may raise anything
                self.problem = f"With {count(wanted[0], 'rank')}: {error}"
                self.ranks, self.pieces = self._at
                return
            self._at = wanted
            self.index, self.playing, self.problem = 0, False, ""
            self.scenes, self.frames = scenes(shown), shown


def scenes(frames: Frames) -> dict[str, Any]:
    """Return the layouts that the frames can be shown in, the best one first."""
    return {view: scene.layout(frames, view) for view in scene.views(frames)}


def _maker(make: Any, x: Any) -> Callable[..., Any]:
    if not callable(make):
        raise TypeError(
            "schedule must be a Schedule or a function of the number of ranks, "
            f"got {make!r} ({type(make).__name__})"
        )
    if x is not None:
        raise TypeError("x needs one schedule, as in Player(ring(4), x), got a function")
    return make  # type: ignore[no-any-return]


def _call(make: Callable[..., Any], ranks: int, pieces: int) -> Schedule:
    made = make(ranks) if pieces == 1 else make(ranks, chunks=pieces * ranks)
    if not isinstance(made, Schedule):
        name = getattr(make, "__name__", "schedule")
        raise TypeError(f"{name}({ranks}) must return a Schedule, got {type(made).__name__}")
    return made


def _takes_chunks(make: Any) -> bool:
    try:
        return "chunks" in inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False


# ------------------------------------------------------------------------------- the page

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_STUB = """
const state = JSON.parse(document.getElementById("state").textContent);
const heard = {};
const model = {
  get: (name) => state[name],
  set(name, value) {
    if (state[name] === value) return;
    state[name] = value;
    for (const act of heard[`change:${name}`] ?? []) act();
  },
  save_changes() {},
  on: (name, act) => (heard[name] ??= new Set()).add(act),
  off: (name, act) => heard[name]?.delete(act),
};
widget.initialize({ model });
widget.render({ model, el: document.getElementById("player") });
"""


def page(frames: Frames, *, view: str = "") -> str:
    """Return a web page with a player of these frames: one file that asks no network for anything.

    It runs the very script of the widget, on a stub of the widget's model.
    """
    state = {
        "frames": frames,
        "scenes": scenes(frames),
        "index": 0,
        "playing": False,
        "speed": 1,
        "view": view,
        "ranks": frames["ranks"],
        "pieces": 1,
        "offered_ranks": [],
        "offered_pieces": [],
        "problem": "",
    }
    data = json.dumps(state, ensure_ascii=False).replace("<", "\\u003c")
    script = (STATIC / "player.js").read_text(encoding="utf-8")
    script = script.replace("export default", "const widget =") + _STUB
    return f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(frames["name"])}</title>
<style>
body {{ margin: 16px auto; padding: 0 12px; max-width: 1200px; }}
{CSS}
</style>
<div id="player"></div>
<script type="application/json" id="state">{data}</script>
<script type="module">
{script}
</script>
</html>
"""
