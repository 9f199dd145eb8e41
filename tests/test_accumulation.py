import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy  # noqa: E402

from allreduce_edu.lessons.accumulation import accumulates  # noqa: E402
from allreduce_edu.lessons.solutions import my_accumulation  # noqa: E402


def starter(ddp, batches):
    for x, y in batches:
        (cross_entropy(ddp(x), y) / 4).backward()


def forgets_to_divide(ddp, batches):
    for x, y in batches:
        cross_entropy(ddp(x), y).backward()


def divides_by_ranks_too(ddp, batches):
    for x, y in batches:
        (cross_entropy(ddp(x), y) / 16).backward()


def forward_outside(ddp, batches):
    for k, (x, y) in enumerate(batches):
        loss = cross_entropy(ddp(x), y) / 4
        if k < 3:
            with ddp.no_sync():
                loss.backward()
        else:
            loss.backward()


def all_inside(ddp, batches):
    with ddp.no_sync():
        starter(ddp, batches)


def first_outside(ddp, batches):
    starter(ddp, batches[:1])
    with ddp.no_sync():
        starter(ddp, batches[1:])


def nothing(ddp, batches):
    pass


def raises(ddp, batches):
    raise KeyError("batches")


def one_big_batch(ddp, batches):
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    cross_entropy(ddp(x), y).backward()


def test_the_reference_passes():
    verdict = accumulates(my_accumulation)
    assert verdict.ok, verdict
    assert "3 all-reduces for 3 steps of 4 micro-batches" in verdict.why


@pytest.mark.parametrize(
    ("accumulate", "sentence"),
    [
        (starter, "the gradient is right, but 12 all-reduces ran in 3 steps; 3 are enough"),
        (forward_outside, "12 all-reduces ran in 3 steps, in spite of `no_sync`: DDP"),
        (forgets_to_divide, "4 times as long as the right one: `backward()` adds up the micro-"),
        (divides_by_ranks_too, "0.25 times as long as the right one: DDP has divided by the"),
        (all_inside, "no all-reduce ran: ranks 0 and 1 hold different gradients, by much, first"),
        (first_outside, "what is accumulated after the last all-reduce stays on its rank"),
        (one_big_batch, "was called 3 times, not once for each of 12 micro-batches: they are to"),
        (nothing, "no parameter has a gradient: call `backward()` for each micro-batch"),
        (raises, "raised KeyError: 'batches'"),
    ],
)
def test_wrong_ways_are_told_what_is_wrong(accumulate, sentence):
    verdict = accumulates(accumulate)
    assert not verdict.ok
    assert sentence in verdict.why, verdict
