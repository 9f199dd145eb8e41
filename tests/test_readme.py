import contextlib
import importlib
import io
import re
from pathlib import Path

import pytest

from allreduce_edu import Pool

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)"


def example(heading):
    """Return the code of a section, and the lines that it is said to print."""
    section = README.partition(f"## {heading}\n")[2]
    code, said = re.search(EXAMPLE, section, re.DOTALL).groups()
    return code, [line[4:] for line in said.splitlines()]


def printed(code, given):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, given)
    return out.getvalue().splitlines()


def test_the_first_example_prints_what_the_readme_says():
    code, said = example("A first example")
    assert printed(code, {}) == said


def test_the_instruments_print_what_the_readme_says_on_every_rank():
    pytest.importorskip("torch")
    code, said = example("Use it in your own script")

    def script():
        import torch.distributed as dist
        from torch.nn.functional import cross_entropy
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim import SGD

        given = {f.__name__: f for f in (cross_entropy, DistributedDataParallel, SGD)}
        model, (x, y) = train.make_model(), train.images(0, batch=64, ranks=1)
        given |= {"dist": dist, "model": model, "x": x, "y": y}
        given["ddp"] = DistributedDataParallel(model)
        given["optimizer"] = SGD(given["ddp"].parameters(), lr=0.1)
        return printed(code, given)

    train = importlib.import_module("allreduce_edu.realdist.train")
    with Pool(4, backend="gloo") as pool:
        assert pool.run(script) == [said] * 4


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
