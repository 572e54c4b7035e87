"""Exact audits of the mechanisms on output bounds, on real neighbouring data sets of every statistic."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles_bounds
import pytest
from oracles import ALPHA, p_value

import jaxdp
from jaxdp.bounds._statistic import STATISTICS
from jaxdp.mechanisms import smooth_sensitivity

pytestmark = pytest.mark.slow

N, RADIUS, PAIRS, EPSILON = 12, 6, 500, 1.0
MECHANISMS = {
    "inverse": jaxdp.InverseSensitivity(EPSILON),
    "up": jaxdp.AsymmetricSensitivity(EPSILON),
    "down": jaxdp.AsymmetricSensitivity(EPSILON, direction="down"),
    "offset": jaxdp.AsymmetricSensitivity(EPSILON, 2.5),
    "smooth": jaxdp.SmoothSensitivity(EPSILON),
    "smooth-2": jaxdp.SmoothSensitivity(EPSILON, tail=2),
    "smooth-delta": jaxdp.SmoothSensitivity(EPSILON, 1e-4),
}


@functools.cache
def bounds_of_neighbours(name):
    """Bounds of 500 pairs of data sets that differ in one record, as two batches."""
    statistic = STATISTICS[name]
    rng = np.random.default_rng([ord(c) for c in name])
    x, y, _ = oracles_bounds.neighbours(statistic.draw, rng, N, PAIRS)
    make = jax.jit(jax.vmap(lambda records: statistic.call(records, RADIUS)))
    return tuple(make(tuple(map(jnp.asarray, oracles_bounds.cast(records, "float32")))) for records in (x, y))


@functools.cache
def losses(mechanism, monotonic):
    """One program for all statistics: the exact loss of each pair, both directions."""
    record = MECHANISMS[mechanism]
    delta = record.privacy().delta

    def loss(one, other):
        grid = jaxdp.default_grid(record, one, 48)
        laws = [record.law((bounds, grid)) for bounds in (one, other)]
        return jnp.stack([laws[0].loss_at(laws[1], delta), laws[1].loss_at(laws[0], delta)])

    return jax.jit(jax.vmap(loss))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_loss_on_neighbouring_data_is_at_most_epsilon(mechanism):
    largest = {}
    for name in STATISTICS:
        one, other = bounds_of_neighbours(name)
        found = np.asarray(losses(mechanism, one.monotonic)(one, other))
        assert np.all(np.isfinite(found)), name
        largest[name] = found.max()
    assert max(largest.values()) <= EPSILON * (1.0 + 1e-9), largest
    # Not tight for all, but a test on data that never lose anything would say nothing.
    assert min(largest.values()) > 0.05 * EPSILON, largest


def test_variance_under_the_monotonic_budget_is_refuted():
    """The pair of the spec, (0, 0, 0, 1) against (0, 0, 1, 1) on [0, 4]: f rises and U^1 falls."""
    record = jaxdp.AsymmetricSensitivity(EPSILON)
    pair = [jaxdp.bounds.variance(np.array(x, float), 0.0, 4.0, radius=4) for x in ([0, 0, 0, 1], [0, 0, 1, 1])]
    # Candidates between the values of f, then one between the values of U^1.
    grid = np.append(np.linspace(0.19, 0.245, 8), [2.8, 4.0])
    assert 0.99 * EPSILON < jaxdp.audit.exact(record, *[(bounds, grid) for bounds in pair]) <= EPSILON
    wrong = [jaxdp.OutputBounds(bounds.lower, bounds.upper, monotonic=True) for bounds in pair]
    assert jaxdp.audit.exact(record, *[(bounds, grid) for bounds in wrong]) > 1.4 * EPSILON


@pytest.fixture(scope="module")
def column():
    x = np.random.default_rng(5).lognormal(1.0, 0.8, 1000)
    return jaxdp.bounds.variance(x, 0.0, 100.0, radius=300), jaxdp.geometric_grid(0.0, 2500.0, base=1.0003, unit=1e-3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_asymmetric_law_over_fifty_thousand_candidates(column, epsilon):
    bounds, grid = column
    assert len(grid) > 49_000
    p = np.exp(jaxdp.AsymmetricSensitivity(epsilon).law((bounds, grid)).log_p)
    assert abs(p.sum() - 1.0) <= 1e-12


def test_a_million_releases_have_the_asymmetric_law(column, key):
    def cells(epsilon):
        law = jaxdp.AsymmetricSensitivity(epsilon).law(column)
        return law, np.add.reduceat(np.exp(law.log_p), starts)

    starts = np.arange(0, len(column[1]), 200)
    law, p = cells(1.0)
    release = jax.jit(jax.vmap(law.sample))(jax.random.split(key, 1_000_000))
    index = np.searchsorted(np.asarray(law.outcomes), np.asarray(release))
    counts = np.bincount(index // 200, minlength=len(starts))
    assert p_value(counts, p) > ALPHA
    assert p_value(counts, cells(1.05)[1]) < ALPHA


def test_levels_of_the_grid_are_those_of_its_points(column):
    bounds, grid = column
    distance = np.asarray(bounds.distance(grid))
    a, b = map(np.asarray, bounds.cuts(grid))
    index = np.arange(len(grid))
    expected = np.sum((index[:, None] < a[None]) | (index[:, None] >= b[None]), axis=1)
    np.testing.assert_array_equal(distance, expected)


def test_a_fine_grid_has_the_error_of_the_continuous_form():
    x = np.random.default_rng(1).uniform(0.0, 10.0, 60)
    mechanism = jaxdp.InverseSensitivity(0.7)
    bounds = jaxdp.bounds.median(x, 0.0, 10.0, radius=60)
    law = mechanism.law((bounds, jaxdp.linear_grid(0.0, 10.0, 100_001)))
    exact = float(mechanism.continuous_error(bounds))
    assert abs(law.expected_error(float(bounds.value)) / exact - 1.0) < 1e-3
    # Numerical integration of the density, level by level.
    t = np.linspace(0.0, 10.0, 2_000_001)
    weight = np.exp(-0.7 / 2.0 * np.asarray(bounds.distance(t)))
    numeric = np.sum(weight * np.abs(t - float(bounds.value))) / np.sum(weight)
    assert abs(numeric / exact - 1.0) < 1e-3


@pytest.mark.parametrize("tail", [2, 4])
def test_condition_for_pure_privacy(tail):
    """A shift by S and a stretch by e^b together lose at most epsilon, whatever the noise's value; it is not loose."""
    epsilon = 1.3
    kappa = (tail - 1.0) ** ((tail - 1.0) / tail)
    a, b = epsilon / (2.0 * kappa), epsilon / (2.0 * max(1.0, tail - 1.0))
    z = np.concatenate([-np.logspace(8, -8, 40_001), [0.0], np.logspace(-8, 8, 40_001)])
    worst = 0.0
    for stretch in (np.exp(-b), 1.0, np.exp(b)):
        for shift in (-1.0, 0.0, 1.0):
            scale = stretch / a
            one = -np.log1p(np.abs(z * a) ** tail) + np.log(a)
            other = -np.log1p(np.abs((z - shift) / scale) ** tail) - np.log(scale)
            worst = max(worst, np.max(np.abs(one - other)))
    assert 0.5 * epsilon < worst <= epsilon


def test_smooth_sensitivity_bounds_that_of_the_definition():
    """On a full grid of data sets: at least the smooth sensitivity of the definition, and smooth itself."""
    values = np.array([0.0, 1.0, 2.0, 4.0])
    data = np.array(np.meshgrid(*[values] * 5, indexing="ij")).reshape(5, -1).T
    hamming = np.sum(data[:, None] != data[None], axis=2)
    f = np.sort(data, axis=1)[:, 2]
    local = np.max(np.where(hamming <= 1, np.abs(f[:, None] - f[None]), 0.0), axis=1)
    mechanism = jaxdp.SmoothSensitivity(1.0)
    b = 1.0 / 6.0
    true = np.max(np.where(hamming <= 5, np.exp(-b * hamming) * local[None], 0.0), axis=1)
    ours = np.asarray(
        jax.jit(jax.vmap(lambda x: mechanism.smooth_sensitivity(jaxdp.bounds.median(x, 0.0, 4.0, radius=5))))(
            jnp.asarray(data, jnp.float32)
        )
    )
    assert np.all(ours >= true * (1.0 - 1e-12))
    ratio = ours[:, None] / ours[None]
    assert np.max(ratio[hamming == 1]) <= np.exp(b) * (1.0 + 1e-12)


def test_tail_probabilities_are_integrals():
    from scipy import integrate

    for tail, top in ((2, np.pi), (4, np.pi / np.sqrt(2.0))):
        for z in (0.0, 0.3, 0.999, 1.0, 1.001, 9.99, 10.01, 1e3):
            numeric = integrate.quad(lambda t, g=tail: 1.0 / (1.0 + t**g), z, np.inf, epsabs=0, epsrel=1e-12)[0] / top
            with jax.enable_x64(True):
                ours = float(smooth_sensitivity._tail_probability(jnp.float64(z), tail, laplace=False))
            assert abs(ours / numeric - 1.0) < 1e-10


def test_release_is_the_mechanism_on_the_statistic(key):
    x = np.random.default_rng(0).uniform(0.0, 10.0, 300)
    for name, record in (("asymmetric", MECHANISMS["up"]), ("inverse", MECHANISMS["inverse"])):
        bounds = jaxdp.bounds.variance(x, 0.0, 10.0, radius=40)
        expected = record.sample(key, (bounds, jaxdp.default_grid(record, bounds)))
        options = dict(statistic="variance", mechanism=name, epsilon=EPSILON, lower=0.0, upper=10.0, radius=40)
        assert jaxdp.release(key, x, **options) == expected
        compiled = jax.jit(lambda k, o=options: jaxdp.release(k, jnp.asarray(x, jnp.float32), **o))(key)
        assert compiled.dtype == jnp.asarray(1.0).dtype and 0.0 <= compiled <= 25.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(statistic="varianze"), "statistic must be one of"),
        (dict(mechanism="laplas"), "mechanism must be one of"),
        (dict(lowr=0.0), "bounds.variance: .*lowr"),
        (dict(epsilon=0.0), "epsilon must be positive"),
        (dict(lower=10.0), "lower"),
        (dict(radius=-1), "radius"),
    ],
)
def test_bad_arguments_of_release_are_named(key, options, message):
    good = dict(statistic="variance", epsilon=1.0, lower=0.0, upper=10.0)
    with pytest.raises(ValueError, match=message):
        jaxdp.release(key, np.arange(10.0), **{**good, **options})


def test_radius_and_asymmetry():
    # log(2000 / 1e-6) / e2 with e2 = (1 - 1 / (1 + 2^(2/3))) / 2
    e2 = (1.0 - 1.0 / (1.0 + 2.0 ** (2.0 / 3.0))) / 2.0
    assert jaxdp.radius_for(2000, 1.0, 1e-6) == int(np.ceil(np.log(2e9) / e2))
    levels = np.arange(5.0)
    assert abs(jaxdp.asymmetry(jaxdp.OutputBounds(-levels, levels), 1.0) - 0.5) < 1e-12
    assert jaxdp.asymmetry(jaxdp.OutputBounds(0 * levels, levels), 1.0) == 1.0
