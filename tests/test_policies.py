"""Training under a policy: the ring's bits, what is lost in fp16, what bf16 weights miss."""

import numpy as np
import pytest

from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.execute import run
from allreduce_edu.engine.precision import rounded
from allreduce_edu.lessons.policies import fate, late_gradient, ring_mean, trained
from allreduce_edu.lessons.replicas import train


@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16", "fp8_e4m3"])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_mean_has_the_bits_of_the_ring(n, kind):
    x = np.random.default_rng(0).normal(size=(n, 103)).astype("f4")
    whole = run(ring(n), x / np.float32(n), wire=kind, accumulate=kind)
    assert ring_mean(x, kind).tobytes() == whole[0].tobytes()


def test_in_fp32_it_is_the_usual_training():
    usual = train(ranks=8, batch=8, shards="shuffled")
    np.testing.assert_allclose(
        trained("all in fp32").loss, usual.loss.mean(axis=1), rtol=1e-2, atol=1e-3
    )


def test_a_narrow_ring_harms_less_than_another_seed():
    fp32, other = (
        trained("all in fp32").loss[-30:].mean(),
        trained("all in fp32", 1).loss[-30:].mean(),
    )
    for policy in ("bf16 ring", "fp8 e4m3 ring"):
        assert abs(trained(policy).loss[-30:].mean() - fp32) < abs(other - fp32) / 2


def test_weights_in_bf16_miss_small_updates():
    wide, narrow = (trained(p, rate=0.01) for p in ("bf16 ring", "bf16 ring and weights"))
    assert wide.stuck == 0
    assert narrow.stuck > 0.5
    assert narrow.loss[-30:].mean() > wide.loss[-30:].mean() + 0.03


def test_an_unknown_policy_gets_a_sentence():
    with pytest.raises(ValueError, match="unknown policy 'int8'"):
        trained("int8")


def test_the_fate_of_numbers_is_that_of_numpy_s_float16():
    x = np.array([1e-9, 2.9e-8, 3e-8, 1e-6, 6e-5, 6.2e-5, 1, 65504, 65520, 1e9], "f4")
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    f = fate(x, "fp16")
    assert f.zero == (half == 0).mean()
    assert f.infinite == np.isinf(half).mean()
    assert f.subnormal == ((half > 0) & (half < 2.0**-14)).mean()
    assert (rounded(x, "fp16") == half.astype("f4")).all()


def test_the_longer_it_trains_the_more_falls_off_the_edge():
    early, late = (fate(late_gradient(steps), "fp16") for steps in (300, 3000))
    assert early.zero < late.zero / 3
    assert early.subnormal < late.subnormal / 3
    with pytest.raises(ValueError, match="steps must be an integer between 1 and 100000, got 0"):
        late_gradient(0)


def test_a_loss_scale_saves_small_gradients_until_large_ones_overflow():
    g = late_gradient()
    assert (g != 0).all()
    plain, scaled, too_far = (fate(g, "fp16", s) for s in (1, 2.0**12, 2.0**32))
    assert 0.02 < plain.zero < 0.2
    assert plain.subnormal > 0.2
    assert scaled.zero < plain.zero / 4
    assert scaled.infinite == 0
    assert too_far.infinite > 0.3
    assert fate(g, "bf16") == (0, 0, 0)
