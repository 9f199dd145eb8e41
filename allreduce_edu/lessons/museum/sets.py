"""Sets as N processes have them: each process orders a set of names by its own hash seed.

Simulated ranks are threads and real ones are forked, so they share one seed, and a program that
loops over a set would pass here and hang on a cluster. In the programs of the museum such a loop
has another order on every second rank.
"""

from __future__ import annotations

import ast
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any


class NameSet(set[Any]):
    """A set whose order depends on the rank, if there are names in it."""

    def __iter__(self) -> Iterator[Any]:
        return _ordered(list(super().__iter__()))

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}"


class FrozenNameSet(frozenset[Any]):
    """The same for a frozenset."""

    def __iter__(self) -> Iterator[Any]:
        return _ordered(list(super().__iter__()))


def _ordered(members: list[Any]) -> Iterator[Any]:
    """Order names in one way on even ranks and in the opposite one on odd ranks."""
    if any(isinstance(each, str) for each in members):
        members.sort(key=repr, reverse=bool(_rank() % 2))
    return iter(members)


IN_PROGRAMS = {"set": NameSet, "frozenset": FrozenNameSet}  # what these names mean there


def _rank() -> int:
    """Return the rank that asks, simulated or real; 0 if it is none."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    word, _, number = threading.current_thread().name.partition(" ")
    return int(number) if word == "rank" and number.isdigit() else 0


def with_sets_by_rank(source: str, file: str) -> ast.Module:
    """Return the tree of a program in which `{a, b}` is `set([a, b])`; lines stay as they are."""
    tree: ast.Module = ast.fix_missing_locations(_Displays().visit(ast.parse(source, file)))
    return tree


def by_rank(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a learner's function with such sets; itself if it has none, or no text to read."""
    code = getattr(fn, "__code__", None)
    if code is None or fn.__closure__:
        return fn
    try:
        source = dedent(inspect.getsource(fn))
        old = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return fn
    displays = any(isinstance(node, (ast.Set, ast.SetComp)) for node in ast.walk(old))
    if not displays and not IN_PROGRAMS.keys() & set(code.co_names):
        return fn
    tree = ast.increment_lineno(with_sets_by_rank(source, ""), code.co_firstlineno - 1)
    names = {**fn.__globals__, **IN_PROGRAMS}
    exec(compile(tree, code.co_filename, "exec"), names)  # noqa: S102 - it is a learner's cell
    made: Callable[..., Any] = names[fn.__name__]
    return made


class _Displays(ast.NodeTransformer):
    def visit_Set(self, node: ast.Set) -> ast.AST:
        return self._call(node, ast.List(node.elts, ast.Load()))

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        return self._call(node, ast.GeneratorExp(node.elt, node.generators))

    def _call(self, node: ast.expr, members: ast.expr) -> ast.AST:
        self.generic_visit(members)
        call = ast.Call(ast.Name("set", ast.Load()), [ast.copy_location(members, node)], [])
        return ast.copy_location(call, node)
