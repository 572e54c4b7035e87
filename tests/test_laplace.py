"""The Laplace mechanism: its realised privacy, its releases against its law, dtypes, bad parameters, transforms."""

import copy
import math
import pickle

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracles_base as oracle
import pytest
from oracles_base import ALPHA

from jaxdp import Laplace, lattice, random

X64 = jax.config.jax_enable_x64
TOP = 2.0**52
ONE = Laplace(1.0, 1.0)


def numbers(law):
    """Location, rate and granularity as NumPy's: float64 JAX arrays warn in a 32-bit program."""
    return np.asarray(law.location), float(law.rate), float(law.granularity)


def realised(rate, shift):
    """Probabilities of the outcomes of two inputs `shift` steps apart, from the integers that the sampler compares."""
    _, p, log_error = oracle.realised_law(random.thresholds(rate), float(rate))
    both = np.zeros((2, len(p) + shift))
    both[0, :-shift], both[1, shift:] = p * np.exp(log_error), p * np.exp(log_error)
    return both


# Acceptance: the realised privacy loss of 0 against 1 at scale 1.


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("value", [np.float32(0), np.int32(0)])
def test_realised_loss_of_zero_against_one(value, traced):
    def law(epsilon):
        one, other = Laplace(1.0, epsilon).law(value), Laplace(1.0, epsilon).law(value + type(value)(1))
        return one.rate, random.thresholds(one.rate), other.location - one.location

    rate, table, shift = jax.jit(law)(np.float32(1.0)) if traced else law(1.0)
    np.testing.assert_array_equal(table, random.thresholds(ONE.law(value).rate))
    p, q = realised(rate, int(shift))
    for one, other in ((p, q), (q, p), (p[::-1], q[::-1])):
        assert oracle.hockey_stick(one, other, 1.0 + 1e-9) <= 2.0**-50
        assert oracle.loss_at(one, other, 2.0**-50) >= 0.999  # the check has power, and the budget is spent
    assert oracle.hockey_stick(p, q, 0.9) > 0.01


def test_float_laplace_noise_fails_the_same_check():
    """float32 jax.random.laplace has 2^23 values: most outputs for 0 are impossible for 1."""
    key, n = jax.random.key(11), 100_000
    bits = jax.random.bits(key, (n,), jnp.uint32)
    np.testing.assert_array_equal(oracle.jax_laplace(bits), jax.random.laplace(key, (n,), jnp.float32))

    noise = np.sort(np.asarray(oracle.jax_laplace(oracle.every_uniform())))
    values, p = oracle.run_lengths(np.float32(0) + noise)
    others, q = oracle.run_lengths(np.float32(1) + noise)
    place = np.minimum(np.searchsorted(others, values), len(others) - 1)
    shared = others[place] == values
    q = np.where(shared, q[place], 0)  # for these values; what is possible for 1 alone does not count
    assert p.sum() == 2**23
    assert oracle.hockey_stick(p / 2**23, q / 2**23, 1.0 + 1e-9) > 0.7


# Releases against the law.


def noise_of(law, draws):
    """The integer noise in releases, which must lie on the lattice."""
    location, _, step = numbers(law)
    steps = np.asarray(draws, np.float64) / step - location
    assert np.all(steps == np.rint(steps))
    return steps.astype(np.int64)


CASES = [
    (ONE, np.float32(0.3), 1 / 4097),
    (Laplace(2.0, 0.5), np.int32(-7), 0.25),
    (Laplace(1.0, 4.0, granularity=0.25), np.float32(1e3 + 0.3), 0.8),
]


@pytest.mark.parametrize(("mechanism", "value", "rate"), CASES)
def test_releases_follow_the_law(key, mechanism, value, rate):
    law = mechanism.law(value)
    location, got, step = numbers(law)
    np.testing.assert_allclose(got, rate, rtol=1e-15)
    assert location == math.floor(float(value) / step)
    draws = jax.jit(jax.vmap(mechanism.sample, (0, None)))(jax.random.split(key, 200_000), value)
    assert draws.dtype == value.dtype
    assert oracle.noise_test(noise_of(law, draws), rate) > ALPHA
    assert oracle.noise_test(noise_of(law, draws), 1.05 * rate) < ALPHA


@pytest.mark.parametrize("changed", [None, 2])
def test_vectors(key, changed):
    value = np.linspace(-3, 3, 20_000, dtype=np.float32)
    mechanism = Laplace(1.0, 2.0, granularity=2.0**-6, max_changed=changed)
    law = mechanism.law(value)
    rate = 2.0 / (64 + (changed or len(value)))
    np.testing.assert_allclose(law.rate, rate, rtol=1e-15)
    draws = mechanism.sample(key, value)
    assert draws.shape == value.shape
    noise = noise_of(law, draws)
    assert oracle.noise_test(noise, rate) > ALPHA and oracle.noise_test(noise, rate * 1.3) < ALPHA
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 6 / math.sqrt(len(noise))
    np.testing.assert_allclose(law.expected_error(), 2.0**-6 / math.sinh(rate), rtol=1e-12)


def test_integer_vectors_have_no_slack():
    value = np.array([1, 2, 3], np.int32)
    assert float(Laplace(2.0, 0.5).law(value).rate) == 0.25
    assert numbers(Laplace(2.0, 0.5, granularity=2.0).law(value))[1] == 0.5 / 3
    _, rate, step = numbers(Laplace(2.0, 0.5).law(value.astype(np.float32)))
    assert (rate, step) == (0.5 / (2 / step + 3), 2.0**-13)


# Numbers, large and of every dtype.


def exact(mechanism, key, value):
    """The release in exact arithmetic, from the same noise."""
    location, rate, step = numbers(mechanism.law(value))
    noise = random.draw_discrete_laplace(key, random.thresholds(rate), np.shape(value))
    return (location + np.asarray(noise, np.float64)) * step


@pytest.mark.parametrize("value", [1e6, 1e12])
def test_large_values_come_back_right(key, value):
    released = ONE.sample(key, np.float32(value))
    noise = float(exact(ONE, key, np.float64(value))) - value
    assert 0 < abs(noise) < 60
    half_ulp = np.spacing(np.float32(value)) / 2
    assert abs(float(released) - float(np.float32(value)) - noise) <= half_ulp + 2.0**-12
    released = ONE.sample(key, np.int32(10**6))
    assert released.dtype == np.int32 and int(released) == exact(ONE, key, np.int32(10**6))
    with jax.enable_x64(True):
        released = ONE.sample(key, np.float64(value))
        assert released.dtype == np.float64 and 0 < abs(float(released) - value) < 60
        assert float(released) == exact(ONE, key, np.float64(value))


def test_a_numpy_double_is_used_in_full(key):
    value = np.float64(1e9 + 1 / 3)
    released = ONE.sample(key, value)
    assert numbers(ONE.law(value))[0] == math.floor(value * 4096)  # float32 would round to 1e9
    assert released.dtype == (np.float64 if X64 else np.float32) == ONE.sample(key, float(value)).dtype


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("value", [3.25, -0.1, 1e4])
def test_floating_dtypes(key, dtype, value):
    value, mechanism = dtype(value), Laplace(0.5, 2.0)
    released = mechanism.sample(key, value)
    assert released.dtype == dtype
    assert released == np.float64(exact(mechanism, key, value)).astype(dtype)
    wide = Laplace(1e6, 0.1).sample(key, dtype(value))  # beyond the range of float16: the end, not infinity
    assert np.isfinite(np.asarray(wide).astype(np.float64))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32])
def test_integer_dtypes_saturate(key, dtype):
    info, mechanism = np.iinfo(dtype), Laplace(1.0, 0.01)
    values = np.repeat(np.array([info.min, info.max, info.max // 2], dtype), 200)
    released = mechanism.sample(key, values)
    assert released.dtype == dtype
    np.testing.assert_array_equal(released, np.clip(exact(mechanism, key, values), info.min, info.max).astype(dtype))
    released = np.asarray(released)
    assert np.any(released[:200] == info.min) and np.any(released[200:400] == info.max)


def test_python_integers(key):
    assert ONE.sample(key, 37).dtype == (np.int64 if X64 else np.int32)
    beyond = int(ONE.sample(key, 10**12))
    assert abs(beyond - 10**12) < 60 if X64 else beyond == 2**31 - 1
    assert numbers(ONE.law(10**12))[0] == 1e12


@pytest.mark.parametrize(
    ("value", "end"), [(math.nan, -TOP), (-math.inf, -TOP), (math.inf, TOP), (1e300, TOP), (-1e300, -TOP), (1e15, TOP)]
)
def test_values_beyond_the_range_are_clamped(key, value, end):
    assert numbers(ONE.law(value))[0] == end
    released = float(ONE.sample(key, value))
    assert released == pytest.approx(end / 4096, rel=1e-6)
    vector = ONE.sample(key, np.array([value, 0.0]))
    assert abs(vector[1]) < 100 and float(vector[0]) == pytest.approx(end / 8192, rel=1e-6)


# Bad parameters.

BAD = [
    *(("epsilon", dict(epsilon=e)) for e in (0, 0.0, -1.0, math.nan, math.inf, 1e-39, 1e-30, 33.0, 1e6, True, 1j, "1")),
    *(("epsilon", dict(epsilon=e)) for e in (np.ones(2), None, 1e-8)),
    *(("sensitivity", dict(sensitivity=s)) for s in (0, -1.0, math.nan, math.inf, True, 1j, np.ones(1), None)),
    *(("granularity", dict(granularity=g)) for g in (3.0, 0.0, -1.0, math.nan, math.inf, True, 0.3, 2.0**600)),
    *(("max_changed", dict(max_changed=c)) for c in (0, -1, 1.5, True)),
]


@pytest.mark.parametrize(("name", "change"), BAD)
def test_bad_parameters_name_the_argument(key, name, change):
    mechanism = Laplace(**({"sensitivity": 1.0, "epsilon": 1.0} | change))
    for call in (lambda: mechanism.sample(key, np.float32(0.5)), lambda: mechanism.law(0.5)):
        with pytest.raises(ValueError, match=f"{name} must"):
            call()
    if str(change.get("epsilon")) not in ("1e-39", "1e-30", "1e-08"):  # which only int32 noise rules out
        for call in (mechanism.privacy, mechanism.worst_case):
            with pytest.raises(ValueError, match=f"{name} must"):
                call()


def test_a_tiny_epsilon_needs_a_coarse_lattice(key):
    with pytest.raises(ValueError, match="per step of the lattice, got epsilon=1e-06 with sensitivity=1"):
        Laplace(1.0, 1e-6, granularity=2.0**-10).law(0.5)
    law = Laplace(1.0, 1e-6, granularity=1.0).law(0.5)
    assert float(law.rate) == 5e-7
    assert np.isfinite(Laplace(1e-300, 1.0).sample(key, 0.5)) and float(law.expected_error()) > 1e6


@pytest.mark.parametrize("value", [np.zeros((2, 2)), np.zeros(0), True, 1j, "1", np.array([True]), None])
def test_bad_values(key, value):
    with pytest.raises(ValueError, match="value must be"):
        ONE.sample(key, value)


@pytest.mark.parametrize("value", [10**30, -(2**80), [2**70, 1]])
def test_integers_beyond_64_bits_are_clamped_without_an_error(key, value):
    release = ONE.sample(key, value)
    sign = np.sign(np.array(value, float)).astype(int)
    info = jnp.iinfo(release.dtype)
    expected = np.where(sign > 0, min(info.max, 2**52), max(info.min, -(2**52)))
    np.testing.assert_allclose(np.asarray(release, float).ravel()[0], expected.ravel()[0], atol=200)


@pytest.mark.parametrize("bad", [np.zeros(2, np.uint32), jnp.zeros(2, jnp.uint32), 0, None])
def test_bad_keys(key, bad):
    for value in (bad, jax.random.split(key)):
        with pytest.raises(ValueError, match="key must be"):
            ONE.sample(value, 0.5)


@jax.jit
def traced(key, sensitivity, epsilon):
    mechanism = Laplace(sensitivity, epsilon)
    whole = mechanism.sample(key, np.int32(3))
    return mechanism.sample(key, np.float32(3.0)), mechanism.sample(key, np.zeros(2, np.float32)), whole


@pytest.mark.parametrize(
    ("sensitivity", "epsilon"),
    [(1.0, e) for e in (0.0, -1.0, math.nan, math.inf, 1e-39, 1e-30, 33.0, 1e6)]
    + [(s, 1.0) for s in (0.0, -1.0, math.nan, math.inf)]
    + [(0.0, 0.0), (math.inf, math.inf), (-1.0, -1.0)],
)
def test_traced_bad_parameters_fail_closed(key, sensitivity, epsilon):
    scalar, vector, whole = traced(key, np.float32(sensitivity), np.float32(epsilon))
    assert np.isnan(scalar) and np.all(np.isnan(vector)) and int(whole) == -(2**31)
    good = traced(key, np.float32(1.0), np.float32(0.5))
    assert np.isfinite(good[0]) and abs(int(good[2])) < 1000


# The guarantee.


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 4.0, 12.0, 30.0, 32.0])
@pytest.mark.parametrize("sensitivity", [1.0, 3.0, 0.1])
def test_the_claimed_delta_bounds_the_hockey_stick(epsilon, sensitivity):
    mechanism = Laplace(sensitivity, epsilon)
    privacy, pairs = mechanism.privacy(), [mechanism.worst_case()]
    assert privacy.epsilon == epsilon and privacy.delta == lattice.tail_delta(epsilon) <= 1e-6
    if sensitivity >= 1:
        pairs.append((np.int32(0), np.int32(sensitivity)))
    for summary, neighbour in pairs:
        for one, other in ((summary, neighbour), (neighbour, summary)):
            law, second = mechanism.law(one), mechanism.law(other)
            # The rate is rounded to a double: epsilon is met to that precision.
            assert law.hockey_stick(second, epsilon * (1 + 1e-15)) <= privacy.delta
            loss = law.loss_at(second, privacy.delta)
            assert epsilon * (1 - 2 / 4097) <= loss <= epsilon * (1 + 1e-12)
            assert law.hockey_stick(second, 0.9 * epsilon) > privacy.delta
            assert law.max_divergence(second) == math.inf


def test_neighbouring_vectors_stay_within_the_claim():
    mechanism = Laplace(2.0, 1.0, max_changed=2, granularity=0.125)
    first = np.array([0.99, 5.0, -0.01, 7.0])
    for change in ([0.01, 0, 0.01, 0], [0, 2, 0, 0], [1, 0, -1, 0]):
        second = first + np.array(change)
        law, other = mechanism.law(first), mechanism.law(second)
        assert law.loss_at(other, mechanism.privacy().delta) <= 1.0
    histogram = Laplace(2.0, 1.0, max_changed=2)
    law, other = histogram.law(np.array([3, 0, 9], np.int32)), histogram.law(np.array([3, 1, 8], np.int32))
    np.testing.assert_allclose(law.loss_at(other, histogram.privacy().delta), 1.0, rtol=1e-9)


# JAX.


@pytest.mark.leaks
def test_transforms_equal_the_loop(key):
    def release(key, value, sensitivity, epsilon):
        mechanism = Laplace(sensitivity, epsilon)
        return mechanism.sample(key, value), mechanism.sample(jax.random.fold_in(key, 1), value.astype(jnp.int32))

    keys, values = jax.random.split(key, 4), np.array([0.1, -7.3, 1e5, 0.0], np.float32)
    sensitivities, epsilons = np.array([1, 2, 0.5, 3], np.float32), np.array([0.1, 1.0, 3.0, 20.0], np.float32)
    rows = zip(keys, jnp.asarray(values), sensitivities.tolist(), epsilons.tolist(), strict=True)
    expected = [np.stack(column) for column in zip(*(release(*row) for row in rows), strict=True)]
    for name, got in oracle.transforms(release, keys, values, sensitivities, epsilons):
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_records_are_batched_by_vmap(key):
    epsilons = np.array([0.1, 1.0, 3.0], np.float32)
    records = jax.vmap(lambda epsilon: Laplace(jnp.float32(1.0), epsilon))(epsilons)
    got = jax.vmap(lambda record: record.sample(key, np.float32(0.5)))(records)
    np.testing.assert_array_equal(got, [Laplace(1.0, float(e)).sample(key, np.float32(0.5)) for e in epsilons])


def test_one_program_serves_every_parameter(key):
    traces = []

    @jax.jit
    def release(key, sensitivity, epsilon, value):
        traces.append(epsilon)
        return Laplace(sensitivity, epsilon).sample(key, value)

    for i in range(5):
        release(key, 1.0 + i, 0.1 + i, float(i))
    assert len(traces) == 1
    ONE.sample(key, 0.5)
    with jax.no_tracing(True):  # eagerly, too
        assert all(np.isfinite(Laplace(1.0 + i, 0.1 + i).sample(key, float(i))) for i in range(5))


def test_key_reuse_checker_is_content(key):
    with jax.debug_key_reuse(True):
        ONE.sample(key, 0.5)


def test_records_can_be_copied(key):
    mechanism = Laplace(1.5, 0.25, granularity=0.5, max_changed=1)
    expected = mechanism.sample(key, 2.0)
    for other in (pickle.loads(pickle.dumps(mechanism)), copy.copy(mechanism), copy.deepcopy(mechanism)):
        assert other == other and other != mechanism
        assert (other.sensitivity, other.epsilon, other.granularity, other.max_changed) == (1.5, 0.25, 0.5, 1)
        assert other.sample(key, 2.0) == expected
    leaves, tree = jax.tree.flatten(mechanism)
    assert leaves == [1.5, 0.25] and jax.tree.unflatten(tree, leaves).sample(key, 2.0) == expected
