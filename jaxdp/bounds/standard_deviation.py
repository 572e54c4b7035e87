"""Standard deviation: the root of the variance's bounds."""

from __future__ import annotations

from typing import Any

from jaxdp.bounds._order import LOWER, UPPER, draw
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic
from jaxdp.bounds.variance import bounds


@statistic(draw=draw, call=lambda records, radius: standard_deviation(*records, LOWER, UPPER, radius=radius))
def standard_deviation(x: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the standard deviation f(x) = sqrt(1/n sum (x_i - mean)^2).

    Arguments, cost and bad arguments are those of `variance`.

    Returns:
        OutputBounds, not monotonic; entries in the dtype of x as JAX has it, float32 at least; sensitivity
        (upper - lower) sqrt(n-1) / n and the entries' rounding.

    Guarantee:
        The contract of OutputBounds for data sets of n records of which one is replaced, with no tolerance: the root
        is increasing, so that it may be taken entry by entry. The sensitivity is exact: f is 1/sqrt(n) times a norm
        of the centred records, and centring shrinks a change of one record to sqrt(1 - 1/n) of it.

    Floating point:
        As for `variance`; the root is correctly rounded, hence monotone. The widening by l eta of a variance shows
        where lower bounds are tiny: below 2^-23 sqrt(l) of the width they are 0.

    Example:
        >>> b = jaxdp.bounds.standard_deviation(np.array([0.0, 0.0, 0.0, 4.0]), 0.0, 4.0, radius=1)
        >>> b.lower.tolist(), b.upper.tolist()
        ([1.7320507764816284, 0.0, 0.0], [1.7320507764816284, 2.0, 2.0])
    """
    return OutputBounds(*bounds(x, lower, upper, radius=radius, power=1))
