"""What is installed with what, and which module may import which."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "allreduce_edu"
CONDA_NAMES = {"matplotlib": "matplotlib-base", "torch": "pytorch-cpu"}

# Which parts of the package a part may import, besides itself. The top-level modules stand alone:
# `machine` and `clean` are commands.
MAY_IMPORT = {
    "engine": set(),
    "data": set(),
    "launcher": set(),
    "realdist": {"engine", "data"},
    "lessons": {"engine", "data", "realdist"},
    "show": {"engine", "data", "realdist", "lessons"},
    "benchmark": {"engine", "lessons", "show"},
    "machine": {"launcher", "realdist"},
    "clean": set(),
    "__init__": set(),
    "__main__": {"launcher"},
}
# What beyond the standard library a part may import at its top level, so that imports stay cheap.
AT_THE_TOP = {
    "engine": {"numpy"},
    "data": {"numpy"},
    "launcher": set(),
    "realdist": {"numpy", "cloudpickle"},
    "lessons": {"numpy"},
    "show": {"numpy", "anywidget", "traitlets", "ipywidgets", "IPython"},
    "benchmark": {"numpy"},
    "machine": set(),
    "clean": set(),
    "__init__": set(),
    "__main__": set(),
}
# Modules that are imported only where torch or matplotlib is wanted.
HEAVY = {
    "realdist/compare.py": {"torch"},
    "realdist/ddp.py": {"torch"},
    "realdist/entries.py": {"torch"},
    "realdist/magic.py": {"IPython"},  # whose extension it is
    "realdist/meeting.py": {"torch"},
    "realdist/oracle.py": {"torch"},
    "realdist/scripts.py": {"torch"},
    "realdist/train.py": {"torch"},
    "realdist/train_ddp.py": {"torch"},
    "realdist/worker.py": {"torch"},  # runs in the ranks' own processes
}


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def part_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported(path: Path, *, top_only: bool) -> set[str]:
    """Return the dotted names that a module imports, type-checking blocks aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_only else ast.walk(tree)
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(str(node.module))
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    part = part_of(path)
    ours = {
        n.split(".")[1] for n in imported(path, top_only=False) if n.startswith("allreduce_edu.")
    }
    inside = {
        name for name in ours if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()
    }
    assert inside <= MAY_IMPORT[part] | {part}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_are_imported_where_they_are_needed(path: Path) -> None:
    allowed = AT_THE_TOP[part_of(path)] | HEAVY.get(path.relative_to(PACKAGE).as_posix(), set())
    top = {name.split(".")[0] for name in imported(path, top_only=True)}
    assert top - set(sys.stdlib_module_names) - {"allreduce_edu", "__future__"} <= allowed


def loaded_by(statement: str) -> set[str]:
    """Return the packages that a fresh Python has loaded after a statement."""
    ask = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    child = subprocess.run(
        [sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(child.stdout.split())


@pytest.mark.parametrize(
    ("statement", "not_loaded"),
    [
        ("import allreduce_edu", {"numpy", "torch", "matplotlib", "anywidget", "cloudpickle"}),
        ("import allreduce_edu.realdist", {"numpy", "torch", "cloudpickle"}),
        ("import allreduce_edu.launcher.commands", {"numpy", "torch", "nbformat"}),
        ("import allreduce_edu.machine, allreduce_edu.clean", {"numpy", "torch", "nbformat"}),
        ("from allreduce_edu import ring, run", {"torch", "matplotlib", "anywidget", "IPython"}),
        ("from allreduce_edu import Pool", {"torch", "matplotlib", "anywidget"}),
        ("from allreduce_edu import Player, Predict", {"torch", "matplotlib"}),
        ("from allreduce_edu.show.divergence import diverging", {"torch", "matplotlib"}),
    ],
)
def test_what_an_import_does_not_pull_in(statement: str, not_loaded: set[str]) -> None:
    if re.search(r"Player|ring|show", statement):
        pytest.importorskip("anywidget")
    assert not loaded_by(statement) & not_loaded


# pyproject.toml, constraints.txt and environment.yml


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    tomllib = pytest.importorskip("tomllib")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text))


@pytest.fixture(scope="module")
def conda() -> dict[str, object]:
    yaml = pytest.importorskip("yaml")
    return dict(yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8")))


def test_conda_gets_the_floors_of_pyproject(project, conda) -> None:
    wanted = (
        project["project"]["dependencies"] + project["project"]["optional-dependencies"]["torch"]
    )
    floors = dict(requirement.split(">=") for requirement in wanted)
    floors = {CONDA_NAMES.get(name, name): floor for name, floor in floors.items()}
    floors["python"] = project["project"]["requires-python"].removeprefix(">=")
    specs = [spec for spec in conda["dependencies"] if isinstance(spec, str) and spec != "pip"]
    assert dict(spec.split(">=") for spec in specs) == floors


def test_conda_takes_all_from_conda_forge_and_the_project_from_here(conda) -> None:
    assert conda["channels"] == ["conda-forge", "nodefaults"]
    assert conda["dependencies"][-2:] == ["pip", {"pip": ["-e ."]}]
    assert set(conda) == {"name", "channels", "dependencies"}


def test_conda_specs_are_strictly_valid(conda) -> None:
    rattler = pytest.importorskip("rattler")
    for spec in conda["dependencies"]:
        if isinstance(spec, str):
            parsed = rattler.MatchSpec(spec, strict=True)
            assert str(parsed).replace(" ", "") == spec


def test_every_requirement_is_pinned_at_or_above_its_floor(project) -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    extras = project["project"]["optional-dependencies"].values()
    for text in project["project"]["dependencies"] + [r for extra in extras for r in extra]:
        wanted = Requirement(text)
        for python in ("3.10", "3.11", "3.12", "3.13", "3.14"):
            where = {"python_version": python, "python_full_version": f"{python}.9"}
            fitting = [
                pin
                for pin in pins
                if canonicalize_name(pin.name) == canonicalize_name(wanted.name)
                and (pin.marker is None or pin.marker.evaluate({**where, "extra": ""}))
            ]
            assert len(fitting) == 1, f"{wanted.name} on Python {python}"
            (exact,) = fitting[0].specifier
            assert exact.operator == "=="
            assert wanted.specifier.contains(exact.version)


def test_the_tested_torch_has_a_pin_that_the_launcher_finds() -> None:
    from allreduce_edu.launcher.environment import tested_torch

    assert re.fullmatch(r"torch==2\.13\.\d+", tested_torch(ROOT))


def test_every_ignored_rule_of_ruff_has_a_reason_of_its_own_or_its_familys() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ignored = re.search(r"^ignore = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert ignored
    family = ""
    for line in ignored[1].strip().splitlines():
        rule = re.match(r'\s*"([A-Z]+)\d*",\s*(# \S.*)?$', line)
        assert rule, line
        assert rule[2] or rule[1] == family, line
        family = rule[1]


def test_package_data_covers_what_is_not_python(project) -> None:
    listed = project["tool"]["setuptools"]["package-data"]
    globs = [
        PACKAGE / Path(*name.split(".")[1:]) / pattern if name != "*" else PACKAGE / pattern
        for name, patterns in listed.items()
        for pattern in patterns
    ]
    covered = {p for g in globs for p in g.parent.glob(g.name)}
    others = {
        p
        for p in PACKAGE.rglob("*")
        if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts
    }
    assert others <= covered


def test_contributing_says_where_every_module_is() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = {path.name for path in modules()} - {"__init__.py", "__main__.py"}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
