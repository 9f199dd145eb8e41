"""A report names the cause first, the learner's own line, and nothing that differs between runs."""

from __future__ import annotations

import faulthandler
import linecache
import sys
import tempfile
import threading
import traceback
from dataclasses import replace
from types import SimpleNamespace

from allreduce_edu.realdist import places, report
from allreduce_edu.realdist.places import Frame
from allreduce_edu.realdist.report import Fate

CELL = "/tmp/ipykernel_123/456.py"
ENTRY = Frame(places.__file__.replace("places", "worker"), 1, "answer")
LIBRARY = Frame("/env/lib/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
WRAPPER = Frame("/env/lib/site-packages/torch/distributed/c10d_logger.py", 9, "wrapper")


def at(line, *more):
    return (ENTRY, Frame(CELL, line, "step"), *more)


def gloo(text):
    return report.raised(0, "RuntimeError", text, at(3), "")


def told(monkeypatch, fates):
    lines = [f"line {i}\n" for i in range(1, 9)]
    monkeypatch.setitem(linecache.cache, CELL, (1, None, lines, CELL))
    return str(report.failure(fates)).splitlines()


def test_the_cause_stands_before_what_followed(monkeypatch):
    closed = "[/pytorch/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:4321. GLHF!"
    fates = [
        gloo(closed),
        report.died(1, -9, at(2), ""),
        report.busy(2, at(3, WRAPPER, LIBRARY)),
        Fate(3, "returned", "had returned"),
    ]
    assert told(monkeypatch, fates) == [
        "rank 1 was killed (SIGKILL; the system does that when memory runs out)",
        "    line 2 of step: line 2",
        "The others:",
        "  rank 0 lost the connection to another rank, a consequence",
        "      line 3 of step: line 3",
        "  rank 2 was in all_reduce()",
        "      line 3 of step: line 3",
        "  rank 3 had returned",
    ]


def test_causes_come_in_order_of_time_and_deaths_before_exceptions():
    fates = [
        report.raised(0, "IndexError", "later", (), ""),
        report.raised(1, "KeyError", "first", (), ""),
        report.died(2, 3, (), ""),
    ]
    fates[0] = replace(fates[0], late=True)
    lines = str(report.failure(fates)).splitlines()
    assert [line.split()[1] for line in lines] == ["2", "1", "0"]


def test_what_follows_stays_a_consequence_in_an_exception_of_the_learners():
    error = ValueError("all_reduce failed")
    error.__cause__ = RuntimeError("[pair.cc:553] Connection closed by peer")
    text = "".join(traceback.format_exception(error))
    assert report.raised(0, "ValueError", "all_reduce failed", (), text).follows
    line = '  File "a.py", line 1, in f\n    print("Connection closed by peer")\nValueError: own\n'
    assert not report.raised(0, "ValueError", "own", (), line).follows


def test_ranks_with_the_same_fate_are_named_in_their_order_whoever_was_first():
    fates = [report.raised(r, "ValueError", "bad", (), "") for r in range(3)]
    fates[0] = replace(fates[0], late=True)
    assert str(report.failure(fates)) == "ranks 0, 1 and 2 raised ValueError: bad"


def test_ranks_with_the_same_fate_are_named_together(monkeypatch):
    fates = [report.raised(r, "ValueError", "bad", at(5), "") for r in range(3)]
    assert told(monkeypatch, fates) == [
        "ranks 0, 1 and 2 raised ValueError: bad",
        "    line 5 of step: line 5",
    ]


def test_of_many_ranks_it_is_told_in_the_plural():
    silent = [report.busy(rank, None) for rank in range(2)]
    told = str(report.past_deadline(silent, 3))
    assert told.endswith("\nranks 0 and 1 did not say where they were")


def test_when_all_lost_their_connections_none_is_hidden():
    fates = [gloo("Connection reset by peer"), Fate(1, "returned", "had returned")]
    assert str(report.failure(fates)).startswith("rank 0 raised RuntimeError: Connection reset")


def test_what_differs_from_run_to_run_is_left_out():
    assert report.clean("[../third_party/gloo/pair.cc:81] Timed out waiting") == "Timed out waiting"
    assert report.clean("closed by peer [127.0.0.1]:30301.") == "closed by peer […]."
    assert report.clean("<object at 0x7f00aa11>") == "<object at 0x…>"
    assert report.clean("in /tmp/ipykernel_12/34.py:3") == "in <cell>:3"
    assert report.clean("bad\nException raised from f at x.cpp:3\nframe #0: 0x12") == "bad"


def test_an_abort_says_why_if_the_library_did():
    wrote = (
        "hello\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at ../gloo/pair.cc:456] op.length <= op.nbytes. 8 vs 4. \n"
    )
    said = report.died(0, -6, (), wrote).what
    assert said == "was aborted by a library (SIGABRT): op.length <= op.nbytes. 8 vs 4."


def test_deaths_are_told_in_words():
    assert report.died(0, -15, (), "").what == "was ended by a signal (SIGTERM)"
    ended = "ended its process with status 3 in the middle of the call"
    assert report.died(0, 3, (), "").what == ended
    assert report.died(0, None, (), "").what == "ended without a word"


def test_a_deep_stack_is_shortened(monkeypatch):
    deep = [Frame(CELL, 1, f"f{i}") for i in range(50)]
    lines = told(monkeypatch, [report.raised(0, "RecursionError", "", (ENTRY, *deep), "")])
    assert len(lines) == 10
    assert lines[5].strip() == "... 42 more ..."


def test_library_frames_are_not_the_learners():
    own = places.own(at(3, LIBRARY, WRAPPER))
    assert own == [Frame(CELL, 3, "step")]
    assert places.own((ENTRY, LIBRARY, WRAPPER)) == [LIBRARY], "what the pool was asked to run"


def test_a_dump_of_another_thread_is_told_from_the_main_ones():
    """The oracle is this process: faulthandler writes, and `of_dump` finds this very function."""
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    with tempfile.TemporaryFile("w+") as file:
        answer(lambda: faulthandler.dump_traceback(file))
        stop.set()
        other.join()
        file.seek(0)
        dump = file.read()
    pretend = dump.replace(__file__, ENTRY.file)
    found = places.of_dump(pretend, threading.get_ident())
    assert found is not None
    assert [frame.name for frame in found] == ["answer", "<lambda>"]
    assert places.of_dump(pretend[: pretend.index("answer")], threading.get_ident()) is None


def answer(call):
    call()


def test_frames_of_an_exception_are_those_python_shows():
    try:
        answer(lambda: SimpleNamespace().nothing)
    except AttributeError:
        found = places.of_exception(sys.exc_info()[2])
    assert [frame.name for frame in found][-2:] == ["answer", "<lambda>"]
    assert "line" in str(found[-1])
    assert str(found[-1]).startswith("test_report.py, ")


def test_who_was_waited_for_in_vain_is_told():
    timed_out = "[buffer.cc:78] Timed out waiting 700ms for recv operation to complete"
    closed = "[pair.cc:553] Connection closed by peer [127.0.0.1]:4321"
    fates = [
        replace(report.raised(0, "RuntimeError", closed, (), f"RuntimeError: {closed}"), late=True),
        report.raised(1, "RuntimeError", timed_out, (), ""),
        report.raised(2, "RuntimeError", closed, (), f"RuntimeError: {closed}"),
        report.busy(3, at(2)),
    ]
    last = str(report.failure(fates)).splitlines()[-1]
    assert last == ("Look first: ranks 0 and 3 came too late for this call, or went elsewhere.")
    assert "Look first" not in str(report.failure([*fates[1:3]]))


def test_advice_is_left_out():
    said = (
        "Expected to have finished reduction. You can enable unused parameter detection by (1), "
        "and by \nmaking sure.\nIf so, list.\nParameter indices which did not receive grad for "
        "rank 1: 2 3\n In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG"
    )
    assert report.clean(said) == (
        "Expected to have finished reduction.\n"
        "Parameter indices which did not receive grad on this rank: 2 3"
    )
