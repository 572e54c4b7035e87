"""Output bounds of the sum."""

from __future__ import annotations

from typing import Any

from jaxdp import _check
from jaxdp.bounds import _losses
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic
from jaxdp.bounds.mean import RANGE, contribution, draw, loss


def _call(records: tuple, radius: int) -> OutputBounds:
    return sum(*records, *RANGE, radius=radius)


@statistic(draw=draw, call=_call, contribution=contribution)
def sum(x: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the sum of x, clamped to [lower, upper].

    U^l = sum of the n - l largest + l upper and L^l = sum of the n - l smallest + l lower, exact.

    Args:
        x: (n,) real, one number a record; n is public.
        lower: Public lower end of the records, finite; in the units of x, like all that follows.
        upper: Public upper end. math.inf (not traced) is allowed: U^l is infinite then for l >= 1 and the
            sensitivity too, which suits AsymmetricSensitivity.
        radius: Static; levels 0 to radius are kept. It may exceed n.

    Returns:
        OutputBounds, monotonic, of sensitivity upper - lower and the rounding of two entries. In double precision if
        x is and JAX has it, else float32.

    Raises:
        ValueError: For a bad shape or dtype of x, and for bad concrete parameters. Bad traced ones (also a traced
            infinite upper end) give NaN throughout.

    Guarantee:
        The contract of OutputBounds for x, x' that differ in one replaced record, and monotonicity in each record,
        with no tolerance.

    Floating point:
        As for `mean`: records are rounded to a public grid of 2^-30 of the range and summed as integers, so each of
        them adds an error of 2^-31 of the range at most.

    Example:
        >>> b = jaxdp.bounds.sum(np.array([1, 2, 4, 5]), 0, 8, radius=2)
        >>> b.lower.tolist(), b.upper.tolist()
        ([12.0, 7.0, 3.0, 0.0], [12.0, 19.0, 25.0, 32.0])
    """
    x = _check.vector("x", x)
    dtype = _losses.entry_dtype(x)
    lower, upper, unbounded = _losses.check_range(lower, upper, dtype=dtype)
    return _losses.bounds(loss, (x,), (lower, upper), radius=radius, dtype=dtype, total=True, unbounded=unbounded)
