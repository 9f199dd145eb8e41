"""Whatever a visitor writes into an exhibit gets a verdict: a sentence without our own frames."""

from __future__ import annotations

import functools
import signal
import threading

import pytest

from allreduce_edu import museum
from allreduce_edu.lessons.museum.program import NotAProgram, Program
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.simulated import differing, not_right

HEAD = "def train(comm, x):\n"
NO_PROGRAM = {
    "def f(:": "line 1 is not Python: ",
    f"{HEAD}\tif x:\n        pass": "line 3 is not Python: inconsistent use of tabs",
    f"{HEAD}    pass\0": "is not Python: source code string cannot contain null bytes",
    f"{HEAD}    return '\udc80'": "the program is not Python: UnicodeEncodeError",
    f"{HEAD}    return {'+'.join(['1'] * 9000)}": "the program is not Python: RecursionError",
    "": "the program must define a function, and defines none",
    "class Train:\n    pass": "the program must define a function, and defines none",
    f"{HEAD}    yield x": "must be a plain one, and is a generator",
    f"async {HEAD}    pass": "must be a plain one, and is async",
    "exit()": "stops before its function is called: RuntimeError: rank 0 called for the end",
    "raise KeyboardInterrupt": "rank 0 called for the end of the program: KeyboardInterrupt()",
    "class E(BaseException): pass\nraise E": "rank 0 called for the end of the program: E()",
    "while True: pass": "the program's lines outside of functions do not come to an end",
    f"input('?')\n{HEAD}    pass": "input() asks a keyboard, and ranks have none",
    "import nosuchmodule": "ModuleNotFoundError: No module named 'nosuchmodule'",
}
_MUTE = """class Mute(Exception):
    def __str__(self): raise ValueError
    __repr__ = __array__ = __len__ = __eq__ = __bool__ = __str__
"""
ODD = {
    f"{HEAD}    input('?')": "input() asks a keyboard, and ranks have none",
    f"{HEAD}    import sys; sys.stdout.close()": "the ranks disagree",
    f"{HEAD}    raise ValueError('x' * 10**7)": "xxx ...\n(on rank 0 of 4)",
    f"{HEAD}    return lambda: 1": "all ranks agree on <function train.<locals>.<lambda>>, and",
    f"{HEAD}    return [[1], [2, 3]]": "all ranks agree on [[1], [2, 3]], and",
    f"{HEAD}    return {{1: comm.rank}}": "rank 0 ends with {1: 0}, rank 1 with {1: 1}",
    f"{HEAD}    return float('nan')": "all ranks agree on nan, and",
    f"{HEAD}    return 'x' * 10**7": "xxx ..., and one process",
    f"{_MUTE}{HEAD}    return Mute()": "something of class Mute that cannot say what it is",
    f"{_MUTE}{HEAD}    raise Mute": "Mute: something of class Mute that cannot say what it is",
    "def print(*a):\n    pass": "the ranks disagree",
    f"\ufeff{HEAD}    return x + 'a'": "with 4 ranks: ",
    f"{HEAD}    pass\n".replace("\n", "\r\n"): "the ranks disagree",
}


def name(text):
    return text[-20:].encode("ascii", "backslashreplace").decode()


@pytest.mark.parametrize("exhibit", ["skip", "unwrapped"])
@pytest.mark.parametrize("text", NO_PROGRAM, ids=name)
def test_what_is_no_program_is_told(exhibit, text):
    threads = threading.active_count()
    verdict = museum[exhibit].check(text)
    assert not verdict.ok
    assert NO_PROGRAM[text] in verdict.why
    assert "\n" not in verdict.why
    assert "exhibit" not in verdict.why
    assert museum[exhibit].run(text).hangs == verdict.why
    assert threading.active_count() == threads


@pytest.mark.parametrize("text", ODD, ids=name)
def test_odd_programs_are_judged(text):
    verdict = museum["skip"].check(text)
    assert not verdict.ok
    assert ODD[text] in verdict.why
    assert "0x" not in verdict.why
    assert len(verdict.why) < 1000


def test_anything_that_can_be_called_is_judged():
    def mended(comm, x, more=None):
        for _ in range(3):
            comm.all_reduce(x)
        return x

    class Mended:
        def __call__(self, comm, x):
            return mended(comm, x)

    fix = Program(museum["skip"].fixed).entry
    for program in (fix, functools.partial(fix), functools.partial(mended, more=1), Mended()):
        assert museum["skip"].check(program).ok == museum["skip"].check(mended).ok, program


def test_what_cannot_travel_to_real_ranks_is_told():
    lock = threading.Lock()
    verdict = museum["unwrapped"].check(lambda model, images, labels: lock.acquire())
    assert not verdict.ok
    assert "the program cannot travel to the ranks: cannot pickle '_thread.lock'" in verdict.why


RETURNED = {
    "lambda: 1": "all ranks agree on <function f.<locals>.<lambda>>, and",
    "[[1], [2, 3]]": "all ranks agree on [[1], [2, 3]], and",
    "None": "all ranks agree on None, and",
    "torch.zeros(2, dtype=torch.bfloat16)": "all ranks agree on [0. 0.], and",
    "torch.distributed.get_rank()": "the ranks disagree: rank 0 ends with 0, rank 1 with 1",
}


@pytest.mark.parametrize("result", RETURNED)
def test_odd_results_of_real_ranks_are_judged(result):
    verdict = museum["padding"].check(f"import torch\ndef f(model, test):\n    return {result}")
    assert not verdict.ok
    assert RETURNED[result] in verdict.why


def test_a_loss_with_its_graph_is_a_number_too():
    exhibit = museum["log"]
    assert exhibit.check(exhibit.edited({"total.item()": "total / ranks + 0 * loss"})).ok


@pytest.mark.parametrize("given", [None, 3, int, museum])
def test_what_cannot_be_a_program_is_an_error(given):
    with pytest.raises(TypeError, match="program must be a text or a function, got "):
        museum["skip"].check(given)


def test_the_trouble_with_a_text_is_found_once():
    program = Program("import itertools\nitertools.allreduce_edu_count = 1\n1 / 0")
    assert "ZeroDivisionError" in (program.trouble or "")
    with pytest.raises(NotAProgram, match="ZeroDivisionError"):
        program.entry  # noqa: B018 - reading it is what fails
    assert NotAProgram("why")._render_traceback_() == ["NotAProgram: why"]


def test_what_is_imported_is_never_cut_short(tmp_path, monkeypatch):
    lines = "import threading", "main = threading.current_thread() is threading.main_thread()"
    (tmp_path / "takes_long.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    program = Program("from takes_long import main\n\ndef train(comm, x):\n    return main")
    assert program.entry(None, None) is True


def test_a_stopped_edit_shows_the_line_of_the_visitor_alone():
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt) as stopped:
        museum["skip"].check("x = 1\nwhile x:\n    pass")
    timer.join()
    assert "of the cell: " in str(stopped.value)
    assert "called from" not in str(stopped.value)


def test_without_torch_an_exhibit_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    for exhibit in museum.values():
        if isinstance(exhibit.stage, Real):
            said = exhibit.run().hangs
            assert "real ranks, which need PyTorch, and it is not installed here" in said
            assert exhibit.check(exhibit.fixed).why == said
    assert "rank 2 has returned" in museum["skip"].run().hangs


def test_numbers_are_compared_by_their_bits():
    assert differing([1.0, 1.0]) is None
    assert differing([0.0, -0.0]) == "the ranks disagree: rank 0 ends with 0, rank 1 with -0"
    assert differing([{1: 2}, {1: 2}]) is None
    assert not_right([1, 2], [1, 2]) is None
    assert "all ranks agree on (1, 2, 3), and" in (not_right((1, 2, 3), [1, 2]) or "")
