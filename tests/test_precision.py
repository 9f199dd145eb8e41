import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allreduce_edu import (
    ALGORITHMS,
    Round,
    Schedule,
    binomial_tree,
    halving_doubling,
    pairwise_exchange,
    recursive_doubling,
    ring,
    run,
    sent_bytes,
    steps,
)
from allreduce_edu.engine.precision import (
    FORMATS,
    Rounding,
    error_in_ulps,
    exact_sum,
    format_of,
    relative_rms,
    rounded,
    ulp,
)

NATIVE = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
NARROW = [name for name in NATIVE if name != "fp32"]


def same(a, b):
    """Equal bits, but for the sign and payload of NaN."""
    nan = np.isnan(a) & np.isnan(b)
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | nan).all())


def through(x, kind):
    """Round by the library that has the dtype."""
    with np.errstate(all="ignore"):
        return x.astype(NATIVE[kind]).astype(x.dtype)


def every(kind):
    """Return all numbers of a narrow format, as float32."""
    raw = np.arange(1 << FORMATS[kind].bits, dtype=f"uint{FORMATS[kind].bits}")
    with np.errstate(all="ignore"):
        return raw.view(NATIVE[kind]).astype(np.float32)


@pytest.mark.parametrize("kind", NARROW)
def test_every_number_of_a_format_stays_what_it_is(kind):
    x = every(kind)
    assert same(rounded(x, kind), x)


@pytest.mark.parametrize("kind", NARROW)
def test_between_neighbours_and_at_ties_it_rounds_as_the_library_does(kind):
    x = np.unique(every(kind)[np.isfinite(every(kind))])
    middle = ((x[1:].astype(np.float64) + x[:-1]) / 2).astype(np.float32)
    end = np.float32(np.inf)
    for near in (middle, np.nextafter(middle, end), np.nextafter(middle, -end)):
        assert same(rounded(near, kind), through(near, kind))


@pytest.mark.parametrize("kind", NARROW)
def test_any_float32_rounds_as_in_the_library(kind):
    raw = np.random.default_rng(0).integers(0, 1 << 32, 400_000, dtype=np.uint32)
    x = np.concatenate([raw.view(np.float32), np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])])
    assert same(rounded(x, kind), through(x, kind))


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"])
def test_torch_rounds_to_the_same_bits(kind):
    torch = pytest.importorskip("torch")
    target = getattr(torch, FORMATS[kind].name)
    raw = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    x = raw.view(np.float32)
    x = np.concatenate([x, np.random.default_rng(2).normal(0, 20, 200_000).astype(np.float32)])
    if kind == "fp8_e4m3":  # what becomes of larger ones depends on torch's version
        x = x[np.abs(x) <= 448]
    got = torch.from_numpy(x).to(target).float().numpy()
    assert same(rounded(x, kind), got)


@pytest.mark.parametrize("kind", ["fp32", *NARROW])
def test_from_float64_it_rounds_once(kind):
    x = np.random.default_rng(3).normal(0, 3, 50_000) * 2.0 ** np.arange(-25, 25).repeat(1000)
    got = rounded(x, kind)
    assert got.dtype == np.float64
    step = ulp(x, kind)
    inside = np.abs(x) < FORMATS[kind].largest
    assert (np.abs(got - x)[inside] <= step[inside] / 2).all()
    if kind in ("fp32", "fp16"):
        with np.errstate(over="ignore"):
            assert np.array_equal(got, x.astype(NATIVE[kind]).astype(np.float64))


@pytest.mark.parametrize("kind", NARROW)
def test_adding_in_float32_and_rounding_is_adding_in_the_format(kind):
    rng = np.random.default_rng(4)
    a, b = (rng.choice(every(kind), 300_000) for _ in range(2))
    with np.errstate(all="ignore"):
        want = (a.astype(NATIVE[kind]) + b.astype(NATIVE[kind])).astype(np.float32)
        assert same(rounded(a + b, kind), want)


def test_what_is_too_large():
    x = np.float32([464, 465, 1e9, -1e9, np.inf])
    assert rounded(x, "fp8_e4m3")[0] == 448
    assert np.isnan(rounded(x, "fp8_e4m3")[1:]).all()
    assert rounded(x[:4], "fp8_e4m3", saturate=True).tolist() == [448, 448, 448, -448]
    assert rounded(np.float32([65519, 65520]), "fp16").tolist() == [65504, np.inf]
    assert rounded(np.float32([1e9, -1e9]), "fp16", saturate=True).tolist() == [65504, -65504]


@pytest.mark.parametrize(
    ("kind", "stall"), [("fp16", 2048), ("bf16", 256), ("fp8_e4m3", 16), ("fp8_e5m2", 8)]
)
def test_adding_ones_stops_at_one_over_u(kind, stall):
    total = np.float32([0])
    for _ in range(2 * stall):
        total = rounded(total + np.float32(1), kind)
    assert total == stall == 1 / FORMATS[kind].unit


def test_the_constants_of_the_formats():
    assert [FORMATS[k].unit for k in ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2")] == [
        2.0**-24,
        2.0**-11,
        2.0**-8,
        2.0**-4,
        2.0**-3,
    ]
    for kind, native in NATIVE.items():
        info = ml_dtypes.finfo(native)
        assert FORMATS[kind].largest == float(info.max)
        assert 2.0 ** FORMATS[kind].lowest == float(info.smallest_normal)
        assert FORMATS[kind].bits == info.bits


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=60))
def test_sums_are_those_of_fsum_to_a_hundred_digits(values):
    x = np.array(values, np.float32)
    want = math.fsum(x.tolist())
    most = abs(want) * 2.0**-52 + math.fsum(map(abs, x.tolist())) * 2.0**-100
    assert abs(exact_sum(x) - want) <= most


def test_sums_of_ordinary_numbers_are_those_of_fsum_along_any_axis():
    x = np.random.default_rng(0).normal(size=(500, 3, 40)).astype(np.float32)
    want = [[math.fsum(x[:, i, j].tolist()) for j in range(40)] for i in range(3)]
    assert exact_sum(x).tolist() == want
    assert exact_sum(np.moveaxis(x, 0, 2), axis=2).tolist() == want
    assert (exact_sum(np.concatenate([x, -x])) == 0).all()


@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
def test_an_ulp_is_the_distance_to_the_next_number(kind):
    x = np.abs(np.random.default_rng(0).normal(0, 9, 1000)).astype(NATIVE[kind])
    raw = x.view(f"uint{FORMATS[kind].bits}") + 1
    after = raw.view(NATIVE[kind])
    assert np.array_equal(ulp(x, kind), after.astype(np.float64) - x.astype(np.float64))
    assert error_in_ulps(after, x, kind) == pytest.approx(1)
    assert ulp(0.0, kind) == 2.0 ** (FORMATS[kind].lowest - FORMATS[kind].digits + 1)


def test_relative_errors():
    assert relative_rms([1.1, 2.0], [1.0, 2.0]) == pytest.approx(0.1 / 5**0.5)
    assert relative_rms([0.0], [0.0]) == 0


@pytest.mark.parametrize("kind", ["bf16", "bfloat16", ml_dtypes.bfloat16, FORMATS["bf16"]])
def test_formats_by_any_name(kind):
    assert format_of(kind) is FORMATS["bf16"]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.parametrize("op", ["sum", "avg", "max", "min"])
def test_rounding_after_each_step_is_playing_in_the_dtype(name, kind, op):
    x = np.random.default_rng(0).normal(0, 30, (5, 203)).astype(NATIVE[kind])
    schedule = ALGORITHMS[name](5)
    plain = run(schedule, x, op)
    for wire, accumulate in ((kind, kind), (None, kind), (kind, None)):
        got = run(schedule, x, op, wire=wire, accumulate=accumulate)
        assert got.dtype == x.dtype
        assert got.tobytes() == plain.tobytes()


def bf16_numbers(n, elements=4096, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, elements)).astype(np.float32)
    return rounded(x, "bf16")


@pytest.mark.parametrize("n", [4, 64])
def test_a_wide_accumulator_changes_not_one_bit_of_a_ring_with_a_narrow_wire(n):
    x = bf16_numbers(n)
    narrow = run(ring(n), x, wire="bf16", accumulate="bf16")
    wide = run(ring(n), x, wire="bf16", accumulate="fp32", round_owner=True)
    assert narrow.tobytes() == wide.tobytes()


def test_raw_shares_cross_once_and_cost_the_rings_bytes():
    n, x = 64, bf16_numbers(64)
    exact = exact_sum(x)
    ring_error = relative_rms(run(ring(n), x, wire="bf16")[0], exact)
    flat = run(pairwise_exchange(n), x, wire="bf16", accumulate="fp32", round_owner=True)
    assert 0.008 < ring_error < 0.011
    assert 0.0015 < relative_rms(flat[0], exact) < 0.0019
    assert len({each.tobytes() for each in flat}) == 1
    assert (sent_bytes(ring(n), 8192) == sent_bytes(pairwise_exchange(n), 8192)).all()


@pytest.mark.parametrize(
    "make", [ring, pairwise_exchange, recursive_doubling, halving_doubling, binomial_tree]
)
def test_replicas_disagree_unless_the_owner_rounds_what_it_sent(make):
    n, x = 8, bf16_numbers(8)
    for round_owner in (False, True):
        got = run(make(n), x, wire="bf16", accumulate="fp32", round_owner=round_owner)
        assert (len({each.tobytes() for each in got}) == 1) == round_owner


def test_a_thousand_ones_on_a_ring_and_on_a_tree():
    ones = np.ones((1000, 8), np.float32)
    assert (run(one_chain(1000), ones, wire="bf16")[0] == 256).all()
    assert (run(binomial_tree(1000), ones, wire="bf16") == 1000).all()


def one_chain(n):
    """One block of a ring's way: rank after rank adds and passes on."""
    hops = [Round.of(i, i + 1, 0, True) for i in range(n - 1)]
    back = [Round.of(n - 1, 0, 0, False)]
    return Schedule("chain", n, 1, lambda: hops + back, collective="reduce", root=0)


def test_policies_take_and_give_back_every_kind_of_array():
    torch = pytest.importorskip("torch")
    x = [torch.randn(4, 3, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    got = run(ring(3), x, wire="bf16", accumulate="fp32")
    want = run(ring(3), np.stack([each.numpy() for each in x]), wire="bf16", accumulate="fp32")
    assert isinstance(got, list)
    assert all(np.array_equal(g.numpy(), w) for g, w in zip(got, want, strict=True))
    half = run(ring(3), torch.stack(x).bfloat16(), wire="fp8_e5m2", accumulate="fp32")
    assert half.dtype == torch.bfloat16
    x64 = np.random.default_rng(0).normal(size=(3, 7))
    assert run(ring(3), x64, wire="fp32").dtype == np.float64
    assert (run(ring(3), x64, wire="fp64", accumulate="fp64") == run(ring(3), x64)).all()


def test_saturation_is_asked_for():
    x = np.full((4, 4), 200, np.float32)
    assert np.isnan(run(ring(4), x, wire="fp8_e4m3")).all()
    assert (run(ring(4), x, accumulate="fp8_e4m3", saturate=True) == 448).all()


def test_steps_can_be_watched_with_a_rounding():
    rounding = Rounding.of(np.float32, "bf16", "fp32", round_owner=True)
    assert repr(rounding) == (
        "Rounding(bfloat16 on the wire, float32 kept, what is sent is kept rounded)"
    )
    buf = bf16_numbers(4, 8).reshape(4, 4, 2).copy()
    want = run(ring(4), buf.reshape(4, 8), wire="bf16", accumulate="fp32", round_owner=True)
    *_, (_, last) = steps(ring(4), buf, rounding=rounding)
    assert np.array_equal(last.reshape(4, 8), want)
    with pytest.raises(TypeError, match="buf must be float32 for Rounding"):
        steps(ring(4), buf.astype(np.float64), rounding=rounding)


def test_policies_without_meaning_are_named():
    with pytest.raises(TypeError, match="round floating-point numbers, got int64"):
        run(ring(2), np.ones((2, 4), int), wire="bf16")
    with pytest.raises(ValueError, match="need a wire or accumulate dtype"):
        run(ring(2), np.ones((2, 4)), round_owner=True)
    with pytest.raises(ValueError, match="unknown format 'bf61'; did you mean 'bf16'"):
        run(ring(2), np.ones((2, 4)), wire="bf61")


def test_unknown_formats_and_kinds_are_named():
    with pytest.raises(ValueError, match="unknown format 'bf17'; did you mean 'bf16'"):
        rounded(np.float32([1]), "bf17")
    with pytest.raises(ValueError, match="unknown format 'int32'"):
        format_of(np.int32)
    with pytest.raises(TypeError, match="x must be float32 or float64, got int64"):
        rounded(np.array([1]), "bf16")
