"""Output bounds of the accuracy, one minus the 0/1 loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.bounds import _losses
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic


def _draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    predictions, labels = rng.integers(-1, rng.integers(1, 9), (2, n))
    right = rng.random(n) < rng.choice([0.0, 0.5, 0.99, 1.0])
    return np.where(right, labels, predictions), labels


def _call(records: tuple, radius: int) -> OutputBounds:
    return accuracy(*records, radius=radius)


def _contribution(records: tuple) -> np.ndarray:
    return np.equal(*records).astype(np.float64)


@statistic(draw=_draw, call=_call, contribution=_contribution)
def accuracy(predictions: Any, labels: Any, *, radius: int) -> OutputBounds:
    """Bounds of the share of records whose predicted label is the true one.

    With m right among n: U^l = min(m + l, n) / n and L^l = max(m - l, 0) / n, exact.

    Args:
        predictions: (n,) integer or boolean, the predicted labels (jnp.argmax(logits, -1) for logits).
        labels: (n,) integer or boolean, the true labels. A record is the pair; n is public. (If only `right` is
            known, which records are right, the call is accuracy(right, np.ones(n, bool), radius=..).)
        radius: Static; levels 0 to radius are kept. It may exceed n.

    Returns:
        OutputBounds, monotonic, of sensitivity 1 / n and the rounding of two entries. In JAX's default float dtype.

    Raises:
        ValueError: For bad shapes, dtypes or radius.

    Guarantee:
        The contract of OutputBounds for data sets that differ in one replaced pair, and monotonicity in each
        record's being right, with no tolerance.

    Floating point:
        Counts are integers, and each entry is their ratio rounded to the entry's dtype.

    Example:
        >>> b = jaxdp.bounds.accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 2, 0]), radius=2)
        >>> b.lower.tolist(), b.upper.tolist()
        ([0.75, 0.5, 0.25, 0.0], [0.75, 1.0, 1.0, 1.0])
    """
    predictions = _losses.check_labels("predictions", predictions)
    labels = _losses.check_labels("labels", labels)
    _losses.check_lengths(("predictions", "labels"), predictions, labels)
    dtype = _losses.entry_dtype()
    return _losses.bounds(_right, (predictions, labels), (), radius=radius, dtype=dtype)


def _right(predictions: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    right = predictions.astype(jnp.int64) == labels.astype(jnp.int64)
    return right.astype(jnp.float64), jnp.zeros(()), jnp.ones(())
