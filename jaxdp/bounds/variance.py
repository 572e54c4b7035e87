"""Variance, with exact lower bounds and nearly exact upper ones."""

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
    draw,
    largest_end,
    round_up,
    valid_ends,
)
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic

MAX_RECORDS = 2**27
"""Up to here the grid of the records is finer than 2^-24 of the range and the widening covers all errors."""

ETA = 2.0**-49
"""The widening of a level, for records in units of the power of two above the range's width."""


@statistic(draw=draw, call=lambda records, radius: variance(*records, LOWER, UPPER, radius=radius))
def variance(x: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the variance f(x) = 1/n sum (x_i - mean)^2.

    Lower bounds are exact: L^l = (n-l)/n times the least variance of n - l records that are neighbours in order
    (0 for l >= n-1). Upper bounds are at most (upper - lower)^2 / (4 n^2) above the exact ones.

    Args:
        x: (n,) records, real; n at most 2^27.
        lower: Public range of the records, in which they are clamped; finite.
        upper: Its upper end, finite.
        radius: Static number of replaced records up to which bounds are known; may exceed n. Time grows with
            n log n + radius^2. The last entries are 0 and the largest variance, floor(n/2) ceil(n/2) / n^2 width^2.

    Returns:
        OutputBounds, not monotonic; entries in the dtype of x as JAX has it, float32 at least; sensitivity
        (upper - lower)^2 (n-1) / n^2 and the entries' rounding.

    Raises:
        ValueError: For bad concrete arguments. A bad traced range gives NaN in all entries.

    Guarantee:
        The contract of OutputBounds for data sets of n records of which one is replaced, with no tolerance.
        Lower bounds: l records that join the mean of the others leave (n-l)/n of their variance, the least possible;
        it is least for neighbours in order, since an end moves inwards if it gives way to a point in between.
        Upper bounds, on [0, 1] with S1, S2 the sums of the kept y, y^2: the variance is convex in each record, so
        that replaced ones belong at the ends, m of them at 1, and a kept record between two removed ones can be
        exchanged with one of these. So these are neighbours in order too, and n^2 f = n (S2 + m) - (S1 + m)^2 is
        concave in m: exact, window by window. (Durfee (2023) knows no efficient exact method; superseded.) What is
        computed has a real m, at most 1/2 from the integer one: at most 1/4 larger. It obeys the contract, since by
        convexity in the replaced record it is at most the same with l + 1 records at the ends, and it rises to one
        peak over the windows and falls again, so that bisection finds it.
        The sensitivity is exact: f = (n-1)/n^2 (x_i - mean of the others)^2 + what does not depend on x_i.

    Floating point:
        Records are put on a public grid, the power of two between 2^-k and 2^-k-1 of the width, k = 52 - ceil(log2 n)
        (integers lie on it unless the width is huge). Sums of records are exact in float64, and so is the search for
        the peak. With w the power of two above the width, errors of entries are below eta/2, eta = 2^-49 w^2: level l
        is widened by l eta, which the contract needs, then clipped to the extremes. f(x) is not widened, and exact up
        to a relative 2^-49. NaN counts as `lower`.

    Example:
        >>> b = jaxdp.bounds.variance(np.array([0.0, 0.0, 0.0, 4.0]), 0.0, 4.0, radius=1)
        >>> b.lower.tolist(), b.upper.tolist()
        ([3.0, 0.0, 0.0], [3.0, 4.0, 4.0])
    """
    return OutputBounds(*bounds(x, lower, upper, radius=radius, power=2))


def bounds(x: Any, lower: Any, upper: Any, *, radius: int, power: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Lower and upper bounds and sensitivity: of the variance (power 2) or its root (power 1)."""
    x = _check.vector("x", x)
    dtype = entry_dtype(x)
    lower, upper = check_finite_ends(lower, upper, largest=largest_end(dtype, 2))
    check_radius(radius)
    if np.shape(x)[0] > MAX_RECORDS:
        raise ValueError(f"x must have at most {MAX_RECORDS} records, got {np.shape(x)[0]}")
    return _bounds(x, lower, upper, radius=radius, power=power, dtype=dtype)


@float64(static_argnames=("radius", "power", "dtype"))
def _bounds(
    x: Any, lower: Any, upper: Any, *, radius: int, power: int, dtype: np.dtype
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Everything in units of the power of two above the width, until the last lines."""
    lower, upper, n = lower.astype(jnp.float64), upper.astype(jnp.float64), x.shape[0]
    unit = 2.0 * power_of_two(upper - lower)
    grid = 2.0 ** (52 - (n - 1).bit_length())
    top = jnp.rint((upper - lower) / unit * grid)
    # Twice the distance from the middle of the range, an integer; so is every sum of n of them, below 2^53. XLA
    # sorts integers 5 to 10 times faster than floats on CPUs.
    doubled = 2.0 * jnp.rint((clamp(x, lower, upper) - lower) / unit * grid) - top
    ordered = jnp.sort(doubled.astype(jnp.int64))
    half_step, width = 0.5 / grid, top / grid

    kept = min(radius, n - 1)
    low, high = _levels(ordered, half_step, width, kept)
    widening = ETA * jnp.arange(kept + 1.0)
    most = float((n // 2) * ((n + 1) // 2)) / float(n) ** 2 * (width * width)
    # One running maximum for both: it takes a tenth of the compilation.
    both = jnp.stack([-jnp.clip(low - widening, 0.0, most), jnp.clip(high + widening, 0.0, most)])
    low, high = jax.lax.cummax(both, axis=1)
    low = jnp.append(-low, jnp.zeros(radius + 1 - kept))
    high = jnp.append(high, jnp.full(radius + 1 - kept, most))

    # From here on every operation is monotone. Sensitivity: numbers that are rounded to the dtype, or of which tiny
    # ones are flushed, differ by more than what they are rounded from; the root has Lipschitz constant 1/sqrt(n)
    # for distances after centring.
    change = float(n - 1) / float(n) ** 2 * (width * width)
    scale = unit * unit
    if power == 1:
        low, high, most, change, scale = jnp.sqrt(low), jnp.sqrt(high), jnp.sqrt(most), jnp.sqrt(change), unit
    rounding = float(jnp.finfo(dtype).eps) * most + 2.0 * ETA
    sensitivity = round_up((change + rounding) * scale + float(jnp.finfo(dtype).tiny), dtype)
    valid = valid_ends(lower, upper, largest=largest_end(dtype, 2))
    nan = jnp.full((), jnp.nan, dtype)
    entries = (low * scale).astype(dtype), (high * scale).astype(dtype), sensitivity
    return tuple(jnp.where(valid, entry, nan) for entry in entries)


def _levels(ordered: jax.Array, step: float, width: jax.Array, kept: int) -> tuple[jax.Array, jax.Array]:
    """(kept + 1,) lower and upper bounds with rounding errors, not widened; the records are ordered * step."""
    low = _least(ordered, step, kept)
    return low, jnp.append(low[:1], _largest(ordered, step, width, kept))


def _least(ordered: jax.Array, step: float, kept: int) -> jax.Array:
    """(kept + 1,) least value after removing s records at the bottom and l - s at the top, over s, for each l."""
    n = ordered.shape[0]
    # Centred: the value at level 0 is as accurate as its size allows, and 0 for constant records.
    centre = jnp.rint(jnp.sum(ordered).astype(jnp.float64) / n).astype(jnp.int64)
    d = (ordered - centre).astype(jnp.float64) * step
    both, both_squares = _prefix_sums(jnp.stack([d[:kept], d[n - kept :][::-1]]), step)
    (bottom, top), (bottom_squares, top_squares) = both, both_squares
    coarse, fine = _squares(d, step)
    total, squares = jnp.sum(d) - bottom, jnp.sum(coarse) + jnp.sum(fine) - bottom_squares
    shares = 1.0 / (n - jnp.arange(kept + 1.0))
    # Row s has levels l = s, s + 1, ..: the sums of the top, moved by s; +inf where s is above l.
    top, top_squares = jnp.pad(top, (kept, 0)), jnp.pad(top_squares, (kept, 0), constant_values=-jnp.inf)

    def row(s: jax.Array, least: jax.Array) -> jax.Array:
        sums = total[s] - jax.lax.dynamic_slice_in_dim(top, kept - s, kept + 1)
        around = squares[s] - jax.lax.dynamic_slice_in_dim(top_squares, kept - s, kept + 1)
        return jnp.minimum(least, around - sums * sums * shares)

    # All rows, since a level may have many dips. Unrolled, so that what is least stays in registers for some rows.
    least = jax.lax.fori_loop(0, kept + 1, row, jnp.full_like(bottom, jnp.inf), unroll=min(8, kept + 1))
    return least / n


def _largest(ordered: jax.Array, step: float, width: jax.Array, kept: int) -> jax.Array:
    """(kept,) largest value for l = 1, .., kept records anywhere in the range, a real number of them at its ends.

    With z in [-width/2, width/2] and S1, S2 the sums of the kept z and z^2, n^2 times the value is
    n (S2 + l width^2/4) - rest^2: the replaced ones bring the sum S1 as close to 0 as l width/2 allows.
    """
    n = ordered.shape[0]
    z = ordered.astype(jnp.float64) * step
    sums, squares = _prefix_sums(z, step)
    removed = jnp.arange(1, kept + 1)
    reach, brought = (each * removed.astype(jnp.float64) for each in (0.5 * width, 0.25 * width * width))

    def rest(total: jax.Array) -> jax.Array:
        return jnp.sign(total) * jnp.maximum(jnp.abs(total) - reach, 0.0)

    def value(w: jax.Array) -> jax.Array:
        w = jnp.clip(w, 0, n - removed)
        total, total_squares = (table[-1] - (table[w + removed] - table[w]) for table in (sums, squares))
        return n * (total_squares + brought) - jnp.square(rest(total))

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Where the value rises from a window of removed records, from w on, to the next, the peak is later. Exact."""
        first, last = ends
        w = (first + last) // 2
        enters, leaves = z[w], z[jnp.minimum(w + removed, n - 1)]
        total = sums[-1] - (sums[w + removed] - sums[w])
        rising = n * (enters + leaves) < rest(total) + rest(total + (enters - leaves))
        return jnp.where(rising, jnp.minimum(w + 1, last), first), jnp.where(rising, last, w)

    start = jnp.zeros_like(ordered[:kept])
    peak, _ = jax.lax.fori_loop(0, n.bit_length(), halve, (start, start + (n - removed)))
    # Where `rest` is cut off at 0 the slope's sign can be off by one window; in exact arithmetic never by more.
    return jnp.maximum(jnp.maximum(value(peak - 1), value(peak + 1)), value(peak)) / float(n) ** 2


def _squares(z: jax.Array, step: float) -> tuple[jax.Array, jax.Array]:
    """z^2 as a multiple of the step, whose sums are exact, and the small rest."""
    squares = z * z
    coarse = jnp.rint(squares / step) * step
    return coarse, squares - coarse


def _prefix_sums(z: jax.Array, step: float) -> tuple[jax.Array, jax.Array]:
    """Sums of the first 0, 1, .. numbers on the last axis, exact in any order, and of their squares."""
    z = jnp.pad(z, [(0, 0)] * (z.ndim - 1) + [(1, 0)])
    total, coarse, fine = jnp.cumsum(jnp.stack([z, *_squares(z, step)]), axis=-1)
    return total, coarse + fine
