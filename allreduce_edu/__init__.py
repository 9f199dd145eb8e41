"""Step through all-reduce: simulated ranks, real processes, and pictures of both.

Names are resolved on first use, so importing the package costs nothing and pulls in nothing:
``from allreduce_edu import ring, run`` loads numpy, ``Player`` loads anywidget, ``Pool`` starts
processes only when it is used. This file parses on old Pythons, so that
``python -m allreduce_edu`` can say that they are too old.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "engine.rounds": ("Round",),
    "engine.schedule": ("Schedule",),
    "engine.algorithms": (
        "ALGORITHMS",
        "COLLECTIVES",
        "all_to_all",
        "bidirectional_ring",
        "binomial_broadcast",
        "binomial_reduce",
        "binomial_tree",
        "double_binary_tree",
        "gather",
        "gloo_ring",
        "halving_doubling",
        "hierarchical",
        "hierarchical_leader",
        "naive",
        "one_shot",
        "pairwise_exchange",
        "pairwise_reduce_scatter",
        "parameter_server",
        "pipelined_tree",
        "recursive_doubling",
        "ring",
        "ring_all_gather",
        "ring_reduce_scatter",
        "scatter",
        "sharded_server",
    ),
    "engine.bandwidth": ("algbw", "busbw", "fit"),
    "engine.execute": ("OverflowWarning", "run", "steps"),
    "engine.verify": ("contributions", "expected", "explain", "place_values", "summation_order"),
    "engine.cost": (
        "busiest_port",
        "clocks",
        "cost",
        "messages",
        "received_bytes",
        "sent_bytes",
        "timeline",
    ),
    "engine.formulas": ("closed_form",),
    "engine.links": ("LINKS", "Link", "Links"),
    "engine.frames": ("frames",),
    "engine.spmd": ("spmd",),
    "lessons.museum": ("museum",),
    "realdist.compare": ("Replicas", "compare_replicas"),
    "realdist.magic": ("load_ipython_extension", "unload_ipython_extension"),
    "realdist.oracle": ("OneStep", "one_step"),
    "realdist.parity": ("parity",),
    "realdist.pool": ("PerRank", "Pool", "RankError"),
    "realdist.shaped": ("ShapedLinks",),
    "show.backward": ("Backward",),
    "show.trace": ("Trace",),
    "show.board": ("Board",),
    "show.player": ("Player",),
    "show.checklist": ("Checklist",),
    "show.museum": ("Visit", "take"),
    "show.tape": ("Tape",),
    "show.waits": ("Waits",),
    "show.predict": ("Predict", "guesses"),
    "show.together": ("Together",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE)  # noqa: PLE0605 - the table above is the one place that lists them


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name not in _MODULE:
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
    value = getattr(import_module(__name__ + "." + _MODULE[name]), name)
    globals()[name] = value
    return value


def __dir__():  # type: ignore[no-untyped-def]
    return sorted(set(globals()) | set(_MODULE))
