"""DiscreteLaw against enumeration of all events, LatticeLaw against sums over the whole support."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import oracles_base as oracle
import pytest
from oracles_base import ALPHA

import jaxdp
from jaxdp import DiscreteLaw, LatticeLaw
from jaxdp._float64 import float64

EPSILONS = (0.0, 0.01, 0.3, 1.0, 2.5, 7.0, 30.0)
DELTAS = (0.0, 1e-6, 0.01, 0.3, 0.9)


def discrete(p, outcomes=None):
    with np.errstate(divide="ignore"):
        return DiscreteLaw(np.log(np.asarray(p, np.float64)), np.arange(len(p)) if outcomes is None else outcomes)


def pairs():
    rng = np.random.default_rng(3)
    for n in (1, 2, 5, 10):
        yield rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n))
    p, q = rng.dirichlet(np.full(8, 0.3)), rng.dirichlet(np.full(8, 0.3))
    yield p * (p > 0.01) / p[p > 0.01].sum(), q * (q > 0.01) / q[q > 0.01].sum()  # zeros, on both sides
    yield np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.25, 0.25])
    yield np.array([0.2, 0.8]), np.array([0.2, 0.8])
    yield np.array([1.0, 0.0]), np.array([0.0, 1.0])
    yield np.array([1e-7, 1 - 1e-7, 0.0]), np.array([0.0, 1.0, 0.0])


PAIRS = list(pairs())


@pytest.mark.parametrize("case", range(len(PAIRS)))
def test_divergences_are_those_of_the_best_event(case):
    p, q = PAIRS[case]
    law, other = discrete(p), discrete(q)
    for epsilon in EPSILONS:
        expected = oracle.hockey_stick(p, q, epsilon)
        np.testing.assert_allclose(law.hockey_stick(other, epsilon), expected, rtol=1e-12, atol=1e-15)
    for delta in DELTAS:
        expected = oracle.loss_at_events(p, q, delta)
        np.testing.assert_allclose(law.loss_at(other, delta), expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(oracle.loss_at(p, q, delta), expected, rtol=1e-9, atol=1e-9)
        if np.isfinite(expected):
            assert law.hockey_stick(other, expected + 1e-9) <= delta + 1e-12
    with np.errstate(divide="ignore"):
        largest = np.max(np.log(p[p > 0]) - np.log(q[p > 0]))
    np.testing.assert_allclose(law.max_divergence(other), largest, rtol=1e-12, atol=1e-12)
    assert law.max_divergence(other).dtype == np.float64


OUTCOMES = {
    "x": np.array([3, 1, 2, 1], np.int32),
    "y": np.array([[0.5, 1], [0.5, 1], [0, 0], [0.5, 1]], np.float32),
    "z": np.array([True, False, True, False]),
}
P = np.array([0.1, 0.2, 0.3, 0.4])


def test_log_prob_of_pytrees():
    law = discrete(P, OUTCOMES)
    rows = [jax.tree.map(lambda leaf, i=i: leaf[i], OUTCOMES) for i in range(4)]
    # The second and the fourth outcome are the same one.
    np.testing.assert_allclose([law.log_prob(row) for row in rows], np.log([0.1, 0.6, 0.3, 0.6]), rtol=1e-14)
    assert law.log_prob(rows[0] | {"y": np.array([0.5, 2], np.float32)}) == -np.inf
    assert law.log_prob(rows[0] | {"z": np.bool_(False)}) == -np.inf
    batch = jax.jit(jax.vmap(law.log_prob))(jax.tree.map(np.asarray, OUTCOMES))
    np.testing.assert_allclose(batch, np.log([0.1, 0.6, 0.3, 0.6]), rtol=1e-14)


def test_samples_are_outcomes_with_the_law(key):
    law, n = discrete(P, OUTCOMES), 200_000
    one = law.sample(key)
    assert [leaf.dtype for leaf in jax.tree.leaves(one)] == [np.int32, np.float32, np.bool_]
    draws = jax.jit(jax.vmap(law.sample))(jax.random.split(key, n))
    assert draws["y"].shape == (n, 2)
    x, z = np.asarray(draws["x"]), np.asarray(draws["z"])
    counts = np.array([np.sum(x == 1), np.sum(x == 2), np.sum(x == 3)])
    assert counts.sum() == n and np.all(z == (x != 1))
    np.testing.assert_array_equal(draws["y"][:, 1], (x != 2).astype(np.float32))
    assert oracle.chi_square(counts, np.array([0.6, 0.3, 0.1])) > ALPHA
    assert oracle.chi_square(counts, np.array([0.57, 0.33, 0.1])) < ALPHA


def test_impossible_outcomes_are_never_drawn(key):
    law = discrete([0.0, 0.5, 0.0, 0.5, 0.0])
    assert np.unique(jax.vmap(law.sample)(jax.random.split(key, 1000))).tolist() == [1, 3]


def test_expectation_and_errors():
    law = discrete(P, np.array([5.0, 2.0, 9.0, 4.0], np.float32))
    values = law.outcomes.astype(np.float64)
    np.testing.assert_allclose(law.expectation(lambda x: x), P @ values, rtol=1e-14)
    both = law.expectation(lambda x: jnp.stack([x, x * x]))
    np.testing.assert_allclose(both, [P @ values, P @ values**2], rtol=1e-14)
    error = np.abs(values - 4.0)  # 1, 2, 5, 0
    for form in (4.0, np.float32(4.0), error, lambda x: jnp.abs(x - 4)):
        np.testing.assert_allclose(law.expected_error(form), P @ error, rtol=1e-14)
        assert [law.error_quantile(prob, form) for prob in (0.0, 0.39, 0.41, 0.49, 0.69, 0.71, 1.0)] == [
            *(0, 0, 1, 1, 2, 5, 5)
        ]
    assert [float(law.quantile(prob)) for prob in (0.0, 0.05, 0.11, 0.31, 0.59, 0.61, 1.0)] == [5, 5, 2, 9, 9, 4, 4]
    with pytest.raises(ValueError, match="error must have shape"):
        law.expected_error(np.zeros(3))


def test_errors_of_halts():
    halts = jaxdp.Halt(np.arange(4, dtype=np.int32), np.array([True, True, True, False]))
    np.testing.assert_allclose(discrete(P, halts).expected_error(1), P @ [1, 0, 1, 2], rtol=1e-14)
    assert discrete(P, halts).quantile(0.5).index == 2


def test_an_impossible_infinite_outcome_does_not_spoil_the_mean():
    law = discrete([0.5, 0.5, 0.0], np.array([1.0, 3.0, np.inf], np.float32))
    assert law.expectation(lambda x: x) == 2.0 and law.expected_error(1.0) == 1.0
    assert discrete([0.5, 0.25, 0.25], law.outcomes).expectation(lambda x: x) == np.inf


def test_a_law_of_nan_fails_closed(key):
    law = DiscreteLaw(np.full(4, np.nan), OUTCOMES)
    row = law.sample(key)
    assert row["x"] == -1 and np.all(np.isnan(row["y"])) and not row["z"]
    row = law.quantile(0.5)
    assert row["x"] == -1 and np.all(np.isnan(row["y"])) and not row["z"]
    good = discrete(P, OUTCOMES)
    for one, two in ((law, good), (good, law), (law, law)):
        results = [one.max_divergence(two), one.hockey_stick(two, 0.5), one.loss_at(two, 0.1)]
        assert np.all(np.isnan(results))
    numbers = DiscreteLaw(law.log_p, np.arange(4.0))
    assert np.isnan(numbers.expected_error(0.0)) and np.isnan(numbers.error_quantile(0.5, 0.0))
    assert np.isnan(numbers.expectation(lambda x: x))
    assert np.isnan(good.loss_at(discrete(P[::-1], OUTCOMES), np.nan))
    assert np.isnan(good.hockey_stick(discrete(P, OUTCOMES), np.nan))
    with pytest.raises(ValueError, match="same outcomes"):
        good.max_divergence(discrete(P))


@float64
def softmax(x):
    return jax.nn.log_softmax(jnp.stack([x, 2 * x, x * x]))


@pytest.mark.leaks
def test_divergences_in_every_transform_of_a_float32_program():
    def results(x, y):
        law, other = DiscreteLaw(softmax(x), jnp.arange(3)), DiscreteLaw(softmax(y), jnp.arange(3))
        return law.max_divergence(other), law.hockey_stick(other, 0.1), law.loss_at(other, 0.01), law.expected_error(1)

    x, y = np.linspace(0.1, 2, 4).astype(np.float32), np.linspace(-1, 3, 4).astype(np.float32)
    expected = []
    for a, b in zip(x.astype(float), y.astype(float), strict=True):
        p, q = (np.exp([t, 2 * t, t * t]) / np.exp([t, 2 * t, t * t]).sum() for t in (a, b))
        row = np.max(np.log(p / q)), oracle.hockey_stick(p, q, 0.1), oracle.loss_at_events(p, q, 0.01), p[0] + p[2]
        expected.append(row)
    for name, got in oracle.transforms(results, x, y):
        assert all(column.dtype == np.float64 for column in got)
        np.testing.assert_allclose(np.stack(got, 1), expected, rtol=1e-12, err_msg=name)


OUTSIDE = "in 32-bit mode the gradient of a float64 gather is lowered outside the scope"
LOSS_AT = pytest.param("loss_at", marks=pytest.mark.xfail(not jax.config.jax_enable_x64, reason=OUTSIDE))


@pytest.mark.parametrize("divergence", ["max_divergence", "hockey_stick", LOSS_AT])
def test_gradients_of_divergences(divergence):
    log_q, arguments = np.log([0.3, 0.5, 0.2]), {"hockey_stick": (0.1,), "loss_at": (0.05,)}.get(divergence, ())

    def loss(x):
        return getattr(DiscreteLaw(softmax(x), jnp.arange(3)), divergence)(
            DiscreteLaw(log_q, jnp.arange(3)), *arguments
        )

    slope = jax.jit(jax.grad(lambda x: loss(x).astype(jnp.float32)))(np.float32(1.5))
    step = 1e-6
    expected = (loss(1.5 + step) - loss(1.5 - step)) / (2 * step)
    assert abs(expected) > 0.01
    np.testing.assert_allclose(slope, expected, rtol=1e-5)


# The discrete Laplace law on a lattice. These rates have supports of 2 to 512 steps.

RATES = (60.0, 46.0, 30.0, 12.0, 5.0, 1.1, 0.2)


def lattice_law(rate, location, granularity=0.5, dtype=np.float32):
    with jax.enable_x64(True):
        leaves = [jnp.asarray(leaf, jnp.float64) for leaf in (location, rate, granularity)]
    return LatticeLaw(*leaves, np.dtype(dtype))


@pytest.mark.parametrize("rate", RATES)
def test_lattice_log_prob(rate):
    z, p = oracle.discrete_laplace(rate)
    law = lattice_law(rate, 7)
    log_prob = jax.vmap(law.log_prob)
    with jax.enable_x64(True):  # for a batch of doubles
        got = np.asarray(log_prob((7 + z) * 0.5))
        outside = np.asarray(log_prob((7 + np.array([z[0] - 1, z[-1] + 1, 0.5, -0.25, 1e9, np.nan, np.inf])) * 0.5))
    np.testing.assert_allclose(got, np.log(p), rtol=1e-12, atol=1e-12)
    assert np.all(outside == -np.inf)
    np.testing.assert_allclose(law.log_prob(np.float32(3.5)), np.log(p[z == 0][0]), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("rate", RATES)
def test_lattice_divergences(rate):
    size = oracle.support(rate)
    other = lattice_law(rate, 0)
    for shift in {0, 1, 2, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 3}:
        for signed in (shift, -shift):
            p, q = oracle.shifted(rate, signed)
            law = lattice_law(rate, signed)
            for epsilon in (0.0, 0.01, 0.7, 3.0, 1.5 * rate, rate * shift, rate * shift + 1e-6, 700.0):
                expected = oracle.hockey_stick(p, q, epsilon)
                np.testing.assert_allclose(law.hockey_stick(other, epsilon), expected, rtol=1e-9, atol=1e-15)
            for delta in (0.0, 1e-9, 1e-3, 0.4, 1.0 - 1e-6):
                got, expected = law.loss_at(other, delta), oracle.loss_at(p, q, delta)
                np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
            assert law.max_divergence(other) == (0.0 if shift == 0 else np.inf)


@pytest.mark.parametrize("shifts", [(1, 1), (1, -1), (2, 0), (-3, 1), (0, 0), (1, 1, -1), (40, 2)])
@pytest.mark.parametrize("rate", [30.0, 12.0, 5.0])
def test_vector_divergences(rate, shifts):
    p, q = oracle.grid(rate, shifts)
    law, other = lattice_law(rate, shifts), lattice_law(rate, np.zeros(len(shifts)))
    for epsilon in (0.0, 0.5, rate, 2 * rate + 0.1, 2.9 * rate, 700.0):
        expected = oracle.hockey_stick(p, q, epsilon)
        np.testing.assert_allclose(law.hockey_stick(other, epsilon), expected, rtol=1e-9, atol=1e-15)
    for delta in (0.0, 1e-9, 1e-3, 0.4):
        np.testing.assert_allclose(law.loss_at(other, delta), oracle.loss_at(p, q, delta), rtol=1e-9, atol=1e-9)


def test_vector_divergences_at_a_common_rate():
    p, q = oracle.grid(0.7, (3, -2))
    law, other = lattice_law(0.7, (4, 5)), lattice_law(0.7, (1, 7))
    for epsilon in (0.0, 0.35, 1.0, 3.4, 3.6):
        expected = oracle.hockey_stick(p, q, epsilon)
        np.testing.assert_allclose(law.hockey_stick(other, epsilon), expected, rtol=1e-9, atol=1e-15)
    for delta in (1e-12, 1e-3, 0.4):
        np.testing.assert_allclose(law.loss_at(other, delta), oracle.loss_at(p, q, delta), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rate", RATES)
def test_lattice_errors_and_quantiles(rate):
    z, p = oracle.discrete_laplace(rate)
    law, g = lattice_law(rate, 7), 0.5
    np.testing.assert_allclose(law.expected_error(), p @ np.abs(z) * g, rtol=1e-12, atol=1e-15)
    size = oracle.support(rate)
    below = np.cumsum(p)
    within = np.array([p[np.abs(z) <= e].sum() for e in range(size + 1)])
    # Away from the jumps, where float64 could go either way.
    levels = np.concatenate([(below[:-1] + below[1:]) / 2, [1e-12, 0.001, 0.2, 0.5, 0.8, 0.999, 1 - 1e-12]])
    levels = levels[np.min(np.abs(levels[:, None] - np.concatenate([below, within])), axis=1) > 1e-14]
    levels = levels[:: max(1, len(levels) // 30)]
    for prob in levels:
        assert law.quantile(prob) == (7 + z[np.searchsorted(below, prob)]) * g
        assert law.error_quantile(prob) == np.searchsorted(within, prob) * g
    assert law.quantile(0.0) == (7 - size) * g and law.quantile(1.0) == (7 + size - 1) * g
    assert law.error_quantile(0.0) == 0.0 and law.error_quantile(1.0) == size * g


@pytest.mark.parametrize("rate", [60.0, 5.0, 0.2, 0.001])
def test_lattice_expectation(rate):
    z, p = oracle.discrete_laplace(rate)
    mean = lattice_law(rate, 7).expectation(lambda x: jnp.cos(x) + x)
    expected = p @ (np.cos((7 + z) * 0.5) + (7 + z) * 0.5)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    # The ends of the support count: only the last point.
    last = lattice_law(rate, 0, 1.0).expectation(lambda x: (x >= oracle.support(rate) - 1).astype(jnp.float64))
    np.testing.assert_allclose(last, p[-1], rtol=1e-9)


def test_expectation_of_vectors():
    law = lattice_law(1.1, [0.0, 3.0, -8.0])
    z, p = oracle.discrete_laplace(1.1)
    got = law.expectation(lambda x: x * x)
    np.testing.assert_allclose(got, [p @ ((m + z) * 0.5) ** 2 for m in (0, 3, -8)], rtol=1e-12)
    assert law.quantile(0.5).tolist() == [0.0, 1.5, -4.0]
    value = np.array([0.5, 1.5, -4.0], np.float32)
    np.testing.assert_allclose(law.log_prob(value), np.log(p[z == 0][0] ** 2 * p[z == 1][0]), rtol=1e-12)
    assert law.log_prob(np.array([0.5, 1.6, -4.0], np.float32)) == -np.inf


def test_lattice_samples_have_the_law(key):
    law = lattice_law(0.2, [7.0, -3.0])
    draws = np.asarray(jax.jit(jax.vmap(law.sample))(jax.random.split(key, 100_000)))
    assert draws.dtype == np.float32 and draws.shape == (100_000, 2)
    location = np.array([7, -3])
    noise = np.rint(draws / 0.5 - location).astype(int)
    np.testing.assert_array_equal((noise + location) * 0.5, draws)
    for column in noise.T:
        assert oracle.noise_test(column, 0.2) > ALPHA
        assert oracle.noise_test(column, 0.2 * 1.1) < ALPHA
    # independent coordinates
    assert abs(np.corrcoef(noise.T)[0, 1]) < 6 / math.sqrt(100_000)


def test_laws_of_different_mechanisms_are_not_compared():
    for other in (lattice_law(0.3, 0), lattice_law(0.2, 0, 1.0)):
        with pytest.raises(ValueError, match="same mechanism"):
            lattice_law(0.2, 0).hockey_stick(other, 1.0)
    with pytest.raises(ValueError, match="steps apart"):
        lattice_law(0.2, [2.0**21, 1.0]).loss_at(lattice_law(0.2, [0.0, 0.0]))
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda shift: lattice_law(1.0, [0.0, 1.0]).loss_at(LatticeLaw(shift, 1.0, 0.5, np.float32)))(np.ones(2))


@pytest.mark.leaks
def test_lattice_law_in_every_transform_of_a_float32_program():
    def results(value, epsilon):
        mechanism = jaxdp.Laplace(1.0, epsilon, granularity=0.25)
        law, other = mechanism.law(value), mechanism.law(value + 1)
        return (
            law.hockey_stick(other, 0.1),
            law.loss_at(other, 1e-3),
            law.log_prob(value),
            law.expected_error(),
            law.error_quantile(0.9),
            law.quantile(0.3),
        )

    values, epsilons = np.array([0.0, 2.25, -3.0, 7.5], np.float32), np.array([0.25, 1, 2, 6], np.float32)
    expected = []
    for value, epsilon in zip(values, epsilons, strict=True):
        rate = float(epsilon) / 5
        (p, q), (z, pmf) = oracle.shifted(rate, -4), oracle.discrete_laplace(rate)
        within = [pmf[np.abs(z) <= e].sum() for e in range(200)]
        row = [oracle.hockey_stick(p, q, 0.1), oracle.loss_at(p, q, 1e-3), np.log(pmf[z == 0][0])]
        row += [pmf @ np.abs(z) / 4, np.searchsorted(within, 0.9) / 4]
        expected.append([*row, value + z[np.searchsorted(np.cumsum(pmf), 0.3)] / 4])
    for name, got in oracle.transforms(results, values, epsilons):
        np.testing.assert_allclose(np.stack(got, 1), expected, rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_lattice_law_of_nan_fails_closed(key):
    law = lattice_law(np.nan, 3)
    assert np.isnan(law.sample(key)) and np.isnan(law.log_prob(np.float32(1.5))) and np.isnan(law.expected_error())
    assert np.isnan(law.error_quantile(0.5)) and np.isnan(law.quantile(0.5)) and np.isnan(law.expectation(jnp.abs))
    compare = jax.jit(lambda r: [getattr(law, f)(LatticeLaw(4.0, r, 0.5, law.dtype), 0.1) for f in COMPARISONS])
    assert np.all(np.isnan(compare(np.float32(np.nan))))
    assert lattice_law(np.nan, 3, dtype=np.int32).sample(key) == -(2**31)
    good = lattice_law(0.2, 3)
    assert np.isnan(good.loss_at(lattice_law(0.2, 4), np.nan))
    assert np.isnan(good.hockey_stick(lattice_law(0.2, 4), np.nan))
    assert np.isnan(lattice_law(0.2, [3, 3]).loss_at(lattice_law(0.2, [4, 4]), np.nan))


COMPARISONS = ("hockey_stick", "loss_at")


def test_laws_are_arguments_and_results_of_compiled_functions():
    law = jax.jit(lambda epsilon: jaxdp.Laplace(1.0, epsilon).law(np.float32(2.5)))(np.float32(0.3))
    np.testing.assert_allclose(law.rate, np.float64(np.float32(0.3)) / 4097, rtol=1e-15)
    assert float(jax.jit(lambda one: one.expected_error())(law)) == float(law.expected_error())
    laws = jax.tree.map(lambda leaf: leaf[None], law)
    assert jax.vmap(lambda one: one.hockey_stick(one, 0.0))(laws).tolist() == [0.0]
    law = jaxdp.ExponentialMechanism(1.0, 0.3).law(np.array([0.0, 1.0, 3.0]))
    np.testing.assert_allclose(jax.jit(lambda one: one.expected_error(0))(law), law.expected_error(0), rtol=1e-15)


def test_discrete_laws_pickle(key):
    law = discrete(P, OUTCOMES)
    other = pickle.loads(pickle.dumps(law))
    np.testing.assert_array_equal(law.log_p, other.log_p)
    assert jax.tree.all(jax.tree.map(np.array_equal, law.sample(key), other.sample(key)))
