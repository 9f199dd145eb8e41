"""Exhibits of when DDP averages: `no_sync`, and a backward that leaves a parameter out."""

from __future__ import annotations

from allreduce_edu.lessons.museum.exhibit import Exhibit, Report
from allreduce_edu.lessons.museum.real import Real
from allreduce_edu.lessons.museum.training import HEAD, HEAD_NN, trained

EARLY = Exhibit(
    name="early",
    wing="disagree",
    symptom="With gradient accumulation the ranks drift apart; without it they are equal",
    program="from contextlib import nullcontext\n"
    + HEAD
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    parts = zip(images[rank::ranks].chunk(4), labels[rank::ranks].chunk(4))
    for i, (x, y) in enumerate(parts):
        with ddp.no_sync() if i % 4 else nullcontext():  # one all-reduce in four
            loss = cross_entropy(ddp(x), y) / 4
            loss.backward()
    sgd.step()
""",
    stage=Real(trained),
    question="There is one all-reduce in four. What does it average?",
    choices={
        "the gradient of all four micro-batches": "So it would be if it came last. When is "
        "`i % 4` zero?",
        "the gradient of the first": "It runs for i = 0; what the other three add stays on its "
        "rank.",
        "nothing, inside of `no_sync`": "For i = 0 the context is `nullcontext()`: there DDP "
        "averages.",
    },
    answer="the gradient of the first",
    cause="DDP averages what has been added up so far, so the micro-batch outside of `no_sync` "
    "must be the last one before `step()`. All ranks still make equal calls, and the gradients "
    "are of a likely length: only the hashes of the ranks show it",
    fix={"if i % 4 else": "if (i + 1) % 4 else"},
    tried={
        "the other way round": {"if i % 4 else": "if i % 4 == 3 else"},
        "divided by the ranks too": {"ddp(x), y) / 4": "ddp(x), y) / 4 / ranks"},
        "only the backward in no_sync": {
            "            loss = ": "            pass\n        loss = ",
            "            loss.backward()": "        with ddp.no_sync():\n"
            "            loss.backward()",
        },
    },
    reports=(
        Report(
            "modelscope/FunASR#3472",
            "the first micro-batch is synchronised in the place of the last",
        ),
    ),
    shows=("parameter `0.weight` is another on each rank",),
)

INSIDE = Exhibit(
    name="inside",
    wing="disagree",
    symptom="The backward stands outside of `no_sync`, and still nothing is sent",
    program=HEAD
    + """
def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp, sgd = DDP(model), SGD(model.parameters(), lr=0.1)
    parts = zip(images[rank::ranks].chunk(4), labels[rank::ranks].chunk(4))
    with ddp.no_sync():  # four forwards need no all-reduce
        losses = [cross_entropy(ddp(x), y) / 4 for x, y in parts]
    sum(losses).backward()  # and one backward needs one
    sgd.step()
""",
    stage=Real(trained),
    question="When does DDP decide whether a backward ends in an all-reduce?",
    choices={
        "when `backward()` begins": "By then nobody asks any more whether `no_sync` is still open.",
        "in the forward": "`forward` of the wrapper makes the hooks ready for an all-reduce, or "
        "does not. What counts is where *it* stood.",
        "when `no_sync` is left": "Leaving it only puts a switch back, for the next forward.",
    },
    answer="in the forward",
    cause="The forward decides. `no_sync` belongs around forward and backward of all micro-batches "
    "but the last, and both of the last stand outside. Around the backward alone it saves no call. "
    "To notice, look for an all-reduce in a profile of one step",
    fix={
        "    with ddp.no_sync():  # four forwards need no all-reduce\n"
        "        losses = [cross_entropy(ddp(x), y) / 4 for x, y in parts]\n": "    losses = "
        "[cross_entropy(ddp(x), y) / 4 for x, y in parts]\n",
    },
    tried={
        "the switch set by hand": {
            "    sum(losses)": "    ddp.require_backward_grad_sync = True\n    sum(losses)",
        },
        "four backwards outside": {
            "    sum(losses).backward()": "    for loss in losses:\n        loss.backward()",
        },
    },
    reports=(
        Report("huggingface/accelerate#1726", "`no_sync` acts on the forward, not the backward"),
        Report("baidu-baige/LoongForge#163", "around the backward alone it changed nothing"),
    ),
    shows=("parameter `0.weight` is another on each rank",),
)

UNUSED = Exhibit(
    name="unused",
    wing="disagree",
    symptom="A test of one step is green, and the weights that it saves differ from rank to rank",
    program=HEAD_NN
    + """
class TwoHeads(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.second = model, nn.Linear(64, 10)  # used from epoch 10 on

    def forward(self, x):
        return self.model(x)


def train(model, images, labels):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp = DDP(TwoHeads(model))
    sgd = SGD(ddp.parameters(), lr=0.1)
    loss = cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    sgd.step()
""",
    stage=Real(trained, sparing=False),
    question="`backward()` has returned. What has DDP averaged?",
    choices={
        "every parameter that has a gradient": "They lie in one bucket with two that have none, "
        "and a bucket leaves when it is full.",
        "nothing": "The bucket waits for the gradient of `second`, which does not come; "
        "`backward()` does not wait for the bucket.",
        "everything, with zeros for `second`": "So it would be with `find_unused_parameters`: "
        "then DDP looks through the graph first.",
    },
    answer="nothing",
    cause="A bucket leaves when all its gradients are there. In the first step it may hold all "
    "parameters, so one that is unused keeps back every other. The error comes with the next "
    "forward; a job of one step, or the last step of any, never sees it",
    fix={"DDP(TwoHeads(model))": "DDP(TwoHeads(model), find_unused_parameters=True)"},
    tried={
        "left out of the optimizer": {"SGD(ddp.parameters()": "SGD(model.parameters()"},
        "frozen after wrapping": {
            "    sgd = ": "    ddp.module.second.requires_grad_(False)\n    sgd = ",
        },
        "a barrier before the step": {"    sgd.step()": "    dist.barrier()\n    sgd.step()"},
    },
    reports=(
        Report("pytorch/pytorch#43259", "a first step runs, and the second forward is an error"),
    ),
    shows=("parameter `0.weight` is another on each rank",),
)

EXHIBITS = (EARLY, INSIDE, UNUSED)
