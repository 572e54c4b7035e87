"""What the statistics of sorted records share: checks, clamping, a fast sort, the bounds of one order statistic."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64
from jaxdp.bounds._losses import check_radius, draw_numbers, entry_dtype
from jaxdp.bounds._output_bounds import OutputBounds

LOWER, UPPER = -1.7, 50.3
"""The range of the contract tests; neither end is a short binary fraction."""


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray]:
    """Records for the contract tests, in and around [LOWER, UPPER]."""
    return (draw_numbers(rng, n, LOWER, UPPER),)


def contribution(records: tuple) -> np.ndarray:
    """Each record as the statistics see it."""
    x = np.asarray(records[0], np.float64)
    return np.clip(np.where(np.isnan(x), LOWER, x), LOWER, UPPER)


def clamp(x: jax.Array, lower: Any, upper: Any) -> jax.Array:
    """Records in float64, moved into the range; NaN to its lower end."""
    x = x.astype(jnp.float64)
    return jnp.where(x >= lower, jnp.minimum(x, upper), lower)


def sort(x: jax.Array) -> jax.Array:
    """Sorts float64 numbers without NaN by integers of the same order: XLA sorts these 5 to 10 times faster on CPUs."""
    bits = jnp.sort(_ordered_bits(jax.lax.bitcast_convert_type(x, jnp.int64)))
    return jax.lax.bitcast_convert_type(_ordered_bits(bits), jnp.float64)


def _ordered_bits(bits: jax.Array) -> jax.Array:
    """Its own inverse: the bits of negative numbers count backwards."""
    return jnp.where(bits < 0, bits ^ jnp.int64(2**63 - 1), bits)


def check_ends(lower: Any, upper: Any) -> tuple[Any, Any]:
    """A range; either end may be infinite."""
    lower, upper = _check.scalar("lower", lower), _check.scalar("upper", upper)
    for name, end in (("lower", lower), ("upper", upper)):
        if not _check.is_traced(end) and np.isnan(end):
            raise ValueError(f"{name} must be a number, got {end!r}")
    # Subnormal differences count as none, as they do in the compiled core.
    if not (_check.is_traced(lower) or _check.is_traced(upper)) and not upper - lower >= np.finfo(np.float64).tiny:
        raise ValueError(f"upper must be above lower, got lower={lower!r} and upper={upper!r}")
    return lower, upper


def check_finite_ends(lower: Any, upper: Any, *, largest: float) -> tuple[Any, Any]:
    """A range between -largest and largest, at least 1/largest wide."""
    lower, upper = check_ends(_check.finite("lower", lower), _check.finite("upper", upper))
    for name, end in (("lower", lower), ("upper", upper)):
        if not _check.is_traced(end) and abs(end) > largest:
            raise ValueError(f"{name} must be between -{largest:.3g} and {largest:.3g}, got {end!r}")
    if not (_check.is_traced(lower) or _check.is_traced(upper)) and upper - lower < 1.0 / largest:
        raise ValueError(f"upper must be at least {1.0 / largest:.3g} above lower, got {lower!r} and {upper!r}")
    return lower, upper


def valid_ends(lower: jax.Array, upper: jax.Array, *, largest: float) -> jax.Array:
    """The same for traced ends."""
    return (upper - lower >= 1.0 / largest) & (jnp.maximum(jnp.abs(lower), jnp.abs(upper)) <= largest)


def largest_end(dtype: np.dtype, power: int = 1) -> float:
    """The power-th powers of such numbers stay far from the dtype's limits."""
    return 2.0 ** ((400 if dtype.itemsize == 8 else 96) // power)


def slack(share: Any) -> float:
    """Relative rounding errors of a public share times n: an integer up to these counts as that integer."""
    traced = _check.is_traced(share) and jnp.issubdtype(share.dtype, jnp.floating)
    return 4.0 * float(jnp.finfo(share.dtype if traced else np.float64).eps)


def rank_bounds(x: Any, rank: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the rank-th smallest record, rank = 1, .., n."""
    x = _check.vector("x", x)
    lower, upper = check_ends(lower, upper)
    check_radius(radius)
    entries = _rank_bounds(x, rank, lower, upper, radius=radius, dtype=entry_dtype(x))
    return OutputBounds(*entries, monotonic=True)


@float64(static_argnames=("radius", "dtype"))
def _rank_bounds(
    x: Any, rank: Any, lower: Any, upper: Any, *, radius: int, dtype: np.dtype
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """With l records moved to the upper end it is the (rank + l)-th smallest of the others, or that end."""
    lower, upper = lower.astype(jnp.float64), upper.astype(jnp.float64)
    values, n = sort(clamp(x, lower, upper)), x.shape[0]
    shift = jnp.arange(radius + 1)
    up, down = rank.astype(jnp.int64) - 1 + shift, rank.astype(jnp.int64) - 1 - shift
    highest = jnp.where(up < n, values[jnp.minimum(up, n - 1)], upper)
    lowest = jnp.where(down >= 0, values[jnp.maximum(down, 0)], lower)
    ends = lower.astype(dtype), upper.astype(dtype)
    entries = jnp.append(lowest.astype(dtype), ends[0]), jnp.append(highest.astype(dtype), ends[1])
    sensitivity = round_up(difference(ends[1].astype(jnp.float64), ends[0].astype(jnp.float64)), dtype)
    valid = (upper - lower >= np.finfo(np.float64).tiny) & (rank >= 1) & (rank <= n)
    nan = jnp.full((), jnp.nan, dtype)
    return tuple(jnp.where(valid, entry, nan) for entry in (*entries, sensitivity))


def difference(high: jax.Array, low: jax.Array) -> jax.Array:
    """The number high - low, or a number just above it where that is not exact."""
    change = high - low
    exact = (low + change == high) & (high - change == low)
    return jnp.where(exact, change, change * (1.0 + float(jnp.finfo(change.dtype).eps)))


def round_up(value: jax.Array, dtype: np.dtype) -> jax.Array:
    """A number of the dtype that is not below a positive float64 number."""
    rounded = value.astype(dtype)
    above = rounded * (1.0 + float(jnp.finfo(dtype).eps))
    return jnp.where(rounded.astype(jnp.float64) < value, above, rounded)
