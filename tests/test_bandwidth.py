import numpy as np
import pytest

from allreduce_edu.engine.bandwidth import BUSBW, algbw, busbw, fit
from allreduce_edu.engine.formulas import closed_form
from allreduce_edu.engine.links import Link, Links


def test_a_line_of_nccl_tests_read_aloud():
    assert algbw(2**30, 7996e-6) / 1e9 == pytest.approx(134, abs=0.5)
    assert busbw(2**30, 7996e-6, 8) / 1e9 == pytest.approx(235, abs=0.5)


@pytest.mark.parametrize(("n", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75), (16, 1.875)])
def test_the_factor_of_all_reduce(n, factor):
    assert busbw(100, 1.0, n) == pytest.approx(100 * factor)


@pytest.mark.parametrize("name", ["ring", "ring_reduce_scatter", "ring_all_gather"])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_busbw_is_the_links_speed_when_only_bytes_cost(name, n):
    net = Links.uniform(n, Link.of(0, 5e9))
    collective = {"ring": "all_reduce"}.get(name, name.removeprefix("ring_"))
    seconds = closed_form(name, n, 10**9, net).time
    assert busbw(10**9, seconds, n, collective) == pytest.approx(5e9)
    assert set(BUSBW) >= {"all_reduce", "broadcast", "all_to_all"}


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "binomial_tree"])
def test_a_fit_finds_what_made_the_times(algorithm):
    sizes = 4.0 ** np.arange(5, 14)
    net = Links.uniform(4, Link.of(30e-6, 2e9))
    seconds = [closed_form(algorithm, 4, s, net).time for s in sizes]
    found = fit(sizes, seconds, 4, algorithm)
    assert found.link.alpha == pytest.approx(30e-6)
    assert 1 / found.link.beta == pytest.approx(2e9)
    assert found.ratio == pytest.approx(1)
    assert found.predict(10**6) == pytest.approx(closed_form(algorithm, 4, 10**6, net).time)
    assert "alpha 30 µs" in repr(found)


def test_noise_of_a_third_is_not_carried_into_the_large_sizes_alone():
    rng = np.random.default_rng(0)
    sizes = 2.0 ** np.arange(10, 28)
    net = Links.uniform(4, Link.of(30e-6, 2e9))
    true = np.array([closed_form("ring", 4, s, net).time for s in sizes])
    found = fit(sizes, true * rng.uniform(0.8, 1.25, len(sizes)), 4)
    assert found.link.alpha == pytest.approx(30e-6, rel=0.25)
    assert 1 / found.link.beta == pytest.approx(2e9, rel=0.25)


def test_neither_comes_out_below_zero():
    assert fit([1e6, 2e6, 4e6], [1.0, 2.2, 5.0], 2).link.alpha == 0
    assert fit([1e6, 2e6, 4e6], [3.0, 2.0, 1.0], 2).link.beta == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: algbw(-1, 1), "size must be >= 0 and finite, got -1"),
        (lambda: algbw(1, 0), "seconds must be > 0 and finite, got 0"),
        (lambda: busbw(1, 1, 0), "ranks must be an integer >= 1, got 0"),
        (lambda: busbw(1, 1, 2, "allreduce"), "did you mean 'all_reduce'"),
        (lambda: fit([1, 1], [1, 1], 2), "two different sizes at least, got 2 and 2"),
        (lambda: fit([1, 2], [1], 2), "got 2 and 1"),
        (lambda: fit([1, 2], [1, 2], 1), "ranks must be an integer >= 2, got 1"),
        (lambda: fit([1, 2], [1, float("nan")], 2), "seconds must be > 0"),
    ],
)
def test_bad_input_is_named(call, sentence):
    with pytest.raises(ValueError) as caught:
        call()
    assert sentence in str(caught.value)
