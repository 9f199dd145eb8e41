"""Start here: `python3 -m allreduce_edu lab`.

This file and the package's `__init__` are all that an old Python reads before it is told what
to do, so both must parse on any Python, 2.7 included (tests/test_launcher.py holds them to that).
"""

import os
import sys

OLDEST = (3, 10)


def newer_python():
    # type: () -> str | None
    """Return the name of a Python on the PATH that is new enough, or None."""
    for minor in range(20, OLDEST[1] - 1, -1):
        name = "python3.%d" % minor
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            if os.access(os.path.join(folder, name), os.X_OK):
                return name
    return None


def too_old(arguments):
    # type: (list[str]) -> str
    """Return one sentence that says what to do on a Python that is too old."""
    verb = " ".join(arguments) or "lab"
    there = newer_python()
    todo = (
        "run `%s -m allreduce_edu %s`" % (there, verb)
        if there
        else "install a newer one and name it, as in `python3.12 -m allreduce_edu %s`" % verb
    )
    need, have = "%d.%d" % OLDEST, "%d.%d" % tuple(sys.version_info[:2])
    return "allreduce_edu needs Python %s or newer and this is Python %s: %s" % (need, have, todo)


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        sys.exit(too_old(sys.argv[1:]))

    from allreduce_edu.launcher.commands import main

    sys.exit(main(sys.argv[1:]))
