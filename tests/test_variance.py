"""Variance and standard deviation: bounds against brute force and exact integers, the contract, and its controls."""

import functools
import importlib
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import oracles_bounds
import oracles_variance as oracles
import pytest
from jax.sharding import Mesh, PartitionSpec
from marks import first

import jaxdp
from jaxdp.bounds import standard_deviation, variance

module = importlib.import_module("jaxdp.bounds.variance")
ETA = module.ETA


@functools.cache
def _program(fn, radius):
    return jax.jit(jax.vmap(lambda x, upper: fn(x, 0.0, upper, radius=radius), (0, None)))


def _batch(x, upper, radius, *, fn=variance):
    """Bounds of data sets (rows, n) in double precision, in calls of as many rows each: one program serves them all."""
    x = np.asarray(x, np.float64)
    rows, size = len(x), min(256, max(1, 2_000_000 // x.shape[1]))
    made = []
    for start in range(0, rows, size):
        index = np.minimum(np.arange(start, start + size), rows - 1)
        with jax.enable_x64(True):
            made.append(_program(fn, radius)(x[index], np.float64(upper)))
    return tuple(np.concatenate([getattr(b, name) for b in made])[:rows] for name in ("lower", "upper", "sensitivity"))


# The mathematics, on full small grids.


@pytest.mark.parametrize("n", first(4, [1, 2, 3, 6, 4, 5]))
def test_bounds_against_brute_force_on_full_grids(n):
    """All 2,771 levels of all data sets of up to 6 records on 5 points."""
    sets, width, unit = oracles.multisets(n, 5), 4, 8.0
    grid_least, most = oracles.brute_force(n, 5)
    lower, upper, sensitivity = _batch(sets, 4.0, n)
    levels = np.arange(n + 1)
    # Half of eta for the errors.
    allowed = (levels + 0.5) * ETA * unit**2
    exact = np.array([[float(Fraction(*oracles.least_over_subsets(x, r))) for r in levels] for x in sets]) / n**2
    assert np.all(lower[:, :-1] >= exact - allowed) and np.all(lower[:, :-1] <= exact + allowed[0])
    # On the grid itself the mean of the others may be missing.
    assert np.all(lower[:, :-1] * n**2 <= grid_least + 1e-9)
    assert np.all(upper[:, :-1] >= most / n**2 - allowed[0])
    assert np.all(upper[:, :-1] <= (most + width**2 / 4) / n**2 + allowed)
    # The last entries are the extremes, and the sensitivity is exact.
    assert np.all(lower[:, -1] == 0.0) and np.allclose(upper[:, -1], most.max() / n**2, rtol=1e-15)
    assert most.max() == (n // 2) * ((n + 1) // 2) * width**2
    values = np.array([oracles.scaled_variance(x) for x in sets])
    counts = np.array([np.bincount(x, minlength=5) for x in sets])
    near = np.minimum(counts[:, None], counts[None]).sum(axis=2) >= n - 1
    change = np.where(near, np.abs(values[:, None] - values[None]), 0).max()
    assert change == (n - 1) * width**2
    assert np.all(change / n**2 <= sensitivity) and np.allclose(sensitivity, change / n**2, atol=1e-12)
    deviation = np.sqrt(values) / n
    change = np.where(near, np.abs(deviation[:, None] - deviation[None]), 0.0).max()
    assert np.isclose(change, width * np.sqrt(n - 1) / n)
    if n == 4:
        roots = _batch(sets, 4.0, n, fn=standard_deviation)
        assert np.all(change <= roots[2]) and np.allclose(roots[2], change, atol=1e-12)
        assert np.allclose(roots[0], np.sqrt(lower), rtol=1e-15) and np.allclose(roots[1], np.sqrt(upper), rtol=1e-15)


@pytest.mark.parametrize("n", range(1, 7))
def test_the_exact_upper_form_by_windows_is_the_brute_force(n):
    _, most = oracles.brute_force(n, 5)
    for x, row in zip(oracles.multisets(n, 5), most, strict=True):
        assert oracles.most_windowed(x, 4, n) == row.tolist()
        for r, (p, q) in enumerate(oracles.least_windowed(x, n - 1)):
            assert Fraction(p, q) == Fraction(*oracles.least_over_subsets(x, r))


# The arithmetic, against exact integers. Errors must stay below half of eta: that is what the contract rests on.


@pytest.mark.parametrize(("n", "radius", "rows"), [(7, 9, 120), (150, 150, 12), (2000, 12, 8)])
@pytest.mark.parametrize("width", [5, 2**20 - 1])
def test_errors_stay_below_half_of_the_widening(n, radius, rows, width):
    rng = np.random.default_rng(n + width)
    data = [oracles.adversarial(rng, n, width) for _ in range(rows)]
    lower, upper, _ = _batch(data, float(width), radius)
    unit, kept = 2.0 ** int(width).bit_length(), min(radius, n - 1)
    half = Fraction(ETA * unit**2) / 2
    for x, low, high in zip(data, lower, upper, strict=True):
        exact = [Fraction(p, q * n * n) for p, q in oracles.least_windowed(x, kept)]
        most = [Fraction(p, 4 * n * n) for p in oracles.most_relaxed(x, width, kept)]
        extreme = Fraction((n // 2) * ((n + 1) // 2) * width**2, n * n)
        for r in range(kept + 1):
            assert abs(Fraction(low[r]) - max(exact[r] - 2 * r * half, 0)) <= half
            assert abs(Fraction(high[r]) - min(most[r] + 2 * r * half, extreme)) <= half
        # The value itself is better than that.
        assert abs(Fraction(low[0]) - exact[0]) <= exact[0] / 2**49


def test_errors_with_a_million_records():
    n, radius, width = 1_000_000, 6, 2**20 - 1
    rng = np.random.default_rng(5)
    for x in (rng.integers(0, width + 1, n), np.clip(width + rng.standard_cauchy(n), 0, width).astype(np.int64)):
        lower, upper, _ = _batch([x], float(width), radius)
        z = 2 * np.sort(x) - width
        # The sums of squares fit in 63 bits; 64-bit mantissas are enough to see errors of 53-bit ones.
        sums, squares = (np.append(0, np.cumsum(part)) for part in (z, z * z))
        for r in range(radius + 1):
            m, s = n - r, np.arange(r + 1)
            s1, s2 = (t[s + m] - t[s] for t in (sums, squares))
            least = np.min(np.longdouble(s2) - np.longdouble(s1) ** 2 / m) / n / 4
            s1, s2 = (t[-1] - (t[r:] - t[: n + 1 - r]) for t in (sums, squares))
            rest = np.longdouble(np.maximum(np.abs(s1) - r * width, 0))
            most = np.max((s2 + r * np.longdouble(width) ** 2) * n - rest**2) / np.longdouble(n) ** 2 / 4
            for entry, exact in ((lower[0, r], least - r * ETA * 2.0**40), (upper[0, r], most + r * ETA * 2.0**40)):
                assert abs(entry - exact) <= ETA * 2.0**40 / 2


# The contract, at tolerance zero; what rounds or reasons worse must fail.


def _neighbours(rng, n, pairs):
    data = np.array([oracles.adversarial(rng, n, 1000) for _ in range(pairs)]) * rng.choice([1e-3, 7e-4], (pairs, 1))
    other = data.copy()
    index = rng.integers(n, size=pairs)
    other[np.arange(pairs), index] = rng.choice([0.0, 1.0, *rng.random(4)], pairs)
    return data, other


@pytest.mark.parametrize(
    ("fn", "n", "radius", "pairs"),
    [(variance, 5, 5, 1500), (standard_deviation, 5, 5, 1500), (variance, 40, 40, 500), (variance, 1000, 30, 50)],
)
def test_contract_in_double_precision(fn, n, radius, pairs):
    x, y = _neighbours(np.random.default_rng(n), n, pairs)
    lower, upper, sensitivity = _batch(np.concatenate([x, y]), 1.0, radius, fn=fn)
    one, two = (lower[:pairs], upper[:pairs]), (lower[pairs:], upper[pairs:])
    assert not any(oracles_bounds.violations(one, two, np.zeros(pairs, int)).values())
    assert np.all(np.abs(one[0][:, 0] - two[0][:, 0]) <= sensitivity[0])


def test_negative_control_no_widening():
    n, radius, pairs = 40, 39, 300
    x, y = _neighbours(np.random.default_rng(1), n, pairs)
    step = 2.0**-46
    ordered = np.sort(np.rint((np.concatenate([x, y]) - 0.5) / step).astype(np.int64), axis=1)
    with jax.enable_x64(True):
        lower, upper = jax.jit(jax.vmap(lambda z: module._levels(z, step, jnp.ones(()), radius)))(ordered)
    broken = 0
    for levels in (np.asarray(lower), -np.asarray(upper)):
        one, two = levels[:pairs], levels[pairs:]
        broken += np.sum(one[:, 1:] > two[:, :-1]) + np.sum(two[:, 1:] > one[:, :-1])
    assert broken > 100


def test_the_variance_is_not_monotonic():
    """Larger f and smaller U^1: the cheaper budget of monotonic statistics would be wrong."""
    lower, upper, _ = _batch([[0, 0, 0, 1], [0, 0, 1, 1]], 4.0, 4)
    assert lower[1, 0] > lower[0, 0] and upper[1, 1] < upper[0, 1]
    for fn in (variance, standard_deviation):
        assert not jax.eval_shape(lambda x, fn=fn: fn(x, 0.0, 1.0, radius=1), np.zeros(3, np.float32)).monotonic


# Data and arguments.


def test_value_of_ordinary_columns():
    rng = np.random.default_rng(0)
    for x in (rng.gamma(2.0, 4000.0, 1000), rng.normal(25_000.0, 1.0, 1000), rng.integers(0, 50_000, 1000)):
        lower, _, _ = _batch([x], 50_000.0, 30)
        np.testing.assert_allclose(lower[0, 0], np.var(np.clip(x, 0.0, 50_000.0)), rtol=1e-8)


def test_constant_records_have_no_variance_at_all():
    x = np.full((4, 7), [[0.0], [0.1], [1.0 / 3.0], [1.0]])
    assert np.all(_batch(x, 1.0, 9)[0] == 0.0)


def test_nan_counts_as_the_lower_end_and_others_are_clamped():
    x = np.array([np.nan, 0.3, -np.inf, np.inf, 7.0, -2.0, 0.5], np.float32)
    same = np.array([0.1, 0.3, 0.1, 0.9, 0.9, 0.1, 0.5], np.float32)
    b, c = variance(x, 0.1, 0.9, radius=3), variance(same, 0.1, 0.9, radius=3)
    np.testing.assert_allclose(b.lower, c.lower, rtol=1e-6)
    np.testing.assert_allclose(b.upper, c.upper, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "uint8"])
def test_dtypes(dtype):
    x = np.array([0, 1, 3, 4]).astype(jnp.dtype(dtype))
    b = variance(x, 0, 4, radius=0)
    wide = jax.dtypes.canonicalize_dtype(np.float64)
    expected = wide if dtype in ("float64", "int32", "uint8") else np.float32
    assert b.lower.dtype == b.upper.dtype == b.sensitivity.dtype == expected
    assert b.lower.tolist() == [2.5, 0.0] and b.upper.tolist() == [2.5, 4.0]
    assert b.radius == 0


def test_one_record():
    b = variance(np.array([0.3]), 0.0, 1.0, radius=2)
    assert b.lower.tolist() == b.upper.tolist() == [0.0] * 4
    assert 0.0 <= b.sensitivity <= 1e-13


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((np.zeros((2, 2)), 0.0, 1.0), "x"),
        ((np.zeros(0), 0.0, 1.0), "x"),
        ((np.array([True]), 0.0, 1.0), "x"),
        ((np.zeros(3, np.float32), 0.0, np.inf), "upper"),
        ((np.zeros(3, np.float32), np.nan, 1.0), "lower"),
        ((np.zeros(3, np.float32), 1.0, 1.0), "upper"),
        ((np.zeros(3, np.float32), 2.0, 1.0), "upper"),
        ((np.zeros(3, np.float32), 0.0, 1e20), "upper"),
        ((np.zeros(3, np.float32), 0.0, np.zeros(2)), "upper"),
    ],
)
@pytest.mark.parametrize("fn", [variance, standard_deviation])
def test_bad_arguments(fn, arguments, name):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        fn(*arguments, radius=1)
    for radius in (-1, 1.0, True, None):
        with pytest.raises(ValueError, match="radius must"):
            fn(np.zeros(3), 0.0, 1.0, radius=radius)


def test_too_many_records():
    huge = jax.ShapeDtypeStruct((2**27 + 1,), jnp.float32)
    with pytest.raises(ValueError, match="x must have at most 134217728 records"):
        jax.eval_shape(lambda x: variance(x, 0.0, 1.0, radius=1), huge)


def test_bad_traced_ranges_give_nan():
    ranges = jnp.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [0.0, jnp.inf], [jnp.nan, 1.0], [0.0, 1e30]])
    b = jax.jit(jax.vmap(lambda ends: variance(jnp.arange(3.0, dtype=jnp.float32), ends[0], ends[1], radius=1)))(ranges)
    for entries in (b.lower, b.upper, b.sensitivity[:, None]):
        assert np.all(np.isfinite(entries[0])) and np.all(np.isnan(entries[1:]))


@pytest.mark.leaks
def test_inside_transformations():
    x = jnp.asarray(np.random.default_rng(0).random((4, 9)), jnp.float32)

    def f(row):
        return variance(row, 0.0, 1.0, radius=2)

    each = [f(row) for row in x]
    expected = np.stack([np.stack([b.lower, b.upper]) for b in each])
    for many in (jax.jit(jax.vmap(f))(x), jax.lax.map(f, x)):
        np.testing.assert_array_equal(np.stack([many.lower, many.upper], axis=1), expected)
    spec = PartitionSpec("d")
    sharded = jax.shard_map(jax.vmap(f), mesh=Mesh(jax.devices("cpu")[:2], ("d",)), in_specs=spec, out_specs=spec)(x)
    np.testing.assert_array_equal(np.stack([sharded.lower, sharded.upper], axis=1), expected)
    assert isinstance(sharded, jaxdp.OutputBounds) and sharded.sensitivity.shape == (4,)
