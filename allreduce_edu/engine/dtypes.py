"""Names of dtypes, and the rules of adding in them.

The field's short names (fp32, bf16, ...) stand beside numpy's. bf16 is ml_dtypes' bfloat16,
loaded when it is asked for: numpy has none of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from allreduce_edu.engine.check import unknown

_NUMPY_NAME = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "bool": "bool",
}
DTYPES = tuple(_NUMPY_NAME)
_NUMERIC = ("bool", "int8", "int16", "int32", "int64", "uint", "float", "bfloat", "complex")
OPS = ("sum", "avg", "max", "min", "prod")


def dtype(name: Any) -> np.dtype[Any]:
    """Return the numpy dtype for a short name ("bf16"), a numpy name, or a dtype.

    Raises
    ------
    ValueError
        For a name that is not known, with the nearest one that is.
    """
    name = _NUMPY_NAME.get(name, name) if isinstance(name, str) else name
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    try:
        known: np.dtype[Any] = np.dtype(full_name(name) if is_torch(name) else name)
    except TypeError:
        raise ValueError(unknown("dtype", name, DTYPES)) from None
    if name is None or not known.name.startswith(_NUMERIC):
        raise ValueError(unknown("dtype", name, DTYPES))
    return known


def full_name(kind: Any) -> str:
    """Return "float32" for numpy's and torch's float32, whatever its byte order."""
    return kind.name if isinstance(kind, np.dtype) else str(kind).removeprefix("torch.")


def short_name(kind: Any) -> str:
    """Return "fp32" for numpy.float32, torch.float32 or "float32"; other names as they are."""
    full = full_name(kind)
    return next((short for short, name in _NUMPY_NAME.items() if name == full), full)


def is_float(kind: Any) -> bool:
    """Tell whether a numpy or torch dtype is a real floating-point one, bfloat16 included."""
    return "float" in str(kind)


def check_op(op: str, kind: Any) -> None:
    """Raise unless `op` is one of `OPS` and has a meaning for numbers of this dtype."""
    if op not in OPS:
        raise ValueError(unknown("op", op, OPS))
    name = full_name(kind)
    if not name.startswith(_NUMERIC):
        raise TypeError(f"unsupported dtype {name}; use a numeric dtype such as {DTYPES[1]!r}")
    if op in ("max", "min") and name.startswith("complex"):
        raise TypeError(f"op {op!r} has no meaning for dtype {name}; use 'sum' or 'prod'")
    if op == "avg" and not is_float(name):
        raise TypeError(f"op 'avg' needs a floating-point dtype, got {name}; use 'sum'")


def combiner(op: str, array: Any) -> Callable[..., Any]:
    """Return the function ``f(held, came)`` that combines two values, for numpy or torch.

    avg adds; the division by the number of ranks comes once, at the end. On bool, sum and max
    are *or*, prod and min are *and*. NaN wins in max and min.
    TypeError for the dtypes in which torch stores but does not add.
    """
    library: Any = np
    if is_torch(array):
        import torch

        library, kind = torch, full_name(array.dtype)
        if kind.startswith(("float8", "float4", "uint16", "uint32", "uint64")):
            raise TypeError(f"torch does not add in {kind}; pass numpy arrays, or a wider dtype")
    name = {"sum": "add", "avg": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}[op]
    function: Callable[..., Any] = getattr(library, name)
    return function


def is_torch(array: Any) -> bool:
    """Tell whether this is a torch tensor, without importing torch."""
    return type(array).__module__.partition(".")[0] == "torch"


def as_numpy(array: Any) -> Any:
    """Return a torch tensor as a numpy array of the same dtype; numpy arrays as they are."""
    if not is_torch(array):
        return array
    kind = dtype(str(array.dtype).removeprefix("torch."))
    wide = array.detach().cpu()
    return (wide.float() if kind.name == "bfloat16" else wide).numpy().astype(kind)
