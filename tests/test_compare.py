"""compare_replicas names the first entry that differs and its ranks, and changes nothing."""

import contextlib
import doctest
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from allreduce_edu import PerRank, Pool, compare_replicas, realdist  # noqa: E402
from allreduce_edu.realdist import compare, entries, meeting  # noqa: E402
from allreduce_edu.realdist.ddp import counting  # noqa: E402
from allreduce_edu.realdist.train import fingerprint, images, make_model  # noqa: E402


@pytest.fixture(scope="module")
def pool():
    with Pool(3, backend="gloo") as pool:
        yield pool


def found(pool, fn, *args):
    """Return what all ranks found, which must be the same."""
    answers = pool.run(fn, *args)
    assert answers == answers[:1] * len(answers)
    return answers[0]


def trained(wrap=DistributedDataParallel):
    """Return a network with buffers after two steps, and its optimizer."""
    model = nn.Sequential(make_model(), nn.BatchNorm1d(10))
    ddp = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(2):
        x, y = images(0, step)
        optimizer.zero_grad()
        cross_entropy(ddp(x), y).backward()
        optimizer.step()
    return ddp, optimizer


def on(rank):
    return dist.get_rank() == rank


# ------------------------------------------------------------------------- what is compared


def test_replicas_after_training_are_equal(pool):
    told = found(pool, lambda: compare_replicas(*trained()))
    assert told
    assert told.equal
    held = len(torch.optim.AdamW([nn.Parameter(torch.ones(1))]).param_groups[0]) - 1
    nones = 2  # foreach and fused: left to torch
    numbers = 3 * 6 + held - nones + 1 + 1  # three of each parameter; betas are two; the group's
    assert repr(told) == (
        "same bits on all 3 ranks: 6 parameters, 3 buffers, "
        f"{numbers} optimizer entries and 6 gradients"
    )


def parameter(model, optimizer):
    model[0][2].weight.data[1, 2] += 0.5


def buffer(model, optimizer):
    model[1].running_mean[3] += 0.5


def moment(model, optimizer):
    optimizer.state[model[0][0].bias]["exp_avg"][4] += 0.5


def counted_step(model, optimizer):
    optimizer.state[model[0][0].bias]["step"] += 1


def learning_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.02


def second_beta(model, optimizer):
    optimizer.param_groups[0]["betas"] = (0.9, 0.99)


def gradient(model, optimizer):
    model[0][0].bias.grad[0] += 0.5


def no_gradient(model, optimizer):
    model[0][0].bias.grad = None


@pytest.mark.parametrize(
    ("fault", "kind", "name"),
    [
        (parameter, "parameter", "0.2.weight"),
        (buffer, "buffer", "1.running_mean"),
        (moment, "optimizer entry", "exp_avg of 0.0.bias"),
        (counted_step, "optimizer entry", "step of 0.0.bias"),
        (learning_rate, "optimizer entry", "lr of group 0"),
        (second_beta, "optimizer entry", "betas[1] of group 0"),
        (gradient, "gradient", "0.0.bias"),
        (no_gradient, "gradient", "0.0.bias"),
    ],
)
@pytest.mark.parametrize("guilty", [0, 2])
def test_each_kind_of_entry_is_found_and_its_ranks_named(pool, fault, kind, name, guilty):
    def one_differs():
        ddp, optimizer = trained()
        if on(guilty):
            fault(ddp.module, optimizer)
        return compare_replicas(ddp, optimizer)

    told = found(pool, one_differs)
    assert not told
    assert (told.kind, told.name) == (kind, name)
    assert told.differing == ((kind, name),)
    assert told.ranks == (((0,), (1, 2)) if guilty == 0 else ((0, 1), (2,)))
    assert repr(told).startswith(f"{kind} {name!r} differs: rank")
    assert (", up to 0.5 apart" in repr(told)) == (fault in (parameter, buffer, moment, gradient))


def test_the_sentence_says_who_holds_what_and_what_else_differs(pool):
    def several():
        model, optimizer = trained(lambda model: model)
        if on(1):
            parameter(model, optimizer)
            learning_rate(model, optimizer)
            no_gradient(model, optimizer)
            gradient_of = model[0][2].weight.grad
            gradient_of += 1
        held = fingerprint([model[0][2].weight])
        return held, compare_replicas(model, optimizer)

    (one, told), (two, again), _ = pool.run(several)
    assert told == again
    assert repr(told) == (
        f"parameter '0.2.weight' differs: ranks 0, 2 hold {one}, rank 1 holds {two}, up to 0.5 "
        "apart; so do 1 optimizer entry and 2 gradients"
    )
    assert told.held == (one, two)
    assert told.where == (
        "parameter `0.2.weight` differs between ranks 0, 2 and rank 1; 3 more entries differ"
    )
    assert [kind for kind, _ in told.differing] == [entries.KINDS[k] for k in (0, 2, 3, 3)]


def test_numbers_are_shown_as_they_are(pool):
    def rates():
        model = make_model()
        return compare_replicas(model, torch.optim.SGD(model.parameters(), 0.1 * (1 + on(2))))

    assert repr(found(pool, rates)) == (
        "optimizer entry 'lr of group 0' differs: ranks 0, 1 hold 0.1, rank 2 holds 0.2"
    )


def test_a_forgotten_synchronisation_shows_in_the_gradients_first(pool):
    def forgotten():
        model = make_model()
        x, y = images(dist.get_rank())
        cross_entropy(model(x), y).backward()
        return compare_replicas(model)

    told = found(pool, forgotten)
    assert told.kind == "gradient"
    assert told.ranks == ((0,), (1,), (2,))


def test_what_batchnorm_gathers_between_forwards_is_said_to_be_no_reason_to_worry(pool):
    def own_batches():
        ddp = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(64), make_model()))
        x, y = images(dist.get_rank())
        cross_entropy(ddp(x), y).backward()
        return compare_replicas(ddp)

    told = found(pool, own_batches)
    assert {kind for kind, _ in told.differing} == {"buffer"}
    assert repr(told).endswith(
        "; so does 1 more buffer. Each rank's BatchNorm follows its own batches until DDP's next "
        "forward"
    )


# ----------------------------------------------------------------------- awkward tensors


def one_bit(tensor):
    """Change the lowest bit of the last number."""
    tensor.view(-1).view(torch.uint8)[-tensor.element_size()] ^= 1


def of(values, dtype=torch.float32):
    return lambda: torch.tensor(values).to(dtype)


AWKWARD = {
    "bf16": of([1.0, 2.5], torch.bfloat16),
    "fp16": of([1.0, 2.5], torch.float16),
    "fp8": of([1.0, 2.5], torch.float8_e4m3fn),
    "fp64": of([1.0, 2.5], torch.float64),
    "complex": of([1.0 + 2.0j, 2.5], torch.complex64),
    "int": of([1, 2], torch.int16),
    "bool": of([True, False], torch.bool),
    "0-dim": of(2.5),
    "NaN": of([1.0, float("nan")]),
    "infinite": of([1.0, float("inf")]),
}


@pytest.mark.parametrize("kind", AWKWARD)
def test_one_bit_of_any_dtype_is_seen(pool, kind):
    def compared(guilty):
        model = nn.Module()
        model.register_buffer("x", AWKWARD[kind]())
        if on(guilty):
            one_bit(model.x)
        return compare_replicas(model)

    assert found(pool, compared, None)
    told = found(pool, compared, 1)
    assert (told.name, told.ranks) == ("x", ((0, 2), (1,)))
    ends = ", with numbers among them that are not finite"
    assert repr(told).endswith(ends) == (kind in ("NaN", "infinite"))


def test_minus_zero_is_another_number(pool):
    def signed():
        model = nn.Module()
        model.register_buffer("x", torch.tensor([-0.0 if on(1) else 0.0]))
        return compare_replicas(model)

    assert repr(found(pool, signed)).endswith(", up to 0 apart")


def test_the_layout_in_memory_does_not_count(pool):
    def laid_out():
        model, x = nn.Module(), torch.arange(12.0).reshape(3, 4)
        columns = x.t().contiguous().t() if on(1) else x
        model.register_parameter("strided", nn.Parameter(columns))
        model.register_buffer("every_second", torch.arange(6.0)[::2] if on(1) else 2 * x[0, :3])
        conjugate = torch.tensor([1 + 2j])
        model.register_buffer("conj", conjugate.conj() if on(1) else torch.tensor([1 - 2j]))
        model.register_buffer("none", torch.zeros(0, 3))
        strides = model.strided.stride()
        return compare_replicas(model), strides == (4, 1)

    answers = pool.run(laid_out)
    assert [usual for _, usual in answers] == [True, False, True]
    assert repr(answers[0][0]) == "same bits on all 3 ranks: 1 parameter and 3 buffers"


def test_tied_parameters_stand_once(pool):
    def tied(guilty):
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        for p in model.parameters():
            nn.init.ones_(p)
        if not on(guilty):
            model[1].weight = model[0].weight
        return compare_replicas(model)

    assert repr(found(pool, tied, None)) == "same bits on all 3 ranks: 1 parameter"
    assert repr(found(pool, tied, 2)) == (
        "parameter '1.weight' is on rank 2 and not on ranks 0, 1; so does 1 gradient"
    )


def test_sparse_gradients_are_compared_by_their_numbers(pool):
    def sparse(mine):
        model = nn.Embedding(5, 2, sparse=True)
        nn.init.ones_(model.weight)
        model(torch.tensor(mine)).sum().backward()
        return compare_replicas(model)

    assert found(pool, sparse, PerRank([[1, 3, 3], [3, 1, 3], [3, 3, 1]]))
    told = found(pool, sparse, PerRank([[1, 3], [1, 3], [1, 4]]))
    assert (told.kind, told.ranks) == ("gradient", ((0, 1), (2,)))


# ------------------------------------------------------------- other names, shapes and counts


def another_count():
    return nn.Linear(3, 2, bias=not on(1))


def another_dtype():
    return nn.Linear(3, 2, dtype=torch.bfloat16 if on(1) else torch.float32)


def another_shape():
    return nn.Linear(3, 2 + on(1))


def other_names():
    return nn.Sequential(nn.Linear(3, 2)) if on(1) else nn.Linear(3, 2)


def frozen():
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(not on(1))
    return model


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (another_count, "parameter 'bias' is on ranks 0, 2 and not on rank 1; so does 1 gradient"),
        (another_dtype, "ranks 0, 2 hold float32 (2, 3), rank 1 holds bfloat16 (2, 3)"),
        (another_shape, "ranks 0, 2 hold float32 (2, 3), rank 1 holds float32 (3, 3)"),
        (other_names, "parameter 'weight' is on ranks 0, 2 and not on rank 1"),
        (frozen, "ranks 0, 2 hold float32 (2, 3), rank 1 holds float32 (2, 3), frozen"),
    ],
)
def test_models_that_are_not_alike_do_not_hang(pool, make, why):
    def zeros():
        model = make()
        for p in model.parameters():
            nn.init.zeros_(p)
        return compare_replicas(model)

    assert why in repr(found(pool, zeros))


def test_an_optimizer_on_one_rank_alone_is_told(pool):
    def one_has():
        model = make_model()
        return compare_replicas(model, torch.optim.SGD(model.parameters()) if on(0) else None)

    assert "optimizer entry 'lr of group 0' is on rank 0 and not on ranks 1, 2" in repr(
        found(pool, one_has)
    )


def test_optimizers_of_other_parameters_are_told(pool):
    def halves():
        model = make_model()
        return compare_replicas(model, torch.optim.SGD(model[0 if on(1) else 2].parameters()))

    told = found(pool, halves)
    assert told.name == "params of group 0"
    one_less = found(
        pool,
        lambda: compare_replicas(
            model := make_model(), torch.optim.SGD(list(model.parameters())[on(2) :])
        ),
    )
    assert "ranks 0, 1 hold 4 parameters, rank 2 holds 3 parameters" in repr(one_less)


def test_the_same_parameters_in_another_order_are_told(pool):
    def shuffled():
        model = nn.Module()
        for name in "ba" if on(2) else "ab":
            model.register_parameter(name, nn.Parameter(torch.zeros(2)))
        return compare_replicas(model)

    assert repr(found(pool, shuffled)) == (
        "equal bits, in another order: where rank 0 has parameter 'a', rank 2 has 'b'"
    )


def test_a_wrapper_on_one_rank_alone_is_no_difference(pool):
    class Compiled(nn.Module):
        def __init__(self, model):
            super().__init__()
            self._orig_mod = model

    def wrapped():
        model = make_model()
        if on(1):
            model = Compiled(model)
        if on(2):
            model = nn.DataParallel(model)
        return compare_replicas(model)

    assert found(pool, wrapped)


def test_states_of_any_shape_are_looked_into(pool):
    def nested(what):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters())
        first = next(model.parameters())
        optimizer.state[first] = {"z": None, "a": [{"b": (torch.ones(2), 3)}]}
        optimizer.state["shared"] = {"scale": 2.0, "who": object()}
        if on(1) and what == "tensor":
            optimizer.state[first]["a"][0]["b"][0][1] = 5
        if on(1) and what == "number":
            optimizer.state["shared"]["scale"] = 4.0
        if on(1) and what == "none":
            optimizer.state[first]["z"] = 1
        return compare_replicas(model, optimizer)

    assert found(pool, nested, "")
    assert found(pool, nested, "tensor").name == "a[0].b[0] of 0.weight"
    assert repr(found(pool, nested, "number")).endswith("ranks 0, 2 hold 2.0, rank 1 holds 4.0")
    assert repr(found(pool, nested, "none")).endswith("ranks 0, 2 hold None, rank 1 holds 1")


def test_lbfgs_and_its_history_are_compared(pool):
    def after_steps(guilty):
        model, (x, y) = make_model(), images(0)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        if on(guilty):
            optimizer.state[next(model.parameters())]["old_dirs"][0][5] += 1
        return compare_replicas(model, optimizer)

    assert found(pool, after_steps, None)
    assert found(pool, after_steps, 1).name == "old_dirs[0] of 0.weight"


# ----------------------------------------------------------------------- what cannot be done


def sentence(fn, *args):
    try:
        fn(*args)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def lazy():
    return (nn.LazyLinear(2),)


def test_without_a_group_it_says_what_is_missing():
    assert sentence(compare_replicas, make_model()) == (
        "RuntimeError: compare_replicas needs torch.distributed: call init_process_group first"
    )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lazy, "ValueError: parameter 'weight' has no numbers yet, it is lazy: run one forward"),
        (lambda: (nn.Linear(2, 2, device="meta"),), "it is on the meta device"),
        (lambda: (make_model().state_dict(),), "TypeError: model must be a torch.nn.Module, got"),
        (lambda: (make_model(), 0.1), "optimizer must be a torch.optim.Optimizer, got 0.1"),
    ],
)
def test_no_rank_waits_for_one_that_cannot_say_what_it_holds(pool, make, why):
    def one_cannot():
        return sentence(compare_replicas, *(make() if on(1) else (make_model(),)))

    zero, one, two = pool.run(one_cannot)
    assert why in one
    assert zero == two == f"RuntimeError: rank 1 has stopped with {one}"


def test_shards_are_refused(pool):
    def sharded(how):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.distributed.tensor import Shard, distribute_tensor

        model, mesh = make_model(), init_device_mesh("cpu", (3,))
        if how == "DTensor":
            whole = model[2].weight.detach()
            model[2].weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
        if how == "FSDPModule":
            fully_shard(model, mesh=mesh)
        zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1) if not how else 0
        return sentence(compare_replicas, model, *[zero] * (not how))

    shards = "is sharded ({}): each rank holds another part of it"
    assert shards.format("DTensor") in found(pool, sharded, "DTensor")
    assert "'2.weight'" in found(pool, sharded, "DTensor")
    assert shards.format("FSDPModule") in found(pool, sharded, "FSDPModule")
    assert shards.format("ZeroRedundancyOptimizer") in found(pool, sharded, "")


# ------------------------------------------------------------------------------- the call itself


def test_a_group_is_compared_by_itself_and_named_as_in_the_whole_world(pool):
    def pair():
        model, pair = make_model(), dist.new_group([1, 2])
        if not on(1):
            parameter(nn.Sequential(model), None)
        return (
            sentence(compare_replicas, model, None, pair)
            if on(0)
            else compare_replicas(model, group=pair)
        )

    zero, one, two = pool.run(pair)
    assert zero == (
        "ValueError: group must be one that this rank belongs to, and rank 0 does not: "
        "let its members alone call compare_replicas"
    )
    assert one == two
    assert one.ranks == ((1,), (2,))


def test_a_rank_alone_has_nothing_to_compare():
    with Pool(1, backend="gloo") as pool:
        assert (
            repr(found(pool, lambda: compare_replicas(make_model()))) == "only 1 rank: 4 parameters"
        )


@pytest.mark.parametrize(
    "context",
    [
        contextlib.nullcontext,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
    ],
)
def test_nothing_is_changed_wherever_it_is_called(pool, context):
    def state(model, optimizer):
        held = [each[:4] for each in entries.entries(model, optimizer)]
        grads = [p.grad is not None and id(p.grad) for p in model.parameters()]
        return held, grads, torch.get_rng_state().tolist(), torch.is_grad_enabled()

    def looked_at():
        model, optimizer = trained()
        if on(2):
            parameter(model.module, optimizer)
        before = state(model, optimizer)
        with context():
            told = compare_replicas(model, optimizer)
        unchanged = state(model, optimizer) == before
        x, y = images(0)
        cross_entropy(model(x), y).backward()  # DDP still works
        return told, unchanged

    answers = pool.run(looked_at)
    assert all(unchanged for _, unchanged in answers)
    assert {told.name for told, _ in answers} == {"0.2.weight"}


def test_hashes_travel_from_where_the_backend_wants_them():
    """Without a GPU here, a parameter only says that it lies on one."""
    model = nn.Linear(1, 1)
    model.parameters = lambda: iter([SimpleNamespace(device=torch.device("cuda", 3))])
    assert meeting._device("gloo", model) == torch.device("cpu")
    assert meeting._device("cpu:gloo,cuda:nccl", model) == torch.device("cpu")
    assert meeting._device("nccl", model) == torch.device("cuda", 3)


def test_equal_replicas_cost_two_small_messages_and_no_pickle(pool):
    def counted():
        def refuse(*_):
            raise AssertionError("pickled")

        dist.distributed_c10d._object_to_tensor = refuse
        with counting() as calls:
            told = compare_replicas(make_model())
        return bool(told), len(calls)

    assert pool.run(counted) == [(True, 2)] * 3


def test_more_values_than_anybody_reads_are_counted():
    def each_its_own():
        model, rate = make_model(), float(dist.get_rank())
        return compare_replicas(model, torch.optim.SGD(model.parameters(), rate))

    with Pool(6, backend="gloo") as pool:
        assert repr(found(pool, each_its_own)) == (
            "optimizer entry 'lr of group 0' differs: rank 0 holds 0.0, rank 1 holds 1.0, "
            "rank 2 holds 2.0, rank 3 holds 3.0, 2 ranks still others"
        )


def test_the_example_holds():
    failed, tried = doctest.testmod(compare)
    assert failed == 0 < tried


def test_it_is_at_hand_in_the_packages_that_users_import():
    assert realdist.compare_replicas is compare_replicas is compare.compare_replicas
