"""Silent faults have more than one right fix, and no fix that only silences the judge."""

from __future__ import annotations

import pytest

from allreduce_edu import museum

TRAINS = """    for images, labels in loader:
        sgd.zero_grad()
        cross_entropy(ddp(images), labels).backward()
        sgd.step()
"""
OTHER_FIXES = {
    ("sampler", "every fourth image"): {
        "DataLoader(digits": "DataLoader(Subset(digits, range(dist.get_rank(), len(digits), 4))"
    },
    ("sampler", "the batch of one process, in four parts"): {
        "batch_size=32, shuffle=True)": "8, sampler=DistributedSampler(digits))"
    },
    ("epoch", "a new sampler in each epoch"): {
        "    for epoch in range(3):\n": "    for epoch in range(3):\n"
        "        sampler = DistributedSampler(digits, seed=epoch)\n"
        "        loader = DataLoader(digits, batch_size=32, sampler=sampler)\n"
    },
    ("epoch", "an order that all ranks draw alike"): {
        "    for epoch in range(3):\n": "    torch.manual_seed(0)\n    for epoch in range(3):\n"
        "        mine = torch.randperm(len(digits))[dist.get_rank() :: 4]\n"
        "        loader = DataLoader(Subset(digits, mine), batch_size=32)\n"
    },
    ("shuffled", "the order of rank 0"): {"    mine =": "    dist.broadcast(order, 0)\n    mine ="},
    ("shuffled", "each rank shuffles its own share"): {
        "    order = torch.randperm(len(digits))\n": "    order = range(len(digits))\n",
        "batch_size=32": "32, shuffle=True",
    },
    ("local_rank", "the other variable"): {"LOCAL_RANK": "RANK"},
    ("local_rank", "let the sampler ask"): {", num_replicas=ranks, rank=rank": ""},
    ("reduce", "reduce, then broadcast"): {"root=0)": "root=0)\n    comm.broadcast(total, 0)"},
    ("reduce", "gather all parts"): {
        "comm.reduce(total, root=0)": "total = sum(comm.all_gather(total))"
    },
    ("reused", "send a copy"): {"isend(passing,": "isend(passing.copy(),"},
    ("reused", "wait before the buffer is filled"): {
        "comm.recv(left, out=passing)": "came = comm.recv(left)",
        "        total += passing\n        request.wait()\n": "        request.wait()\n"
        "        passing[:] = came\n        total += passing\n",
    },
    ("whole", "the library's"): {
        """    total, passing = x.copy(), x
    for _ in range(comm.size - 1):
        passing = comm.sendrecv(passing, right, left)
        total += passing
    return total
""": "    return comm.all_reduce(x)\n"
    },
    ("benchmark", "the rank that comes last"): {'"max"': '"min"'},
    ("benchmark", "an all-reduce before"): {
        "    start =": "    comm.all_reduce(np.zeros(1))\n    start ="
    },
    ("strided", "copies that go on"): {
        "table[:, 0], table[:, 1]": "table[:, 0].clone(), table[:, 1].contiguous()"
    },
    ("strided", "one row for each number"): {"table[:, 0], table[:, 1]": "table.T.contiguous()"},
    ("dtypes", "floats of Python"): {"sum(scores), len": "float(sum(scores)), len"},
    ("dtypes", "converted before"): {"len(scores)]))": "len(scores)])).double()"},
    ("spike", "the largest tells"): {
        "    if norms": "    largest = norms.clone()\n"
        "    dist.all_reduce(largest, dist.ReduceOp.MAX)\n    if largest",
    },
    ("spike", "gather and decide"): {
        """    op = dist.ReduceOp.SUM
    if norms.max() > 5000:
        op = dist.ReduceOp.MAX
    dist.all_reduce(norms, op)
    return norms
""": """    import torch
    every = [torch.empty_like(norms) for _ in range(dist.get_world_size())]
    dist.all_gather(every, norms)
    every = torch.stack(every)
    return every.amax(0) if every.max() > 5000 else every.sum(0)
"""
    },
    ("padding", "all of it on every rank"): {", sampler=share": ""},
    ("padding", "a subset"): {
        "(test, batch_size=32, sampler=share)": "(torch.utils.data.Subset(test, "
        "range(dist.get_rank(), len(test), dist.get_world_size())), 64)"
    },
    ("log", "the mean"): {"all_reduce(total)": "all_reduce(total, dist.ReduceOp.AVG)"},
    ("log", "divide each share"): {"loss.detach()": "loss.detach() / ranks"},
    ("in_place", "log after the step"): {
        "    shown = log(loss)\n": "",
        "    return shown": "    return log(loss)",
    },
    ("in_place", "another name for the mean"): {
        "    loss /= dist.get_world_size()": "    loss = loss / dist.get_world_size()"
    },
    ("meter", "reduce before it is added"): {
        "        total += loss\n": "        total += comm.all_reduce(np.array([loss]))\n",
        "        comm.all_reduce(total)  # over all ranks\n": "",
    },
    ("meter", "the mean of what is equal already"): {
        "all_reduce(total)": 'all_reduce(total, "avg")',
        "(step * comm.size)": "step",
    },
    ("overflow", "floats"): {
        "zeros(2, np.uint8)": "zeros(2, np.float32)",
    },
    ("negatives", "a gather that gradients go through"): {
        "    scores = a @ b.T": "    import torch.distributed.nn.functional as together\n"
        "    b = torch.cat(list(together.all_gather(b.contiguous())))\n    scores = a @ b.T",
        "torch.arange(len(scores))": "torch.arange(len(a)) + rank * len(a)",
    },
}
CHEATS = {
    ("swapped", "the order of a set"): (
        {"tasks[rank:] + tasks[:rank]": "{*tasks}"},
        "before the first step",
    ),
    ("padding", "a constant"): (
        {"    return float(seen[0] / seen[1])": "    return 313 / 357"},
        "343",
    ),
    ("in_place", "no log"): (
        {"    shown = log(loss)\n": "    shown = 0.0\n"},
        "all ranks agree on 0",
    ),
    ("dtypes", "a constant"): (
        {"float(total[0] / total[1])": "0.8125"},
        "all ranks agree on 0.8125",
    ),
    ("dtypes", "half precision"): (
        {"len(scores)]))": "len(scores)])).half()"},
        "and one process with all the data has 0.7375",
    ),
    ("log", "no step"): ({"    sgd.step()\n": ""}, "no parameter has moved"),
    ("overflow", "a constant"): (
        {"seen[0] / seen[1]": "8 / 9"},
        "with 2 ranks: all ranks agree on 0.8888",
    ),
    ("spike", "always the largest"): ({"ReduceOp.SUM": "ReduceOp.MAX"}, "has [111.1 222.2"),
    ("benchmark", "no exchange"): (
        {"comm.sendrecv(x, right, left)": "pass", "    start": "    comm.barrier()\n    start"},
        "all ranks agree on 0.000 ms",
    ),
    ("benchmark", "nothing measured"): ({"return comm.all": "comm.all"}, "disagree"),
    ("sampler", "no training"): ({TRAINS: ""}, "has seen no image"),
    ("sampler", "no step"): (
        {"shuffle=True)": "sampler=DistributedSampler(digits))", "sgd.step()": "pass"},
        "one process that trains on these batches reads",
    ),
}


@pytest.mark.parametrize(("name", "fix"), OTHER_FIXES, ids=str)
def test_another_right_fix_passes(name, fix):
    exhibit = museum[name]
    verdict = exhibit.check(exhibit.edited(OTHER_FIXES[name, fix]))
    assert verdict.ok, verdict


@pytest.mark.parametrize(("name", "cheat"), CHEATS, ids=str)
def test_a_program_without_its_work_does_not_pass(name, cheat):
    edits, why = CHEATS[name, cheat]
    exhibit = museum[name]
    verdict = exhibit.check(exhibit.edited(edits))
    assert not verdict.ok
    assert why in verdict.why
