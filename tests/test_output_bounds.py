"""OutputBounds: distances, cuts and local sensitivities against their definitions; the grids."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import oracles_bounds as oracles
import pytest
from marks import first

import jaxdp
from jaxdp.bounds import _output_bounds


def _random_bounds(rng, radius, *, infinite=False, ties=False):
    steps = rng.integers(0, 3, (2, radius + 1)) / 4.0 if ties else rng.exponential(size=(2, radius + 1))
    value = float(rng.integers(-3, 4)) / 4.0 if ties else rng.normal()
    lower = value - np.append(0.0, np.cumsum(steps[0]))
    upper = value + np.append(0.0, np.cumsum(steps[1]))
    if infinite:
        lower[-1], upper[1 + rng.integers(radius + 1) :] = -np.inf, np.inf
    return lower, upper


CASES = [(radius, infinite, ties) for radius in (0, 1, 6) for infinite in (False, True) for ties in (False, True)]


@pytest.mark.parametrize(("radius", "infinite", "ties"), CASES)
def test_scores_are_those_of_the_definition(radius, infinite, ties):
    rng = np.random.default_rng([radius, infinite, ties])
    for _ in range(5):
        lower, upper = (part.astype(np.float32) for part in _random_bounds(rng, radius, infinite=infinite, ties=ties))
        points = oracles.critical_points((lower[None], upper[None]))[0]
        # XLA compares subnormal numbers as zeros.
        points = np.append(np.where(np.abs(points) < 1e-30, 0.0, points), [-np.inf, np.inf]).astype(np.float32)
        bounds = jaxdp.OutputBounds(lower, upper)
        distance, signed = bounds.distance(points), bounds.signed_distance(points)
        assert distance.dtype == jnp.int32 and signed.dtype == jnp.float32
        np.testing.assert_array_equal(distance, oracles.distance(lower, upper, points))
        np.testing.assert_array_equal(signed, oracles.signed_distance(lower, upper, points))
        assert np.all(np.diff(np.asarray(signed)[np.argsort(points, kind="stable")]) >= 0.0)
        # Any shape, and lists.
        np.testing.assert_array_equal(bounds.distance(points[:6].reshape(2, 3)).ravel(), distance[:6])
        np.testing.assert_array_equal(bounds.distance(points.tolist()), distance)
        assert bounds.radius == radius and bounds.value == lower[0]


@pytest.mark.parametrize(("radius", "infinite", "ties"), first(6, CASES[::-1]))
def test_cuts_are_the_points_of_each_level(radius, infinite, ties):
    rng = np.random.default_rng([radius, infinite, ties, 1])
    for size in (1, 2, 50):
        lower, upper = _random_bounds(rng, radius, infinite=infinite, ties=ties)
        grid = np.unique(rng.choice(np.append(rng.normal(size=40) * 3.0, np.r_[lower, upper, -50.0, 50.0]), size))
        grid = grid[np.isfinite(grid)] if np.isfinite(grid).any() else np.zeros(1)
        a, b = (np.asarray(part) for part in jaxdp.OutputBounds(lower, upper).cuts(grid))
        assert a.dtype == b.dtype == np.int32
        distance = oracles.distance(lower, upper, grid)
        for level in range(radius + 2):
            inside = (np.arange(len(grid)) >= a[level]) & (np.arange(len(grid)) < b[level])
            np.testing.assert_array_equal(inside, distance <= level)


def test_double_precision_bounds_and_points_are_compared_in_full():
    lower, upper = np.array([1.0, 1.0, 0.0]), np.array([1.0, 1.0 + 2.0**-40, 2.0])
    points = np.array([1.0 + 2.0**-41, 1.0 + 2.0**-39, 1.0 - 2.0**-41])
    bounds = jaxdp.OutputBounds(lower, upper)
    assert bounds.distance(points).tolist() == [1, 2, 2]
    assert bounds.signed_distance(points).tolist() == [0.5, 1.5, -1.5]
    assert [part.tolist() for part in bounds.cuts(np.sort(points))] == [[1, 1, 0], [1, 2, 3]]


def test_integer_points():
    bounds = jaxdp.OutputBounds(np.array([5.0, 3.0, 0.0]), np.array([5.0, 6.0, 9.0]))
    assert bounds.distance(np.arange(10)).tolist() == [2, 2, 2, 1, 1, 0, 1, 2, 2, 2]
    assert bounds.distance(7).shape == () and int(bounds.distance(7)) == 2


def test_local_sensitivity_by_brute_force():
    """Of a bounds family of the mean of four records on a grid of three."""
    grid, n, radius = np.array([0.0, 1.0, 4.0]), 4, 4
    table = np.stack(np.meshgrid(*[np.arange(3)] * n, indexing="ij"), axis=-1).reshape(-1, n)
    changed = (table[:, None] != table[None]).sum(axis=-1)
    f = grid[table].mean(axis=1)
    apart = np.where(changed <= 1, np.abs(f[:, None] - f[None]), 0.0).max(axis=1)
    for row in (0, 5, 40, 80):
        bounds = jaxdp.bounds.mean(grid[table[row]], 0.0, 4.0, radius=radius)
        local = np.asarray(bounds.local_sensitivity())
        assert local.shape == (radius,) and np.all(local <= float(bounds.sensitivity))
        assert np.all(np.diff(local) >= 0.0)
        for level in range(radius):
            assert local[level] >= apart[changed[row] <= level].max()
        if row == 40:
            # All records are 1 in [0, 4]: less than the global sensitivity 1.
            assert local[0] == 0.75


def test_local_sensitivity_is_capped_by_the_range_and_handles_infinities():
    bounds = jaxdp.OutputBounds(np.array([0.0, -1.0, -2.0, -2.0]), np.array([0.0, 1.0, np.inf, np.inf]))
    assert bounds.local_sensitivity().tolist() == [1.0, np.inf]
    capped = jaxdp.OutputBounds(bounds.lower, bounds.upper, 0.5)
    assert capped.local_sensitivity().tolist() == [0.5, 0.5]
    ranged = jaxdp.OutputBounds(np.array([0.0, -5.0, -0.5]), np.array([0.0, 5.0, 0.5]))
    assert ranged.local_sensitivity().tolist() == [1.0]
    whole = jaxdp.OutputBounds(np.array([0.0, -np.inf, -np.inf]), np.array([0.0, np.inf, np.inf]))
    assert whole.local_sensitivity().tolist() == [np.inf]
    assert jaxdp.OutputBounds(np.zeros(2), np.ones(2)).local_sensitivity().shape == (0,)


def test_nan_is_at_no_distance():
    bounds = jaxdp.OutputBounds(np.array([0.0, -1.0, -2.0]), np.array([0.0, 1.0, 2.0]))
    assert bounds.distance(np.array([np.nan, 0.0])).tolist() == [2, 0]
    assert np.isnan(bounds.signed_distance(np.array([np.nan, 0.0]))).tolist() == [True, False]
    bad = jaxdp.OutputBounds(np.full(3, np.nan), np.full(3, np.nan))
    assert bad.distance(np.array([0.0, 1.0])).tolist() == [2, 2]
    assert np.all(np.isnan(bad.signed_distance(np.array([0.0, 1.0]))))
    assert np.all(np.isnan(bad.local_sensitivity()))


def test_under_jit_and_vmap():
    rng = np.random.default_rng(0)
    lower, upper = (np.stack(part) for part in zip(*[_random_bounds(rng, 3) for _ in range(4)], strict=True))
    lower, upper = jnp.asarray(lower, jnp.float32), jnp.asarray(upper, jnp.float32)
    points = jnp.asarray(rng.normal(size=9), jnp.float32)
    batch = jaxdp.OutputBounds(lower, upper, jnp.ones(4))
    np.testing.assert_array_equal(batch.value, lower[:, 0])
    assert batch.radius == 3
    for method in ("distance", "signed_distance"):
        together = jax.jit(jax.vmap(lambda b, m=method: getattr(b, m)(points)))(batch)
        alone = [getattr(jaxdp.OutputBounds(lower[i], upper[i]), method)(points) for i in range(4)]
        np.testing.assert_array_equal(together, np.stack(alone))
    with pytest.raises(ValueError, match="vmap"):
        batch.distance(points)


def test_flattens_with_its_flag_and_survives_pickling():
    bounds = jaxdp.OutputBounds(np.zeros(3), np.ones(3), 0.5, monotonic=True)
    leaves, tree = jax.tree.flatten(bounds)
    assert len(leaves) == 3 and jax.tree.unflatten(tree, leaves).monotonic
    again = pickle.loads(pickle.dumps(bounds))
    assert again.monotonic and again.sensitivity == 0.5


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(3),
        jaxdp.OutputBounds(np.zeros(1), np.zeros(1)),
        jaxdp.OutputBounds(np.zeros(3), np.zeros(4)),
        jaxdp.OutputBounds(np.zeros((2, 3)), np.zeros((2, 3))),
    ],
)
def test_what_is_no_bounds_of_one_data_set_is_rejected(bad):
    with pytest.raises(ValueError, match="bounds must"):
        _output_bounds.check(bad)


def test_points_must_be_real():
    bounds = jaxdp.OutputBounds(np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="points"):
        bounds.distance(np.array([1j]))
    with pytest.raises(ValueError, match="points"):
        bounds.signed_distance(True)
    with pytest.raises(ValueError, match="grid"):
        bounds.cuts(np.zeros((2, 2)))


def test_linear_grid():
    grid = jaxdp.linear_grid(-1.0, 2.0, 7)
    np.testing.assert_allclose(grid, [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0], rtol=0.0, atol=1e-15)
    assert grid[0] == -1.0 and grid[-1] == 2.0 and grid.dtype == np.float64
    assert jaxdp.linear_grid(3.0, 4.0, 1).tolist() == [3.0]


@pytest.mark.parametrize("base", [1.005, 1.5, 2.0])
@pytest.mark.parametrize(("lower", "upper", "unit"), [(0.0, 50_000.0, 1.0), (-1.0, 1.0, 1e-3), (10.0, 10.5, 7.0)])
def test_geometric_grid(lower, upper, unit, base):
    grid = jaxdp.geometric_grid(lower, upper, base=base, unit=unit)
    assert grid.dtype == np.float64 and np.all(np.diff(grid) > 0.0) and grid[-1] == upper
    count = np.arange(1, len(grid))
    np.testing.assert_allclose(grid[:-1], lower + unit * (base**count - 1.0), rtol=1e-12, atol=1e-12 * unit)
    # It ends where the next candidate would leave the range.
    assert grid[-2] < upper <= lower + unit * (base ** len(grid) - 1.0) * (1.0 + 1e-12) if len(grid) > 1 else True


def test_geometric_grid_is_cut_and_keeps_its_end():
    grid = jaxdp.geometric_grid(0.0, 1000.0, max_size=5)
    assert len(grid) == 5 and grid[-1] == 1000.0 and grid[3] < 0.05
    assert jaxdp.geometric_grid(0.0, 1000.0, max_size=1).tolist() == [1000.0]
    assert len(jaxdp.geometric_grid(0.0, 1e300, base=1.0001, unit=1e-3)) == 50_000
    assert jaxdp.geometric_grid(0.0, 1e300, base=1e10)[-1] == 1e300
    # Equal neighbours after rounding are one candidate.
    assert np.all(np.diff(jaxdp.geometric_grid(1e6, 1e6 + 1.0, unit=1e-9, max_size=3000)) > 0.0)


@pytest.mark.parametrize(
    ("arguments", "keywords", "name"),
    [
        ((1.0, 1.0), {}, "upper"),
        ((1.0, 0.0), {}, "upper"),
        ((np.nan, 1.0), {}, "lower"),
        ((0.0, np.inf), {}, "upper"),
        ((-1e308, 1e308), {}, "upper"),
        ((0.0, 1.0), {"unit": 0.0}, "unit"),
        ((0.0, 1.0), {"unit": -1.0}, "unit"),
        ((0.0, 1.0), {"base": 1.0}, "base"),
        ((0.0, 1.0), {"base": np.nan}, "base"),
        ((0.0, 1.0), {"max_size": 0}, "max_size"),
        ((0.0, 1.0), {"max_size": 2.5}, "max_size"),
    ],
)
def test_bad_grids(arguments, keywords, name):
    with pytest.raises(ValueError, match=name):
        jaxdp.geometric_grid(*arguments, **keywords)
    if not keywords:
        with pytest.raises(ValueError, match=name):
            jaxdp.linear_grid(*arguments, 5)


@pytest.mark.parametrize("grid", [[1.0, 1.0], [2.0, 1.0], [0.0, np.nan], [0.0, np.inf], [], [[1.0]], [1j], ["a"]])
def test_bad_candidates(grid):
    with pytest.raises(ValueError, match="grid"):
        _output_bounds.check_grid(grid)


def test_bad_size():
    with pytest.raises(ValueError, match="size"):
        jaxdp.linear_grid(0.0, 1.0, 0)
