"""Runs the text of a notebook cell on a rank, among names that stay there from cell to cell."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import Any


def run_cell(
    text: str, name: str, quiet: bool, given: Sequence[str], wanted: Sequence[str], *values: object
) -> list[Any]:
    """Run `text` on this rank as a cell called `name`; return what the `wanted` names then hold.

    Its names are those of the module ``__main__``, of which every rank has its own. The value of a
    last expression is printed as in a notebook, unless `quiet`.
    """
    names = _names()
    names.update(zip(given, values, strict=True))
    tree = ast.parse(text, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), names)  # noqa: S102 - that is the point
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)  # noqa: S307
        if value is not None and not quiet:
            print(repr(value))
    missing = [each for each in wanted if each not in names]
    if missing:
        raise NameError(f"name {missing[0]!r} is not defined, and --out asks for it")
    return [names[each] for each in wanted]


def _names() -> dict[str, Any]:
    """Return the names of cells on this rank, in the beginning those that every cell needs."""
    import torch
    import torch.distributed as dist

    names = sys.modules["__main__"].__dict__
    first: dict[str, Any] = {"torch": torch, "dist": dist}
    first |= {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    for each, value in first.items():
        names.setdefault(each, value)
    return names
