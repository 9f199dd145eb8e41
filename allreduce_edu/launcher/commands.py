"""The commands: lab, test, check, clean. Standard library only, and no shell.

`lab` and `test` make the environment first (environment.py); `--here` takes the current one.
"""

from __future__ import annotations

import argparse
import getpass
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from allreduce_edu.launcher.environment import ROOT, Environment, missing
from allreduce_edu.launcher.failures import Stop, in_words

MAP = "notebooks/00_start_here.ipynb"
# Where the committed outputs were made; elsewhere the notebooks run without being compared.
REFERENCE = ("Linux", "x86_64")
NBVAL = (
    *("--nbval-current-env", "--nbval-cell-timeout=120"),
    *("-p", "no:cacheprovider", "-o", "filterwarnings=default"),
)


def main(argv: list[str]) -> int:
    """Carry out one command line and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a stream replaced by something simpler
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _interrupt)
    options, rest = parse(argv)
    try:
        return VERBS[options.verb](options, rest)
    except Stop as stop:
        return _give_up(str(stop))
    except OSError as error:
        if not (words := in_words(error, ROOT)):
            raise
        return _give_up(words)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def _give_up(sentence: str) -> int:
    print(f"allreduce_edu: {sentence}", file=sys.stderr)
    return 1


def _interrupt(number: int, _: object) -> None:
    """End this program once, however often the key is pressed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into our options and, after `--`, what JupyterLab or pytest gets."""
    at = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        prog="python3 -m allreduce_edu",
        description="Step through all-reduce in notebooks, on simulated ranks and real processes.",
        epilog="What follows `--` goes to JupyterLab (lab) or pytest (test).",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="lab | test | check | clean")
    here = argparse.ArgumentParser(add_help=False)
    here.add_argument("--here", action="store_true", help="use this Python's own environment")
    build = argparse.ArgumentParser(add_help=False, parents=[here])
    which = build.add_mutually_exclusive_group()
    for name in ("cpu", "cuda"):
        words = f"take torch's {name.upper()} build, now and in later runs"
        which.add_argument(f"--{name}", dest="torch", action="store_const", const=name, help=words)
    verbs.add_parser("lab", parents=[build], help="make an environment and open JupyterLab in it")
    test = verbs.add_parser("test", parents=[build], help="run every test and every notebook")
    test.add_argument("--browser", action="store_true", help="also the tests that need chromium")
    verbs.add_parser("check", parents=[here], help="say what works on this machine")
    clean = verbs.add_parser("clean", parents=[build], help="run notebooks and normalise them")
    clean.add_argument("--check", action="store_true", help="write nothing, say what would change")
    clean.add_argument("--fresh", action="store_true", help="take new measured outputs too")
    clean.add_argument("notebooks", nargs="*", help="all, if none is named")
    options, rest = parser.parse_args(argv[:at]), argv[at + 1 :]
    if rest and options.verb not in ("lab", "test"):
        parser.error(f"`--` passes words on for lab and test only, got {' '.join(rest)!r} after it")
    return options, rest


def ready(options: argparse.Namespace, *extras: str) -> tuple[str, dict[str, str]]:
    """Return a Python that has everything, and the environment variables to start it with."""
    if options.here:
        _refuse_missing([e for e in extras if e != "torch"])
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return sys.executable, {**os.environ, "PYTHONPATH": path}
    environment = Environment()
    environment.prepare(["torch", *extras], options.torch)
    return str(environment.python), environment.environ()


def _refuse_missing(extras: list[str]) -> None:
    """Change nothing in an environment that is not ours, but say how to."""
    if lacking := missing(extras):
        what = f".[{','.join(sorted([*extras, 'torch']))}]"
        pip = f'{sys.executable} -m pip install -c constraints.txt -e "{what}"'
        raise Stop(
            f"this Python lacks {', '.join(lacking)}: run `{pip}` in {ROOT}, or leave out --here"
        )


def lab(options: argparse.Namespace, rest: list[str]) -> int:
    """Open JupyterLab on the map notebook."""
    python, environ = ready(options)
    # As default_url the map is also in the address printed.  -y: Ctrl-C asks no question.
    arguments = [f"--ServerApp.root_dir={ROOT}", f"--LabApp.default_url=/lab/tree/{MAP}", "-y"]
    arguments += ["--log-level=WARN"]  # so that the address stands out
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")
        print("You are root, which JupyterLab refuses by itself: --allow-root is added.")
    if not has_display(os.environ):
        port = free_port()
        arguments += ["--no-browser", f"--port={port}"]
        print(tunnel(port))
    print("JupyterLab starts; Ctrl-C stops it and its kernels.", flush=True)
    environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel before the user's own
    command = [python, "-m", "jupyterlab", *arguments, *rest]
    os.chdir(ROOT)
    if os.name == "posix":
        os.execve(python, command, environ)  # signals and the exit status are JupyterLab's own
    return call(command, environ)


def has_display(environ: Mapping[str, str]) -> bool:
    """Say whether a browser that is started here can be seen by the user."""
    if environ.get("BROWSER"):  # also set by editors that forward the page
        return True
    if environ.get("SSH_CONNECTION"):
        return False
    on_screen = platform.system() in ("Darwin", "Windows")
    return on_screen or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def free_port(first: int = 8888) -> int:
    """Return the first free port, so that the tunnel cannot lead to somebody else's server."""
    for port in range(first, first + 100):
        with socket.socket() as probe, suppress(OSError):
            if os.name == "posix":  # take a port again right after the last server has left it
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    return first


def tunnel(port: int) -> str:
    """Return how to reach a JupyterLab that has no display of its own."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "user"
    return (
        "There is no display here. Open the address that JupyterLab prints below in a browser on\n"
        "this machine; or, from another one, first run this there and leave it running:\n"
        f"    ssh -N -L {port}:localhost:{port} {user}@{socket.gethostname()}"
    )


def test(options: argparse.Namespace, rest: list[str]) -> int:
    """Run all tests, then all notebooks; with arguments for pytest, only pytest."""
    python, plain = ready(options, "test", *(["dev"] if options.browser else []))
    pytest = [python, "-m", "pytest"]
    with sealed(python, plain) as environ:
        if rest:
            return call([*pytest, *rest], environ)
        nbval = [*pytest, nbval_mode(), *NBVAL, *without_torch(python, environ), "notebooks"]
        parts = {"tests": pytest, "notebooks": nbval}
        if options.browser:
            parts["browser"] = [*pytest, "-m", "browser", "tests/browser"]
        failed = [name for name, command in parts.items() if _titled(name, command, environ)]
    print(f"failed: {', '.join(failed)}" if failed else f"passed: {', '.join(parts)}")
    return 1 if failed else 0


def nbval_mode() -> str:
    """Return the switch that compares outputs where they were made, and elsewhere just runs."""
    return "--nbval" if (platform.system(), platform.machine()) == REFERENCE else "--nbval-lax"


def without_torch(python: str, environ: Mapping[str, str]) -> list[str]:
    """Return what makes pytest pass over the notebooks that need torch, where there is none."""
    if runs(python, "import importlib.util; assert importlib.util.find_spec('torch')", environ):
        return []
    notebooks = sorted(ROOT.glob("notebooks/*.ipynb"))
    needing = [p for p in notebooks if '"import torch' in p.read_text(encoding="utf-8")]
    for path in needing:
        print(f"torch is not installed here: {path.name} is passed over")
    return [f"--ignore={path}" for path in needing]


def _titled(name: str, command: list[str], environ: Mapping[str, str]) -> int:
    print(f"\n{name}: {' '.join(['python', *command[1:]])}", flush=True)
    return call(command, environ)


@contextmanager
def sealed(python: str, environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Keep the user's settings for Jupyter, IPython and matplotlib away from what is compared."""
    foreign = ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "MPLBACKEND", "MATPLOTLIBRC", "PYTHONSTARTUP")
    jupyter = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    flags = {"JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_NO_CONFIG": "1", "PYTHONUTF8": "1"}
    with tempfile.TemporaryDirectory(prefix="allreduce_edu-", ignore_cleanup_errors=True) as folder:
        own = {name: str(Path(folder, name)) for name in (*jupyter, "IPYTHONDIR", "MPLCONFIGDIR")}
        inner = {k: v for k, v in environ.items() if k not in foreign} | own | flags
        # Without its font cache matplotlib says so on stderr, which fails the first figure's cell.
        runs(python, "import matplotlib.font_manager", inner)
        yield inner


def runs(python: str, statement: str, environ: Mapping[str, str]) -> bool:
    """Say whether a statement runs without an error."""
    command = [python, "-c", statement]
    return subprocess.run(command, env=environ, capture_output=True, check=False).returncode == 0


def check(options: argparse.Namespace, _: list[str]) -> int:
    """Say what works here: in `.venv` if it is ready, else in this Python. Installs nothing."""
    python, environ, environment = sys.executable, dict(os.environ), Environment()
    if environment.ready and not options.here:
        python, environ = str(environment.python), environment.environ()
    ask = "import sys; from allreduce_edu.machine import main; sys.exit(main())"
    return call([python, "-c", ask], environ)


def clean(options: argparse.Namespace, _: list[str]) -> int:
    """Run notebooks and bring them into their one committed form."""
    python, plain = ready(options)
    flags = [f"--{name}" for name in ("check", "fresh") if getattr(options, name)]
    notebooks = [str(Path(name).resolve()) for name in options.notebooks]
    with sealed(python, plain) as environ:
        return call([python, "-m", "allreduce_edu.clean", *flags, *notebooks], environ)


def call(command: list[str], environ: Mapping[str, str]) -> int:
    """Run a command in the project's folder; interrupted, let it end well, but in time."""
    process = subprocess.Popen(command, cwd=ROOT, env=environ)
    try:
        return process.wait()
    except KeyboardInterrupt as by:
        with suppress(subprocess.TimeoutExpired):
            if by.args == (signal.SIGINT,):  # Ctrl-C in a terminal it has heard itself
                process.wait(3)
        if os.name == "posix" and process.poll() is None:
            process.send_signal(signal.SIGINT)
        for harder in (process.terminate, process.kill, process.wait):
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
                break
            harder()
        raise


VERBS: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "lab": lab,
    "test": test,
    "check": check,
    "clean": clean,
}
