"""Exhaustive search: the enumeration, an odd statistic from the literature, the contract, and the guard."""

import importlib
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles_bounds
import oracles_variance
import pytest

from jaxdp.bounds import from_candidates

module = importlib.import_module("jaxdp.bounds.from_candidates")


def _gap(x):
    return jnp.min(jnp.diff(jnp.sort(x)))


@pytest.mark.parametrize(("n", "c"), [(1, 1), (3, 1), (1, 4), (4, 3), (5, 5), (9, 2)])
def test_enumeration(n, c):
    datasets, counts, groups = module._enumerate(n, c)
    assert len(datasets) == math.comb(n + c - 1, n) and len({tuple(row) for row in datasets.tolist()}) == len(datasets)
    np.testing.assert_array_equal(counts, [np.bincount(row, minlength=c) for row in datasets])
    # Members of a group differ in one record, and every pair of neighbours is in a group.
    pairs = {pair for group in groups.tolist() for pair in itertools.product(group, repeat=2)}
    distance = n - np.minimum(counts[:, None], counts[None]).sum(axis=2)
    assert pairs == set(zip(*(part.tolist() for part in np.nonzero(distance <= 1)), strict=True))


def test_worked_example_of_propose_test_release():
    """The smallest gap of three numbers: local sensitivity 0 at (0, 0, 0) and 50 at (0, 0, 100)."""
    grid = np.linspace(0.0, 100.0, 5)
    zero, far = (from_candidates(_gap, np.array(x), grid, radius=1) for x in ([0.0, 0.0, 0.0], [0.0, 0.0, 100.0]))
    assert zero.upper.tolist() == [0.0, 0.0, 50.0] and far.upper.tolist() == [0.0, 50.0, 50.0]
    assert zero.sensitivity == 50.0 and not zero.monotonic


def test_variance_by_exhaustive_search():
    n, grid = 4, np.arange(5.0)
    least, most = oracles_variance.brute_force(n, 5)
    b = jax.jit(jax.vmap(lambda x: from_candidates(jnp.var, x, grid, radius=n)))(
        np.array(oracles_variance.multisets(n, 5), np.float32)
    )
    np.testing.assert_allclose(b.lower[:, :-1] * n**2, least, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(b.upper[:, :-1] * n**2, most, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(b.sensitivity, 16 * 3 / 16, rtol=1e-6)


def test_contract_on_all_neighbours_of_an_irregular_statistic():
    """An arbitrary function with float rounding: no tolerance, by construction."""
    n, grid = 4, np.array([0.1, 0.7, -2.3], np.float32)

    def f(x):
        return jnp.sin(1e3 * jnp.sum(x)) * jnp.prod(x)

    sets = np.array(list(itertools.product(range(3), repeat=n)))
    lower, upper, sensitivity = jax.jit(
        jax.vmap(lambda x: (lambda b: (b.lower, b.upper, b.sensitivity))(from_candidates(f, x, grid, radius=2)))
    )(grid[sets])
    i, j = np.nonzero((sets[:, None] != sets[None]).sum(axis=2) == 1)
    one, two = ((np.asarray(lower)[k], np.asarray(upper)[k]) for k in (i, j))
    found = oracles_bounds.violations(one, two, np.zeros(len(i), int))
    assert not any(found.values())
    change = np.abs(one[0][:, 0].astype(float) - two[0][:, 0]).max()
    assert change <= float(sensitivity[0]) <= change * (1 + 1e-6)


def test_order_of_records_does_not_matter_and_strangers_count_as_the_first_candidate():
    grid = np.array([[5.0, 0.0], [1.0, 1.0], [2.0, 3.0]])

    def f(x):
        return jnp.sum(jnp.max(x, axis=0)) / jnp.sum(x)

    x = grid[[0, 2, 1, 1]]
    b = from_candidates(f, x, grid, radius=4)
    for other in (x[::-1], np.where(x == [5.0, 0.0], np.nan, x), np.where(x == [5.0, 0.0], [5.0, 0.1], x)):
        c = from_candidates(f, other, grid, radius=4)
        assert b.lower.tolist() == c.lower.tolist() and b.upper.tolist() == c.upper.tolist()


def test_integer_records_and_results():
    def distinct(x):
        return jnp.sum(jnp.diff(jnp.sort(x)) > 0) + 1

    b = from_candidates(distinct, np.array([3, 3, 1], np.int8), np.array([1, 2, 3], np.int8), radius=5)
    assert b.lower.tolist() == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0] and b.upper.tolist() == [2.0, 3.0] + [3.0] * 5
    assert b.lower.dtype == jax.dtypes.canonicalize_dtype(np.float64) and b.sensitivity == 1.0


def test_candidates_may_be_traced():
    def f(grid):
        return from_candidates(_gap, grid[jnp.array([0, 0, 4])], grid, radius=1).upper

    np.testing.assert_array_equal(jax.jit(f)(jnp.linspace(0.0, 100.0, 5)), [0.0, 50.0, 50.0])


def test_bad_arguments():
    grid = np.arange(3.0)
    with pytest.raises(
        ValueError, match=r"at most 20000000 numbers .*, got 1652411475 data sets \(evaluations of fn\) of 8"
    ):
        from_candidates(jnp.var, np.zeros(8), np.arange(50.0), radius=1)
    with pytest.raises(ValueError, match="records must be like candidates"):
        from_candidates(jnp.var, np.zeros((3, 2)), grid, radius=1)
    with pytest.raises(ValueError, match="candidates must have shape"):
        from_candidates(jnp.var, np.zeros(3), np.zeros(0), radius=1)
    with pytest.raises(ValueError, match="records must be real"):
        from_candidates(jnp.var, np.array([True]), grid, radius=1)
    with pytest.raises(ValueError, match="fn must return a scalar"):
        from_candidates(jnp.sort, np.zeros(3), grid, radius=1)
    with pytest.raises(ValueError, match="radius must"):
        from_candidates(jnp.var, np.zeros(3), grid, radius=-1)
