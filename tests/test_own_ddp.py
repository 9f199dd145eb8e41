"""The reference reaches every level; each wrong way is stopped where it should be."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from allreduce_edu.lessons import own_ddp  # noqa: E402
from allreduce_edu.lessons.own_ddp import own_ddp as judge  # noqa: E402
from allreduce_edu.lessons.solutions import my_ddp  # noqa: E402

ON_A_KNOWN_TORCH = pytest.mark.skipif(
    not torch.__version__.startswith(own_ddp.SEEN), reason="what torch does here is of a version"
)


def broadcast(model, src=0):
    for p in model.parameters():
        dist.broadcast(p.data, src)


def when_all_are_there(model, average, *, rebuild=True):
    """Call `average(order)` once per backward, with the parameters in the order of DDP's bucket."""
    order, ready = list(model.parameters()), []

    def hook(p):
        ready.append(p)
        if len(ready) == len(order):
            average(order)
            if rebuild:
                order[:] = ready
            ready.clear()

    for p in order:
        p.register_post_accumulate_grad_hook(hook)


def bucket(order, before, after):
    flat = torch.cat([p.grad.reshape(-1) for p in order])
    before(flat)
    dist.all_reduce(flat)
    after(flat)
    for p, piece in zip(order, flat.split([p.numel() for p in order]), strict=True):
        p.grad.copy_(piece.view_as(p))


def nothing(flat):
    pass


def scaled(flat):
    flat *= 1 / dist.get_world_size()


def divided(flat):
    flat /= dist.get_world_size()


def starter(model):
    broadcast(model)


def no_division(model):
    broadcast(model)
    when_all_are_there(model, lambda order: bucket(order, nothing, nothing))


def no_broadcast(model):
    when_all_are_there(model, lambda order: bucket(order, scaled, nothing))


def another_ranks_weights(model):
    broadcast(model, dist.get_world_size() - 1)
    when_all_are_there(model, lambda order: bucket(order, scaled, nothing))


def only_once(model):
    broadcast(model)
    done = []

    def average(order):
        if not done:
            bucket(order, scaled, nothing)
        else:
            dist.barrier()
        done.append(True)

    when_all_are_there(model, average)


def never_begins_anew(model):
    broadcast(model)
    ready = []

    def hook(p):
        ready.append(p)
        if len(ready) == 4:
            bucket(list(model.parameters()), scaled, nothing)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)


def without_data(model):
    for p in model.parameters():
        dist.broadcast(p, 0)
    registration_order(model)


def divided_after(model):
    broadcast(model)
    when_all_are_there(model, lambda order: bucket(order, nothing, divided))


def divided_before(model):
    broadcast(model)
    when_all_are_there(model, lambda order: bucket(order, divided, nothing))


def one_call_each(model):
    broadcast(model)

    def hook(p):
        scaled(p.grad)
        dist.all_reduce(p.grad)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)


def registration_order(model):
    broadcast(model)
    when_all_are_there(model, lambda order: bucket(order, scaled, nothing), rebuild=False)


def reversed_from_the_start(model):
    broadcast(model)

    def average(order):
        bucket(list(model.parameters())[::-1], scaled, nothing)

    when_all_are_there(model, average)


def slightly_off(model):
    broadcast(model)

    def average(order):
        for p in order:
            wire = p.grad.double()
            dist.all_reduce(wire)
            p.grad.copy_(wire / dist.get_world_size() * (1 + 3e-7))

    when_all_are_there(model, average)


def forgets_a_rank(model):
    broadcast(model)
    if dist.get_rank() != 1:
        raise KeyError("rank 1 would wait for us")


@ON_A_KNOWN_TORCH
@pytest.mark.parametrize("prepare", [my_ddp, DistributedDataParallel])
def test_right_ways_reach_every_level(prepare):
    verdict = judge(prepare)
    assert verdict.ok, verdict
    assert verdict.reached == "abc"
    assert [line[:9] for line in verdict.why.splitlines()] == [f"✓ ({x}) Righ"[:9] for x in "abc"]


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (starter, "with 4 ranks nothing is sent in `backward()`: let a hook call all_reduce"),
        (no_division, "a gradient 4 times as long as the right one: it is the sum. DDP's is the"),
        (no_broadcast, "`0.weight`, and are exactly as far apart after 20 steps: averaged"),
        (another_ranks_weights, "with equal weights, but not with those that rank 0 had"),
        (only_once, "after backward 2, before `step()`: ranks 0 and 1 hold different gradients"),
        (never_begins_anew, "backward 2 sends nothing, others do: does your hook begin anew"),
        (forgets_a_rank, "ranks 0, 2 and 3 raised KeyError: 'rank 1 would wait for us'"),
    ],
)
def test_level_a_stops_what_does_not_average(prepare, sentence):
    verdict = judge(prepare)
    assert not verdict.ok
    assert verdict.reached == ""
    assert verdict.why.startswith("✗ (a) Not yet: ")
    assert sentence in verdict.why, verdict


def test_level_b_stops_other_bits_on_two_ranks():
    verdict = judge(slightly_off)
    assert verdict.reached == "a"
    assert "with 2 ranks" in verdict.why
    assert "Two ranks know one order: is it still float32?" in verdict.why


@ON_A_KNOWN_TORCH
@pytest.mark.parametrize(
    ("prepare", "sentences"),
    [
        (divided_after, ("with 3 ranks ", "DDP multiplies each gradient by 1/N *before* the sum")),
        (divided_before, ("With 4 ranks none does: 1/4 is exact", "dividing rounds otherwise")),
        (one_call_each, ("with 4 ranks ", "Yours sends 4 times in a backward, DDP once")),
        (registration_order, ("The first backward agrees, number 2 does not", "became ready")),
        (without_data, ("The first backward agrees, number 2 does not",)),
        (reversed_from_the_start, ("They part in the first backward", "`model.parameters()`")),
    ],
)
def test_level_c_stops_what_adds_in_another_way(prepare, sentences, capfd):
    verdict = judge(prepare)
    assert not verdict.ok
    assert verdict.reached == "ab"
    assert all(sentence in verdict.why for sentence in sentences), verdict
    assert "Warning" not in "".join(capfd.readouterr())


@ON_A_KNOWN_TORCH
@pytest.mark.parametrize("prepare", [my_ddp, registration_order])
def test_on_an_unknown_torch_the_last_level_only_reports(prepare, monkeypatch):
    monkeypatch.setattr(own_ddp, "SEEN", ("1.0",))
    verdict = judge(prepare)
    assert verdict.ok
    assert verdict.reached == "ab"
    assert f"– (c) Not judged: torch {torch.__version__} is new to this judge" in verdict.why
    assert (" 0 on 4 ranks" in verdict.why) == (prepare is my_ddp)
