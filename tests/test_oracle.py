"""one_step passes the right ways, and names what is wrong with steps on which all ranks agree."""

import doctest

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from allreduce_edu import Pool, one_step, realdist  # noqa: E402
from allreduce_edu.realdist import oracle  # noqa: E402
from allreduce_edu.realdist.entries import entries  # noqa: E402
from allreduce_edu.realdist.train import images, make_model  # noqa: E402

RATE = 0.1
RIGHT = (
    "the step of 4 ranks is that of one process with the whole batch: gradients and parameters "
    "within 1e-06"
)


@pytest.fixture(scope="module")
def pool():
    with Pool(4, backend="gloo") as pool:
        yield pool


def on(rank):
    return dist.get_rank() == rank


def batch():
    return images(0, batch=32, ranks=1)


def share(*tensors):
    return [t[dist.get_rank() :: dist.get_world_size()] for t in tensors]


def mean(model, x, y):
    return cross_entropy(model(x), y)


def move(model, rate=RATE, **how):
    torch.optim.SGD(model.parameters(), lr=rate, **how).step()


def told(pool, step, loss=mean, model=make_model, **how):
    """Return what all ranks were told, which must be the same."""
    answers = pool.run(lambda: one_step(step, loss, model(), batch(), **how))
    assert answers == answers[:1] * len(answers)
    return answers[0]


# ---------------------------------------------------------------------------------- right ways


def ddp(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped, *share(x, y)).backward()
    move(wrapped)


def by_hand(model, x, y):
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    mean(model, *share(x, y)).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    move(model)


def accumulated(model, x, y):
    wrapped, (x, y) = DistributedDataParallel(model), share(x, y)
    with wrapped.no_sync():
        (mean(wrapped, x[:4], y[:4]) / 2).backward()
    (mean(wrapped, x[4:], y[4:]) / 2).backward()
    move(wrapped)


def weighted(model, x, y):
    """Unequal shares, each weighted with its size."""
    rank, wrapped = dist.get_rank(), DistributedDataParallel(model)
    mine = slice(0, 20) if rank == 0 else slice(16 + 4 * rank, 20 + 4 * rank)
    (mean(wrapped, x[mine], y[mine]) * len(y[mine]) * 4 / len(y)).backward()
    move(wrapped)


@pytest.mark.parametrize("step", [ddp, by_hand, accumulated, weighted])
def test_right_ways_pass(pool, step):
    found = told(pool, step)
    assert found
    assert found.right
    assert repr(found) == RIGHT


def test_rank_0_decides_where_all_begin(pool):
    assert told(pool, ddp, model=lambda: make_model(seed=dist.get_rank()))


def test_one_rank_alone_is_one_process():
    with Pool(1, backend="gloo") as pool:
        assert repr(told(pool, ddp)).startswith("the step of the only rank is that of one process")


# ---------------------------------------------------------------------- what it is there for


def twice_divided(model, x, y):
    wrapped = DistributedDataParallel(model)
    (mean(wrapped, *share(x, y)) / dist.get_world_size()).backward()
    move(wrapped)


def mended_by_the_rate(model, x, y):
    wrapped = DistributedDataParallel(model)
    (mean(wrapped, *share(x, y)) / dist.get_world_size()).backward()
    move(wrapped, RATE * dist.get_world_size())


def summed(model, x, y):
    mean(model, *share(x, y)).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    move(model)


def twice_in_one_hook(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped, *share(x, y)).backward()
    model[2].weight.grad *= 2
    move(wrapped)


def mean_of_means(model, x, y):
    rank, wrapped = dist.get_rank(), DistributedDataParallel(model)
    mine = slice(0, 20) if rank == 0 else slice(16 + 4 * rank, 20 + 4 * rank)
    mean(wrapped, x[mine], y[mine]).backward()
    move(wrapped)


def no_sampler(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped, x[:8], y[:8]).backward()
    move(wrapped)


def unwrapped_forward(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped.module, *share(x, y)).backward()
    move(wrapped)


def no_sync(model, x, y):
    wrapped = DistributedDataParallel(model)
    with wrapped.no_sync():
        mean(wrapped, *share(x, y)).backward()
    move(wrapped)


def frozen_too_long(model, x, y):
    model[0].bias.requires_grad_(False)
    ddp(model, x, y)
    model[0].bias.requires_grad_(True)


def cleared(model, x, y):
    ddp(model, x, y)
    model.zero_grad()


def another_model(model, x, y):
    ddp(make_model(), x, y)


def erased(model, x, y):
    ddp(model, x, y)
    for p in model.parameters():
        p.grad.zero_()


def weight_decay(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped, *share(x, y)).backward()
    move(wrapped, weight_decay=0.1)


def temporary(model, x, y):
    """The wrapper is gone before the backward, and its hooks with it."""
    mean(DistributedDataParallel(model), *share(x, y)).backward()
    move(model)


def no_step(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped, *share(x, y)).backward()


def half_of_it(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped, *share(x, y)).backward()
    move(model[0])


def another_rate(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped, *share(x, y)).backward()
    move(wrapped, 3 * RATE)


def steps_apart(model, x, y):
    wrapped = DistributedDataParallel(model)
    mean(wrapped, *share(x, y)).backward()
    move(wrapped, RATE * (1 + on(2)))


def infinite_gradient(model, x, y):
    ddp(model, x, y)
    model[2].bias.grad[0] = float("inf")


def infinite_step(model, x, y):
    ddp(model, x, y)
    with torch.no_grad():
        model[2].bias[0] = float("nan")


FOUR = ", on all 4 ranks"
QUARTER = (
    f"`.grad` is 0.25 times that of one process{FOUR}: divided by the world size once too often?"
)
FAULTS = {
    twice_divided: (QUARTER, "", 0.25),
    mended_by_the_rate: (QUARTER, "", 0.25),
    summed: (
        f"`.grad` is 4 times that of one process{FOUR}: a sum, where DDP has the mean?",
        "",
        4,
    ),
    twice_in_one_hook: (
        f"`.grad` of '2.weight' is 2 times that of one process{FOUR}",
        "2.weight",
        2,
    ),
    mean_of_means: ("all ranks agree, on another gradient; it differs most in '", None, None),
    no_sampler: ("all ranks agree, on another gradient; it differs most in '", None, None),
    unwrapped_forward: (
        "the ranks disagree: gradient '0.weight' differs: rank 0",
        "0.weight",
        None,
    ),
    temporary: ("the ranks disagree: gradient '0.weight' differs: rank 0", "0.weight", None),
    no_sync: ("the ranks disagree: gradient '0.weight' differs: rank 0 holds", "0.weight", None),
    frozen_too_long: (
        "`.grad` of '0.bias' is None on all ranks, and one process has one",
        "0.bias",
        None,
    ),
    cleared: ("no parameter has a gradient after `step`: it must train the model", "", None),
    another_model: ("no parameter has a gradient after `step`: it must train the model", "", None),
    erased: (f"`.grad` is 0 everywhere{FOUR}", "", 0),
    weight_decay: (
        "the gradients are right, but '2.weight' has not moved as plain SGD",
        None,
        None,
    ),
    no_step: ("the gradients are right, but no parameter has moved: whose parameters", "", 0),
    half_of_it: ("the gradients are right, but '2.weight' has not moved: whose", "2.weight", 0),
    another_rate: (
        "the gradients are right, but the step is 3 times that of plain SGD at rate 0.1",
        "",
        3,
    ),
    infinite_gradient: (
        "`.grad` of '2.bias' has numbers that are not finite, and one process has none",
        "2.bias",
        None,
    ),
    infinite_step: (
        "the gradients are right, but '2.bias' has numbers that are not finite after the step",
        "2.bias",
        None,
    ),
    steps_apart: ("the ranks disagree: parameter '0.weight' differs: ranks 0, 1, 3", None, None),
}


@pytest.mark.parametrize("step", FAULTS, ids=lambda step: step.__name__)
def test_each_fault_is_told(pool, step):
    why, name, times = FAULTS[step]
    found = told(pool, step)
    assert not found
    assert repr(found).startswith(why)
    assert name is None or found.name == name
    assert found.times == (times and pytest.approx(times, rel=1e-5))


def test_a_gradient_that_one_rank_lacks_is_told(pool):
    def one_lacks(model, x, y):
        ddp(model, x, y)
        if on(2):
            model[2].bias.grad = None

    assert "gradient '2.bias' differs: ranks 0, 1, 3 hold float32 (10,), rank 2 holds None" in repr(
        told(pool, one_lacks)
    )


# --------------------------------------------------------------------------- kinds of models


class Spare(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.spare = make_model(), nn.Linear(1, 1)

    def forward(self, x):
        return self.body(x)


def test_a_parameter_that_nothing_uses_is_no_fault_if_ddp_knows_of_it(pool):
    def finds(model, x, y):
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        mean(wrapped, *share(x, y)).backward()
        move(wrapped)

    assert told(pool, finds, model=Spare)
    assert repr(told(pool, ddp, model=Spare)).startswith("the ranks disagree: gradient 'body.0.w")


def test_a_frozen_parameter_is_no_fault(pool):
    def half_frozen():
        model = make_model()
        model[0].requires_grad_(False)
        return model

    assert told(pool, ddp, model=half_frozen)


def norm():
    return nn.Sequential(nn.BatchNorm1d(64), make_model())


def test_batchnorm_is_told_from_a_fault(pool):
    assert "BatchNorm in training sees a share and not the batch" in repr(
        told(pool, ddp, model=norm)
    )
    evaluated = told(pool, ddp, model=lambda: norm().eval())
    assert repr(evaluated) == f"{RIGHT} (buffers are not compared)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_says_how_near_is_near(pool, dtype):
    def loss(model, x, y):
        return mean(model, x.to(dtype), y)

    def step(model, x, y):
        wrapped = DistributedDataParallel(model)
        loss(wrapped, *share(x, y)).backward()
        move(wrapped)

    def model():
        return make_model().to(dtype)

    def half(model, x, y):
        wrapped = DistributedDataParallel(model)
        (loss(wrapped, *share(x, y)) / 2).backward()
        move(wrapped)

    assert told(pool, step, loss, model)
    assert told(pool, half, loss, model).times == pytest.approx(0.5, rel=0.01)


def test_sparse_gradients_are_compared(pool):
    def loss(model, x, y):
        return model(y).square().mean()

    def step(model, x, y):
        wrapped = DistributedDataParallel(model)
        loss(wrapped, *share(x, y)).backward()
        move(wrapped)

    def table():
        torch.manual_seed(0)
        return nn.Embedding(10, 3, sparse=True)

    assert told(pool, step, loss, table)
    fourfold = told(pool, step, lambda model, x, y: 4 * loss(model, x, y), table)
    assert fourfold.times == pytest.approx(0.25)


def test_what_is_small_and_wrong_is_seen_and_rounding_is_not(pool):
    def off_by(share_of):
        def step(model, x, y):
            wrapped = DistributedDataParallel(model)
            mean(wrapped, *share(x, y)).backward()
            with torch.no_grad():
                model[0].weight.grad[0, 20] += share_of * max(
                    p.grad.abs().max() for p in model.parameters()
                )
            move(wrapped)

        return step

    assert told(pool, off_by(2e-7))
    found = told(pool, off_by(1e-5))
    assert "it differs most in '0.weight', by 1e-05 of the largest entry" in repr(found)
    assert told(pool, off_by(1e-5), rtol=1e-4)


# ------------------------------------------------------------------------------ the call itself


def sentence(*args, **how):
    try:
        one_step(*args, **how)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_without_a_group_it_says_what_is_missing():
    assert sentence(ddp, mean, make_model(), batch()) == (
        "RuntimeError: one_step needs torch.distributed: call init_process_group first"
    )


def dropout():
    return nn.Sequential(nn.Dropout(), make_model())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (lambda: (None, mean, make_model(), batch()), "step must be a function of the model and"),
        (lambda: (ddp, mean, make_model(), batch()[0]), "TypeError: batch must be a tuple: step("),
        (lambda: (ddp, mean, make_model(), batch(), 0), "rate must be a number > 0, got 0"),
        (lambda: (ddp, mean, make_model(), batch(), "x"), "rate must be a number > 0, got 'x'"),
        (lambda: (ddp, mean, make_model(), batch(), 1, None, -1), "rtol must be a number >= 0, go"),
        (lambda: (ddp, lambda m, x, y: x.sum(), make_model(), batch()), "loss must depend on a"),
        (lambda: (ddp, mean, dropout(), batch()), "loss must not draw random numbers"),
        (lambda: (ddp, lambda m, x, y: m(x), make_model(), batch()), "must return a tensor with"),
        (lambda: (ddp, lambda m, x, y: 0 * mean(m, x, y), make_model(), batch()), "entry is 0.0"),
        (
            lambda: (ddp, lambda m, x, y: mean(m, x, y) * float("nan"), make_model(), batch()),
            "loss must have a gradient to compare with; its largest entry is nan",
        ),
    ],
)
def test_no_rank_waits_for_one_that_cannot_begin(pool, how, why):
    def one_cannot():
        fine = ddp, mean, dropout().eval() if "random" in why else make_model(), batch()
        return sentence(*(how() if on(1) else fine))

    answers = pool.run(one_cannot)
    assert why in answers[1]
    assert set(answers) == {answers[1], f"RuntimeError: rank 1 has stopped with {answers[1]}"}


def test_ddp_is_not_wrapped_twice(pool):
    wrapped = pool.run(lambda: sentence(ddp, mean, DistributedDataParallel(make_model()), batch()))
    assert set(wrapped) == {
        "TypeError: model must be the plain one, which step wraps: pass ddp.module"
    }


def test_every_rank_must_give_the_whole_batch(pool):
    shares = pool.run(lambda: sentence(ddp, mean, make_model(), share(*batch())))
    assert len(set(shares)) == 1
    assert shares[0].startswith(
        "ValueError: batch must be the whole one, the same on every rank: part of the batch "
        "'batch[0]' differs: rank 0 holds "
    )


def test_other_models_are_told_before_anything_is_sent(pool):
    def wider():
        return nn.Sequential(nn.Linear(64, 32 + on(3)), nn.ReLU(), nn.Linear(32 + on(3), 10))

    found = told(pool, ddp, model=wider)
    assert repr(found) == (
        "the ranks have other models: parameter '0.weight' differs: ranks 0-2 hold float32 "
        "(32, 64), rank 3 holds float32 (33, 64)"
    )


def test_nothing_of_the_callers_is_changed(pool):
    def looked_at():
        model = norm()
        mean(model, *batch()).backward()
        before = [each[:4] for each in entries(model)], torch.get_rng_state().tolist()
        given = batch()

        def step(model, x, y):
            torch.rand(3)
            ddp(model, x, y)
            x.zero_()

        with torch.inference_mode():
            found = one_step(step, mean, model.eval(), given)
        same = all(map(torch.equal, given, batch()))
        after = [each[:4] for each in entries(model)], torch.get_rng_state().tolist()
        return found.right, same, before == after

    assert pool.run(looked_at) == [(True, True, True)] * 4


def test_a_group_has_its_own_one_process(pool):
    def pair():
        members = [1, 3]
        group = dist.new_group(members)
        if dist.get_rank() not in members:
            return None

        def step(model, x, y):
            wrapped, mine = (
                DistributedDataParallel(model, process_group=group),
                slice(dist.get_rank() // 2, None, 2),
            )
            mean(wrapped, x[mine], y[mine]).backward()
            move(wrapped)

        return repr(one_step(step, mean, make_model(dist.get_rank()), batch(), group=group))

    assert pool.run(pair) == [None, RIGHT.replace("4", "2"), None, RIGHT.replace("4", "2")]


def test_the_example_holds():
    failed, tried = doctest.testmod(oracle)
    assert failed == 0 < tried


def test_it_is_at_hand_in_the_packages_that_users_import():
    assert realdist.one_step is one_step is oracle.one_step
