"""The order in which to look for a fault: five questions for any job, and what an answer means."""

from __future__ import annotations

from typing import NamedTuple

from allreduce_edu.lessons.museum import museum


class Step(NamedTuple):
    """One question; `wing` is where the museum keeps what a "no" may turn out to be."""

    name: str
    question: str
    ways: tuple[str, ...]  # how to ask it on a real job
    yes: str
    no: str
    wing: str = ""

    @property
    def exhibits(self) -> list[tuple[str, str]]:
        """Name and symptom of what belongs here in the museum."""
        return [(e.name, e.symptom) for e in museum.values() if e.wing == self.wing]


ORDER = (
    Step(
        "calls",
        "Does every rank make the same calls, in the same order?",
        (
            (
                "It stands still now: `py-spy dump --pid PID` for every rank, on all machines. "
                "Which rank is in another line than the others?"
            ),
            (
                "NCCL: put the watchdog's lines of all ranks side by side and compare `SeqNum` and "
                "`OpType`; or start with `TORCH_NCCL_DUMP_ON_TIMEOUT=1` and let the flight "
                "recorder's analyzer compare the dumps. (In older versions the recorder must be "
                "switched on: `TORCH_FR_BUFFER_SIZE=2000`.)"
            ),
            (
                "Plain collectives: `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares shapes and dtypes "
                "before each call. Not together with DDP on gloo: in torch 2.13 the constructor "
                "crashes."
            ),
            (
                "A gloo group: `dist.monitored_barrier(wait_all_ranks=True)` in front of the call "
                "names who does not come."
            ),
        ),
        "Then it is not the calls. If it does not hang either, ask what the ranks hold.",
        "Look at the rank that is not in the collective, and at the `if` or the loop in front of "
        "it. A longer time-out only brings the same message later.",
        "hangs",
    ),
    Step(
        "same",
        "Do all ranks hold the same bits?",
        (
            (
                "`compare_replicas(model, optimizer)` on every rank, after wrapping and again "
                "after some steps: it names the first parameter, buffer or optimizer entry that "
                "differs, and the ranks."
            ),
            (
                "By hand: a hash of each tensor's bytes, gathered to all ranks and compared with "
                "`==`. `allclose` would not see a replica that has only begun to drift."
            ),
        ),
        "That rules out a different start and a missed sum. It does not say that the bits are "
        "right: about half of all silent faults leave every hash equal.",
        "What is different tells when it began: parameters before the first step, a start that "
        "was not shared; one layer only, a parameter that DDP does not know; buffers, each "
        "rank's own data. An all-reduce of gradients never repairs it.",
        "disagree",
    ),
    Step(
        "right",
        "Are they the right bits?",
        (
            (
                "`one_step`: one plain SGD step on a fixed batch, once with all ranks and once in "
                "one process. Compare `.grad` as well as the parameters, for a learning rate can "
                "hide a factor; and no AdamW, for it hides one too."
            ),
            (
                "Count what was seen: write down the numbers of the images of one epoch on all "
                "ranks. Is each there once? Is the second epoch in another order?"
            ),
        ),
        "Then the training is right. If it is slow, ask the network.",
        "The factor is a clue: 1/N is a second division, N is none at all, anything else is a "
        "mean of unequal shares, or other data than you think.",
        "wrong",
    ),
    Step(
        "network",
        "Does busbw at large sizes come near one direction of the slowest link?",
        (
            (
                "`all_reduce_perf -b 8 -e 1G -f 2 -g 8` of nccl-tests; or `pool.sweep()` of "
                "notebook 05's pool. Compare busbw, not algbw, and one direction, not the sum of "
                "both."
            ),
            "`NCCL_DEBUG=INFO`: is it `NET/Socket` where you expect `NET/IB`?",
            (
                "Time inside the all-reduce, per rank: the rank that waits least is the one that "
                "all others wait for."
            ),
        ),
        "Then the links do what they can. What is left is the smallest thing of all.",
        "Hardware before software: a cable, a port, ranks in an order that crosses the slow link "
        "too often. Then sizes: many small tensors pay for latency. Notebook 04 has the numbers.",
    ),
    Step(
        "twice",
        "Does the same run give the same bits twice?",
        (
            (
                "Same seeds, same number of ranks, same buckets; "
                "`torch.use_deterministic_algorithms(True)`, `CUBLAS_WORKSPACE_CONFIG=:4096:8`, "
                "`torch.backends.cudnn.benchmark = False`, and TF32 off."
            ),
        ),
        "Then what you see is the model, the data or the learning rate: one process would show "
        "it too.",
        "That alone is no fault: other buckets or other algorithms are other orders of "
        "additions, as in notebook 06. Who begins here looks for the last digit while a "
        "gradient is four times too short.",
    ),
)
