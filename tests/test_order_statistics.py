"""Quantiles, minimum, maximum and trimmed mean: bounds against brute force, ranks, ranges, and monotonicity."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import oracles_bounds
import pytest
import scipy.stats
from jax.sharding import Mesh, PartitionSpec
from marks import first

from jaxdp.bounds import maximum, median, minimum, quantile, trimmed_mean

STATISTICS = {
    "quantile": lambda x, lower, upper, radius: quantile(x, 0.3, lower, upper, radius=radius),
    "median": lambda x, lower, upper, radius: median(x, lower, upper, radius=radius),
    "minimum": lambda x, lower, upper, radius: minimum(x, lower, upper, radius=radius),
    "maximum": lambda x, lower, upper, radius: maximum(x, lower, upper, radius=radius),
    "trimmed_mean": lambda x, lower, upper, radius: trimmed_mean(x, 0.26, lower, upper, radius=radius),
}


def _plain(name, x):
    """The statistic by its definition, as a fraction."""
    x, n = sorted(x), len(x)
    if name == "trimmed_mean":
        cut = 26 * n // 100
        return Fraction(sum(x[cut : n - cut]), n - 2 * cut)
    rank = {"quantile": -(-3 * n // 10), "median": (n + 1) // 2, "minimum": 1, "maximum": n}[name]
    return Fraction(x[rank - 1])


@pytest.mark.parametrize("n", first(3, [1, 5, 6, 2, 3, 4]))
@pytest.mark.parametrize("name", STATISTICS)
def test_bounds_are_those_of_brute_force(name, n):
    """All data sets on a grid that holds both ends, so that the best replacements are on it. Exact."""
    points = range(5 if n < 5 else 3)
    sets = list(itertools.combinations_with_replacement(points, n))
    value = np.array([float(_plain(name, x)) for x in sets])
    counts = np.array([np.bincount(x, minlength=len(points)) for x in sets])
    distance = n - np.minimum(counts[:, None], counts[None]).sum(axis=2)
    last = float(points[-1])
    b = jax.jit(jax.vmap(lambda x: STATISTICS[name](x, 0.0, last, n + 1)))(np.array(sets, np.float32))
    for r in range(n + 3):
        within = distance <= r
        least = np.min(np.where(within, value, np.inf), axis=1)
        most = np.max(np.where(within, value, -np.inf), axis=1)
        np.testing.assert_array_equal(b.lower[:, r], least.astype(np.float32))
        np.testing.assert_array_equal(b.upper[:, r], most.astype(np.float32))
    change = np.max(np.where(distance <= 1, np.abs(value[:, None] - value[None]), 0.0))
    # Not tight only where one record cannot move the statistic all the way.
    sensitivity = np.asarray(b.sensitivity)
    assert np.all(sensitivity >= change) and (name != "trimmed_mean" or np.allclose(sensitivity, change, rtol=1e-6))
    assert b.monotonic


@pytest.mark.parametrize("prob", first(4, [0.0, 0.07, 0.5, 1.0, 0.1, 0.25, 0.3, 0.7, 0.9]))
def test_quantiles_are_those_of_inverted_cdf(prob):
    rng = np.random.default_rng(0)
    for n in (1, 10, 30, 99, 100):
        x = rng.random(n).astype(np.float32)
        # Rounded products such as 0.07 * 100 are read as what was meant.
        rank = min(max(-(-Fraction(str(prob)) * n // 1), 1), n)
        b = quantile(x, prob, 0.0, 1.0, radius=0)
        assert b.value == np.sort(x)[int(rank) - 1]
        assert b.value == np.quantile(x, float(rank) / n - 1e-9, method="inverted_cdf")
        assert jax.jit(lambda prob, x=x: quantile(x, prob, 0.0, 1.0, radius=0).value)(jnp.float32(prob)) == b.value


def test_ranks_of_many_records():
    x = np.arange(10_000_001, dtype=np.float64)
    for prob, value in ((0.5, 5_000_000.0), (0.1, 1_000_000.0), (1e-7, 1.0)):
        assert quantile(x, prob, 0.0, 1e8, radius=0).value == value


def test_trimmed_mean_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for n, trim in ((1, 0.0), (10, 0.0), (10, 0.1), (101, 0.25), (99, 0.4999)):
        x = rng.normal(size=n)
        b = trimmed_mean(x, trim, -10.0, 10.0, radius=1)
        np.testing.assert_allclose(b.value, scipy.stats.trim_mean(x, trim), rtol=1e-5, atol=1e-6)
    # 0.29 * 100 is below 29 in floating point.
    b = trimmed_mean(np.arange(100.0) ** 2, 0.29, 0.0, 1e4, radius=0)
    np.testing.assert_allclose(b.value, np.mean(np.arange(29.0, 71.0) ** 2), rtol=1e-6)


def test_infinite_ranges():
    x = np.array([3.0, -1.0, np.inf, np.nan, 2.0], np.float32)
    b = median(x, -np.inf, np.inf, radius=3)
    assert b.lower.tolist() == [2.0, -1.0, -np.inf, -np.inf, -np.inf]
    assert b.upper.tolist() == [2.0, 3.0, np.inf, np.inf, np.inf]
    assert b.sensitivity == np.inf
    b = maximum(x[[0, 1, 4]], 0.0, np.inf, radius=5)
    assert b.lower.tolist() == [3.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0] and b.upper.tolist() == [3.0] + [np.inf] * 6


def test_nan_counts_as_the_lower_end_and_others_are_clamped():
    x = np.array([np.nan, 0.3, -np.inf, np.inf, 7.0, -2.0, 0.5], np.float32)
    for name, statistic in STATISTICS.items():
        b = statistic(x, 0.1, 0.9, 7)
        same = statistic(np.array([0.1, 0.3, 0.1, 0.9, 0.9, 0.1, 0.5]).astype(np.float64), 0.1, 0.9, 7)
        np.testing.assert_allclose(b.lower, same.lower, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(b.upper, same.upper, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "uint8"])
def test_dtypes(dtype):
    x = np.array([4, 0, 1, 3]).astype(jnp.dtype(dtype))
    wide = jax.dtypes.canonicalize_dtype(np.float64)
    expected = wide if dtype in ("float64", "int32", "uint8") else np.float32
    for b in (median(x, 0, 4, radius=0), trimmed_mean(x, 0, 0, 4, radius=0)):
        assert b.lower.dtype == b.upper.dtype == b.sensitivity.dtype == expected
        assert b.lower[1] == 0.0 and b.upper[1] == 4.0 and b.lower[0] == b.upper[0]


@pytest.mark.parametrize("name", STATISTICS)
def test_contract_and_monotonicity_in_double_precision(name):
    """Ends that are no short binary fractions, and records from a few values: ties and equal entries abound."""
    rng = np.random.default_rng(1)
    n, pairs, lower, upper = 12, 1000, -1.7, 50.3
    x = rng.choice([lower, upper, 0.1, 1 / 3, 7.7, 49.9, np.nextafter(0.1, 1.0)], (pairs, n))
    x = np.where(rng.random((pairs, 1)) < 0.5, x, rng.uniform(lower, upper, (pairs, n)))
    y, rows, index = x.copy(), np.arange(pairs), rng.integers(n, size=pairs)
    y[rows, index] = rng.choice([lower, upper, *rng.uniform(lower, upper, 5)], pairs)
    with jax.enable_x64(True):
        b = jax.jit(jax.vmap(lambda x: STATISTICS[name](x, lower, upper, n)))(np.concatenate([x, y]))
    low, high = np.asarray(b.lower), np.asarray(b.upper)
    one, two = (low[:pairs], high[:pairs]), (low[pairs:], high[pairs:])
    raised = np.sign(y[rows, index] - x[rows, index]).astype(int)
    assert not any(oracles_bounds.violations(one, two, raised).values())
    assert np.all(np.abs(one[0][:, 0] - two[0][:, 0]) <= np.asarray(b.sensitivity)[0])


@pytest.mark.parametrize(
    ("fn", "arguments", "name"),
    [
        (median, (np.zeros((2, 2)), 0.0, 1.0), "x"),
        (median, (np.zeros(0), 0.0, 1.0), "x"),
        (minimum, (np.array([1j]), 0.0, 1.0), "x"),
        (minimum, (np.zeros(3, np.float32), np.nan, 1.0), "lower"),
        (maximum, (np.zeros(3, np.float32), 0.0, np.nan), "upper"),
        (maximum, (np.zeros(3, np.float32), 1.0, 1.0), "upper"),
        (median, (np.zeros(3, np.float32), np.inf, np.inf), "upper"),
        (quantile, (np.zeros(3, np.float32), 1.5, 0.0, 1.0), "prob"),
        (quantile, (np.zeros(3, np.float32), np.nan, 0.0, 1.0), "prob"),
        (trimmed_mean, (np.zeros(3, np.float32), 0.5, 0.0, 1.0), "trim"),
        (trimmed_mean, (np.zeros(3, np.float32), -0.1, 0.0, 1.0), "trim"),
        (trimmed_mean, (np.zeros(3, np.float32), 0.1, 0.0, np.inf), "upper"),
        (trimmed_mean, (np.zeros(3, np.float32), 0.1, 0.0, 1e-40), "upper"),
        (trimmed_mean, (np.zeros(3, np.float32), 0.1, 0.0, 1e30), "upper"),
    ],
)
def test_bad_arguments(fn, arguments, name):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        fn(*arguments, radius=1)
    for radius in (-1, 2.0, True):
        with pytest.raises(ValueError, match="radius must"):
            fn(np.zeros(3), *((0.2,) if fn in (quantile, trimmed_mean) else ()), 0.0, 1.0, radius=radius)


def test_bad_traced_arguments_give_nan():
    x = jnp.arange(5.0, dtype=jnp.float32)
    good, *bad = [
        (0.3, 0.0, 4.0),
        (jnp.nan, 0.0, 4.0),
        (-0.1, 0.0, 4.0),
        (1.5, 0.0, 4.0),
        (0.3, 4.0, 0.0),
        (0.3, 0.0, jnp.nan),
    ]
    for fn in (quantile, trimmed_mean):
        compiled = jax.jit(lambda arguments, fn=fn: fn(x, *arguments, radius=1))
        assert all(np.all(np.isfinite(part)) for part in jax.tree.leaves(compiled(good)))
        for arguments in bad:
            assert all(np.all(np.isnan(part)) for part in jax.tree.leaves(compiled(arguments)))


@pytest.mark.leaks
@pytest.mark.parametrize("name", ["quantile", "trimmed_mean"])
def test_inside_transformations(name):
    x = jnp.asarray(np.random.default_rng(0).random((4, 9)), jnp.float32)

    def f(row):
        b = STATISTICS[name](row, 0.0, 1.0, 3)
        return jnp.stack([b.lower, b.upper])

    expected = np.stack([f(row) for row in x])
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(x), expected)
    np.testing.assert_array_equal(jax.lax.map(f, x), expected)
    spec = PartitionSpec("d")
    sharded = jax.shard_map(jax.vmap(f), mesh=Mesh(jax.devices("cpu")[:2], ("d",)), in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(sharded(x), expected)
