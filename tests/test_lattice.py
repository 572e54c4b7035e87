"""Rounding to the lattice, the sensitivity in steps, the default step, and the cast back."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxdp import lattice

TOP = 2.0**52


def steps_of(values, granularity):
    return np.asarray(lattice.to_steps(np.asarray(values), granularity))


def exact_floor(values, granularity):
    clamp = int(TOP)
    return [max(-clamp, min(clamp, math.floor(Fraction(float(v)) / Fraction(granularity)))) for v in values]


def wild(rng, n, dtype):
    """Random floats: of all sizes, near whole numbers, on them, and just beside."""
    whole = rng.integers(-1000, 1000, n).astype(dtype)
    wide = rng.normal(size=n).astype(dtype) * (2.0 ** rng.integers(-60, 60, n)).astype(dtype)
    up, down = np.nextafter(whole, dtype(np.inf)), np.nextafter(whole, dtype(-np.inf))
    tiny = dtype(np.finfo(dtype).tiny)
    return np.concatenate([wide, whole, np.where(up == tiny, 0, up), down, [dtype(0), -dtype(0), tiny, -tiny]])


@pytest.mark.parametrize("granularity", [2.0**-40, 0.125, 1.0, 2.0, 2.0**30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_the_exact_floor(dtype, granularity):
    values = wild(np.random.default_rng(0), 300, dtype)
    # XLA flushes values and quotients below the normal range to zero: see the test on subnormals.
    normal = np.abs(values.astype(np.float64)) >= max(np.finfo(dtype).tiny, granularity * np.finfo(np.float64).tiny)
    values = values[(values == 0) | normal]
    steps = steps_of(values, granularity)
    assert steps.dtype == np.float64
    np.testing.assert_array_equal(steps, exact_floor(values, granularity))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.float16, ml_dtypes.bfloat16])
def test_rounding_of_other_dtypes(dtype):
    values = np.array([0, 1, 3, 100, 127]).astype(dtype)
    for granularity in (0.5, 1.0, 4.0):
        np.testing.assert_array_equal(steps_of(values, granularity), exact_floor(values, granularity))


def test_the_largest_integers_are_not_wrapped():
    with jax.enable_x64(True):
        ends = np.array([-(2**63), 2**63 - 1, 2**52 - 1])
        assert steps_of(ends, 1.0).tolist() == [-TOP, TOP, TOP - 1]
    assert steps_of(np.array([2**32 - 1], np.uint32), 1.0) == 2**32 - 1


def test_rounding_is_monotone_down_to_subnormals():
    values = np.array([-5e-300, -1e-310, -5e-324, -0.0, 0.0, 5e-324, 1e-310, 5e-300])
    for granularity in (2.0**-500, 1.0, 2.0**500):
        steps = steps_of(values, granularity)
        assert np.all(np.diff(steps) >= 0) and np.all(np.abs(steps[2:6]) <= 1)


def test_clamps():
    values = [math.nan, -math.inf, -1e300, -TOP - 2, -TOP, TOP - 0.5, TOP + 2, 1e300, math.inf]
    assert steps_of(values, 1.0).tolist() == [-TOP] * 5 + [TOP - 1] + [TOP] * 3


def distance(first, second, granularity):
    """L1 distance in steps."""
    return np.sum(np.abs(steps_of(first, granularity) - steps_of(second, granularity)), axis=-1)


def allowed(sensitivity, granularity, changed, integer):
    return float(lattice.sensitivity_steps(sensitivity, granularity, float(changed), integer=integer))


def neighbours(rng, n, k, sensitivity):
    """Vectors at L1 distance at most `sensitivity` as exact numbers, near the lattice's borders and far from them."""
    first = np.where(rng.random((n, k)) < 0.5, rng.integers(-50, 50, (n, k)) / 8, rng.normal(size=(n, k)) * 10)
    first = np.where(rng.random((n, k)) < 0.3, np.nextafter(first, rng.choice([-1e9, 1e9], (n, k))), first)
    share = rng.dirichlet(np.full(k, 0.5), n) * sensitivity * rng.choice([1.0, 0.3, 1e-9], (n, 1))
    second = first + share * rng.choice([-1.0, 1.0], (n, k))
    keep = []
    for a, b in zip(first, second, strict=True):
        moved = sum(abs(Fraction(x) - Fraction(y)) for x, y in zip(a, b, strict=True))
        keep.append(moved <= Fraction(sensitivity))
    assert np.mean(keep) > 0.3
    return first[keep], second[keep]


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize(("sensitivity", "granularity"), [(1.0, 0.125), (0.3, 0.25), (0.1, 0.125), (3.0, 1.0)])
def test_floats_stay_within_the_sensitivity(k, sensitivity, granularity):
    first, second = neighbours(np.random.default_rng(k), 2000, k, sensitivity)
    whole = math.ceil(Fraction(sensitivity) / Fraction(granularity))
    farthest = np.max(distance(first, second, granularity))
    assert farthest <= whole + k - 1  # the proof, for exact values
    assert allowed(sensitivity, granularity, k, False) == whole + k  # one step more for rounding errors


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("sensitivity", [1.0, 0.375, 2.5])
def test_the_bound_for_exact_floats_is_attained(k, sensitivity):
    granularity, tiny = 0.25, 2.0**-40
    # Every coordinate is just below a border and steps over it; the first one moves on by all that is left.
    first, second = np.full(k, -tiny), np.zeros(k)
    second[0] = sensitivity - k * tiny
    assert np.sum(np.abs(first - second)) == sensitivity
    bound = math.ceil(sensitivity / granularity) + k - 1
    assert distance(first, second, granularity) == bound == allowed(sensitivity, granularity, k, False) - 1
    # With rounding errors of less than half a step each, the last step is needed too.
    error = granularity / (2 * k) - tiny
    assert distance(first - error + tiny, second + error, granularity) <= allowed(sensitivity, granularity, k, False)


def test_the_step_for_rounding_errors_is_needed():
    # Neighbours 0 and 1 computed with errors of a billionth.
    assert distance(np.array([-1e-9]), np.array([1.0 + 1e-9]), 0.25) == 5 == allowed(1.0, 0.25, 1, False)


@pytest.mark.parametrize("sensitivity", [1.0, 2.0, 3.0, 7.0, 2.5])
@pytest.mark.parametrize("granularity", [1.0, 0.5, 2.0, 8.0])
def test_integers_need_no_slack_on_their_own_lattice(sensitivity, granularity):
    k, farthest = 2, 0
    for offset in range(16):
        for i in range(-int(sensitivity), int(sensitivity) + 1):
            rest = int(sensitivity) - abs(i)
            first, second = np.array([offset, 3], np.int32), np.array([offset + i, 3 + rest], np.int32)
            farthest = max(farthest, distance(first, second, granularity))
    steps = allowed(sensitivity, granularity, k, True)
    assert farthest <= steps == math.ceil(sensitivity / granularity) + (0 if granularity <= 1 else k - 1)
    if granularity <= 1 and sensitivity == int(sensitivity):
        assert farthest == steps  # tight


def reference_step(sensitivity, epsilon, divisor):
    scale = Fraction(sensitivity) / Fraction(epsilon)
    fine = min(max(Fraction(sensitivity) / Fraction(divisor), scale / 2**23), scale / 2**8)
    exponent = math.floor(math.log2(fine.numerator) - math.log2(fine.denominator)) - 2
    while Fraction(2) ** (exponent + 1) <= fine:
        exponent += 1
    return float(Fraction(2) ** min(max(exponent, -500), 500))


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1.0, 16.0, 31.9, 32.0])
def test_default_granularity(epsilon):
    step = jax.vmap(lattice.default_granularity, (0, None, None))
    for divisor in (4096.0, 3 * 4096.0):
        sensitivities = np.concatenate([10.0 ** np.arange(-300, 301, 25), [1.0, 3.0, 4096.0, 2.0**-500, 2.0**500]])
        with jax.enable_x64(True):
            got = np.asarray(step(sensitivities, epsilon, divisor))
        expected = [reference_step(float(s), epsilon, divisor) for s in sensitivities]
        ratios = got / expected
        # Where the quotient is a power of two but for rounding, either neighbour is right.
        assert np.all((ratios == 1.0) | ((epsilon == 31.9) & (np.abs(np.log2(ratios)) == 1)))
        assert np.all(np.frexp(got)[0] == 0.5)
        inside = np.abs(np.log2(sensitivities)) < 400
        scale = sensitivities[inside] / epsilon
        assert np.all((got[inside] >= scale * 2.0**-24) & (got[inside] <= scale * 2.0**-8))


INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_saturate_and_never_wrap(dtype):
    info = np.iinfo(dtype)
    dtype = np.dtype(dtype)
    steps = [math.nan, -math.inf, -1e30, -1.0, 0.0, 5.0, 1e30, math.inf, float(info.max), float(info.max) + 1, 2.0**32]
    got = [int(lattice.from_steps(step, 1.0, dtype=dtype)) for step in steps]
    # For 64 bits, the largest double that does not exceed the range.
    top = info.max if info.max < 2**53 else int(np.nextafter(float(info.max), 0.0))
    expected = [info.min, *(max(info.min, min(top, int(max(-1e30, min(1e30, s))))) for s in steps[1:])]
    assert got == expected
    half = lattice.from_steps(5.0, 0.5, dtype=dtype)
    assert int(half) == 2 and half.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_floats_saturate(dtype):
    largest, dtype = float(jnp.finfo(dtype).max), np.dtype(dtype)
    for steps, granularity in ((1e200, 2.0**400), (math.inf, 1.0), (2 * largest, 1.0), (largest, 1.0)):
        assert float(lattice.from_steps(steps, granularity, dtype=dtype)) == largest
        assert float(lattice.from_steps(-steps, granularity, dtype=dtype)) == -largest
    assert np.isnan(float(lattice.from_steps(math.nan, 1.0, dtype=dtype)))
    third = lattice.from_steps(3.0, 0.125, dtype=dtype)
    assert third.dtype == dtype and float(third) == 0.375
    rounded = np.float64((2.0**20 + 1) / 2**10).astype(dtype)
    assert float(lattice.from_steps(2.0**20 + 1, 2.0**-10, dtype=dtype)) == float(rounded)


def test_tail_delta():
    for epsilon in (1e-6, 1.0, 32.0):
        expected = math.expm1(epsilon) * math.exp(-46)
        assert lattice.tail_delta(epsilon) == expected
        np.testing.assert_allclose(jax.jit(lattice.tail_delta)(epsilon), expected, rtol=1e-5)
