"""What a Watch notes is what DDP does, and it changes no bit of it."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from allreduce_edu import Pool  # noqa: E402
from allreduce_edu.realdist import ddp, train_ddp  # noqa: E402
from allreduce_edu.realdist.ddp import (  # noqa: E402
    Watch,
    eight_layer_buckets,
    traced_backward,
    watched_backwards,
)
from allreduce_edu.realdist.train import fingerprint, flat, gradients, images, make_model  # noqa: E402

LAST, FIRST = ["2.bias", "2.weight"], ["0.bias", "0.weight"]
ONE_KB = 0.001  # MiB: the last layer closes a bucket, the first another


@pytest.fixture(scope="module")
def pool():
    with Pool(3, backend="gloo") as pool:
        yield pool


def order(events, *kinds):
    return [event.names[0] for event in events if event.what in kinds]


def test_gradients_are_ready_from_the_last_layer_to_the_first(pool):
    for steps in pool.run(watched_backwards):
        for events in steps:
            assert order(events, "ready") == LAST + FIRST


def test_buckets_are_rebuilt_after_the_first_step(pool):
    for first, second in pool.run(lambda: watched_backwards(bucket_cap_mb=ONE_KB)):
        starts = [[e.names for e in events if e.what == "start"] for events in (first, second)]
        assert [sorted(names) for names in starts[0]] == [sorted(LAST + FIRST)]
        assert [list(names) for names in starts[1]] == [LAST, FIRST]
        sizes = [e.size for e in second if e.what == "start"]
        assert sizes == [4 * (10 + 320), 4 * (32 + 2048)]


def test_a_bucket_leaves_before_the_first_layer_is_ready(pool):
    for _, events in pool.run(lambda: watched_backwards(bucket_cap_mb=ONE_KB)):
        told = [event.what for event in events if event.what in ("ready", "start")]
        assert told == ["ready", "ready", "start"] * 2
        assert [event.at for event in events] == sorted(event.at for event in events)


def test_what_all_ranks_hold_becomes_equal_before_the_step(pool):
    ranks = [steps[1] for steps in pool.run(lambda: watched_backwards(bucket_cap_mb=ONE_KB))]
    for bucket in (0, 1):
        for what, different in (("start", 3), ("done", 1)):
            held = {
                e.held for events in ranks for e in events if (e.what, e.bucket) == (what, bucket)
            }
            assert len(held) == different
    assert all(
        [e.what for e in events][-2:] == ["backward() returns", "step() returns"]
        for events in ranks
    )
    assert len({events[-2].held for events in ranks}) == 1


def test_watching_changes_no_bit(pool):
    def prints(watched):
        ddp, told = DistributedDataParallel(make_model(), bucket_cap_mb=ONE_KB), []
        watch = Watch(ddp) if watched else None
        for step in range(4):
            x, y = images(dist.get_rank(), step, ranks=3)
            ddp.zero_grad()
            cross_entropy(ddp(x), y).backward()
            told.append(fingerprint(gradients(ddp.module)))
        return told, watch.calls() if watch else 0

    plain, watched = pool.run(prints, False)[0], pool.run(prints, True)[0]
    assert plain[0] == watched[0]
    assert watched[1] == 1 + 3 * 2


def test_no_event_is_missing_when_the_backward_is_over(pool):
    for steps in pool.run(lambda: watched_backwards(20, bucket_cap_mb=ONE_KB)):
        for events in steps[1:]:
            done = [event.what for event in events].index("backward() returns")
            assert sorted(e.bucket for e in events[:done] if e.what == "done") == [0, 1]


MIB = 4 * (512 * 512 + 512)  # bytes of one of eight layers


def layers(bucket):
    """Return the layers in a bucket, in order, each once."""
    return list(dict.fromkeys(name.partition(".")[0] for name in bucket))


def test_the_first_bucket_is_small_and_there_are_two_from_the_second_step_on(pool):
    for first, second, third in pool.run(lambda: eight_layer_buckets(3)):
        assert [(size, layers(names)) for size, names in first] == [(8 * MIB, list("01234567"))]
        assert second == third
        assert [(size, layers(names)) for size, names in second] == [
            (MIB, ["7"]),
            (7 * MIB, list("6543210")),
        ]


def test_with_find_unused_parameters_buckets_stay_and_the_small_one_is_the_last(pool):
    for first, second in pool.run(lambda: eight_layer_buckets(find_unused_parameters=True)):
        assert first == second
        assert len(first) == 2
        assert first[-1] == (4 * 512 * 512, ["0.weight"])


def test_a_trace_shows_that_computing_goes_on_under_the_first_all_reduce_only(pool, capfd):
    for spans in pool.run(traced_backward):
        computing = [s.start for s in spans if s.what == "compute"]
        sent = [s.start for s in spans if s.what == "all-reduce"]
        assert len(sent) == 2
        assert min(computing) < min(sent) < max(computing) < max(sent)
        assert all(0 <= s.start <= s.stop < 60 for s in spans)
    assert capfd.readouterr() == ("", "")


def test_an_all_reduce_is_on_its_way_from_when_it_is_handed_over():
    """On a busy machine gloo's threads may not get to it before everything is computed."""

    def event(name, start, end):
        return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end))

    told = [
        event("c10d::allreduce_", 50, 60),  # before the backward
        event("backward", 100, 900),
        event("autograd::engine::evaluate_function: AddmmBackward0", 110, 150),
        event("c10d::allreduce_", 145, 149),
        event("autograd::engine::evaluate_function: AddmmBackward0", 160, 200),
        event("c10d::allreduce_", 190, 199),
        event("gloo:all_reduce", 300, 500),
        event("gloo:all_reduce", 310, 450),
    ]
    assert ddp._spans(told) == [
        ("compute", 10e-6, 50e-6),
        ("compute", 60e-6, 100e-6),
        ("all-reduce", 45e-6, 400e-6),
        ("all-reduce", 90e-6, 350e-6),
    ]


def test_a_resumed_run_differs_only_by_the_order_in_its_first_bucket(tmp_path):
    """On two ranks there is one order, so no bit differs; on three, the last ones."""

    def weights(epochs, checkpoint=None):
        return flat(train_ddp.train(torch.device("cpu"), epochs, 16, checkpoint).parameters())

    for ranks, same in ((2, True), (3, False)):
        file = tmp_path / f"{ranks}.pt"
        with Pool(ranks, backend="gloo") as pool:
            straight = pool.run(weights, 2)[0]
            pool.run(weights, 1, file)
            resumed = pool.run(weights, 2, file)[0]
        assert torch.equal(straight, resumed) == same
        assert torch.allclose(straight, resumed, atol=1e-5)
