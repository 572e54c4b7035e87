"""Trimmed mean: the mean of the middle records."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64
from jaxdp.bounds._losses import check_radius, entry_dtype, power_of_two
from jaxdp.bounds._order import (
    LOWER,
    UPPER,
    check_finite_ends,
    clamp,
    contribution,
    draw,
    largest_end,
    round_up,
    slack,
    valid_ends,
)
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic

MAX_RECORDS = 2**31
"""Sums of that many 31-bit steps fit in int64."""


@statistic(
    draw=draw,
    call=lambda records, radius: trimmed_mean(*records, 0.2, LOWER, UPPER, radius=radius),
    contribution=contribution,
)
def trimmed_mean(x: Any, trim: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the trimmed mean f(x) = (x_(k+1) + .. + x_(n-k)) / (n - 2k), k = floor(trim n).

    The mean of n - 2k middle order statistics: 0 is the mean, and just below 1/2 the median. l records that go to the
    upper end move the window l places up: U^l = (x_(k+l+1) + .. + x_(n-k+l)) / (n - 2k), with `upper` for those
    beyond x_(n); L^l likewise. Exact.

    Args:
        x: (n,) records, real.
        trim: Public share in [0, 1/2) cut off at each side. A product trim n that is an integer up to rounding
            counts as that integer: k = floor(trim n + min(4 eps trim n, 1/8)), at most (n-1)/2, with eps that of its
            dtype (double unless traced).
        lower: Public range of the records, in which they are clamped; finite.
        upper: Its upper end, finite.
        radius: Static number of replaced records up to which bounds are known; the last entries are `lower`, `upper`.

    Returns:
        OutputBounds, monotonic; entries in the dtype of x as JAX has it, float32 at least; sensitivity
        (upper - lower) / (n - 2k) and the entries' rounding.

    Raises:
        ValueError: For bad concrete arguments. Bad traced ones give NaN in all entries.

    Guarantee:
        The contract of OutputBounds for data sets of n records of which one is replaced, with no tolerance.
        Monotonic: raising a record lowers no entry. After l replacements the j-th smallest record is at most
        x_(j+l), and reaches it for all j together if the l smallest records go to the upper end.

    Floating point:
        Records are put on a public grid of 2^-31 to 2^-30 of the width (integers lie on it if the width is below
        2^30); sums are exact in int64, and one division and one addition are monotone. NaN counts as `lower`.

    Example:
        >>> b = jaxdp.bounds.trimmed_mean(np.array([1.0, 2.0, 3.0, 10.0]), 0.25, 0.0, 10.0, radius=1)
        >>> b.lower.tolist(), b.upper.tolist()
        ([2.5, 1.5, 0.0], [2.5, 6.5, 10.0])
    """
    x, trim, lower, upper = check_arguments(x, trim, lower, upper)
    check_radius(radius)
    entries = _bounds(x, trim, lower, upper, radius=radius, dtype=entry_dtype(x), slack=slack(trim))
    return OutputBounds(*entries, monotonic=True)


@float64(static_argnames=("radius", "dtype", "slack"))
def _bounds(
    x: Any, trim: Any, lower: Any, upper: Any, *, radius: int, dtype: np.dtype, slack: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    trim, lower, upper = (value.astype(jnp.float64) for value in (trim, lower, upper))
    n = x.shape[0]
    ordered, step, top, cut = on_grid(x, trim, lower, upper, slack)
    sums = jnp.concatenate([jnp.zeros_like(ordered[:1]), jnp.cumsum(ordered)])
    middle = n - 2 * cut
    shift = jnp.minimum(jnp.arange(radius + 1), n)

    def window(first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sum of the records in places first + 1, .., first + middle, and how many there are."""
        start, stop = jnp.clip(first, 0, n), jnp.clip(first + middle, 0, n)
        return sums[stop] - sums[start], stop - start

    (least, _), (most, present) = window(cut - shift), window(cut + shift)
    most = most + (middle - present) * top.astype(jnp.int64)
    low, high = mean_of(jnp.stack([least, most]), middle, step, lower, upper)
    entries = jnp.append(low, lower).astype(dtype), jnp.append(high, upper).astype(dtype)
    sensitivity = round_up(top * step / middle.astype(jnp.float64) + rounding(lower, upper, dtype), dtype)
    valid = valid_arguments(trim, lower, upper, dtype)
    nan = jnp.full((), jnp.nan, dtype)
    return tuple(jnp.where(valid, entry, nan) for entry in (*entries, sensitivity))


def on_grid(x: Any, trim: jax.Array, lower: jax.Array, upper: jax.Array, slack: float) -> tuple[jax.Array, ...]:
    """Sorted records in whole steps above `lower` (int64), the step, the steps of the range, the records cut off."""
    n = x.shape[0]
    # A power of two: `lower + quotient * step` is rounded once, whether or not the compiler fuses it.
    step = 2.0 * power_of_two(upper - lower) * 2.0**-31
    ordered = jnp.sort(jnp.rint((clamp(x, lower, upper) - lower) / step).astype(jnp.int64))
    share = trim * float(n)
    cut = jnp.clip(jnp.floor(share + jnp.minimum(share * slack, 0.125)), 0.0, float((n - 1) // 2)).astype(jnp.int64)
    return ordered, step, jnp.rint((upper - lower) / step), cut


def mean_of(total: jax.Array, count: jax.Array, step: jax.Array, lower: jax.Array, upper: jax.Array) -> jax.Array:
    """The mean of `count` records with a total of so many steps; every operation is monotone."""
    quotient = jax.lax.optimization_barrier(total.astype(jnp.float64) / count.astype(jnp.float64))
    return jnp.clip(lower + quotient * step, lower, upper)


def rounding(lower: jax.Array, upper: jax.Array, dtype: np.dtype) -> jax.Array:
    """How much more than the means that they are rounded from two numbers of the dtype may differ."""
    return (float(jnp.finfo(dtype).eps) + 2.0**-50) * jnp.maximum(jnp.abs(lower), jnp.abs(upper))


def valid_arguments(trim: jax.Array, lower: jax.Array, upper: jax.Array, dtype: np.dtype) -> jax.Array:
    """Whether traced parameters are good."""
    return valid_ends(lower, upper, largest=largest_end(dtype)) & (trim >= 0.0) & (trim < 0.5)


def check_arguments(x: Any, trim: Any, lower: Any, upper: Any) -> tuple[Any, Any, Any, Any]:
    """The arguments, checked as far as they are concrete."""
    x, trim = _check.vector("x", x), _check.scalar("trim", trim)
    if not _check.is_traced(trim) and not 0.0 <= trim < 0.5:
        raise ValueError(f"trim must be in [0, 0.5), got {trim!r}")
    lower, upper = check_finite_ends(lower, upper, largest=largest_end(entry_dtype(x)))
    if np.shape(x)[0] > MAX_RECORDS:
        raise ValueError(f"x must have at most {MAX_RECORDS} records, got {np.shape(x)[0]}")
    return x, trim, lower, upper
