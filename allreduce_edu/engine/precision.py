"""Rounding to fewer digits, exactly as the hardware formats do it, and what it costs.

Numbers are held in float32 (or float64) and rounded after each operation. Adding two numbers of
at most 11 digits in float32 and rounding the sum gives the bits of an addition in the narrow
format, because float32 has more than twice as many digits (Figueroa 1995); in the same way
float64 serves for float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allreduce_edu.engine.check import Registry
from allreduce_edu.engine.dtypes import full_name, is_float, is_torch

Floats = npt.NDArray[Any]


class Format(NamedTuple):
    """A floating-point format.

    Attributes
    ----------
    name : str
        numpy's, ml_dtypes' or torch's name.
    digits : int
        Binary digits, the leading one included.
    lowest : int
        Exponent of the smallest normal number, 2**lowest.
    largest : float
        The largest finite number.
    bits : int
        That one number takes on the wire.
    infinite : bool
        False: what is too large becomes NaN.
    """

    name: str
    digits: int
    lowest: int
    largest: float
    bits: int
    infinite: bool = True

    def __repr__(self) -> str:
        return f"Format({self.name}, {self.digits} digits, largest {self.largest:.6g})"

    @property
    def unit(self) -> float:
        """The unit roundoff u: half an ulp at 1."""
        return float(2.0**-self.digits)


FORMATS: Registry[Format] = Registry(
    "format",
    {
        "fp64": Format("float64", 53, -1022, float(np.finfo(np.float64).max), 64),
        "fp32": Format("float32", 24, -126, float(np.finfo(np.float32).max), 32),
        "tf32": Format("tf32", 11, -126, (2 - 2.0**-10) * 2.0**127, 19),
        "fp16": Format("float16", 11, -14, 65504.0, 16),
        "bf16": Format("bfloat16", 8, -126, (2 - 2.0**-7) * 2.0**127, 16),
        "fp8_e4m3": Format("float8_e4m3fn", 4, -6, 448.0, 8, infinite=False),
        "fp8_e5m2": Format("float8_e5m2", 3, -14, 57344.0, 8),
    },
)


def format_of(kind: Any) -> Format:
    """Return the format for one of the names in FORMATS, a numpy or torch dtype or its name."""
    if isinstance(kind, Format):
        return kind
    if isinstance(kind, str) and kind in FORMATS:
        return FORMATS[kind]
    try:
        name = full_name(kind) if is_torch(kind) or isinstance(kind, str) else np.dtype(kind).name
    except TypeError:
        name = str(kind)
    for known in FORMATS.values():
        if known.name == name:
            return known
    return FORMATS[name]


def rounded(x: Any, kind: Any, *, saturate: bool = False) -> Floats:
    """Return x rounded to nearest, ties to even, in the format `kind`, still as float32/float64.

    Parameters
    ----------
    x : float32 or float64 array
    kind : str, dtype or Format
    saturate : bool
        True: a finite number that is too large becomes the largest one. False: infinity, or NaN
        where the format has none (e4m3). Libraries differ in this, torch even by version.
    """
    f = format_of(kind)
    x = np.asarray(x)
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"x must be float32 or float64, got {x.dtype}")
    held = FORMATS["fp32" if x.dtype == np.float32 else "fp64"]
    if f.digits >= held.digits:
        return np.array(x)
    y = _to_digits(x, f.digits, held.digits)
    if f.lowest > held.lowest:
        _round_subnormals(x, y, f, held)
    _overflow(x, y, f, saturate=saturate)
    return y


def _to_digits(x: Floats, digits: int, held: int) -> Floats:
    """Round the bits: half of the last place is added, and a bit less to break ties to even."""
    kind: Any = np.uint32 if held == FORMATS["fp32"].digits else np.uint64
    drop = held - digits
    bits: Any = x.view(kind)
    out = (bits >> kind(drop)) & kind(1)
    out += kind((1 << (drop - 1)) - 1)
    out += bits
    out &= ~kind((1 << drop) - 1)
    y: Floats = out.view(x.dtype)
    lost = np.isnan(x)
    if lost.any():
        y[lost] = np.nan
    return y


def _round_subnormals(x: Floats, y: Floats, f: Format, held: Format) -> None:
    """Below 2**lowest numbers stand equally far apart: adding a large one rounds them to that."""
    size = np.abs(x)
    small = size < x.dtype.type(2.0**f.lowest)
    small &= size > 0
    if small.any():
        magic = x.dtype.type(2.0 ** (f.lowest - f.digits + held.digits))
        y[small] = np.copysign((size[small] + magic) - magic, x[small])


def _overflow(x: Floats, y: Floats, f: Format, *, saturate: bool) -> None:
    large = np.abs(y) > x.dtype.type(f.largest)
    if not large.any():
        return
    finite = large & np.isfinite(x)
    ends = f.largest if saturate else np.inf if f.infinite else np.nan
    y[large] = np.copysign(x.dtype.type(np.inf if f.infinite else np.nan), x[large])
    y[finite] = np.copysign(x.dtype.type(ends), x[finite])


@dataclass(frozen=True, repr=False)
class Rounding:
    """Where a reduction rounds: what crosses a wire, and what is kept after each addition.

    Attributes
    ----------
    wire, keep : Format
        Sent numbers are rounded to `wire`; the result of each combination to `keep`.
    round_owner : bool
        True: who sends a number keeps it rounded too, so that all end with the same bits.
    saturate : bool
        As for `rounded`.
    """

    wire: Format
    keep: Format
    round_owner: bool = False
    saturate: bool = False

    def __repr__(self) -> str:
        owner = ", what is sent is kept rounded" if self.round_owner else ""
        return f"Rounding({self.wire.name} on the wire, {self.keep.name} kept{owner})"

    @property
    def storage(self) -> np.dtype[Any]:
        """The dtype in which both are held."""
        wide = max(self.wire.digits, self.keep.digits)
        return np.dtype(np.float64 if wide > FORMATS["fp32"].digits else np.float32)

    def sent(self, values: Any) -> Floats:
        """Round what crosses a wire."""
        return rounded(values, self.wire, saturate=self.saturate)

    def kept(self, values: Any) -> Floats:
        """Round what is kept."""
        return rounded(values, self.keep, saturate=self.saturate)

    @classmethod
    def of(
        cls,
        dtype: Any,
        wire: Any = None,
        accumulate: Any = None,
        *,
        round_owner: bool = False,
        saturate: bool = False,
    ) -> Rounding | None:
        """Return where ``run(..., wire=..., accumulate=...)`` rounds numbers of `dtype`.

        What is not given is as wide as the numbers are, and nothing is rounded (None) if neither
        is. TypeError for numbers that are not floating-point.
        """
        if wire is None and accumulate is None:
            if round_owner or saturate:
                raise ValueError("round_owner and saturate need a wire or accumulate dtype")
            return None
        if not is_float(dtype):
            raise TypeError(f"wire and accumulate round floating-point numbers, got {dtype}")
        keep = format_of(dtype if accumulate is None else accumulate)
        return cls(keep if wire is None else format_of(wire), keep, round_owner, saturate)


def ulp(x: Any, kind: Any) -> Floats:
    """Return the distance between neighbours of the format at each number, array like x."""
    f, size = format_of(kind), np.abs(np.asarray(x).astype(np.float64))
    exponent = np.where(size > 0, np.frexp(size)[1] - 1, f.lowest)
    steps: Floats = np.ldexp(1.0, np.maximum(exponent, f.lowest) - f.digits + 1)
    return steps


def exact_sum(values: Any, axis: int = 0) -> npt.NDArray[np.float64]:
    """Return the sum along an axis without rounding on the way, as float64.

    Each addition keeps what it loses (Knuth's TwoSum), and the losses are added in the same way:
    wrong by one rounding to float64 at most, and 2**-100 of the sum of all sizes. Much faster than
    ``math.fsum``, which the tests compare it with.
    """
    terms = np.moveaxis(np.asarray(values).astype(np.float64), axis, 0)
    high = np.zeros(terms.shape[1:])
    low, lowest = np.zeros_like(high), np.zeros_like(high)
    for term in terms:
        high, lost = _two_sum(high, term)
        low, lost = _two_sum(low, lost)
        lowest += lost
    return high + (low + lowest)


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a + b, and what its rounding lost, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def error_in_ulps(got: Any, exact: Any, kind: Any) -> npt.NDArray[np.float64]:
    """Return how many places of the format each number is off, array like got, signed."""
    truth = np.asarray(exact, np.float64)
    return np.asarray((np.asarray(got).astype(np.float64) - truth) / ulp(truth, kind))


def relative_rms(got: Any, exact: Any) -> float:
    """Return the root of the mean square error over that of the exact values."""
    truth = np.asarray(exact, np.float64)
    size = float(np.sqrt(np.mean(truth**2)))
    return float(np.sqrt(np.mean((np.asarray(got).astype(np.float64) - truth) ** 2))) / (
        size or 1.0
    )
