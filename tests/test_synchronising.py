"""The judges of notebook 01: references pass, starters fail, wrong ways are told apart."""

import numpy as np
import pytest

from allreduce_edu.engine.algorithms import ring
from allreduce_edu.engine.execute import run
from allreduce_edu.lessons.synchronising import combines, synchronises

# ------------------------------------------------------------------------- exercise 1


def mean_everywhere(grads):
    mean = sum(grads) / len(grads)
    return [mean for _ in grads]


def by_the_engine(grads):
    return run(ring(len(grads)), grads, op="avg")


def as_one_array(grads):
    return np.tile(np.mean(grads, axis=0), (len(grads), 1))


def starter(grads):
    return ...


def own_share_first(grads):
    n, out = len(grads), []
    for r in range(n):
        total = grads[r]
        for k in range(1, n):
            total = total + grads[(r + k) % n]
        out.append(total / n)
    return out


def sums_only(grads):
    return [sum(grads) for _ in grads]


def mean_on_rank_0_only(grads):
    return [sum(grads) / len(grads), *grads[1:]]


def forgets_one(grads):
    mean = sum(grads[:-1]) / max(len(grads) - 1, 1) if len(grads) > 1 else grads[0]
    return [mean for _ in grads]


def in_place(grads):
    grads[:] = mean_everywhere(grads)


def right_for_two(grads):
    mean = (grads[0] + grads[1]) / 2 if len(grads) > 1 else grads[0]
    return [mean for _ in grads]


@pytest.mark.parametrize("fn", [mean_everywhere, by_the_engine, as_one_array])
def test_right_ways_to_synchronise_pass(fn):
    verdict = synchronises(fn)
    assert verdict.ok, verdict
    assert "same bits" in verdict.why


@pytest.mark.parametrize(
    ("fn", "sentence"),
    [
        (starter, "with 4 ranks: replace the dots with a list: one array for each rank"),
        (in_place, "with 4 ranks: synchronise returned None"),
        (own_share_first, r"ranks 0 and 1 differ in parameter"),
        (own_share_first, "right up to rounding, in an order that differs from rank to rank"),
        (sums_only, "all ranks agree, on a gradient 4 times as long as the mean: it is the sum"),
        (mean_on_rank_0_only, "rank 0 has a new gradient, rank 1 still has its own"),
        (lambda grads: grads, "every rank still has its own gradient: nothing was averaged"),
        (forgets_one, "all ranks agree, on a gradient that is not the mean of all"),
        (right_for_two, "all ranks agree, on a gradient that is not the mean of all"),
        (lambda grads: sum(grads) / len(grads), "one array for each rank (4), got ndarray"),
        (lambda grads: [g[:5] for g in grads], "rank 0 must get an array of shape (2410,), got (5"),
        (lambda grads: [0] * 4, "rank 0 must get an array of shape (2410,), got None"),
        (lambda grads: grads[:2], "one array for each rank (4), got 2 arrays"),
    ],
)
def test_wrong_ways_to_synchronise_are_told_what_is_wrong(fn, sentence):
    verdict = synchronises(fn)
    assert not verdict.ok
    assert sentence in verdict.why, verdict


def test_a_slow_leak_is_found_after_the_last_step():
    def almost(grads):
        out = mean_everywhere(grads)
        return [out[0] * np.float32(1.0005), *out[1:]] if len(out) > 1 else out

    assert "differ in parameter" in synchronises(almost).why

    def a_bit_too_long(grads):
        return [each * np.float32(1.0003) for each in mean_everywhere(grads)]

    assert "away from one process with the whole batch" in synchronises(a_bit_too_long).why


# ------------------------------------------------------------------------- exercise 2


def by_count(gradient, shards):
    total = sum(len(y) for _, y in shards)
    return sum(gradient(x, y) * len(y) for x, y in shards) / total


def plain_mean(gradient, shards):
    return sum(gradient(x, y) for x, y in shards) / len(shards)


def divided_again(gradient, shards):
    return by_count(gradient, shards) / len(shards)


def one_image_each(gradient, shards):
    return sum(gradient(x[:1], y[:1]) for x, y in shards) / len(shards)


def all_in_one_place(gradient, shards):
    x, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
    return gradient(x, y)


def for_the_example_only(gradient, shards):
    return sum(w * gradient(x, y) for w, (x, y) in zip((8, 4, 4, 1), shards, strict=False)) / 17


def counted_but_not_divided(gradient, shards):
    return sum(gradient(x, y) * len(y) for x, y in shards)


def image_by_image(gradient, shards):
    each = [gradient(x[i : i + 1], y[i : i + 1]) for x, y in shards for i in range(len(y))]
    return sum(each) / len(each)


@pytest.mark.parametrize("fn", [by_count, image_by_image])
def test_right_ways_to_combine_pass(fn):
    verdict = combines(fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("fn", "sentence"),
    [
        (lambda gradient, shards: None, "for 8, 4, 4 and 1 images: combine returned None"),
        (lambda gradient, shards: ..., "return one array of shape (2410,), got Ellipsis"),
        (plain_mean, "the mean of the ranks' means: the last image alone weighs as much as all"),
        (divided_again, "it is 1/4 of the right one: weights that add up to 1 need no second"),
        (one_image_each, "only 4 of 17 images were used"),
        (all_in_one_place, "no rank has 17 of them: images stay on their ranks"),
        (for_the_example_only, "for 5, 1 and 3 images: it is off by"),
        (counted_but_not_divided, "the sum of all images' gradients: divide by their number"),
        (lambda g, s: sum(g(x, y) for x, y in s), "it is the sum of the ranks' means"),
        (lambda g, s: 0.5 * by_count(g, s) + 0.1, "times the length of the right gradient"),
        (lambda g, s: [g(x, y) for x, y in s], "return one array of shape (2410,), got"),
    ],
)
def test_wrong_ways_to_combine_are_told_what_is_wrong(fn, sentence):
    verdict = combines(fn)
    assert not verdict.ok
    assert sentence in verdict.why, verdict


def test_a_learners_own_exception_comes_through():
    with pytest.raises(ZeroDivisionError):
        synchronises(lambda grads: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        combines(lambda gradient, shards: 1 // 0)
