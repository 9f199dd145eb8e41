"""Exhibits that train: several fixes are right, and some that look right only hide the fault."""

import pytest

from allreduce_edu import Pool, compare_replicas, museum, one_step
from allreduce_edu.lessons.museum.exhibit import Program
from allreduce_edu.lessons.museum.training import Trained

_BY_HAND = {
    "    loss.backward()\n": """    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= ranks
"""
}
RIGHT = {
    "twice": {
        "multiplied back": {"    loss.backward()": "    (loss * ranks).backward()"},
        "the sum over all images": {
            "labels[rank::ranks])": 'labels[rank::ranks], reduction="sum")',
            "loss / ranks  #": "loss * ranks / len(images)  #",
        },
    },
    "thawed": {
        "wrapped again": {"    loss = cross": "    ddp = DDP(model)\n    loss = cross"},
        "the head averaged by hand": {
            "    loss.backward()\n": "    loss.backward()\n    for p in head.parameters():\n"
            "        dist.all_reduce(p.grad)\n        p.grad /= ranks\n",
        },
    },
    "unwrapped": {"averaged by hand": _BY_HAND},
    "temporary": {
        "kept by a name": {
            "    return DDP(model)(x)": "    ddp = DDP(model)\n    return ddp, ddp(x)",
            "    loss = cross_entropy(forward(model, images[rank::ranks])": "    ddp, out = "
            "forward(model, images[rank::ranks])\n    loss = cross_entropy(out",
        },
        "averaged by hand": {"DDP(model)(x)": "model(x)", **_BY_HAND},
    },
    "parallel": {"averaged by hand": {"= DataParallel(model)": "= model", **_BY_HAND}},
    "early": {
        "by name": {"if i % 4 else": "if i != 3 else"},
        "the last comes first": {"if i % 4 else": "if i < 3 else"},
    },
    "inside": {
        "the last forward outside": {
            "for x, y in parts]": "for x, y in [next(parts) for _ in range(3)]]",
            "    sum(losses)": "    losses += [cross_entropy(ddp(x), y) / 4 for x, y in parts]\n"
            "    sum(losses)",
        },
    },
    "unused": {
        "used with a weight of zero": {
            "return self.model(x)": "return self.model(x) + 0 * self.second(x)"
        },
        "static_graph": {"DDP(TwoHeads(model))": "DDP(TwoHeads(model), static_graph=True)"},
        "frozen before wrapping": {
            "    ddp = DDP(TwoHeads(model))": "    both = TwoHeads(model)\n"
            "    both.second.requires_grad_(False)\n    ddp = DDP(both)",
            "SGD(ddp.": "SGD(model.",
        },
    },
}
HIDDEN = {
    "unwrapped": {
        "every rank does everything": (
            {"[rank::ranks]), labels[rank::ranks]": "), labels"},
            "examples went through the model 192 times too often",
        ),
        "nobody trains": ({"    loss.backward()\n": ""}, "no parameter has a gradient"),
        "nobody steps": (
            {"policy(images": "ddp(images", "    sgd.step()\n": ""},
            "has moved",
        ),
    },
    "thawed": {
        "never thawed": (
            {"    head.requires_grad_(True)  # and now thawed\n": ""},
            "`2.weight` is still frozen: thaw it",
        ),
    },
    "replaced": {
        "the old head": (
            {"    model[2] = nn.Linear(32, 10)  # a head for the new classes\n": ""},
            "the head is the old one: the new classes need another",
        ),
    },
}
_WEIGHT = "(wanted != -100).sum() * ranks / (targets != -100).sum()"
RIGHT |= {
    "tokens": {
        "counted in the whole batch": {"    loss.backward()": f"    (loss * {_WEIGHT}).backward()"},
        "the sum over the mean count": {
            "wanted.flatten())": 'wanted.flatten(), reduction="sum")',
            "    loss.backward()": "    (loss / (targets != -100).sum() * ranks).backward()",
        },
    },
    "short": {
        "the sum over all images": {"y) / len(parts))": 'y, reduction="sum") / len(wanted))'},
        "parts of one size": {"mine.split(6), wanted.split(6)": "mine.split(4), wanted.split(4)"},
    },
    "hook": {
        "the mean after the sum": {"return future.value()[0]": "return future.value()[0] / 4"},
        "an op that averages": {"async_op=True": "op=dist.ReduceOp.AVG, async_op=True"},
        "the loss divided": {
            "labels[rank::ranks]).backward()": "labels[rank::ranks]).div(ranks).backward()"
        },
        "no hook": {"    ddp.register_comm_hook([], timed)\n": ""},
    },
    "clipped": {
        "torch's own": {
            "        p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))": "        pass",
            "    sgd.step()": "    from torch.nn.utils import clip_grad_value_\n"
            "    clip_grad_value_(ddp.parameters(), 0.01)\n    sgd.step()",
        },
    },
}
RIGHT |= {
    "start": {
        "the mean of all weights": {
            "    sgd = SGD": "    for p in model.parameters():\n        dist.all_reduce(p.data)\n"
            "        p.data /= ranks\n    sgd = SGD",
        },
        "one seed before building": {
            "import torch.d": "import torch\nimport torch.d",
            "    sgd = SGD": "    torch.manual_seed(0)\n    model[0].reset_parameters()\n"
            "    model[2].reset_parameters()\n    sgd = SGD",
        },
        "DDP in the place of the loop": {
            "import torch.d": "from torch.nn.parallel import DistributedDataParallel\n"
            "import torch.d",
            "    sgd = SGD": "    ddp = DistributedDataParallel(model)\n    sgd = SGD",
            "cross_entropy(model(": "cross_entropy(ddp(",
            "        dist.all_reduce(p.grad)\n        p.grad /= ranks": "        pass",
        },
    },
    "loaded": {
        "every rank loads": {"    if rank == 0:  #": "    if True:  #"},
        "broadcast after loading": {
            "    loss = cross": "    for p in model.parameters():\n"
            "        dist.broadcast(p.data, 0)\n    loss = cross",
        },
    },
    "replaced": {
        "wrapped again": {
            "    loss = cross": "    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)\n"
            "    loss = cross",
        },
    },
    "statistics": {
        "through the wrapper": {
            "    model.eval()": "    ddp.eval()",
            "cross_entropy(model(images)": "cross_entropy(ddp(images)",
        },
        "their mean": {
            "    model.eval()": "    for buffer in (model[1].running_mean, model[1].running_var):\n"
            "        dist.all_reduce(buffer)\n        buffer /= ranks\n    model.eval()",
        },
    },
    "swapped": {
        "sorted": {"in tasks[rank:] + tasks[:rank]:": "in sorted(tasks[rank:] + tasks[:rank]):"},
        "rank 0's order": {
            "    for task in tasks[rank:] + tasks[:rank]:": "    tasks = tasks[rank:] + "
            "tasks[:rank]\n    dist.broadcast_object_list(tasks, 0)\n    for task in tasks:",
        },
    },
}
CASES = [(name, how) for name in RIGHT for how in RIGHT[name]]
HIDES = [(name, how) for name in HIDDEN for how in HIDDEN[name]]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_other_fixes_are_right_too(name, how):
    exhibit = museum[name]
    verdict = exhibit.check(exhibit.edited(RIGHT[name][how]))
    assert verdict.ok, verdict


@pytest.mark.parametrize(("name", "how"), HIDES)
def test_what_only_hides_the_fault_is_rejected(name, how):
    edits, why = HIDDEN[name][how]
    exhibit = museum[name]
    verdict = exhibit.check(exhibit.edited(edits))
    assert not verdict.ok
    assert why in verdict.why


@pytest.mark.parametrize("name", ["unwrapped", "temporary", "parallel", "inside", "unused"])
def test_that_nothing_was_sent_is_told(name):
    assert "no all-reduce ran between forward and step" in museum[name].run().disagree


def held(trained, program):
    """What `compare_replicas` says after the program, called on a rank as a user calls it."""
    import torch.distributed as dist

    model = trained.model()
    program(model, *trained.batch(dist.get_world_size()))
    return compare_replicas(model)


def stepped(trained, program):
    """What `one_step` says of the program, called on a rank as a user calls it."""
    import torch.distributed as dist

    return one_step(program, trained.loss, trained.model(), trained.batch(dist.get_world_size()))


def on_ranks(ask, exhibit):
    """The answer that every rank gets."""
    with Pool(exhibit.stage.ranks, backend="gloo") as pool:
        found = pool.run(ask, exhibit.stage.examine, Program(exhibit.source).entry)
    assert found == [found[0]] * len(found)
    return found[0]


TRAINING = [e for e in museum.values() if isinstance(getattr(e.stage, "examine", None), Trained)]
FACTORS = {"twice": 0.25, "hook": 4.0}


@pytest.mark.parametrize("exhibit", TRAINING, ids=lambda exhibit: exhibit.name)
def test_compare_replicas_finds_what_ranks_do_not_share(exhibit):
    found = on_ranks(held, exhibit)
    assert found.equal == (exhibit.wing == "wrong")
    named = [f"{kind} `{name}`" for kind, name in found.differing]
    assert found.equal or any(each in exhibit.shows[0] for each in named)


@pytest.mark.parametrize(
    "exhibit", [e for e in TRAINING if e.wing == "wrong"], ids=lambda e: e.name
)
def test_one_step_finds_what_all_ranks_share(exhibit):
    found = on_ranks(stepped, exhibit)
    assert not found.right
    assert (found.times and round(found.times, 6)) == FACTORS.get(exhibit.name)


def test_the_oracle_names_clipping_where_nothing_else_can_be_wrong():
    said = museum["clipped"].run().wrong
    assert "clipping before the average? Each example went through the model once" in said
