"""Colours and strokes, said once: as CSS for the browser and as attributes for SVG text.

The eight rank colours are equally bright: white on each has a contrast above 4.5, and each on the
dark ground one above 3. Ranks 8 to 15 repeat them, hollow. Nothing is told by colour alone:
a share also has its digit or its place, an arrow is solid or dashed, a wrong cell is
hatched and crossed.
"""

from __future__ import annotations

RANKS = (
    "#0072b2",
    "#b34700",
    "#1f8254",
    "#b5347d",
    "#896a01",
    "#7455c7",
    "#0c7d87",
    "#676f7a",
)
LIGHT = {
    "deep": "#000000",
    "ink": "#1f2328",
    "soft": "#57606a",
    "line": "#d0d7de",
    "void": "#e6e9ed",
    "paper": "#ffffff",
    "box": "#f6f8fa",
    "got": "#ffe9a3",
    "bad": "#c5221f",
    "edge": "#8c959f",
    "focus": "#0969da",
}
DARK = {
    "deep": "#ffffff",
    "ink": "#e6e8eb",
    "soft": "#a3abb5",
    "line": "#454c55",
    "void": "#343a42",
    "paper": "#16181c",
    "box": "#1f2227",
    "got": "#4a3b0c",
    "bad": "#ff7b72",
    "edge": "#6e7781",
    "focus": "#58a6ff",
}
JUPYTER = {
    "ink": "--jp-content-font-color1",
    "soft": "--jp-content-font-color2",
    "paper": "--jp-layout-color1",
}
# Lines of a chart: each has a dash of its own beside its colour.
DASHES = ("none", "7 4", "2 3", "10 3 2 3", "4 2", "1 4", "12 4", "6 2 1 2 1 2")
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"

# What each class of element looks like; $name is a colour of the theme.
_LOOK: dict[str, dict[str, str]] = {
    "back": {"fill": "$paper", "stroke": "$line"},
    "box": {"fill": "$box", "stroke": "$line"},
    "cell": {"fill": "$paper", "stroke": "$line"},
    "tint": {"fill": "$got"},
    "void": {"fill": "$void"},
    "veil": {"fill": "$box", "opacity": "0.72"},
    "done": {"fill": "none", "stroke": "$ink", "stroke-width": "1.8"},
    "hatch": {},
    "bad": {"fill": "none", "stroke": "$bad", "stroke-width": "1.8", "stroke-dasharray": "4 2"},
    "twice": {"fill": "none", "stroke": "$bad", "stroke-width": "2.5"},
    "stripe": {"stroke": "$bad", "stroke-width": "1", "opacity": "0.45"},
    "check": {"fill": "none", "stroke": "$ink", "stroke-width": "2"},
    "cross": {"fill": "none", "stroke": "$bad", "stroke-width": "2.2"},
    "add": {"fill": "none", "stroke": "$ink", "stroke-width": "1.8"},
    "copy": {"fill": "none", "stroke": "$ink", "stroke-width": "1.8", "stroke-dasharray": "5 4"},
    "tip": {"fill": "$ink"},
    "trough": {"fill": "$void"},
    "bar": {"fill": "$soft"},
    "chip": {"fill": "$paper", "stroke": "$ink", "stroke-width": "1.2"},
    "text": {"fill": "$ink"},
    "soft": {"fill": "$soft"},
    "wrong": {"fill": "$bad"},
    "value": {"fill": "$ink", "font-family": MONO},
    "digit": {"fill": "#ffffff", "font-family": MONO, "font-weight": "600"},
    "head": {"fill": "#ffffff", "font-weight": "600"},
    **{f"r{r}": {"fill": RANKS[r % len(RANKS)]} for r in range(16)},
}
# What charts have besides.
_CHART: dict[str, dict[str, str]] = {
    "number": {"fill": "$deep", "font-family": MONO, "font-weight": "600"},
    "grid": {"fill": "none", "stroke": "$line", "stroke-width": "1"},
    "axis": {"fill": "none", "stroke": "$edge", "stroke-width": "1"},
    "guide": {"fill": "none", "stroke": "$soft", "stroke-width": "1.2", "stroke-dasharray": "3 3"},
    "label": {
        "fill": "$ink",
        "stroke": "$paper",
        "stroke-width": "4",
        "stroke-linejoin": "round",
        "paint-order": "stroke",
    },
    "ring": {"fill": "none", "stroke": "$ink", "stroke-width": "1.8"},
    "thick": {"fill": "none", "stroke": "$ink", "stroke-width": "5"},
    **{
        f"s{k}": {"fill": "none", "stroke": RANKS[k], "stroke-width": "2", "stroke-dasharray": dash}
        for k, dash in enumerate(DASHES)
    },
    **{
        f"m{k}": {"fill": "$paper", "stroke": RANKS[k], "stroke-width": "1.8"}
        for k in range(len(DASHES))
    },
}
_EVERY = _LOOK | _CHART


def attributes(name: str) -> dict[str, str]:
    """Return class `name` as SVG attributes, in the light theme."""
    return {"class": f"ar-{name}"} | {
        key: LIGHT.get(value[1:], value) if value[0] == "$" else value
        for key, value in _EVERY[name].items()
    }


def dark_style(*, chart: bool = False) -> str:
    """Return the CSS that turns an SVG text with `attributes` dark where the reader is."""
    rules = "".join(
        f".ar-{name}{{{';'.join(f'{k}:{DARK[v[1:]]}' for k, v in look.items() if v[0] == '$')}}}"
        for name, look in (_EVERY if chart else _LOOK).items()
        if any(v[0] == "$" for v in look.values())
    )
    return f"@media (prefers-color-scheme:dark){{{rules}}}"


def _variables(theme: dict[str, str]) -> str:
    """Return a theme as CSS variables; where Jupyter has a colour of its own, that one."""
    theirs = {name: f"var({JUPYTER[name]},{theme[name]})" for name in JUPYTER}
    return "".join(f"--ar-{name}:{colour};" for name, colour in (theme | theirs).items())


def css(root: str = ".ar-player") -> str:
    """Return the CSS of a widget: the classes of what it draws, and both themes as variables."""
    light, dark = (_variables(theme) for theme in (LIGHT, DARK))
    rules = "\n".join(
        f"{root} .ar-{name}{{"
        + "".join(f"{k}:{f'var(--ar-{v[1:]})' if v[0] == '$' else v};" for k, v in look.items())
        + "}"
        for name, look in _EVERY.items()
    )
    return (
        f"{root}{{{light}--ar-sans:{SANS};--ar-mono:{MONO};}}\n"
        f"@media (prefers-color-scheme:dark){{"
        f"body:not([data-jp-theme-light],.vscode-light) {root}{{{dark}}}}}\n"
        f'[data-jp-theme-light="false"] {root},.vscode-dark {root}{{{dark}}}\n{rules}\n'
    )
