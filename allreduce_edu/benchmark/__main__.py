"""Runs the benchmark and prints a Markdown table per group."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

import numpy as np

from allreduce_edu.benchmark.measure import Meter, Table

GROUPS = {
    "A": ("data_engine", "playing a schedule on numbers"),
    "B": ("time_model", "reckoning time"),
    "E": ("response", "what a reader waits for"),
    "F": ("precision", "bf16 and fp16"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the engine beside the machine's limit and beside what else one could use."""
    parser = argparse.ArgumentParser(
        prog="python -m allreduce_edu.benchmark", description=main.__doc__
    )
    listed = "; ".join(f"{key}: {about}" for key, (_, about) in GROUPS.items())
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{listed}. All if none given")
    parser.add_argument("--quick", action="store_true", help="few sizes, one repetition: no proof")
    parser.add_argument("--repetitions", type=int, default=7, help="at least 1 (default 7)")
    args = parser.parse_args(argv)
    wanted = [each.upper() for each in args.groups] or list(GROUPS)
    for each in wanted:
        if each not in GROUPS:
            parser.error(f"GROUP must be one of {', '.join(GROUPS)}, got {each!r}")
    if args.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {args.repetitions}")
    meter = Meter(1, 0.0, quick=True) if args.quick else Meter(args.repetitions)
    print(machine(), flush=True)
    for each in wanted:
        for table in tables(each, meter):
            print(f"\n{table.markdown()}\n\nLoad average now: {_load()}.", flush=True)


def tables(group: str, meter: Meter) -> Iterator[Table]:
    """Yield the tables of one group."""
    module = import_module(f"allreduce_edu.benchmark.{GROUPS[group][0]}")
    make: Callable[[Meter], Iterator[Table]] = module.tables
    return make(meter)


def machine() -> str:
    """Say on what this was measured, and how."""
    about = f"Python {platform.python_version()}, numpy {np.__version__}"
    return (
        f"{platform.machine()}, {os.cpu_count()} CPUs, {about}, load average {_load()}. Medians of "
        "the ratios of interleaved repetitions; CPU time of the thread, where not said otherwise."
    )


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


if __name__ == "__main__":
    main()
