"""Replicas against processes that train alone, against torch, and against the engine's ring."""

import numpy as np
import pytest

from allreduce_edu.data import digits
from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.execute import run
from allreduce_edu.lessons import network, shards
from allreduce_edu.lessons.optimizers import Optimizer
from allreduce_edu.lessons.replicas import (
    DIFFERENT,
    NONE,
    SAME,
    Replicas,
    Setting,
    average,
    train,
)
from allreduce_edu.lessons.training import initial_weights, loss_and_gradient


def alone(setting, ranks, *, seed=None):
    """Train one plain SGD process on the images that `ranks` see together, by other code."""
    data, s = digits(), setting
    index = shards.schedule(data.y, s.shards, s.ranks, s.batch, s.steps, s.seed)
    images = shards.counts(s.shards, s.ranks, s.batch)
    w, losses = initial_weights(seed=s.seed if seed is None else seed), []
    for rows in index:
        mine = np.concatenate([rows[r, : images[r]] for r in ranks])
        loss, grad = loss_and_gradient(w, data.x[mine], data.y[mine])
        w = w - np.float32(s.rate or 0.1) * grad
        losses.append(loss)
    return w, losses


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("elements", [1, 7, 2410])
def test_an_average_has_the_bits_of_the_engines_ring(n, elements):
    shares = np.random.default_rng(n).normal(size=(n, elements)).astype("f4")
    assert average(shares).tobytes() == run(ring(n), shares, op="avg").tobytes()


def test_with_its_own_share_first_every_rank_has_other_bits():
    shares = np.random.default_rng(0).normal(size=(4, 2410)).astype("f4")
    mine = average(shares, "own share first")
    np.testing.assert_allclose(mine, average(shares), atol=1e-6)
    assert len({row.tobytes() for row in mine}) == 4
    apart = train(additions="own share first").apart
    assert apart[0] == 0
    assert 0 < apart[1] < apart[-1] < 1e-4


@pytest.mark.parametrize("which", shards.SHARDS)
def test_without_sync_every_replica_is_a_process_of_its_own(which):
    setting = Setting(sync="none", shards=which, steps=20)
    report = train(sync="none", shards=which, steps=20)
    for rank in range(4):
        w, losses = alone(setting, [rank])
        np.testing.assert_allclose(report.weights[rank], w, atol=1e-6)
        np.testing.assert_allclose(report.loss[:, rank], losses, atol=1e-5)


@pytest.mark.parametrize("which", ["by class", "shuffled"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_averaged_gradients_keep_the_bits_equal_and_are_one_process(which, ranks):
    choices = {"shards": which, "steps": 20, "ranks": ranks}
    report = train(**choices)
    assert report.identical
    assert not report.distance.any()
    w, _ = alone(Setting(**choices), range(ranks))
    np.testing.assert_allclose(report.weights, np.tile(w, (ranks, 1)), atol=1e-6)


def test_unequal_shares_need_their_weights():
    choices = {"shards": "unequal", "steps": 20}
    w, _ = alone(Setting(**choices), range(4))
    np.testing.assert_allclose(train(**choices, by_count=True).weights[0], w, atol=1e-6)
    assert np.abs(train(**choices).weights[0] - w).max() > 1e-3


def test_weights_averaged_once_are_the_mean_of_those_who_trained_alone():
    choices = {"steps": 30, "sync": "weights", "every": 30}
    report = train(**choices)
    mean = np.mean([alone(Setting(**choices), [r])[0] for r in range(4)], axis=0)
    np.testing.assert_allclose(report.weights[0], mean, atol=1e-6)
    assert report.identical
    assert report.apart[-1] == 0 < report.apart[-2]


@pytest.mark.parametrize(
    ("optimizer", "same"), [("SGD", True), ("momentum", True), ("AdamW", False)]
)
def test_averaging_weights_in_each_step_is_averaging_gradients_but_for_adam(optimizer, same):
    each = [train(sync=sync, optimizer=optimizer, steps=50) for sync in ("weights", "gradients")]
    gap = np.abs(each[0].weights[0] - each[1].weights[0]).max()
    assert (gap < 1e-5) == same


def test_a_different_start_is_never_healed():
    apart = train(same_start=False).apart
    assert apart[0] > 1
    np.testing.assert_allclose(apart, apart[0], rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["SGD", "momentum", "AdamW"])
def test_a_missed_step_is_never_healed(optimizer):
    report = train(missed=50, optimizer=optimizer, shards="shuffled")
    assert not report.apart[:50].any()
    assert report.apart[50] > 0
    if optimizer == "SGD":
        np.testing.assert_allclose(report.apart[50:], report.apart[50], rtol=1e-4)
    else:
        assert report.apart[-1] > 3 * report.apart[50]
    last = [report.distance[-1, i] for i, pair in enumerate(report.pairs) if 3 in pair]
    assert report.distance[-1].sum() == pytest.approx(sum(last))  # the others agree


def test_late_gradients_are_used_later():
    first = train(late=5, steps=6).weights
    np.testing.assert_array_equal(first, train(steps=1).weights)
    assert train(late=5, steps=5).distance.shape == (6, 6)


@pytest.mark.parametrize(
    ("choices", "parameters", "optimizer", "buffers"),
    [
        ({"sync": "none"}, DIFFERENT, NONE, NONE),
        ({"sync": "gradients"}, SAME, NONE, NONE),
        ({"sync": "gradients", "optimizer": "AdamW"}, SAME, SAME, NONE),
        ({"sync": "gradients", "optimizer": "AdamW", "dropout": 0.5}, SAME, SAME, NONE),
        ({"sync": "weights", "every": 10, "optimizer": "momentum"}, SAME, DIFFERENT, NONE),
        ({"sync": "gradients", "batch_norm": True}, SAME, NONE, DIFFERENT),
        ({"sync": "none", "optimizer": "AdamW", "batch_norm": True}, *[DIFFERENT] * 3),
    ],
)
def test_the_table_of_states(choices, parameters, optimizer, buffers):
    state = train(**choices, steps=40).state
    assert state == {
        "parameters": parameters,
        "optimizer state": optimizer,
        "buffers": buffers,
        "random state": DIFFERENT,
    }


def test_shards_by_class_are_a_partition_and_hide_the_other_digits():
    assert [[*shards.classes_of(r, 4)] for r in range(4)] == [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    labels = digits().y
    for n in range(1, 9):
        parts = [[*shards.classes_of(r, n)] for r in range(n)]
        assert [c for part in parts for c in part] == list(range(10))
        index = shards.schedule(labels, "by class", n, 16, 5, 0)
        for r in range(n):
            assert set(labels[index[:, r]].ravel()) <= set(parts[r])
    by_class = train(sync="none").by_class
    for r in range(4):
        assert not by_class[r, [c for c in range(10) if c not in shards.classes_of(r, 4)]].any()


def test_shuffled_ranks_see_each_image_once_an_epoch():
    index = shards.schedule(digits().y, "shuffled", 4, 16, 45, 3)
    first = index.reshape(-1)[:1437]
    assert sorted(first) == list(range(1437))
    together = shards.schedule(digits().y, "shuffled", 1, 64, 45, 3)
    np.testing.assert_array_equal(index.reshape(45, 64), together.reshape(45, 64))
    assert shards.counts("unequal", 4, 8).tolist() == [8, 4, 4, 1]


def test_more_steps_score_better_than_a_few():
    report = train(shards="shuffled")
    assert report.scored == tuple(range(10, 301, 10))
    assert report.accuracy.min() > 0.9 > report.scores[0].accuracy.max()
    data = digits()
    by_hand = [np.mean(_read(w, data.x_test) == data.y_test) for w in report.weights]
    np.testing.assert_allclose(report.accuracy, by_hand)
    loss = loss_and_gradient(report.weights[0], data.x_test, data.y_test)[0]
    np.testing.assert_allclose(report.scores[-1].loss[0], loss, rtol=1e-4)


def _read(w, x):
    w1, b1, w2, b2 = np.split(w, np.cumsum([32 * 64, 32, 320]))
    return (np.maximum(x @ w1.reshape(32, 64).T + b1, 0) @ w2.reshape(10, 32).T + b2).argmax(1)


def test_dropout_and_batch_norm_are_torchs():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    data, images = digits(), np.array([16, 5])
    weights = network.start([0, 1], batch_norm=True)
    weights += np.random.default_rng(0).normal(0, 0.1, weights.shape).astype("f4")
    index = np.arange(32).reshape(2, 16)
    drop = (np.random.default_rng(1).random((2, 16, 32), np.float32) > 0.5) / np.float32(0.5)
    buffers = network.fresh_buffers(2)
    lot = network.Lot(data.x[index], data.y[index], images)
    losses, grads = network.losses_and_gradients(weights, lot, buffers, drop)
    for r in range(2):
        head, norm, tail = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 10)
        parameters = [*head.parameters(), *tail.parameters(), *norm.parameters()]
        nn.utils.vector_to_parameters(torch.from_numpy(weights[r].copy()), parameters)
        mine = index[r, : images[r]]
        hidden = torch.relu(norm(head(torch.from_numpy(data.x[mine]))))
        out = tail(hidden * torch.from_numpy(drop[r, : images[r]]))
        loss = nn.functional.cross_entropy(out, torch.from_numpy(data.y[mine]))
        loss.backward()
        assert losses[r] == pytest.approx(loss.item(), abs=1e-5)
        want = torch.cat([p.grad.ravel() for p in parameters]).numpy()
        np.testing.assert_allclose(grads[r], want, atol=2e-6)
        np.testing.assert_allclose(buffers.mean[r], norm.running_mean.numpy(), atol=1e-6)
        np.testing.assert_allclose(buffers.variance[r], norm.running_var.numpy(), atol=1e-6)
        for part in (head, norm, tail):
            part.eval()
        with torch.no_grad():
            read = tail(torch.relu(norm(head(torch.from_numpy(data.x_test))))).argmax(1).numpy()
        ours = network.score(weights, data.x_test, data.y_test, buffers)
        assert ours.accuracy[r] == pytest.approx((read == data.y_test).mean())


@pytest.mark.parametrize("name", ["SGD", "momentum", "AdamW"])
def test_optimizers_are_torchs(name):
    torch = pytest.importorskip("torch")
    w = np.random.default_rng(0).normal(size=(2, 50)).astype("f4")
    theirs = torch.nn.Parameter(torch.from_numpy(w.copy()))
    make = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    }
    optimizer, ours = make[name]([theirs]), Optimizer(name, 0.1, w.shape)
    for k in range(10):
        grads = np.random.default_rng(k + 1).normal(size=w.shape).astype("f4")
        theirs.grad = torch.from_numpy(grads.copy())
        optimizer.step()
        ours.step(w, grads)
    np.testing.assert_allclose(w, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"ranks": 9}, "ranks must be an integer between 1 and 8, got 9"),
        ({"sync": "gradient"}, "unknown sync 'gradient'; did you mean 'gradients'?"),
        ({"dropout": 1}, "dropout must be at least 0 and below 1, got 1"),
        ({"rate": 0}, "rate must be a number above 0, got 0"),
        ({"missed": 400}, "missed must be an integer between 1 and 300, got 400"),
        ({"optimizer": "Adam"}, "unknown optimizer 'Adam'; did you mean 'AdamW'?"),
    ],
)
def test_bad_settings_are_told_in_a_sentence(choices, sentence):
    with pytest.raises(ValueError, match=r"[a-z]") as caught:
        Setting(**choices)
    assert sentence in str(caught.value)


def test_a_rate_that_is_far_too_high_is_no_accident():
    report = train(rate=1e30, steps=20, sync="none")
    assert not np.isfinite(report.apart[-1])


def test_a_report_waits_for_the_end():
    training = Replicas(Setting(steps=2))
    training.step()
    with pytest.raises(RuntimeError, match="needs all 2 steps, got 1"):
        training.report()
    assert repr(training) == "Replicas: 4, after 1 of 2 steps"
    assert repr(train(steps=2)) == (
        "Report: 4 replicas after 2 steps, sync gradients: the same bits"
    )
