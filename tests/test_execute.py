import tracemalloc
import warnings

import ml_dtypes
import numpy as np
import pytest

from allreduce_edu import (
    ALGORITHMS,
    COLLECTIVES,
    OverflowWarning,
    Round,
    Schedule,
    contributions,
    explain,
    frames,
    ring,
    run,
    steps,
)
from allreduce_edu.engine.dtypes import combiner, dtype

DTYPES = ("fp64", "fp32", "fp16", "bf16", "int32", "uint8")


def data(n, size, kind, seed=0):
    x = np.random.default_rng([seed, n, size]).normal(0, 3, (n, size))
    return np.abs(x * 9).astype(dtype(kind)) if "int" in kind else x.astype(dtype(kind))


def plainly(schedule, buf, op):
    """Play transfer by transfer, with copies of everything: slow, and obviously right."""
    combine = combiner(op, buf)
    for r in schedule:
        before = buf.copy()
        for s, d, c, reduce in zip(r.src, r.dst, r.chunk, r.reduce, strict=True):
            buf[d, c] = combine(buf[d, c], before[s, c]) if reduce else before[s, c]
    return buf


def same_bits(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("kind", "cell"),  # large cells take another path; the dtype does not matter to it
    [*((kind, cell) for kind in DTYPES for cell in (1, 3)), ("fp32", 40_000), ("bf16", 40_000)],
)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_steps_equal_the_plain_loop_bit_for_bit(name, kind, cell, n):
    s = ALGORITHMS[name](n)
    buf = data(n * s.chunks, cell, kind).reshape(n, s.chunks, cell)
    want = plainly(s, buf.copy(), "sum")
    for _ in steps(s, buf):
        pass
    assert same_bits(buf, want)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("op", ["sum", "avg", "max", "min", "prod"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16])
def test_every_op_agrees_with_numpy(name, op, n):
    x = data(n, 11, "fp64")
    want = {"avg": np.mean, "sum": np.sum}.get(op) or getattr(np, op)
    got = run(ALGORITHMS[name](n), x, op)
    np.testing.assert_allclose(got, np.broadcast_to(want(x, axis=0), x.shape), rtol=1e-12)


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("name", ["ring", "gloo_ring", "naive", "recursive_doubling"])
def test_torch_and_numpy_agree_bit_for_bit(kind, name):
    torch = pytest.importorskip("torch")
    x = [torch.randn(1003, generator=torch.Generator().manual_seed(r)).mul(3) for r in range(5)]
    x = [(t > 0) if kind == "bool" else t.to(getattr(torch, kind)) for t in x]
    got = run(ALGORITHMS[name](5), x)
    assert isinstance(got, list)
    assert got[0].dtype == x[0].dtype
    raw = [
        t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if kind == "bfloat16" else t.numpy()
        for t in x
    ]
    want = run(ALGORITHMS[name](5), raw)
    for t, a in zip(got, want, strict=True):
        bits = t.view(torch.int16).numpy() if kind == "bfloat16" else t.numpy()
        assert bits.tobytes() == a.tobytes()


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"naive"}))
@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_replicas_are_bit_identical(name, kind, n):
    out = run(ALGORITHMS[name](n), data(n, 1003, kind))
    assert all(same_bits(out[0], each) for each in out)


def test_everyone_to_everyone_adds_its_own_share_first_and_replicas_differ():
    out = run(ALGORITHMS["naive"](5), data(5, 1003, "fp32"))
    assert len({each.tobytes() for each in out}) == 5


def test_the_callers_arrays_never_change():
    x = data(4, 10, "fp32")
    kept = x.copy()
    run(ring(4), x)
    run(ring(4), list(x))
    assert same_bits(x, kept)


def test_result_is_like_the_input():
    torch = pytest.importorskip("torch")
    x = np.ones((4, 2, 3), np.float32)
    assert run(ring(4), x).shape == (4, 2, 3)
    assert [a.shape for a in run(ring(4), list(x))] == [(2, 3)] * 4
    assert run(ring(4), torch.ones(4, 2, 3)).shape == (4, 2, 3)
    assert run(ring(2), [np.float64(1), np.float64(2)])[1] == 3


def test_strided_input_is_as_good_as_any():
    x = np.arange(60.0).reshape(4, 15)[:, ::3]
    assert (run(ring(4), x) == x.sum(0)).all()


def test_several_shares_into_one_cell_are_all_kept_in_array_order():
    s = Schedule("star", 4, 1, lambda: [Round.of([3, 1, 2], 0, 0, True)])
    x = np.array([[1e8], [1.0], [-1e8], [3.0]], np.float32)
    assert run(s, x)[0] == ((np.float32(1e8) + np.float32(3)) + np.float32(1)) - np.float32(1e8)


def test_nan_wins_in_max_and_min_on_every_rank():
    x = np.array([[1.0], [np.nan], [3.0]])
    for op in ("max", "min"):
        assert np.isnan(run(ring(3), x, op)).all()


def test_bool_sum_is_or_and_prod_is_and():
    x = np.array([[True, False, True], [False, False, True]])
    assert run(ring(2), x)[1].tolist() == [True, False, True]
    assert run(ring(2), x, "prod")[1].tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("x", "op", "error", "sentence"),
    [
        ([np.ones(3), np.ones(5)], "sum", ValueError, "rank 0 has (3,), rank 1 has (5,)"),
        ([np.ones(3), np.ones(1)], "sum", ValueError, "must pass the same shape"),
        (
            [np.ones(3), np.ones(3, "f4")],
            "sum",
            ValueError,
            "rank 0 has float64, rank 1 has float32",
        ),
        ([np.ones(3)], "sum", ValueError, "one array per rank (2), got 1"),
        (3, "sum", TypeError, "x must be an array or a list of arrays, got int"),
        (np.ones((2, 3)), "smu", ValueError, "unknown op 'smu'; did you mean 'sum'"),
        (np.ones((2, 3), int), "avg", TypeError, "'avg' needs a floating-point dtype, got int64"),
        (np.ones((2, 3), complex), "max", TypeError, "no meaning for dtype complex128"),
        (np.array([["a"], ["b"]]), "sum", TypeError, "unsupported dtype str32"),
        (np.array([[None], [None]]), "sum", TypeError, "unsupported dtype object"),
    ],
)
def test_bad_input_gets_a_sentence(x, op, error, sentence):
    with pytest.raises(error) as caught:
        run(ring(2), x, op)
    assert sentence in str(caught.value)


def test_overflow_wraps_and_warns_once():
    x = np.full((4, 3), 100, np.int8)
    with pytest.warns(OverflowWarning, match="rank 0, chunk 0 should hold 400, got -112") as caught:
        out = run(ring(4), x)
    assert len(caught) == 1
    assert (out == -112).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(ring(4), np.full((4, 3), 30, np.int8))


@pytest.mark.parametrize(
    ("dtype_", "shares"),
    [
        ("int64", [2**62, 2**62]),
        ("int64", [-(2**63), -1]),
        ("uint64", [2**63, 2**63]),
        ("uint8", [255, 1]),
    ],
)
def test_overflow_is_found_at_the_very_edge(dtype_, shares):
    x = np.array(shares, dtype_).reshape(2, 1)
    with pytest.warns(OverflowWarning, match=f"should hold {sum(shares)}, got"):
        run(ring(2), x)


def test_copies_do_not_overflow():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(COLLECTIVES["binomial_broadcast"](4), np.full((4, 3), 100, np.int8))


def test_infinities_are_values_and_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = run(ring(2), np.array([[60000, np.inf], [60000, -np.inf]], np.float16))
    assert np.isinf(out[0, 0])
    assert np.isnan(out[0, 1])


@pytest.mark.parametrize("size", [8, 200_000])
def test_parameters_are_taken_for_what_they_hold(size):
    torch = pytest.importorskip("torch")
    x = torch.ones(4, size, requires_grad=True)
    out = run(ring(4), x)
    assert not out.requires_grad
    assert (out == 4).all()


def test_average_needs_something_to_be_added():
    with pytest.raises(ValueError, match="'avg' has no meaning for 'binomial broadcast'"):
        run(COLLECTIVES["binomial_broadcast"](4), np.ones((4, 2)), "avg")


@pytest.mark.parametrize("slip", [ring, "ring", None, 3])
def test_a_schedule_is_asked_for_by_name(slip):
    for reader in (lambda s: run(s, np.ones((4, 2))), contributions, explain, frames):
        with pytest.raises(TypeError, match=r"schedule must be a Schedule such as ring\(4\), got"):
            reader(slip)


def test_steps_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"buf must have shape \(4, 4, ...\)"):
        steps(ring(4), np.ones((4, 3)))
    with pytest.raises(ValueError, match="unknown op 'foo'"):
        steps(ring(4), np.ones((4, 4)), "foo")


def test_numpy_and_torch_do_not_mix():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="numpy arrays, or all torch tensors, got both"):
        run(ring(2), [np.ones(2), torch.ones(2)])


def test_one_rank_gets_its_own_array_back():
    x = data(1, 5, "fp32")
    out = run(ring(1), x)
    assert same_bits(out, x)
    assert out is not x


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("cell", [1, 40, 40_000])
def test_no_copy_of_the_buffers_size_is_made_on_the_way(name, cell):
    n = 8
    s = ALGORITHMS[name](n)
    buf = data(n * s.chunks, cell, "fp32").reshape(n, s.chunks, cell)
    rounds = list(s)
    played = Schedule(s.name, n, s.chunks, lambda: rounds)
    for _ in steps(played, buf.copy()):  # imports and caches
        pass
    tracemalloc.start()
    for _ in steps(played, buf):
        pass
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1.3 * 2**20
    assert buf.nbytes < 3 * 2**20 or most < buf.nbytes / 2


def test_run_copies_once_where_chunks_are_of_one_size():
    x = np.ones((8, 8 * 40_000), np.float32)
    run(ring(8), x[:, :8])
    tracemalloc.start()
    run(ring(8), x)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert x.nbytes <= most < 1.05 * x.nbytes


def test_replacing_first_and_adding_then_in_one_round():
    swap = [Round.of([1, 2, 0], [0, 0, 0], 0, [False, True, True])]
    s = Schedule("s", 3, 1, lambda: swap, collective="custom")
    for cell in (1, 40_000):
        x = data(3, cell, "fp32").reshape(3, 1, cell)
        want = (x[1] + x[2]) + x[0]
        for _ in steps(s, x):
            pass
        assert same_bits(x[0], want)
