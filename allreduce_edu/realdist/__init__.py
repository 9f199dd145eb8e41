"""Real ranks: processes with torch.distributed, run from a notebook without ever hanging it.

The two instruments for a training script of one's own are at hand here too, and load torch when
they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {"compare_replicas": "compare", "one_step": "oracle"}
__all__ = ["compare_replicas", "one_step"]

if TYPE_CHECKING:  # else every name, mistyped ones too, would count as one of these
    from allreduce_edu.realdist.compare import compare_replicas
    from allreduce_edu.realdist.oracle import one_step
else:

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
