"""Order statistics: any quantile, the median, the smallest and the largest record."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64
from jaxdp.bounds._order import LOWER, UPPER, contribution, draw, rank_bounds, slack
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic


@statistic(
    draw=draw,
    call=lambda records, radius: quantile(*records, 0.3, LOWER, UPPER, radius=radius),
    contribution=contribution,
)
def quantile(x: Any, prob: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of a quantile: f(x) = x_(r), the r-th smallest of n records, with r = ceil(prob n), at least 1.

    U^l = x_(r+l) and L^l = x_(r-l), exact, with the range's ends beyond. It is the quantile of NumPy's method
    "inverted_cdf": the least record with at least a share `prob` of the records at or below it.

    Args:
        x: (n,) records, real.
        prob: Public share in [0, 1]; 0 is the minimum. A product prob n that is an integer up to rounding counts as
            that integer: r = ceil(prob n - min(4 eps prob n, 1/8)), eps that of its dtype (double unless traced).
        lower: Public range of the records, in which they are clamped. May be -inf.
        upper: Its upper end. May be inf: bounds that run out of records are then infinite.
        radius: Static number of replaced records up to which bounds are known; the last entries are `lower`, `upper`.

    Returns:
        OutputBounds, monotonic; entries in the dtype of x as JAX has it, float32 at least; sensitivity upper - lower.

    Raises:
        ValueError: For bad concrete arguments. Bad traced ones (a range that is empty or NaN, prob outside [0, 1])
            give NaN in all entries.

    Guarantee:
        The contract of OutputBounds for data sets of n records of which one is replaced, with no tolerance.
        Monotonic: raising a record lowers no entry. Source: Asi, Duchi (2020).

    Floating point:
        Sorting and clamping are exact; the cast to the dtype of the entries, the last step, is monotone. NaN counts
        as `lower`.

    Example:
        >>> b = jaxdp.bounds.quantile(np.array([1.0, 2.0, 4.0, 8.0, 9.0]), 0.8, 0.0, 10.0, radius=1)
        >>> b.lower.tolist(), b.upper.tolist()
        ([8.0, 4.0, 0.0], [8.0, 9.0, 10.0])
    """
    prob = _check.scalar("prob", prob)
    if not _check.is_traced(prob) and not 0.0 <= prob <= 1.0:
        raise ValueError(f"prob must be in [0, 1], got {prob!r}")
    return rank_bounds(x, _rank(prob, n=_length(x), slack=slack(prob)), lower, upper, radius=radius)


@statistic(
    draw=draw, call=lambda records, radius: median(*records, LOWER, UPPER, radius=radius), contribution=contribution
)
def median(x: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the median: f(x) = x_(r), r = ceil(n/2), the lower one of the two middle records where n is even.

    Arguments, guarantee and floating point are those of `quantile` with prob = 1/2.

    Example:
        >>> jaxdp.bounds.median(np.array([3, 1, 2, 7]), 0, 10, radius=1).upper.tolist()
        [2.0, 3.0, 10.0]
    """
    return rank_bounds(x, np.int32((_length(x) + 1) // 2), lower, upper, radius=radius)


@statistic(
    draw=draw, call=lambda records, radius: minimum(*records, LOWER, UPPER, radius=radius), contribution=contribution
)
def minimum(x: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the smallest record: U^l = x_(1+l), and L^l = lower for l >= 1.

    Arguments, guarantee and floating point are those of `quantile` with prob = 0.

    Example:
        >>> jaxdp.bounds.minimum(np.array([3.0, 1.0, 2.0]), 0.0, np.inf, radius=1).upper.tolist()
        [1.0, 2.0, inf]
    """
    return rank_bounds(x, np.int32(1), lower, upper, radius=radius)


@statistic(
    draw=draw, call=lambda records, radius: maximum(*records, LOWER, UPPER, radius=radius), contribution=contribution
)
def maximum(x: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the largest record: L^l = x_(n-l), and U^l = upper for l >= 1.

    Arguments, guarantee and floating point are those of `quantile` with prob = 1.

    Example:
        >>> jaxdp.bounds.maximum(np.array([3.0, 1.0, 2.0]), 0.0, np.inf, radius=1).lower.tolist()
        [3.0, 2.0, 0.0]
    """
    return rank_bounds(x, np.int32(_length(x)), lower, upper, radius=radius)


def _length(x: Any) -> int:
    return np.shape(_check.vector("x", x))[0]


@float64(static_argnames=("n", "slack"))
def _rank(prob: Any, *, n: int, slack: float) -> jax.Array:
    """int32 rank; 0 for a bad share."""
    prob = prob.astype(jnp.float64)
    share = prob * float(n)
    rank = jnp.clip(jnp.ceil(share - jnp.minimum(share * slack, 0.125)), 1.0, float(n))
    return jnp.where((prob >= 0.0) & (prob <= 1.0), rank, 0.0).astype(jnp.int32)
