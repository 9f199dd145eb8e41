import numpy as np
import pytest

from allreduce_edu.engine.links import LINKS, Link, Links


def test_presets_say_where_they_come_from():
    assert {"1 GbE", "10 GbE", "25 GbE", "100 GbE", "400 GbE", "InfiniBand NDR"} < set(LINKS)
    for link in LINKS.values():
        assert link.alpha > 0
        assert "alpha" in link.source
    assert 1 / LINKS["10 GbE"].beta == pytest.approx(1.25e9)
    assert 1 / LINKS["NVLink 4"].beta == pytest.approx(450e9)
    assert 1 / LINKS["PCIe 4"].beta == pytest.approx(31.5e9, rel=1e-3)


def test_a_link_is_as_slow_as_the_slower_of_its_ends():
    links = Links.uniform(3, Link([1e-6, 5e-6, 2e-6], [1e-9, 2e-9, 3e-9]))
    assert links.alpha([0, 1, 2], [2, 0, 1]).tolist() == [2e-6, 5e-6, 5e-6]
    assert links.beta(np.array([0, 1]), np.array([1, 0])).tolist() == [2e-9, 2e-9]


def test_tiers_and_what_is_slow():
    links = Links.two_tier(2, 2, Link(1, 10), Link(2, 20)).with_slow(link=(0, 2), factor=3)
    src, dst = np.divmod(np.arange(16), 4)
    beta = links.beta(src, dst).reshape(4, 4)
    assert beta.tolist() == [
        [10, 10, 60, 20],
        [10, 10, 20, 20],
        [20, 20, 10, 10],
        [20, 20, 10, 10],
    ]
    slow = Links.uniform(3, Link(1, 10)).with_slow(rank=1, factor=2)
    src, dst = np.divmod(np.arange(9), 3)
    assert slow.beta(src, dst).reshape(3, 3)[0].tolist() == [10, 20, 10]
    assert slow.beta(src, dst).reshape(3, 3)[:, 1].tolist()[::2] == [20, 20]


def test_a_network_says_what_it_is():
    assert repr(Links.uniform(8, "100 GbE")) == "Links(8 ranks, 14 µs, 12.5 GB/s)"
    two = Links.two_tier(2, 8, "NVLink 4", "InfiniBand NDR", nics=4)
    assert repr(two) == (
        "Links(2 nodes x 8 ranks, 3.4 µs, 450 GB/s; across 14 µs, 50 GB/s through 4 NICs)"
    )
    assert repr(Links.uniform(2, Link([1, 2], 0))) == "Links(2 ranks, by rank)"


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: Links.uniform(0, "1 GbE"), ValueError, "ranks must be an integer >= 1, got 0"),
        (lambda: Links.uniform(2, "10GbE"), ValueError, "did you mean '10 GbE'"),
        (lambda: Links.uniform(2, 3), TypeError, "link must be a Link or one of its names"),
        (lambda: Links.uniform(2, Link([1, 2, 3], 0)), ValueError, "one for each of 2 ranks"),
        (lambda: Link(-1, 0), ValueError, "alpha must be >= 0 and finite, got -1"),
        (lambda: Link(0, float("nan")), ValueError, "beta must be >= 0 and finite, got nan"),
        (lambda: Link("fast", 0), TypeError, "alpha must be a number or an array, got 'fast'"),
        (lambda: Link.of(0, 0), ValueError, "bandwidth must be > 0 bytes/s, got 0"),
        (lambda: Links.two_tier(2, 8, "PCIe 4", "1 GbE", nics=3), ValueError, "nics must divide"),
        (lambda: Links.uniform(2, "1 GbE", gamma=-1), ValueError, "gamma must be >= 0"),
        (lambda: Links.uniform(2, "1 GbE").with_slow(), ValueError, "either a rank or a link"),
        (lambda: Links.uniform(2, "1 GbE").with_slow(rank=2), ValueError, "between 0 and 1, got 2"),
        (
            lambda: Links.uniform(2, "1 GbE").with_slow(rank=1, factor=0),
            ValueError,
            "factor must be > 0, got 0",
        ),
    ],
)
def test_bad_input_is_named(call, error, sentence):
    with pytest.raises(error) as caught:
        call()
    assert sentence in str(caught.value)
