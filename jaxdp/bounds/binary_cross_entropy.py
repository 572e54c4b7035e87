"""Output bounds of the mean binary cross-entropy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp.bounds import _losses
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic

_LIMIT = 4.0


def _draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    logits, labels = _losses.draw_logits(rng, (n,), _LIMIT), rng.integers(0, 2, n)
    if rng.random() < 0.3:
        # All sure, all right or all wrong: the ends of the loss.
        logits = np.where(labels == 1, _LIMIT, -_LIMIT) * rng.choice([-1.0, 1.0])
    return logits, labels


def _call(records: tuple, radius: int) -> OutputBounds:
    return binary_cross_entropy(*records, _LIMIT, radius=radius)


def _contribution(records: tuple) -> np.ndarray:
    logits, labels = records
    logits = np.clip(np.nan_to_num(np.asarray(logits, np.float64), nan=-_LIMIT), -_LIMIT, _LIMIT)
    return np.where(labels > 0, -logits, logits)


@statistic(draw=_draw, call=_call, contribution=_contribution)
def binary_cross_entropy(logits: Any, labels: Any, limit: Any, *, radius: int) -> OutputBounds:
    """Bounds of the mean binary cross-entropy from logits clamped to [-limit, limit].

    z = log(1 + e^(-logit)) for the label 1 and log(1 + e^logit) for 0, in [g, h] = [log1p(e^-limit), log1p(e^limit)].
    U^l = (sum of the n - l largest + l h) / n and L^l = (sum of the n - l smallest + l g) / n, exact.

    Args:
        logits: (n,) real.
        labels: (n,) 0 or 1, of any real or boolean dtype; what is above 0 counts as 1, all else (NaN) as 0. A record
            is the pair; n is public.
        limit: Public; the largest size of a logit.
        radius: Static; levels 0 to radius are kept. It may exceed n.

    Returns:
        OutputBounds in nats, monotonic, of sensitivity limit / n and the rounding of two entries. In double precision
        if the logits are and JAX has it, else float32.

    Raises:
        ValueError: For bad shapes and dtypes, and for a bad concrete limit (it must lie in [1e-6, 1e12]); a bad traced
            one gives NaN throughout.

    Guarantee:
        The contract of OutputBounds for data sets that differ in one replaced pair, and monotonicity in each record's
        loss, with no tolerance, between summaries that the same compiled program makes: another one (jit against
        vmap, another device) may round a record's exponential otherwise, and move an entry by one step of the grid.

    Floating point:
        Losses are computed in double precision, then as for `mean`: rounded to a public grid of 2^-30 of their range,
        and summed as integers. NaN in a logit counts as -limit.

    Example:
        >>> b = jaxdp.bounds.binary_cross_entropy(np.array([2.0, -1.0]), np.array([1, 0]), 4.0, radius=1)
        >>> print(np.asarray(b.lower).round(3), np.asarray(b.upper).round(3))
        [0.22  0.073 0.018] [0.22  2.166 4.018]
    """
    logits = _check.vector("logits", logits)
    labels = _losses.check_labels("labels", labels, floating=True)
    _losses.check_lengths(("logits", "labels"), logits, labels)
    dtype = _losses.entry_dtype(logits)
    limit = _losses.check_limit(limit)
    return _losses.bounds(_loss, (logits, labels), (limit,), radius=radius, dtype=dtype)


def _loss(logits: jax.Array, labels: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    limit = _losses.valid_limit(limit)
    logits = _losses.clamp(logits, -limit, limit)
    against = jnp.where(labels.astype(jnp.float64) > 0.0, -logits, logits)
    values = jnp.maximum(against, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(against)))
    least = jnp.log1p(jnp.exp(-limit))
    return values, least, limit + least
