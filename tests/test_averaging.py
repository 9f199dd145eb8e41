import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from allreduce_edu.lessons.averaging import averages_in_one_call  # noqa: E402
from allreduce_edu.lessons.solutions import my_bucket  # noqa: E402


def reference(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def one_buffer(model):
    grads = [p.grad for p in model.parameters()]
    buffer = torch.cat([g.reshape(-1) for g in grads]) / dist.get_world_size()
    dist.all_reduce(buffer)
    for g, new in zip(grads, buffer.split([g.numel() for g in grads]), strict=True):
        g.copy_(new.view_as(g))


def starter(model):
    pass


def sums_only(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)


def divides_twice(model):
    reference(model)
    for p in model.parameters():
        p.grad /= dist.get_world_size()


def only_on_rank_0(model):
    for p in model.parameters():
        dist.reduce(p.grad, dst=0)
        p.grad /= dist.get_world_size()


def own_share_first(model):
    n, rank = dist.get_world_size(), dist.get_rank()
    for p in model.parameters():
        parts = [torch.empty_like(p.grad) for _ in range(n)]
        dist.all_gather(parts, p.grad)
        p.grad.zero_()
        for k in range(n):
            p.grad += parts[(rank + k) % n]
        p.grad /= n


def averages_a_copy(model):
    buffer = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(buffer)


def assigns_the_result(model):
    for p in model.parameters():
        p.grad = dist.all_reduce(p.grad)


def broadcasts(model):
    for p in model.parameters():
        dist.broadcast(p.grad, 0)


def drops_a_gradient(model):
    reference(model)
    model[0].bias.grad = None


def goes_astray(model):
    reference(model)
    model[2].bias.grad.zero_()


def with_its_own_name(model):
    from torch.distributed import all_reduce

    for p in model.parameters():
        all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def forgets_a_rank(model):
    if dist.get_rank() != 1:
        raise KeyError("rank 1 would wait for us")


@pytest.mark.parametrize("fn", [my_bucket, one_buffer])
def test_right_ways_pass(fn):
    verdict = averages_in_one_call(fn)
    assert verdict.ok, verdict
    assert verdict.why.endswith("1 call of all_reduce")


@pytest.mark.parametrize(
    ("fn", "sentence"),
    [
        (reference, "the gradient is right, but all_reduce is called 4 times"),
        (with_its_own_name, "all_reduce is called 4 times"),
        (starter, "with 4 ranks: no gradient has changed, and all_reduce was not called"),
        (averages_a_copy, "all_reduce ran 1 times, but p.grad is as before: was it on a copy?"),
        (assigns_the_result, "do not assign its result"),
        (sums_only, "a gradient 4 times as long as the right one: it is the sum, divide by"),
        (broadcasts, "all ranks agree, on another gradient; it differs most in"),
        (divides_twice, "a gradient 0.25 times as long"),
        (only_on_rank_0, "ranks 0 and 1 hold different gradients, by much, first in `0.weight`"),
        (own_share_first, "hold different gradients, in the last bits, first in `0.weight`"),
        (drops_a_gradient, "p.grad of `0.bias` is None or NaN on rank 0"),
        (goes_astray, "all ranks agree, on another gradient; it differs most in `2.bias`"),
        (forgets_a_rank, "ranks 0, 2 and 3 raised KeyError: 'rank 1 would wait for us'"),
    ],
)
def test_wrong_ways_are_told_what_is_wrong(fn, sentence):
    verdict = averages_in_one_call(fn)
    assert not verdict.ok
    assert sentence in verdict.why, verdict
