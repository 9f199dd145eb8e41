"""Numbers that a reader types, as one array per rank; or a sentence that says what is amiss."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.dtypes import dtype, is_float
from allreduce_edu.lessons.family import largest

HELP = "one number for each rank, or a list for each, with ; between: 1 2; 10 20; 100 200"
_MOST_CHARS, _MOST_NUMBERS = 2000, 32
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


def typed_values(text: str, ranks: int, kind: str, each: int) -> npt.NDArray[Any]:
    """Return x[rank, element] from text such as "1, 10, 100, 1000" or "1 2; 10 20".

    A single number of a rank fills `each` elements.

    Raises
    ------
    ValueError
        With a sentence, for all that is not `HELP`.
    """
    if len(text) > _MOST_CHARS:
        raise ValueError(f"values must be at most {_MOST_CHARS:,} characters, got {len(text):,}")
    rows = [re.split(r"[,\s]+", row.strip(" ,\t")) for row in re.split("[;\n]", text.strip(" ;\n"))]
    if len(rows) == 1 and ranks > 1:
        rows = [[number] for number in rows[0]]
    if len(rows) != ranks:
        raise ValueError(
            f"values must be one number for each of the {ranks} ranks, or a list for each with ; "
            f"between, got {len(rows)}"
        )
    lengths = [len(row) for row in rows]
    for rank, length in enumerate(lengths):
        if length != lengths[0]:
            raise ValueError(
                f"values must be as many on every rank; rank 0 has {lengths[0]}, "
                f"rank {rank} has {length}"
            )
    if lengths[0] > _MOST_NUMBERS:
        raise ValueError(f"values must be at most {_MOST_NUMBERS} on a rank, got {lengths[0]}")
    x = np.array([[_number(word, kind) for word in row] for row in rows], dtype(kind))
    return x.repeat(each, axis=1) if lengths[0] == 1 else x


def _number(word: str, kind: str) -> Any:
    to = dtype(kind)
    if not word:
        raise ValueError(f"values must be {HELP}; a number is missing")
    if to.kind == "b":
        if word.lower() not in _BOOLS:
            raise ValueError(f"values of bool must be 0 or 1, got {word[:20]!r}")
        return _BOOLS[word.lower()]
    try:
        number: Any = float(word) if is_float(to) else int(word)
    except ValueError:
        what = "numbers" if is_float(to) else "whole numbers"
        raise ValueError(f"values of {kind} must be {what}, got {word[:20]!r}") from None
    most = largest(kind)
    least = -most if is_float(to) else int(np.iinfo(to).min)
    if math.isfinite(number) and not least <= number <= most:
        raise ValueError(
            f"values of {kind} must be between {least:.6g} and {most:.6g}, got {word[:20]}"
        )
    return number
