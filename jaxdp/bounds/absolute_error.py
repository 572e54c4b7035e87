"""Output bounds of the mean absolute error."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.bounds import _losses
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic

_RANGE = (-1.0, 2.3)


def _draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return _losses.draw_pairs(rng, n, *_RANGE)


def _call(records: tuple, radius: int) -> OutputBounds:
    return absolute_error(*records, *_RANGE, radius=radius)


def _contribution(records: tuple) -> np.ndarray:
    lower, upper = _RANGE
    prediction, target = (np.clip(np.nan_to_num(np.asarray(r, np.float64), nan=lower), lower, upper) for r in records)
    return np.abs(prediction - target)


@statistic(draw=_draw, call=_call, contribution=_contribution)
def absolute_error(predictions: Any, targets: Any, lower: Any, upper: Any, *, radius: int) -> OutputBounds:
    """Bounds of the mean absolute error of predictions, both clamped to [lower, upper].

    With losses z_i = |prediction - target|, at most h = upper - lower: U^l = (sum of the n - l largest + l h) / n and
    L^l = (sum of the n - l smallest) / n, exact.

    Args:
        predictions: (n,) real.
        targets: (n,) real. A record is the pair; n is public.
        lower: Public lower end of both, finite; in their units.
        upper: Public upper end of both. math.inf (not traced) is allowed: U^l is infinite then for l >= 1 and the
            sensitivity too, which suits AsymmetricSensitivity.
        radius: Static; levels 0 to radius are kept. It may exceed n.

    Returns:
        OutputBounds, monotonic, of sensitivity h / n and the rounding of two entries. In double precision if
        predictions or targets are and JAX has it, else float32.

    Raises:
        ValueError: For bad shapes and dtypes, and for bad concrete parameters. Bad traced ones (also a traced infinite
            upper end) give NaN throughout.

    Guarantee:
        The contract of OutputBounds for data sets that differ in one replaced pair, and monotonicity in each record's
        loss, with no tolerance.

    Floating point:
        Losses are computed in double precision, then as for `mean`: rounded to a public grid of 2^-30 of their range,
        and summed as integers. NaN in a prediction or target counts as lower. With an infinite upper end sums are
        double precision, and level l is lowered by a factor 1 - l eta, eta = 2^-50 n (up to a factor 2).

    Example:
        >>> predictions, targets = np.array([1.0, 2.0, 4.0, 5.0]), np.array([1.0, 2.0, 2.0, 4.0])
        >>> b = jaxdp.bounds.absolute_error(predictions, targets, 0.0, 8.0, radius=2)
        >>> b.lower.tolist(), b.upper.tolist()
        ([0.75, 0.25, 0.0, 0.0], [0.75, 2.75, 4.75, 8.0])
    """
    names = "predictions", "targets"
    predictions, targets = _losses.check_pair(names, predictions, targets)
    dtype = _losses.entry_dtype(predictions, targets)
    lower, upper, unbounded = _losses.check_range(lower, upper, dtype=dtype)
    records, ends = (predictions, targets), (lower, upper)
    return _losses.bounds(_loss, records, ends, radius=radius, dtype=dtype, unbounded=unbounded)


def _loss(
    predictions: jax.Array, targets: jax.Array, lower: jax.Array, upper: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    error = _losses.clamp(predictions, lower, upper) - _losses.clamp(targets, lower, upper)
    width = _losses.width(lower, upper)
    return jnp.abs(error), jnp.abs(0.0 * lower), width
