import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_example_prints_what_the_readme_says():
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    said = re.search(r"```python.*?```\n\n((?:    [^\n]*\n)+)", README, re.DOTALL)[1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().splitlines() == [line[4:] for line in said.splitlines()]


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_notebook_is_on_the_map():
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{notebook.name}" in README


def test_every_folder_is_where_things_are():
    for module in (ROOT / "allreduce_edu").iterdir():
        if module.is_dir() and (module / "__init__.py").exists():
            assert f"`allreduce_edu/{module.name}/`" in README
