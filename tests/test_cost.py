import numpy as np
import pytest

from allreduce_edu import busiest_port, messages, naive, parameter_server, ring, sent_bytes
from allreduce_edu.engine.algorithms import ALGORITHMS
from allreduce_edu.engine.cost import received_bytes


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("size", [0, 1, 5, 1003, 4096])
def test_what_is_sent_is_received(name, n, size):
    s = ALGORITHMS[name](n)
    assert sent_bytes(s, size).sum() == received_bytes(s, size).sum()


def test_the_hot_port_of_a_star_and_the_cold_ones_of_a_ring():
    assert busiest_port(parameter_server(8), 800) == 7 * 800
    assert busiest_port(ring(8), 800) == 1400
    assert busiest_port(naive(8), 800) == 7 * 800
    totals = [sent_bytes(s, 800).sum() / 800 for s in (parameter_server(8), ring(8), naive(8))]
    assert totals == [14, 14, 56]


def test_one_rank_sends_nothing():
    for make in ALGORITHMS.values():
        assert sent_bytes(make(1), 100).tolist() == [0]
        assert messages(make(1)) == 0


def test_sizes_may_be_given_chunk_by_chunk():
    assert (
        sent_bytes(ring(3), [10, 0, 1]).tolist()
        == sent_bytes(ring(3), np.array([10, 0, 1])).tolist()
    )
    assert sent_bytes(ring(3), [10, 0, 1]).tolist() == [22 - 0 - 1, 22 - 1 - 10, 22 - 10 - 0]


def test_empty_chunks_are_no_messages():
    assert messages(ring(7), 5) == 60
    assert messages(ring(7)) == 84


@pytest.mark.parametrize(
    ("sizes", "error", "sentence"),
    [
        ([1, 2], ValueError, "3 bytes per chunk, got 2"),
        ([1.5, 2, 3], TypeError, "sizes must be an integer >= 0, got 1.5"),
        ([[1], [2, 3], 4], TypeError, "sizes must be an integer >= 0, got [1]"),
        ([1, -2, 3], ValueError, "sizes must be an integer >= 0, got -2"),
        (2**60, ValueError, "sizes must be at most 1,125,899,906,842,624 bytes"),
        ("many", TypeError, "sizes must be an integer >= 0, got 'many'"),
        (-1, ValueError, "sizes must be an integer >= 0, got -1"),
        (1.5, TypeError, "sizes must be an integer >= 0, got 1.5"),
    ],
)
def test_bad_sizes(sizes, error, sentence):
    with pytest.raises(error) as caught:
        sent_bytes(ring(3), sizes)
    assert sentence in str(caught.value)
