"""Output bounds of the mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp.bounds import _losses
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic

RANGE = (-3.0, 7.1)


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray]:
    """Records in and around the range that `call` of the mean and of the sum keeps to."""
    return (_losses.draw_numbers(rng, n, *RANGE),)


def _call(records: tuple, radius: int) -> OutputBounds:
    return mean(*records, *RANGE, radius=radius)


def contribution(records: tuple) -> np.ndarray:
    """The record itself, moved into that range."""
    x = np.asarray(records[0], np.float64)
    return np.clip(np.where(np.isnan(x), RANGE[0], x), *RANGE)


@statistic(draw=draw, call=_call, contribution=contribution)
def mean(x: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the mean of x, clamped to [lower, upper].

    U^l = (sum of the n - l largest + l upper) / n and L^l = (sum of the n - l smallest + l lower) / n, exact.

    Args:
        x: (n,) real, one number a record; n is public.
        lower: Public lower end of the records, finite; in the units of x, like all that follows.
        upper: Public upper end. math.inf (not traced) is allowed: U^l is infinite then for l >= 1 and the
            sensitivity too, which suits AsymmetricSensitivity.
        radius: Static; levels 0 to radius are kept. It may exceed n.

    Returns:
        OutputBounds, monotonic, of sensitivity (upper - lower) / n and the rounding of two entries. In double
        precision if x is and JAX has it, else float32.

    Raises:
        ValueError: For a bad shape or dtype of x, and for bad concrete parameters. Bad traced ones (also a traced
            infinite upper end) give NaN throughout.

    Guarantee:
        The contract of OutputBounds for x, x' that differ in one replaced record, and monotonicity in each record,
        with no tolerance.

    Floating point:
        Records are rounded to the nearest multiple of a power of two between 2^-31 and 2^-30 of the range (counted
        from lower: integers stay exact) and summed as integers; entries are rounded once more, all in the same
        direction. NaN counts as lower. With an infinite upper end there is no such grid: sums are double precision
        and level l is lowered by a factor 1 - l eta, eta = 2^-50 n (up to a factor 2), more than all rounding errors;
        numbers above 2^448 count as 2^448.

    Example:
        >>> b = jaxdp.bounds.mean(np.array([1.0, 2.0, 4.0, 5.0]), 0.0, 8.0, radius=2)
        >>> b.lower.tolist(), b.upper.tolist()
        ([3.0, 1.75, 0.75, 0.0], [3.0, 4.75, 6.25, 8.0])
    """
    x = _check.vector("x", x)
    dtype = _losses.entry_dtype(x)
    lower, upper, unbounded = _losses.check_range(lower, upper, dtype=dtype)
    return _losses.bounds(loss, (x,), (lower, upper), radius=radius, dtype=dtype, unbounded=unbounded)


def loss(x: jax.Array, lower: jax.Array, upper: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The record itself and its range."""
    return _losses.clamp(x, lower, upper), lower, jnp.where(upper > lower, upper, jnp.nan)
