"""What the mechanisms that select one of n candidates by their scores share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check

_LARGEST = 1e300


def check(record: Any) -> None:
    """Checks sensitivity, epsilon and monotonic of a record."""
    _check.positive("sensitivity", record.sensitivity)
    _check.positive("epsilon", record.epsilon)
    _check.flag("monotonic", record.monotonic)


def split(summary: Any) -> tuple[Any, Any]:
    """Scores and log base measure, from scores alone or from a pair."""
    if not isinstance(summary, (tuple, list)) or all(np.ndim(part) == 0 for part in summary):
        scores = _check.vector("scores", summary)
        return scores, np.zeros(np.shape(scores))
    if len(summary) != 2:
        raise ValueError(f"scores must be an array or a pair (scores, log_base), got {len(summary)} parts")
    scores, log_base = _check.vector("scores", summary[0]), _check.vector("log_base", summary[1])
    if np.shape(scores) != np.shape(log_base):
        raise ValueError(f"log_base must have the shape of scores, {np.shape(scores)}, got {np.shape(log_base)}")
    if not _check.is_traced(log_base):
        base = np.asarray(log_base, dtype=np.float64)
        if np.any(np.isnan(base)) or np.any(base == np.inf) or np.all(base == -np.inf):
            raise ValueError(f"log_base must not be NaN or +inf, nor -inf throughout, got {log_base!r}")
    return scores, log_base


def logits(scores: Any, sensitivity: Any, epsilon: Any, monotonic: bool) -> jax.Array:
    """Factor (score - largest score), float64; NaN for bad parameters. For use inside a float64 core."""
    scores, sensitivity, epsilon = (x.astype(jnp.float64) for x in (scores, sensitivity, epsilon))
    scores = jnp.clip(jnp.where(jnp.isnan(scores), -_LARGEST, scores), -_LARGEST, _LARGEST)
    valid = (epsilon > 0.0) & (epsilon < jnp.inf) & (sensitivity > 0.0) & (sensitivity < jnp.inf)
    factor = jnp.where(valid, epsilon / sensitivity * (1.0 if monotonic else 0.5), jnp.nan)
    return factor * (scores - jnp.max(scores))


def worst_case(record: Any, n: int) -> tuple[Any, Any]:
    """The first candidate falls, or stays behind, where all others rise."""
    scores = np.zeros(n)
    first = np.arange(n) == 0
    return scores, np.where(first, 0.0 if record.monotonic else -1.0, 1.0) * record.sensitivity


def neighbours(record: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Random scores of n = 2 to 12 candidates, some tied, and neighbours of them."""
    n = rng.integers(2, 13)
    scores = rng.normal(scale=3.0 * record.sensitivity, size=n) * (rng.random(n) < 0.7)
    change = rng.uniform(0.0, 1.0, n).round(rng.integers(0, 3))
    if not record.monotonic:
        change = change * rng.choice([-1.0, 1.0], n)
    return scores, scores + record.sensitivity * change * rng.choice([-1.0, 1.0])
