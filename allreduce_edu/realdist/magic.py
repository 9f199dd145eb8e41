"""The cell magic ``%%ranks``: what stands in the cell runs on every rank of a pool that is kept."""

from __future__ import annotations

import re
import traceback
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from allreduce_edu.realdist import report, wire
from allreduce_edu.realdist.backend import BACKENDS
from allreduce_edu.realdist.cell import run_cell
from allreduce_edu.realdist.pool import MOST_RANKS, Pool


def load_ipython_extension(shell: Any) -> None:
    """Make ``%%ranks`` known: called by ``%load_ext allreduce_edu``."""
    shell.register_magic_function(Ranks(shell).ranks, "line_cell", "ranks")


def unload_ipython_extension(shell: Any) -> None:
    """End the ranks and forget ``%%ranks``: called by ``%unload_ext allreduce_edu``."""
    for kind in ("line", "cell"):
        magic = shell.magics_manager.magics[kind].pop("ranks", None)
        if magic is not None:
            magic.__self__.close()


class Ranks:
    """The pool of one notebook's ``%%ranks`` cells."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._pool: Pool | None = None

    def __repr__(self) -> str:
        return f"%%ranks with {self._pool!r}" if self._pool else "%%ranks, no ranks yet"

    def ranks(self, line: str, cell: str | None = None) -> None:
        """Run the cell on every rank; names stay there for the next such cell.

        ::

            %%ranks [N | POOL] [-i NAMES] [-o NAMES] [--backend NAME] [--timeout SECONDS]

        Every rank starts with the names ``rank``, ``world_size``, ``torch`` and ``dist``
        (torch.distributed, ready for use), and does not see the notebook's own. What the ranks
        print appears rank after rank, and of each the value of its last expression.

        N
            How many ranks, 1 to 16. They are kept for later cells, which may leave N out;
            another N ends them and starts others.
        POOL
            The name of a `Pool` in the notebook, to run on that one's ranks.
        -i NAMES, --in NAMES
            Names of the notebook, with commas between them, whose values the ranks get: all the
            same, or each its own if it is a `PerRank`.
        -o NAMES, --out NAMES
            Names on the ranks: the notebook gets a list of their values, one per rank.
        --backend NAME
            gloo or nccl; the default is NCCL where there is a GPU for every rank, else gloo.
        --timeout SECONDS
            How long the cell may take (60) before its ranks are ended.

        ``%ranks`` alone in a line says how they are, ``%ranks --close`` ends them.
        """
        if cell is None:
            self._line(line)
            return
        asked = _PARSER.parse_argstring(line)  # type: ignore[no-untyped-call]
        try:
            pool = self._pool_for(asked.ranks, asked.backend)
            self._run(pool, cell, asked)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None

    def close(self) -> None:
        """End the ranks that were kept, if there are any."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _line(self, line: str) -> None:
        if line.strip() == "--close":
            self.close()
        elif line.strip():
            raise UsageError("%ranks in a line knows --close alone; %%ranks begins a cell")
        print(self._pool or "No ranks; a cell that begins with %%ranks 4 starts four.")

    def _pool_for(self, asked: str | None, backend: str | None) -> Pool:
        """Return the pool that the cell asks for: a named one, the kept one, or a new one."""
        if asked is not None and not re.fullmatch(r"[+-]?\d+", asked):
            return self._named(asked, backend)
        kept = self._pool
        if kept is None and asked is None:
            raise UsageError("say how many ranks, as in: %%ranks 4")
        if (
            kept is not None
            and asked in (None, str(kept.ranks))
            and backend in (None, kept.backend)
        ):
            return kept
        new = Pool(kept.ranks if kept and asked is None else int(asked or 0), backend)
        if kept is not None and kept.state == "ready":
            print("The ranks of earlier cells were ended: what they held in memory is lost.")
        self.close()
        self._pool = new
        return new

    def _named(self, name: str, backend: str | None) -> Pool:
        pool = self._shell.user_ns.get(name)
        if not isinstance(pool, Pool):
            raise UsageError(
                f"ranks must be a number from 1 to {MOST_RANKS} or the name of a Pool, got {name!r}"
            )
        if backend not in (None, pool.backend):
            raise UsageError(f"{name} has the backend {pool.backend}; leave out --backend")
        return pool

    def _run(self, pool: Pool, cell: str, asked: Any) -> None:
        given, wanted = _names(asked.given), _names(asked.wanted)
        for name in given:
            if name not in self._shell.user_ns:
                raise UsageError(f"--in asks for {name!r}, which the notebook does not have")
        values = [self._shell.user_ns[name] for name in given]
        text, name = self._as_code(cell)
        quiet = text.rstrip().endswith(";")
        try:
            call = (run_cell, text, name, quiet, given, wanted, *values)
            answers = pool.run(*call, timeout=asked.timeout)
        except TypeError:
            _name_what_cannot_travel(given, values)
            raise
        for nth, each in enumerate(wanted):
            self._shell.user_ns[each] = [answer[nth] for answer in answers]

    def _as_code(self, cell: str) -> tuple[str, str]:
        """Return the text, in the lines that it has in the notebook, and its file's name there.

        What is no Python is told before any rank has to.
        """
        text = "\n" * self._lines_above(cell) + cell
        name: str = self._shell.compile.cache(text, self._shell.execution_count)
        try:
            compile(text, name, "exec", dont_inherit=True)
        except SyntaxError as error:
            marked = "".join(traceback.format_exception_only(error)[1:-1]).rstrip()
            raise UsageError(f"line {error.lineno}: {error.msg}\n{marked}") from None
        return text, name

    def _lines_above(self, cell: str) -> int:
        """Return how many lines of the notebook's cell stand above `cell`: one, or more magics."""
        parent = self._shell.get_parent() if hasattr(self._shell, "get_parent") else {}
        whole = str(parent.get("content", {}).get("code", "")).rstrip()
        above = whole.removesuffix(cell.rstrip())
        return above.count("\n") if cell.strip() and above != whole else 1


def _names(listed: list[str]) -> list[str]:
    names = [name for each in listed for name in each.split(",") if name]
    for name in names:
        if not name.isidentifier():
            raise UsageError(f"names must have commas and no spaces between them, got {name!r}")
    return names


def _name_what_cannot_travel(given: list[str], values: list[Any]) -> None:
    for name, value in zip(given, values, strict=True):
        try:
            wire.dumps(value)
        except Exception as error:  # noqa: BLE001 - pickling runs code of any kind of object
            why = report.clean(str(error))
            raise UsageError(f"{name!r} cannot travel to the ranks: {why}") from None


class _Parser(MagicArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%ranks: {message}; %%ranks? shows what it takes")


def _parser() -> _Parser:
    parser = _Parser("%%ranks", add_help=False)  # type: ignore[no-untyped-call]
    parser.add_argument("ranks", nargs="?")
    parser.add_argument("-i", "--in", dest="given", action="append", default=[])
    parser.add_argument("-o", "--out", dest="wanted", action="append", default=[])
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--timeout", type=float)
    return parser


_PARSER = _parser()
