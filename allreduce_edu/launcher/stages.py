"""Runs one command after another with a living line for each, and a log of all they say.

On a terminal the line shows seconds and what the command is doing; elsewhere plain lines appear.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path


class Failed(Exception):  # noqa: N818 - a command's verdict, turned into a sentence by the caller
    """A command ended with an error; `output` is all it said."""

    def __init__(self, output: str) -> None:
        super().__init__(output[-200:])
        self.output = output


class Stages:
    """Runs commands quietly: `Stages(log).run("installing packages", [...])`."""

    def __init__(
        self,
        log: Path,
        write: Callable[[str], object] | None = None,
        *,
        living: bool | None = None,
        beat: float = 30.0,
    ) -> None:
        self.log = log
        self._write = write or _to_stdout
        self._living = sys.stdout.isatty() if living is None else living
        self._beat = beat  # without a terminal, a sign of life after so many seconds

    def __repr__(self) -> str:
        return f"Stages(log={self.log.name!r})"

    def say(self, sentence: str) -> None:
        """Print a sentence of its own."""
        self._write(f"  {sentence}\n")

    def run(
        self,
        title: str,
        command: list[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run a command to its end; raise Failed if it went wrong.

        Interrupted, it takes the command and all its children with it.
        """
        start, lines = time.monotonic(), [""]
        process = _start(command, cwd, env)
        reader = threading.Thread(target=self._read, args=(process, lines), daemon=True)
        reader.start()
        try:
            self._show_until_done(title, reader, lines, start)
            code = process.wait()
        except BaseException:
            _kill(process)
            reader.join(5)
            self._end(title, start, "stopped, and taken up by the same command,")
            raise
        self._end(title, start, "failed" if code else "done")
        if code:
            raise Failed("".join(lines))

    def _read(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        """Keep what the command says, also where the disk has no room for the log."""
        assert process.stdout
        with process.stdout as said:
            for line in said:
                lines.append(line)
                with suppress(OSError), self.log.open("a", encoding="utf-8") as log:
                    log.write(line)

    def _show_until_done(
        self, title: str, reader: threading.Thread, lines: list[str], start: float
    ) -> None:
        if not self._living:
            self._write(f"  {title} …\n")
        beats = 1
        while reader.is_alive():
            reader.join(0.2)
            seconds = time.monotonic() - start
            status = f"  {title} … {seconds:.0f} s  {doing(lines)}"
            if self._living:
                self._redraw(status)
            elif seconds > beats * self._beat:
                beats += 1
                self._write(status + "\n")

    def _end(self, title: str, start: float, how: str) -> None:
        line = f"  {title}: {how} in {time.monotonic() - start:.0f} s"
        if self._living:
            self._redraw(line)
            self._write("\n")
        else:
            self._write(line + "\n")

    def _redraw(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._write("\r" + line[:width].ljust(width))


def doing(lines: list[str]) -> str:
    """Return what pip is at, from the newest line that says so, shortened to be read in passing."""
    for line in reversed(lines):
        at = re.match(r"\s*(Collecting|Downloading|Using|Installing|Building|Getting) .*", line)
        if at:
            words = at[0].strip()
            if words.startswith("Installing collected packages"):
                return f"unpacking {words.count(',') + 1} packages"
            return re.sub(r"-[^-]*-[^-]*-[^-]*\.whl", "", words)
    return ""


def _start(
    command: list[str], cwd: Path | None, env: Mapping[str, str] | None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        # A group of its own, so that Ctrl-C reaches this program alone and it ends all of them.
        start_new_session=os.name == "posix",
        # Inherits the caller's lock, if it holds one: a command that outlives it keeps others out.
        close_fds=os.name != "posix",
    )


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _to_stdout(text: str) -> None:
    """Print, unless nobody reads any more: that stops no installation."""
    with suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()
