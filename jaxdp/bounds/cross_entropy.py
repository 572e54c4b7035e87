"""Output bounds of the mean cross-entropy of K classes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp.bounds import _losses
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic

_LIMIT, _CLASSES = 3.0, 3


def _draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    logits = _losses.draw_logits(rng, (n, _CLASSES), _LIMIT)
    labels = rng.integers(-1, _CLASSES + 1, n)
    if rng.random() < 0.3:
        # All sure, all right or all wrong: the ends of the loss.
        sure = np.where(np.arange(_CLASSES) == labels[:, None], _LIMIT, -_LIMIT)
        logits = sure * rng.choice([-1.0, 1.0])
    return logits, labels


def _call(records: tuple, radius: int) -> OutputBounds:
    return cross_entropy(*records, _LIMIT, radius=radius)


def _contribution(records: tuple) -> np.ndarray:
    logits, labels = records
    logits = np.clip(np.nan_to_num(np.asarray(logits, np.float64), nan=-_LIMIT), -_LIMIT, _LIMIT)
    chosen = logits[np.arange(len(labels)), np.clip(labels, 0, _CLASSES - 1)]
    # Losses closer than the differences between two ways to compute them count as equal.
    return np.round(np.log(np.sum(np.exp(logits - chosen[:, None]), axis=1)), 7)


@statistic(draw=_draw, call=_call, contribution=_contribution)
def cross_entropy(logits: Any, labels: Any, limit: Any, *, radius: int) -> OutputBounds:
    """Bounds of the mean cross-entropy from logits clamped to [-limit, limit].

    z = log(sum_k e^(logit_k)) - logit_label lies in [g, h], with c = limit: g = log1p((K - 1) e^(-2c)) and
    h = 2c + log(K - 1) + log1p(e^(-2c) / (K - 1)). U^l = (sum of the n - l largest + l h) / n and
    L^l = (sum of the n - l smallest + l g) / n, exact.

    Args:
        logits: (n, K) real, K >= 2.
        labels: (n,) integer in 0, .., K - 1; others count as the nearest of these. A record is a row of logits and
            its label; n and K are public.
        limit: Public; the largest size of a logit.
        radius: Static; levels 0 to radius are kept. It may exceed n.

    Returns:
        OutputBounds in nats, monotonic, of sensitivity (h - g) / n and the rounding of two entries. In double
        precision if the logits are and JAX has it, else float32.

    Raises:
        ValueError: For bad shapes and dtypes, and for a bad concrete limit (it must lie in [1e-6, 1e12]); a bad traced
            one gives NaN throughout.

    Guarantee:
        The contract of OutputBounds for data sets that differ in one replaced record, and monotonicity in each
        record's loss, with no tolerance, between summaries that the same compiled program makes: another one (jit
        against vmap, another device) may round a record's exponentials otherwise, and move an entry by one step of
        the grid.

    Floating point:
        Losses are computed in double precision, then as for `mean`: rounded to a public grid of 2^-30 of their range,
        and summed as integers. NaN in a logit counts as -limit.

    Example:
        >>> b = jaxdp.bounds.cross_entropy(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([0, 1]), 4.0, radius=1)
        >>> print(np.asarray(b.lower).round(3), np.asarray(b.upper).round(3))
        [0.41  0.064 0.   ] [0.41  4.347 8.   ]
    """
    _check.real_dtype("logits", logits)
    if np.ndim(logits) != 2 or np.shape(logits)[0] == 0 or np.shape(logits)[1] < 2:
        raise ValueError(f"logits must have shape (n, K) with n >= 1 and K >= 2, got {np.shape(logits)}")
    logits = logits if isinstance(logits, (np.ndarray, jax.Array)) else np.asarray(logits)
    labels = _losses.check_labels("labels", labels)
    _losses.check_lengths(("logits", "labels"), logits, labels)
    dtype = _losses.entry_dtype(logits)
    limit = _losses.check_limit(limit)
    return _losses.bounds(_loss, (logits, labels), (limit,), radius=radius, dtype=dtype)


def _loss(logits: jax.Array, labels: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    limit = _losses.valid_limit(limit)
    classes = logits.shape[1]
    logits = _losses.clamp(logits, -limit, limit)
    index = jnp.clip(labels.astype(jnp.int64), 0, classes - 1)
    chosen = jnp.take_along_axis(logits, index[:, None], axis=1)
    largest = jnp.max(logits, axis=1, keepdims=True)
    values = jnp.log(jnp.sum(jnp.exp(logits - largest), axis=1)) + (largest - chosen)[:, 0]
    unlikely, others = jnp.exp(-2.0 * limit), classes - 1.0
    return values, jnp.log1p(others * unlikely), 2.0 * limit + jnp.log(others) + jnp.log1p(unlikely / others)
