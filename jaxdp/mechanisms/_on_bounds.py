"""What the mechanisms on output bounds and a public grid share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp import bounds as statistics
from jaxdp.bounds import _output_bounds


def split(summary: Any) -> tuple[_output_bounds.OutputBounds, Any]:
    """Bounds and grid of a summary, checked."""
    bounds, grid = _check.pair(summary, "(bounds, grid)")
    return _output_bounds.check(bounds), _output_bounds.check_grid(grid)


def candidates(grid: Any) -> jax.Array:
    """The grid in JAX's default precision, as it is released."""
    grid = jnp.asarray(grid)
    return grid.astype(jax.dtypes.canonicalize_dtype(grid.dtype))


def valid(lower: jax.Array, upper: jax.Array, grid: jax.Array) -> jax.Array:
    """Whether a traced grid is in order, and bounds are nested and came from good parameters; in a float64 core."""
    in_order = jnp.all(jnp.isfinite(grid)) & jnp.all(grid[1:] > grid[:-1])
    return _output_bounds.nested(lower, upper) & in_order


def grid_distance(lower: Any, upper: Any, grid: Any) -> jax.Array:
    """Distance of every grid point, int32, by looking up the levels in the grid (not the points in the levels)."""
    a, b = _output_bounds.cuts(lower, upper, grid)
    n = grid.shape[0]
    none = jnp.zeros_like(grid, jnp.int32, shape=n + 1)
    # Level l leaves out the points before a_l and those from b_l on.
    started, ended = (jnp.cumsum(none.at[cut].add(1), dtype=jnp.int32)[:n] for cut in (a, b))
    return jnp.int32(lower.shape[0]) - started + ended


def neighbours(record: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Medians or variances of two small data sets that differ in one record."""
    n, radius = 7, 4
    x = rng.choice(rng.integers(0, 9, 4), n) + rng.choice([0.0, 0.25], n)
    y = x.copy()
    y[rng.integers(n)] = rng.integers(0, 9)
    grid = np.linspace(0.0, 20.0, 81)
    if rng.random() < 0.5:
        make = lambda data: statistics.median(data, 0.0, 9.0, radius=radius)  # noqa: E731
    else:
        make = lambda data: statistics.variance(data, 0.0, 9.0, radius=radius)  # noqa: E731
    return (make(x), grid), (make(y), grid)
