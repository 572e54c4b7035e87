"""Exact stability of the median, quantiles and trimmed means: means of a window of sorted records."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64, read
from jaxdp._stability import check_proposal, leaf_dtype, settle
from jaxdp.bounds._losses import entry_dtype
from jaxdp.bounds._order import check_ends, clamp, slack, sort
from jaxdp.bounds.quantile import _rank
from jaxdp.bounds.trimmed_mean import check_arguments, mean_of, on_grid, rounding, valid_arguments
from jaxdp.types import Stability


def quantile_stability(x: Any, prob: Any, lower: Any, upper: Any, proposal: Any) -> Stability:
    """Exact stability of the quantile of `bounds.quantile`: f(x) = x_(r), r = ceil(prob n).

    With X_(j) the sorted records, `lower` for j < 1 and `upper` for j > n, data sets at distance l reach a local
    sensitivity of max over s = r-1-l, .., r of X_(s+1+l) - X_(s), and no more. d is the least l where that exceeds b.

    Args:
        x: (n,) records, real.
        prob: Public share in [0, 1].
        lower: Public range of the records, in which they are clamped. May be -inf.
        upper: Its upper end. May be inf.
        proposal: Public bound b on the change of the quantile; a number >= 0 in its units.

    Returns:
        Stability: value in the dtype of x as JAX has it, float32 at least; int32 distance, n + 1 if no data set moves
        by more than b; proposal in float64 (traced: JAX's default), NaN if traced arguments are bad.

    Raises:
        ValueError: For bad concrete arguments.

    Guarantee:
        The contract of Stability for data sets of n records of which one is replaced.

    Floating point:
        Records are clamped, sorted and cast to the dtype of the value; differences are rounded once, in float64. All of
        it is monotone, so that distances of neighbours differ by at most 1 with no tolerance.

    Example:
        >>> summary = jaxdp.quantile_stability(np.array([1.0, 4.0, 5.0, 6.0, 9.0]), 0.5, 0.0, 10.0, 3.5)
        >>> float(summary.value), int(summary.distance)
        (5.0, 1)
    """
    x, prob = _check.vector("x", x), _check.share("prob", prob)
    n = np.shape(x)[0]
    return _order_statistic(x, _rank(prob, n=n, slack=slack(prob)), lower, upper, proposal)


def median_stability(x: Any, lower: Any, upper: Any, proposal: Any) -> Stability:
    """Exact stability of the median of `bounds.median`: f(x) = x_(r), r = ceil(n / 2).

    Arguments, guarantee and floating point are those of `quantile_stability` with prob = 1/2.

    Example:
        >>> int(jaxdp.median_stability(np.array([4.0, 5.0, 5.0, 5.0, 6.0]), 0.0, 10.0, 1.5).distance)
        2
    """
    x = _check.vector("x", x)
    n = np.shape(x)[0]
    return _order_statistic(x, np.int32((n + 1) // 2), lower, upper, proposal)


def trimmed_mean_stability(x: Any, trim: Any, lower: Any, upper: Any, proposal: Any) -> Stability:
    """Exact stability of the trimmed mean of `bounds.trimmed_mean`: the mean of X_(k+1), .., X_(n-k).

    k = floor(trim n). With w = n - 2 k records in the window, data sets at distance l reach a local sensitivity of max
    over s = k-l, .., k+1 of (X_(s+w+l) - X_(s)) / w, and no more. d is the least l where that exceeds b, up to rounding
    (below).

    Args:
        x: (n,) records, real.
        trim: Public share in [0, 1/2) cut off at each side.
        lower: Public range of the records, in which they are clamped; finite.
        upper: Its upper end, finite.
        proposal: Public bound b on the change of the mean; a number >= 0 in its units.

    Returns:
        Stability, as of `quantile_stability`; the value is that of `bounds.trimmed_mean`.

    Raises:
        ValueError: For bad concrete arguments.

    Guarantee:
        The contract of Stability for data sets of n records of which one is replaced.

    Floating point:
        Records are put on the public grid of `bounds.trimmed_mean` and compared as integers, so that distances of
        neighbours differ by at most 1 with no tolerance. The mean is rounded after that: changes above b - (eps +
        2^-50) max(|lower|, |upper|), eps that of its dtype, count as above b, unless the sum does not change at all.

    Example:
        >>> x = np.array([1.0, 4.0, 5.0, 6.0, 9.0])
        >>> [int(jaxdp.trimmed_mean_stability(x, 0.2, 0.0, 10.0, b).distance) for b in (1.5, 2.0, 4.0)]
        [0, 1, 6]
    """
    x, trim, lower, upper = check_arguments(x, trim, lower, upper)
    proposal, dtype = check_proposal(proposal), entry_dtype(x)
    leaf = leaf_dtype(x, trim, lower, upper, proposal)
    parts = _trimmed_mean(x, trim, lower, upper, proposal, dtype=dtype, leaf=leaf, slack=slack(trim))
    return Stability(*map(read, parts))


def _order_statistic(x: Any, rank: Any, lower: Any, upper: Any, proposal: Any) -> Stability:
    proposal = check_proposal(proposal)
    lower, upper = check_ends(lower, upper)
    leaf = leaf_dtype(x, rank, lower, upper, proposal)
    return Stability(*map(read, _rank_stability(x, rank, lower, upper, proposal, dtype=entry_dtype(x), leaf=leaf)))


@float64(static_argnames=("dtype", "leaf"))
def _rank_stability(
    x: Any, rank: Any, lower: Any, upper: Any, proposal: Any, *, dtype: np.dtype, leaf: np.dtype
) -> tuple[jax.Array, jax.Array, jax.Array]:
    lower, upper = lower.astype(jnp.float64), upper.astype(jnp.float64)
    values = sort(clamp(x, lower, upper))
    valid = (upper - lower >= np.finfo(np.float64).tiny) & (rank >= 1) & (rank <= x.shape[0])
    number, proposal = settle(proposal, valid, leaf)
    records = jnp.concatenate([lower[None], values, upper[None]]).astype(dtype)
    before = jnp.clip(rank.astype(jnp.int32) - 1, 0, x.shape[0] - 1)
    value = jnp.where(valid, records[before + 1], jnp.full((), jnp.nan, dtype))
    return value, _distance(records.astype(jnp.float64), before, jnp.int32(1), number), proposal


@float64(static_argnames=("dtype", "leaf", "slack"))
def _trimmed_mean(
    x: Any, trim: Any, lower: Any, upper: Any, proposal: Any, *, dtype: np.dtype, leaf: np.dtype, slack: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    trim, lower, upper = (value.astype(jnp.float64) for value in (trim, lower, upper))
    n = x.shape[0]
    ordered, step, top, cut = on_grid(x, trim, lower, upper, slack)
    cut = cut.astype(jnp.int32)
    window = n - 2 * cut
    place = jax.lax.iota(jnp.int32, n)
    total = jnp.sum(jnp.where((place >= cut) & (place < cut + window), ordered, 0))
    value = mean_of(total, window, step, lower, upper).astype(dtype)

    valid = valid_arguments(trim, lower, upper, dtype)
    number, proposal = settle(proposal, valid, leaf)
    # The most that sums may move; sums that do not move give the same value.
    width = window.astype(jnp.float64)
    most = jnp.floor(width * (number - rounding(lower, upper, dtype)) / step)
    most = jnp.clip(most, 0.0, 2.0**62)
    records = jnp.concatenate([jnp.zeros_like(ordered[:1]), ordered, top[None].astype(jnp.int64)])
    distance = _distance(records, cut, window, jnp.where(valid, most, 0.0).astype(jnp.int64))
    return jnp.where(valid, value, jnp.full_like(value, jnp.nan)), distance, proposal


def _distance(records: jax.Array, before: jax.Array, window: jax.Array, most: jax.Array) -> jax.Array:
    """The least l with records[s + window + l] - records[s] > most for an s in before - l, .., before + 1.

    `records` has both ends of the range around the n sorted ones. For each s the first j > s that is too far above it
    gives l >= j - s - window, and s is in reach if l >= before - s. An s < 0 reaches no further than s = 0.
    """
    size = records.shape[0]
    s = jax.lax.iota(jnp.int32, size)
    first = _first_beyond(records, most)
    least = jnp.maximum(jnp.maximum(first - s - window, before - s), 0)
    # n + 1 is never reached by another s: n replacements lead everywhere.
    least = jnp.where((first < size) & (s <= before + 1), least, size - 1)
    return jnp.min(least).astype(jnp.int32)


def _first_beyond(records: jax.Array, most: jax.Array) -> jax.Array:
    """For each s the first j > s with records[j] - records[s] > most, the number of records if there is none."""
    size = records.shape[0]
    s = jax.lax.iota(jnp.int32, size) + jnp.zeros_like(records, jnp.int32)

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) // 2
        # Subtraction is monotone; the comparison with records[s] + most would not be the same one.
        beyond = records[jnp.minimum(middle, size - 1)] - records > most
        open_ = low < high
        return jnp.where(open_ & ~beyond, middle + 1, low), jnp.where(open_ & beyond, middle, high)

    low, _ = jax.lax.fori_loop(0, size.bit_length() + 1, halve, (s + 1, jnp.full_like(s, size)))
    return low
