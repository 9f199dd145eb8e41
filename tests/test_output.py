"""What ranks print comes out in rank order, in whole labelled lines, within limits."""

from __future__ import annotations

import io

from allreduce_edu.realdist.output import LINE, LINES, MOST, Printer


def printed(capsys, printer):
    printer.flush()
    return capsys.readouterr().out.splitlines()


def test_the_order_is_that_of_the_ranks_whichever_was_faster(capsys):
    printer = Printer(3)
    printer.feed(2, b"two\n")
    printer.finish(2)
    assert printed(capsys, printer) == []
    printer.feed(0, b"zero\nzero ag")
    assert printed(capsys, printer) == ["[rank 0] zero"], "the lowest running rank is live"
    printer.feed(1, b"one\n")
    printer.feed(0, b"ain\n")
    printer.finish(0)
    assert printed(capsys, printer) == ["[rank 0] zero again", "[rank 1] one"]
    printer.finish(1)
    assert printed(capsys, printer) == ["[rank 2] two"]


def test_a_last_line_without_newline_is_printed(capsys):
    printer = Printer(1)
    printer.feed(0, b"no newline")
    printer.finish(0)
    assert printed(capsys, printer) == ["[rank 0] no newline"]


def test_a_character_cut_in_two_is_whole_again(capsys):
    printer = Printer(1)
    for byte in "N → ∞\n".encode():
        printer.feed(0, bytes([byte]))
    printer.finish(0)
    assert printed(capsys, printer) == ["[rank 0] N → ∞"]


def test_of_a_progress_bar_the_last_state_remains(capsys):
    printer = Printer(1)
    for percent in range(101):
        printer.feed(0, f"\r{percent:3d} %".encode())
    printer.feed(0, b"\ndone\r\n")
    printer.finish(0)
    assert printed(capsys, printer) == ["[rank 0] 100 %", "[rank 0] done"]


def test_process_numbers_in_the_names_of_cells_are_left_out(capsys):
    printer = Printer(1)
    printer.feed(0, b"/tmp/ipykernel_7497/805854096.py:3: UserWarning: careful\n")
    printer.feed(0, b'  File "/tmp/ipykernel_7497/8058.py", line 3, in f\n')
    printer.finish(0)
    assert printed(capsys, printer) == [
        "[rank 0] <cell>:3: UserWarning: careful",
        '[rank 0]   File "<cell>", line 3, in f',
    ]


def test_endless_output_is_cut_and_the_cut_is_said(capsys):
    printer = Printer(1)
    printer.feed(0, b"x\n" * (LINES + 1234))
    printer.finish(0)
    lines = printed(capsys, printer)
    assert len(lines) == LINES + 1
    assert lines[-1] == "[rank 0] ... and 1,234 more lines, not shown"


def test_many_long_lines_are_cut_too(capsys):
    printer = Printer(2)
    for _ in range(1_000):
        printer.feed(0, b"x" * (LINE - 1) + b"\n")
    printer.finish(0)
    lines = printed(capsys, printer)
    assert sum(map(len, lines)) < MOST + 2 * LINE
    assert lines[-1] == f"[rank 0] ... and {1_000 - len(lines) + 1} more lines, not shown"


def test_what_the_output_cannot_show_is_replaced(monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), "ascii", newline="")
    monkeypatch.setattr("sys.stdout", screen)
    printer = Printer(1)
    printer.feed(0, "N → ∞\n".encode())
    printer.flush()
    screen.seek(0)
    assert screen.read() == "[rank 0] N ? ?\n"


def test_an_endless_line_is_cut_and_not_kept(capsys):
    printer = Printer(1)
    for _ in range(100):
        printer.feed(0, b"x" * LINE)
    printer.finish(0)
    assert printed(capsys, printer) == ["[rank 0] " + "x" * LINE + " ... (line cut)"]
